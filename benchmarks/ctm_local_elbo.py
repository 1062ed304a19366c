"""How near the ELBOs of single documents of a correlated topic model come to their log evidences, method by method.

    python benchmarks/ctm_local_elbo.py [--documents 10] [--draws 20] [--record]

Documents drawn from the model itself, 3 to 5 topics, 5 to 300 words; topics and prior are those of the true model. The
log evidence is by importance sampling. Tables of evidence minus ELBO in nats a document: mean, least and largest over
documents; `error` is the largest standard error of an evidence. Bounds above the evidence by five standard errors are
counted: one would be an error of this library, and the status 1. Then how often the order is full >= diagonal >=
Laplace, delta, within three standard errors: full is above all by theory, diagonal need not be.
"""

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t

jax.config.update("jax_enable_x64", True)

from provi.core.compilation import enable_compilation_cache  # noqa: E402
from provi.models.topics.corpus import Documents  # noqa: E402
from provi.models.topics.draws import base_draws  # noqa: E402
from provi.models.topics.e_step import document_elbos  # noqa: E402
from provi.models.topics.local_steps import infer  # noqa: E402
from provi.models.topics.model import LocalPosterior, TopicPrior  # noqa: E402
from provi.models.topics.newton import infer_delta, infer_laplace, infer_mean_field, mean_field_bounds  # noqa: E402  # noqa: E402

TOPICS, LENGTHS, VOCABULARY = (3, 4, 5), (5, 20, 50, 100, 300), 40
MODELS = (0, 1)
"""Seeds of the topics and the prior; the documents of a cell are divided among them."""
EVIDENCE_DRAWS, ELBO_DRAWS, TOLERANCE, ALARM = 40_000, 20_000, 1e-6, 5.0
FULL, DIAGONAL, OWN_BOUND = "PG-SVI, full", "PG-SVI, diagonal", "mean field, its bound"
RIVALS = ("Laplace, assigned", "Laplace, summed", "delta")
RESULTS = Path(__file__).parent / "results"


def problem(topics: int, seed: int, each: int) -> tuple[Documents, jax.Array, TopicPrior]:
    """`each` documents of each length, one after the other, their topics and prior."""
    rng = np.random.default_rng([seed, topics])
    rows = rng.dirichlet(np.full(VOCABULARY, 0.3), topics).T
    factor = rng.normal(size=(topics, topics))
    mean, covariance = rng.normal(size=topics) / 2, factor @ factor.T / topics + 0.5 * np.eye(topics)
    lengths = np.repeat(LENGTHS, each)
    shares = np.exp(rng.multivariate_normal(mean, covariance, size=len(lengths)))
    chances = shares / shares.sum(axis=1, keepdims=True) @ rows.T
    counts = np.stack([rng.multinomial(n, p / p.sum()) for n, p in zip(lengths, chances, strict=True)]).astype(float)
    words = np.tile(np.arange(VOCABULARY, dtype=np.int32), (len(counts), 1))
    prior = TopicPrior(jnp.asarray(mean), jnp.asarray(covariance))
    return Documents(jnp.asarray(words), jnp.asarray(counts)), jnp.asarray(rows), prior


