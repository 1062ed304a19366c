"""The HTML report of a fit: one file that needs no network, no JavaScript and no other file."""

import dataclasses
import functools
import hashlib
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jinja2
import numpy as np
from markupsafe import Markup

from provi.core.arguments import check_count, double_precision
from provi.core.files import write_text
from provi.core.host_object import without_host_objects
from provi.diagnostics.importance import ImportanceDiagnostics
from provi.report.html import tables
from provi.report.html.figures import (
    Picture,
    check_pictures,
    correlation_picture,
    densities_pictures,
    function_picture,
    inline_svg,
    marginals_pictures,
    run_pictures,
)
from provi.report.html.verdict import answers, estimate_words, family_words, is_bad, verdict
from provi.report.plots.fitted import plot_brackets, plot_estimates, plot_missing
from provi.report.plots.posterior import shortened

_LONGEST = 2000  # characters of one text of the user's
_MORE_DRAWS = 10_000  # of a second look at k-hat
_SMALL = 10**6  # numbers in target and family, up to which it is cheap
_PROCESS = "Those of function values are the kernel's, of inputs that are near each other: left out."
_NO_RUN = "The hyperparameters were integrated over nodes, with the best Gaussian at each: there is no run to draw."


def write_report(
    fit: Any,
    path: str | Path,
    *,
    title: str | None = None,
    reference: Any = None,
    num_draws: int = 2000,
    check: bool = True,
    summarise: Any = None,
    original: Any = None,
) -> Path:
    """Write the report of `fit` to `path`, and return the path.

    **Arguments:**

    - `fit`: of `provi.fit` or `provi.load`. Its `target` is needed for k-hat and the checks of the model, its `call`
      for how to reproduce it; where they are None, `dataclasses.replace(fit, target=..., call=...)` fills them in.
    - `title`: of the page.
    - `reference`: draws of the posterior from elsewhere (NUTS), to show beside the marginals: a dictionary by variable
      of arrays (draws, ...) or (chains, draws, ...) in the model's own space, or free coordinates, one draw a row.
    - `num_draws`: of the diagnostics, each a gradient of the log density over all data; 0 leaves them out. More are
      taken of a small target where q looks bad.
    - `check`: whether to compare the data with data simulated from the fit (`fit.check()`).
    - `summarise`: makes the table of parameters at a probability; `fit.posterior.summary` if not given.
    - `original`: a table of the coefficients in the units of the data, with ratios where there are some.
    """
    page = render_report(
        fit, title=title, reference=reference, num_draws=num_draws, check=check, summarise=summarise,
        original=original,
    )  # fmt: skip
    return write_text(path, page)


