"""The benchmarks' results for the repository: a dated JSON file a run, and the page made of the newest ones."""

import datetime
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from provi.bench import tables
from provi.bench.gp import gp_verdicts
from provi.bench.gp_methods import GP_THRESHOLDS
from provi.bench.missing import missing_cells, missing_verdicts
from provi.bench.topics_tables import topics_cells, topics_verdicts
from provi.bench.topics_throughput import throughput_cells, throughput_verdicts

RESULTS, PAGE = Path("benchmarks/results"), Path("docs/benchmarks.md")
_KINDS = ("blackbox", "glm", "gp", "gp-sparse", "missing", "topics", "topics-throughput")
_PACKAGES = ("provi", "jax", "numpy", "scipy", "numpyro", "blackjax", "pymc", "viabel", "gsmvi")

_BLACKBOX_TEXT = """\
CPU seconds of all threads until the Gaussian's true gap to the best Gaussian (by quadrature, after the run) is at most
1, 0.1 or 0.01 nats; in brackets with compilation, the first call in a fresh process with empty caches. Every library
runs alone, in double precision, from N(0, I) or its own start, with ten draws a step where it draws.

ProVI is timed until it stopped by itself at that tolerance, its certificate included. The others are stopped by the
oracle, for each gap at the best of their settings: a courtesy that a user does not have. viabel's full-rank family is a
multivariate t, here with 10^6 degrees of freedom. GSM minimises another divergence, so its gap need not go to zero."""

_GLM_TEXT = """\
`provi.fit` on logistic regressions with a unit prior: the gap that the certificate states, the true one by quadrature
(where the dimension is at most 400), and seconds without compilation, in brackets with it."""

_GP_TEXT = """\
Gaussian-process classification, Bernoulli-logit, from the prior, with the kernels of Khan et al. (2015, 2016): CPU
seconds until the true gap (dense linear algebra and the eight-probit moments, after the run) is at most 0.01 or 0.001
nats; in brackets with compilation, imports left out. One thread, double precision. ProVI is timed until it stopped by
itself with a proof of that gap and chooses its own steps. The others take a constant natural-gradient step and are
stopped by the oracle at the best of a few. Their expectations are 20-node Gauss-Hermite rules, whose error leaves a gap
where marginal deviations are large."""

_SPARSE_TEXT = """\
Sparse variational Gaussian process, Bernoulli-logit, the same fixed kernel and inducing points for all, natural
gradients on mini-batches of 1000 (ProVI chooses its own steps and batches, and proves its gap). ELBO over all data and
log loss a held-out point in nats, both computed afterwards by one program from the answer's mean and covariance."""

_MISSING_TEXT = """\
Logistic regression with Gaussian covariates, partly missing: seconds of a fit from the table to the estimate without
(with) compilation, and the gap of its observed-data log-likelihood to the exact maximum, in nats. The maximum is found
by BFGS on a NumPy program with quadrature that shares nothing with ProVI. Medians over the data sets, each method alone
in its process with one thread of linear algebra. ProVI's fits include standard errors and the log-likelihood and stop
by themselves at an estimated gap of 0.01 nats; misaem has its own settings."""

_TOPICS_TEXT = """\
Topic models by document completion: half of the documents to learn from; of the others one half of the words is shown
and the other half predicted, mean log probability of a word in nats (higher is better). The vocabulary is that of the
training documents. Medians over random splits, whose seeds are also those of the methods. *Score* takes the topics
p(word | topic) alone and is the same program for all: a logistic-normal prior of the shares is fitted to the training
documents with these topics held fixed, then the documents are completed under it. *Own score* has the method's own mean
shares of the halves that are shown: Dirichlet for LDA, logistic normal for the correlated models. Seconds of the fit
without (with) compilation, each method alone in its process. ProVI's correlated topic model has its defaults. All LDAs
have the priors 0.1 for shares (tomotopy goes on to optimise it) and 0.01 for words; scikit-learn has one job, tomotopy
two workers. Better means on every split; faster is the median of wall-clock seconds without compilation."""

_THROUGHPUT_TEXT = """\
Words (repetitions counted) a wall-clock second of two passes of `CorrelatedTopicModel.fit`, its start included, without
compilation, on Associated Press documents drawn with replacement. `partial_fit` gets a stream of batches of 64 such
documents and iterates each to convergence; its peak memory is that of the whole process, compiled programs included,
after a tenth of the stream and after all of it, and its time includes compilation for batches of another shape."""