def log_evidence(rows: Any, counts: Any, prior: TopicPrior, centre: Any, root: Any, seed: int) -> tuple[float, float]:
    """Estimate and standard error; three quarters of the draws around q, the others around the prior, both Students.

    The second part is there for modes that q has missed: with it the weights are bounded.
    """
    mean, covariance = (np.asarray(part) for part in (prior.mean, prior.covariance))
    student: Any = multivariate_t
    normal: Any = multivariate_normal
    near = student(centre, 1.3 * root @ root.T, df=5, seed=seed)
    far = student(mean, covariance, df=5, seed=seed + 1)
    z = np.concatenate([near.rvs(EVIDENCE_DRAWS * 3 // 4), far.rvs(EVIDENCE_DRAWS // 4)])
    shares = np.exp(z - logsumexp(z, axis=1, keepdims=True))
    used = counts > 0
    joint = np.log(shares @ rows[used].T) @ counts[used] + normal(mean, covariance).logpdf(z)
    logs = joint - np.logaddexp(np.log(0.75) + near.logpdf(z), np.log(0.25) + far.logpdf(z))
    weights = np.exp(logs - logs.max())
    parts = weights[: EVIDENCE_DRAWS * 3 // 4], weights[EVIDENCE_DRAWS * 3 // 4 :]
    error = np.sqrt(sum(share**2 * p.var() / len(p) for share, p in zip((0.75, 0.25), parts, strict=True)))
    return logs.max() + np.log(weights.mean()), error / weights.mean()


def posteriors(documents: Documents, rows: jax.Array, prior: TopicPrior, draws: int) -> dict[str, LocalPosterior]:
    """By each method, all to the same tolerance."""
    problem, stop = (documents, rows, prior), {"tol": TOLERANCE, "max_steps": 1000}
    points = base_draws(np.random.default_rng(0), draws * rows.shape[1], rows.shape[1])
    return {
        FULL: infer(*problem, draws=points, **stop)[0],
        DIAGONAL: infer(*problem, draws=points, covariance="diagonal", **stop)[0],
        RIVALS[0]: infer_laplace(*problem, curvature="assigned", **stop)[0],
        RIVALS[1]: infer_laplace(*problem, **stop)[0],
        RIVALS[2]: infer_delta(*problem, **stop)[0],
        "mean field": infer_mean_field(*problem, **stop)[0],
    }


def measure(topics: int, seed: int, each: int, draws: int) -> tuple[Any, Any, dict, dict]:
    """Evidences and their standard errors (lengths, each); bounds and theirs, by method."""
    documents, rows, prior = problem(topics, seed, each)
    found = posteriors(documents, rows, prior, draws)
    bounds, errors = {}, {}
    for name, q in found.items():
        # The same draws for each method: what they differ by is the methods.
        bounds[name], errors[name] = document_elbos(
            documents, rows, prior, q, ELBO_DRAWS, np.random.default_rng([seed, topics])
        )
    bounds[OWN_BOUND] = mean_field_bounds(documents, rows, prior, found["mean field"])
    errors[OWN_BOUND] = np.zeros(len(documents.counts))
    arrays = zip(np.asarray(documents.counts), np.asarray(found[FULL].mean), np.asarray(found[FULL].root), strict=True)
    evidence = np.array([log_evidence(np.asarray(rows), c, prior, m, r, 2 * d) for d, (c, m, r) in enumerate(arrays)])
    cells = lambda array: np.asarray(array).reshape(len(LENGTHS), each)  # noqa: E731
    bounds, errors = ({name: cells(values) for name, values in group.items()} for group in (bounds, errors))
    return cells(evidence[:, 0]), cells(evidence[:, 1]), bounds, errors


def order(bounds: dict, errors: dict, above: str, below: str) -> np.ndarray:
    """Where `above` is not below the other by more than three standard errors (of independent estimates)."""
    return bounds[above] >= bounds[below] - 3 * np.hypot(errors[above], errors[below])


def table_of(topics: int, each: int, draws: int) -> tuple[Table, list[dict], int]:
    """The table, its rows for the record, and the number of bounds above the evidence."""
    parts: Any = [measure(topics, seed, each // len(MODELS), draws) for seed in MODELS]
    evidence, error = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    bounds, errors = ({n: np.concatenate([part[i][n] for part in parts], axis=1) for n in parts[0][i]} for i in (2, 3))
    table = Table("words", "error", *bounds, title=f"{topics} topics: evidence - ELBO in nats")
    rows, above = [], 0
    for number, length in enumerate(LENGTHS):
        row = {"topics": topics, "words": length, "documents": evidence.shape[1], "gaps": {}}
        row["largest_evidence_error"] = float(error[number].max())
        for name, bound in bounds.items():
            gap = evidence[number] - bound[number]
            above += int((gap < -ALARM * np.hypot(error[number], errors[name][number])).sum())
            row["gaps"][name] = {"mean": gap.mean(), "least": gap.min(), "largest": gap.max()}
            row["gaps"][name]["largest_elbo_error"] = errors[name][number].max()
        pairs = {f"{FULL} >= {name}": order(bounds, errors, FULL, name)[number] for name in (DIAGONAL, *RIVALS)}
        pairs |= {f"{DIAGONAL} >= {name}": order(bounds, errors, DIAGONAL, name)[number] for name in RIVALS}
        pairs[f"{FULL} >= {DIAGONAL} >= all {len(RIVALS)}"] = np.all(list(pairs.values()), axis=0)
        row["share"] = {name: float(held.mean()) for name, held in pairs.items()}
        cells = (f"{g['mean']:.3f} ({g['least']:.3f}, {g['largest']:.3f})" for g in row["gaps"].values())
        table.add_row(str(length), f"{row['largest_evidence_error']:.4f}", *cells)
        rows.append(row)
    return table, rows, above


def main() -> None:
    """All cells; seeds are fixed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10, help="of each length and number of topics; even")
    parser.add_argument("--draws", type=int, default=20, help="of PG-SVI, times the number of topics")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/DATE-ctm-local-elbo.json")
    arguments = parser.parse_args()
    enable_compilation_cache()
    console, rows, above, began = Console(width=200), [], 0, time.perf_counter()
    for topics in TOPICS:
        table, more, violations = table_of(topics, arguments.documents, arguments.draws)
        console.print(table)
        rows, above = rows + more, above + violations
    shares = Table("share of documents", *map(str, LENGTHS), "all", title="order, all numbers of topics")
    for name in rows[0]["share"]:
        by_length = [np.mean([row["share"][name] for row in rows if row["words"] == length]) for length in LENGTHS]
        shares.add_row(name, *(f"{share:.2f}" for share in [*by_length, np.mean(by_length)]))
    console.print(shares)
    seconds = time.perf_counter() - began
    print(f"bounds above the evidence by {ALARM:g} standard errors: {above}; {seconds:.0f} seconds")
    if arguments.record:
        command = f"python benchmarks/ctm_local_elbo.py --documents {arguments.documents} --draws {arguments.draws}"
        record = {"date": date.today().isoformat(), "command": command, "jax": jax.__version__, "seconds": seconds}
        record |= {"device": jax.devices()[0].platform, "bounds_above_evidence": above, "rows": rows}
        path = RESULTS / f"{record['date']}-ctm-local-elbo.json"
        path.write_text(json.dumps(record, indent=1, default=float) + "\n")
    raise SystemExit(int(above > 0))


if __name__ == "__main__":
    main()
