"""Latent Dirichlet allocation beside scikit-learn's on the AP corpus: CPU seconds for the same number of passes.

PROVI_DATA=... python benchmarks/lda_speed.py [file for the record, JSON]
"""

import json
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.decomposition import LatentDirichletAllocation as Theirs

import provi
from provi.models import LatentDirichletAllocation as Ours

TOPICS, PASSES, ALPHA, ETA = 10, 10, 0.1, 0.01


def main() -> None:
    """Full-batch passes, the same priors; ours once with compilation and once without."""
    arrays = provi.data.load("ap_corpus").arrays
    shape = (len(arrays["indptr"]) - 1, len(arrays["vocab"]))
    counts = csr_matrix((arrays["count"].astype(float), arrays["word_id"], arrays["indptr"]), shape)
    rows = []

    def timed(name: str, model) -> None:
        began, wall = time.process_time(), time.perf_counter()
        model.fit(counts)
        row = {"method": name, "cpu_seconds": time.process_time() - began, "wall_seconds": time.perf_counter() - wall}
        rows.append(row | {"perplexity": float(model.perplexity(counts))})
        print(json.dumps(rows[-1]), flush=True)

    for name in ("ProVI, with compilation", "ProVI"):
        model = Ours(n_components=TOPICS, doc_topic_prior=ALPHA, topic_word_prior=ETA, max_iter=PASSES, tol=0.0)
        timed(name, model.set_params(random_state=0))
    theirs = {"n_components": TOPICS, "doc_topic_prior": ALPHA, "topic_word_prior": ETA, "max_iter": PASSES}
    timed("scikit-learn", Theirs(**theirs, learning_method="batch", evaluate_every=-1, random_state=0))
    if len(sys.argv) > 1:
        record = {"date": date.today().isoformat(), "command": "python benchmarks/lda_speed.py", "rows": rows}
        record["numpy"] = np.__version__
        Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
