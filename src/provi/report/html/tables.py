"""The tables of an HTML report, as rows of text: parameters, correlations, bounds, assumptions, run, versions."""

import dataclasses
import math
import os
import platform
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

from provi.certificates.distance.bound import rounded_down_text, rounded_up_text
from provi.diagnostics.importance import ImportanceDiagnostics
from provi.report.style import number, upper_bound

LARGEST_PARAMETERS, LARGEST_CORRELATIONS = 200, 10
_LARGEST_DENSE = 2000  # dimensions up to which a correlation matrix is formed
_LONG_NAME = 18  # characters
_PACKAGES = ("provi", "jax", "jaxlib", "equinox", "numpy", "scipy", "matplotlib")


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table: the first cell of each row is its header.

    `numeric` columns stand to the right, the column `status` is coloured; `stacked`: on a telephone the cells of a row
    stand below each other, because some hold sentences.
    """

    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numeric: tuple[int, ...] = ()
    status: int | None = None
    stacked: bool = False

    @property
    def named(self) -> bool:
        """Whether names are so long that, on a telephone, each needs a line of its own."""
        return not self.stacked and bool(self.numeric) and any(len(row[0]) > _LONG_NAME for row in self.rows)


def parameters(summary: Any) -> Grid:
    """Mean, standard deviation and interval of the first 200 parameters of a summary."""
    numbers = np.column_stack([summary.mean, summary.standard_deviation, summary.interval])
    rows = [
        (name, *(f"{value:#.4g}".rstrip(".").replace("-", "−") for value in row))
        for name, row in zip(summary.names[:LARGEST_PARAMETERS], numbers[:LARGEST_PARAMETERS], strict=True)
    ]
    more, tail = len(summary.names) - len(rows), 50 * (1 - summary.probability)
    caption = f"Means, standard deviations and central {100 * summary.probability:g}% intervals"
    caption += f"; the first {len(rows)} of {len(summary.names)} parameters" if more else ""
    return Grid(caption, ("parameter", "mean", "sd", f"{tail:g}%", f"{100 - tail:g}%"), rows, (1, 2, 3, 4))


def original_units(summary: Any) -> Grid:
    """Coefficients in the units of the data, beside them their exponentials where these have a name."""
    tail = 50 * (1 - summary.probability)
    ends, rows = (f"{tail:g}%", f"{100 - tail:g}%"), []
    for name, row in list(summary.to_dict().items())[:LARGEST_PARAMETERS]:
        keys = ("mean", "sd", "low", "high", *(() if summary.ratio is None else ("ratio", "ratio_low", "ratio_high")))
        rows.append((name, *(number(row[key], 4) if key in row else "" for key in keys)))
    columns = ("coefficient", "mean", "sd", *ends, *(() if summary.ratio is None else (summary.ratio, *ends)))
    return Grid("In the units of the table", columns, rows, tuple(range(1, len(columns))))


def checks(checked: Any) -> Grid:
    """Every check: observed, simulated, p-value for all together, and whether it passes."""
    rows = [
        (
            row.name,
            number(row.observed),
            f"{number(row.low)} to {number(row.high)}",
            number(row.p_value, 2),
            "passes" if row.ok else "fails",
        )
        for row in checked.shown_rows()
    ]
    columns = ("check", "observed", "simulated, 98%", "p, all checks", "verdict")
    return Grid("Checks of the model", columns, rows, (1, 2, 3), 4)


def facts(description: Any) -> Grid:
    """What was fitted, a row a fact."""
    return Grid("The model", ("", "in words"), [(name, words) for name, words in description.facts], stacked=True)


def encodings(description: Any) -> Grid:
    """How each column of the table entered."""
    return Grid("How the columns entered", ("column", "encoding"), [tuple(pair) for pair in description.columns])


def models(comparison: Any) -> Grid:
    """Brackets, bounds on Bayes factors and probabilities of the models compared."""
    rows = []
    for name, row in comparison.to_dict().items():
        first = row["rank"] == 0
        # Ends are rounded outwards.
        ends = f"{rounded_down_text(row['log_evidence_lower'])} to {rounded_up_text(row['log_evidence_upper'])}"
        factor = (
            f"{rounded_down_text(row['log_bayes_factor_lower'])} to {rounded_up_text(row['log_bayes_factor_upper'])}"
        )
        share = f"{row['probability_lower']:.3g} to {row['probability_upper']:.3g}"
        texts = (ends, "0" if first else factor, share)
        rows.append((name, *(text.replace("-", "\N{MINUS SIGN}") for text in texts), row["status"]))
    columns = ("model", "log evidence, nats", "log Bayes factor to the first", "probability", "status")
    return Grid("Models by evidence", columns, rows, (1, 2, 3), 4)


def coefficients(summary: Any) -> Grid:
    """The estimates of a maximum-likelihood fit with their errors, tests and intervals."""
    rows = []
    for name, row in summary.to_dict().items():
        numbers = [row[key] for key in ("coefficient", "standard_error", "z", "p_value", "low", "high")]
        shown = ["" if math.isnan(value) else number(value) for value in numbers]
        rows.append((name, *shown, "" if math.isnan(row["missing"]) else f"{100 * row['missing']:.0f}%"))
    tail = 50 * (1 - summary.level)
    columns = ("column", "coefficient", "std. error", "z", "p", f"{tail:g}%", f"{100 - tail:g}%", "missing")
    return Grid("Estimates", columns, rows, (1, 2, 3, 4, 5, 6, 7))


def missing_patterns(values: np.ndarray, names: Sequence[str]) -> Grid:
    """Which entries are missing together, the most frequent patterns first."""
    found, counts = np.unique(np.isnan(values), axis=0, return_counts=True)
    rows = []
    for k in np.argsort(-counts, kind="stable")[:LARGEST_CORRELATIONS]:
        gone = [name for name, missing in zip(names, found[k], strict=True) if missing]
        words = "nothing" if not gone else ", ".join(gone[:6]) + (f" and {len(gone) - 6} more" if len(gone) > 6 else "")
        rows.append((words, f"{counts[k]:,}", f"{100 * counts[k] / len(values):.1f}%"))
    caption = "What is missing together"
    caption += f"; the first {len(rows)} of {len(found)} patterns" if len(found) > len(rows) else ""
    return Grid(caption, ("missing", "rows", "share"), rows, (1, 2))


def correlation_matrix(posterior: Any) -> np.ndarray | str:
    """The correlations of the approximation, or the reason why they are not shown."""
    family, size = posterior.family, len(posterior.names)
    if family.scale == "diagonal":
        return "The family has independent coordinates: all correlations are zero by construction, whatever the data."
    if size < 2:
        return "There is one parameter only."
    if size > _LARGEST_DENSE:
        return f"Not computed: there are {size} parameters, more than {_LARGEST_DENSE}."
    covariance = posterior.covariance
    deviation = np.sqrt(np.diagonal(covariance))
    return np.clip(covariance / np.outer(deviation, deviation), -1, 1)


def strongest(correlation: np.ndarray, names: Sequence[str]) -> Grid:
    """The ten pairs with the largest correlations in absolute value."""
    first, second = np.triu_indices(len(correlation), 1)
    order = np.argsort(-np.abs(correlation[first, second]), kind="stable")[:LARGEST_CORRELATIONS]
    rows = []
    for i, j in zip(first[order].tolist(), second[order].tolist(), strict=True):
        rows.append((names[i], names[j], f"{round(float(correlation[i, j]), 3) + 0.0:.3f}".replace("-", "−")))
    return Grid("The strongest correlations", ("parameter", "with", "correlation"), rows, (2,))


def gap_bounds(certificate: Any) -> Grid:
    """Every bound on the gap that was computed, and the theorem's."""
    rows = [
        (
            bound.name,
            upper_bound(bound.value) if math.isfinite(bound.value) else "none",
            bound.status if math.isfinite(bound.value) else "none",
            "" if math.isinf(bound.value) else "always" if bound.confidence is None
            else f"with {100 * bound.confidence:g}%",
            bound.detail,
        )
        for bound in certificate.bounds
    ]  # fmt: skip
    return Grid(
        "Upper bounds on the gap to the best member, in nats", ("bound", "gap", "status", "holds", "grounds"), rows,
        (1,), 2, stacked=True
    )  # fmt: skip