def make_record(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows with date, machine, versions and command, so that a number can be traced."""
    # A peer that runs in a Python of its own says which versions it found there.
    theirs = {name: version for row in rows for name, version in row.get("facts", {}).get("versions", {}).items()}
    ours = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    return {
        "kind": kind,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {**theirs, **ours},
        # Run from the checkout: where that lies on this machine is nobody's concern.
        "command": " ".join(["provi", *("." if Path(word).is_absolute() else word for word in sys.argv[1:])]),
        "rows": rows,
    }


def write_record(root: Path, record: dict[str, Any]) -> tuple[Path, Path]:
    """Write `benchmarks/results/DATE-KIND.json` under `root`, and the page `docs/benchmarks.md` anew."""
    path = root / RESULTS / f"{record['date']}-{record['kind']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = root / PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    newest = {kind: _newest(root, kind) for kind in _KINDS}
    page.write_text(make_page(*newest.values()), encoding="utf-8")
    return path, page


def make_page(
    blackbox: dict[str, Any] | None,
    glm: dict[str, Any] | None,
    gp: dict[str, Any] | None = None,
    sparse: dict[str, Any] | None = None,
    missing: dict[str, Any] | None = None,
    topics: dict[str, Any] | None = None,
    throughput: dict[str, Any] | None = None,
) -> str:
    """The page of the newest records; a benchmark that was never run has no section."""
    parts = ["# Benchmarks", "Written by `provi bench`; do not edit."]
    if blackbox is not None:
        parts += ["## Side by side with other libraries", _BLACKBOX_TEXT]
        for name, rows in tables.by_problem(blackbox["rows"]).items():
            parts += [f"### {name}", tables.markdown_cells(tables.blackbox_cells(rows))]
            parts += ["\n".join(f"- {line}" for line in tables.verdicts(rows))]
            parts += ["Wall-clock seconds:", tables.markdown_cells(tables.blackbox_cells(rows, "wall"))]
        parts.append(_origin(blackbox))
    if glm is not None:
        parts += ["## Linear models", _GLM_TEXT, tables.markdown_cells(tables.glm_cells(glm["rows"])), _origin(glm)]
    if gp is not None:
        parts += ["## Gaussian processes", _GP_TEXT]
        for name, rows in tables.by_problem(gp["rows"]).items():
            parts += [f"### {name}", tables.markdown_cells(tables.blackbox_cells(rows, "cpu", GP_THRESHOLDS, "steps"))]
            parts += ["\n".join(f"- {line}" for line in gp_verdicts(rows))]
        parts.append(_origin(gp))
    if sparse is not None:
        parts += ["## Sparse Gaussian processes", _SPARSE_TEXT]
        for name, rows in tables.by_problem(sparse["rows"]).items():
            parts += [f"### {name}", tables.markdown_cells(tables.sparse_cells(rows))]
        parts.append(_origin(sparse))
    if missing is not None:
        parts += ["## Logistic regression with missing covariates", _MISSING_TEXT]
        for name, rows in tables.by_problem(missing["rows"]).items():
            parts += [f"### {name}", tables.markdown_cells(missing_cells(rows))]
            parts += ["\n".join(f"- {line}" for line in missing_verdicts(rows))]
        parts.append(_origin(missing))
    if topics is not None:
        parts += ["## Topic models", _TOPICS_TEXT]
        for name, rows in tables.by_problem(topics["rows"]).items():
            parts += [f"### {name}", tables.markdown_cells(topics_cells(rows))]
            parts += ["\n".join(f"- {line}" for line in topics_verdicts(rows))]
        parts.append(_origin(topics))
    if throughput is not None:
        rows = throughput["rows"]
        parts += ["## Throughput of the correlated topic model", _THROUGHPUT_TEXT]
        parts += [tables.markdown_cells(throughput_cells(rows))]
        parts += ["\n".join(f"- {line}" for line in throughput_verdicts(rows)), _origin(throughput)]
    return "\n\n".join(parts) + "\n"


def _origin(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    place = f"{record['machine']}, Python {record['python']}, {versions}"
    return f"Made by `{record['command']}` on {record['date']}: {place}."


def _newest(root: Path, kind: str) -> dict[str, Any] | None:
    files = sorted((root / RESULTS).glob(f"*-{kind}.json"))
    return json.loads(files[-1].read_text(encoding="utf-8")) if files else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