@double_precision
def render_report(
    fit: Any,
    *,
    title: str | None = None,
    reference: Any = None,
    num_draws: int = 2000,
    check: bool = True,
    summarise: Any = None,
    original: Any = None,
) -> str:
    """The report as text; the arguments are those of `write_report`."""
    nested = bool(fit.certificate.opening)
    found = _looked_at_again(fit, _diagnose(fit, check_count("num_draws", num_draws, minimum=0)))
    known = found if isinstance(found, ImportanceDiagnostics) else None
    checked, not_checked = _check(fit) if check else (None, None)
    posterior, certificate = fit.posterior, fit.certificate
    summary = (posterior.summary if summarise is None else summarise)(0.94)
    description = fit.describe()
    function = function_picture(fit, description)
    correlation = _PROCESS if function is not None else tables.correlation_matrix(posterior)
    drawn = not isinstance(correlation, str)
    return _environment().get_template("report.html.jinja").render(
        title=title or _title(fit),
        family=family_words(fit),
        verdict=verdict(fit, known, checked),
        misses_posterior=is_bad(known),
        answers=answers(fit),
        estimate=estimate_words(fit, known),
        description=description,
        figures=_key_figures(fit, known),
        checked=checked,
        not_checked=not_checked,
        checks=None if checked is None else tables.checks(checked),
        check_pictures=[] if checked is None else check_pictures(checked),
        run_pictures=[] if nested else run_pictures(fit),
        no_run=_NO_RUN if nested else "The run recorded no finite ELBO, so there is nothing to draw.",
        function=function,
        marginals=[] if function else marginals_pictures(posterior, reference, summarise),
        densities=[] if function else densities_pictures(posterior, reference, summary.names),
        reference=reference is not None,
        parameters=tables.parameters(summary),
        parameter_count=len(summary.names),
        original=None if original is None else tables.original_units(original),
        original_notes=() if original is None else original.notes,
        # What it says of k-hat stands beside the verdict.
        parameter_notes=[note for note in summary.notes if not note.startswith("Warning: ")],
        correlation_picture=correlation_picture(correlation, posterior.names) if drawn else None,
        correlations=tables.strongest(correlation, posterior.names) if drawn else None,
        free_coordinates=summary.names != posterior.names,
        no_correlations=None if drawn else correlation,
        bounds=tables.gap_bounds(certificate),
        distance=tables.distance(certificate),
        theorem=_theorem_words(certificate),
        ledger=tables.ledger(certificate),
        notes=certificate.notes,
        diagnostics=tables.diagnostics(fit, known),
        advice=[known.advice, *known.notes, *_disagreement(fit, known)] if known else [found],
        run=tables.run(fit),
        versions=tables.versions(),
        call=fit.call,
        fingerprint=None if fit.target is None else fingerprint(fit.target),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a small page."""

    title: str
    lines: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    grids: tuple[tables.Grid, ...] = ()
    code: str | None = None


def write_comparison(comparison: Any, path: str | Path, *, title: str = "Models by evidence") -> Path:
    """The page of `provi.compare(...)`: brackets of the log evidence drawn, and the table of bounds."""
    alt = f"Brackets of the log evidence of {len(comparison.names)} models, the best on top. {comparison.verdict}"
    picture = Picture(
        inline_svg(plot_brackets(comparison), "brackets", alt),
        "The log evidence of each model lies in its bracket; an arrow where there is no upper bound. A model whose "
        "bracket ends left of the dashed line has less evidence than the first.",
    )
    level = {"proven": "certified", "statistical": "caution"}.get(comparison.status, "conditional")
    page = _environment().get_template("page.html.jinja").render(
        title=title,
        subtitle=f"{len(comparison.names)} models of the same data, by their evidence.",
        headline=("Decided: " if comparison.decided else "") + comparison.verdict.partition(":")[0],
        level=level if comparison.decided else "conditional",
        lines=(comparison.verdict,),
        description=None,
        sections=(
            Section("Evidence", pictures=(picture,), grids=(tables.models(comparison),)),
            Section(
                "What it means",
                (
                    "A log Bayes factor of 3 nats is odds of 20 to 1, of 5 nats of 148 to 1. Probabilities are for "
                    "models that are equally probable before the data are seen.",
                    "The evidence depends on the priors: a wider prior lowers it, also where the posterior stays the "
                    "same. It does not say that any of the models fits: fit.check() does.",
                ),
            ),
        ),
        footer="Written by ProVI. 1 nat = 1.44 bits.",
    )  # fmt: skip
    return write_text(path, page)


def write_missing_report(
    summary: Any,
    values: np.ndarray,
    path: str | Path,
    *,
    sentence: str,
    good: bool,
    description: Any,
    notes: Sequence[str] = (),
    call: str | None = None,
) -> Path:
    """The page of a logistic regression with missing entries: estimates, what is missing, what is estimated.

    **Arguments:**

    - `summary`: of `MissingLogisticRegression.summary()`. - `values`: the features, NaN where missing.
    - `sentence`, `good`: the verdict.
    """
    names = summary.names[1 : 1 + values.shape[1]]
    estimates = [(name, row) for name, row in summary.to_dict().items() if not math.isnan(row["low"])][1:41]
    alt = f"Estimates of {len(estimates)} coefficients with their intervals; the numbers are in the table."
    drawn = plot_estimates(
        [name for name, _ in estimates],
        [row["coefficient"] for _, row in estimates],
        [(row["low"], row["high"]) for _, row in estimates],
        summary.level,
    )
    shown = Picture(inline_svg(drawn, "estimates", alt), "Estimates without the intercept, in the units of the table.")
    share = float(np.isnan(values).mean())
    gone = (
        Picture(
            inline_svg(plot_missing(names, values), "missing", f"Bars: {100 * share:.1f}% of all entries are missing."),
            f"{100 * share:.1f}% of the entries are missing, in {int(np.isnan(values).any(axis=1).sum()):,} of "
            f"{len(values):,} rows.",
        ),
    ) if share else ()  # fmt: skip
    page = _environment().get_template("page.html.jinja").render(
        title="Logistic regression with missing entries",
        subtitle="Maximum likelihood; missing entries are integrated out, none is filled in.",
        headline=sentence.partition(":")[0],
        level="caution" if good else "none",
        lines=(sentence, *summary.title.splitlines()[1:], *notes),
        description=description,
        sections=(
            Section("Estimates", pictures=(shown,), grids=(tables.coefficients(summary),)),
            Section("What is missing", pictures=gone, grids=(tables.missing_patterns(values, names),)),
            Section(
                "What is estimated",
                (
                    "The coefficients of P(y = 1) = sigmoid(intercept + coefficients' x), and the mean and covariance "
                    "of the columns x, which are taken as Gaussian: together the maximum of the likelihood of what "
                    "was observed. There is no prior.",
                    "It rests on entries that are missing at random: whether an entry is missing may depend on what is "
                    "observed, not on the value that is missing.",
                    "Standard errors are by Louis's formula, from the information in the observed entries; intervals "
                    "and p-values are Wald's.",
                ),
            ),
            Section("Reproduction", grids=(tables.versions(),), code=call),
        ),
        footer="Written by ProVI.",
    )  # fmt: skip
    return write_text(path, page)


def _title(fit: Any) -> str:
    """The formula of a fit that somebody described."""
    formula = None if fit.description is None else fit.description.formula
    return "Report of a variational fit" if formula is None else shortened(formula, 90)


def _check(fit: Any) -> tuple[Any, str | None]:
    """The check of the model, or why there is none."""
    if fit.target is None:
        return None, "Not checked: the fit does not hold its target."
    try:
        return fit.check(), None
    except ValueError as error:
        return None, f"Not checked: {str(error).removeprefix('check: ')}"


def _diagnose(fit: Any, num_draws: int) -> ImportanceDiagnostics | str:
    """k-hat and its kin, or the reason why they are missing."""
    if num_draws == 0:
        return "k-hat was not computed: num_draws is 0."
    if fit.target is None:
        return (
            "k-hat was not computed: the fit does not hold its target. "
            "dataclasses.replace(fit, target=target).report(...) has it."
        )
    try:
        return fit.diagnose(num_draws)
    except ValueError as error:
        return f"k-hat could not be computed: {error}"


def _looked_at_again(fit: Any, found: ImportanceDiagnostics | str) -> ImportanceDiagnostics | str:
    """With more draws, where few make q look bad and the target is small: k-hat of few is often too high."""
    if isinstance(found, str) or found.adequate or found.num_draws >= _MORE_DRAWS:
        return found
    size = sum(np.size(leaf) for leaf in jax.tree.leaves((fit.target, fit.posterior.family)))
    return _diagnose(fit, _MORE_DRAWS) if size <= _SMALL else found


def _disagreement(fit: Any, found: ImportanceDiagnostics) -> list[str]:
    """A warning where the ELBO of the fit and that of fresh draws differ by more than five standard errors."""
    error = math.hypot(fit.elbo.standard_error, found.elbo_standard_error)
    if abs(fit.elbo.value - found.elbo) <= 5 * error + 1e-9 * abs(fit.elbo.value):
        return []
    return ["The two ELBOs differ by more than five standard errors: heavy tails, or draws that miss what matters."]


def _key_figures(fit: Any, found: ImportanceDiagnostics | None) -> list[tuple[str, str]]:
    """The few numbers that stand beside the verdict."""
    bracket, number, minus = fit.certificate.evidence, tables.number, "\N{MINUS SIGN}"
    ends = "no bound" if bracket is None else bracket.ends.removeprefix("log evidence ").replace("-", minus)
    tail = None if found is None else found.pareto_k
    elbo = f"{number(fit.elbo.value, 6)} ± {number(fit.elbo.standard_error, 2)}"
    elbo = elbo if math.isfinite(fit.elbo.value) else "not finite"
    return [
        ("ELBO, nats", elbo),
        ("log evidence, nats", ends),
        ("k-hat (an estimate)", "not computed" if tail is None else number(tail, 2)),
        ("free parameters", f"{len(fit.posterior.names):,}"),
        ("steps", f"{fit.num_steps:,}"),
        ("time", f"{number(fit.seconds)} s"),
    ]


def _theorem_words(certificate: Any) -> str | None:
    if certificate.theorem is None or certificate.a_priori_bound is None:
        return None
    return (
        f"{certificate.theorem}: before the run was made, the theorem promised an expected "
        f"{certificate.a_priori_metric} of at most {tables.upper_bound(certificate.a_priori_bound, 4)}."
    )


@functools.cache
def _environment() -> jinja2.Environment:
    """Everything that the template prints is escaped, and made of characters that a page can hold."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("provi.report.html", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals.update(facts=tables.facts, encodings=tables.encodings)
    return found


def _printable(value: Any) -> Any:
    """Text without controls, lone surrogates and non-characters, and not without end."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    value = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    return "".join("\ufffd" if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs", "Cn") else c for c in value)


def fingerprint(target: Any) -> str:
    """The first 16 digits of SHA-256 over the target's type, sizes and numbers: the same for the same model and data.

    Functions inside the target (a log density) are not part of it.
    """
    target_type = type(target).__name__
    target, texts = without_host_objects(target)
    digest = hashlib.sha256(f"{target_type}{texts}".encode())
    for leaf in jax.tree.leaves(target):
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int):
            array = np.ascontiguousarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()[:16]