def distance(certificate: Any) -> Grid:
    """What is known of the distance to the posterior: proven and statistical bounds beside each other."""
    rows = [(name, value.replace("-", "\N{MINUS SIGN}")) for name, value in certificate.distance_rows()]
    level = "" if certificate.posterior is None else f", with confidence {100 * certificate.posterior.confidence:g}%"
    return Grid(f"Distance to the posterior{level}", ("quantity", "bound"), rows)


def ledger(certificate: Any) -> Grid:
    """Every assumption with its status and the grounds for it."""
    rows = [
        (
            row.statement,
            "" if row.value is None else ("yes" if row.value else "no") if isinstance(row.value, bool)
            else number(row.value, 4),
            row.status,
            row.reason,
        )
        for row in certificate.assumptions
    ]  # fmt: skip
    return Grid("Assumptions", ("assumption", "value", "status", "grounds"), rows, (1,), 2, stacked=True)


def diagnostics(fit: Any, found: ImportanceDiagnostics | None) -> Grid:
    """The ELBO with its error and, where the target was at hand, estimates by importance sampling."""
    exact = len(fit.history) > 1 and not fit.history["elbo_standard_error"].any()
    how = "closed form; the error is a bound" if exact else "draws; the error is a standard error"
    rows = [("ELBO, nats", number(fit.elbo.value, 6), number(fit.elbo.standard_error, 2), how)]
    if found is not None:
        tail = number(found.pareto_k, 2)
        rows += [
            ("Pareto k-hat", tail, "", "tail of the importance weights: below 0.5 good, above 0.7 bad"),
            ("total variation", number(found.total_variation, 2), "", "largest error of a probability, by these draws"),
            ("ELBO by fresh draws, nats", number(found.elbo, 6), number(found.elbo_standard_error, 2), "a check"),
            (
                "log evidence, nats",
                number(found.log_evidence, 6),
                number(found.log_evidence_standard_error, 2),
                "importance sampling",
            ),
            (
                "KL(q‖posterior), nats",
                number(found.kl_estimate),
                number(found.kl_standard_error, 2),
                "log evidence - ELBO; an estimate, not a bound",
            ),
            ("effective sample size", f"{found.effective_sample_size:,.0f}", "", f"of {found.num_draws:,} draws"),
        ]
    return Grid("Estimates: none of them is a proof", ("quantity", "value", "error", "how"), rows, (1, 2), stacked=True)


def run(fit: Any) -> Grid:
    """What the run did and what it cost."""
    rows = [
        ("outcome", fit.outcome.value),
        *([("message", fit.message)] if fit.message != fit.outcome.value else []),
        ("steps", f"{fit.num_steps:,}"),
        ("gradient evaluations (a linear model: passes over the data)", f"{fit.gradient_evaluations:,}"),
        ("spent on the certificate's bounds", f"{fit.certificate.num_gradients:,}"),
        ("seconds, with compilation", number(fit.seconds)),
    ]
    rejected = int(fit.history["rejected_steps"][-1]) if len(fit.history) else 0
    if rejected:
        rows.append(("steps rejected because numbers were not finite", f"{rejected:,}"))
    return Grid("The run", ("", "value"), rows)


def versions() -> Grid:
    """Packages, Python, machine and date of the report."""
    rows = []
    for name in _PACKAGES:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append((name, "not installed as a package"))
    device = jax.devices()[0]
    rows += [
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
        ("device", f"{device.platform}: {device.device_kind}"),
        ("report written", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
    ]
    return Grid("Versions at the time of the report", ("", "version"), rows)
