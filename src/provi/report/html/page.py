"""The HTML report of a fit: one file that needs no network, no JavaScript and no other file."""

import functools
import hashlib
import math
import unicodedata
from pathlib import Path
from typing import Any

import jax
import jinja2
import numpy as np
from markupsafe import Markup

from provi.core.arguments import check_count, double_precision
from provi.diagnostics.importance import ImportanceDiagnostics
from provi.report.html import tables
from provi.report.html.figures import correlation_picture, densities_pictures, marginals_pictures, run_pictures
from provi.report.html.verdict import answers, estimate_words, family_words, is_bad, verdict

_LONGEST = 2000  # characters of one text of the user's
_MORE_DRAWS = 10_000  # of a second look at k-hat
_SMALL = 10**6  # numbers in target and family, up to which it is cheap


def write_report(
    fit: Any, path: str | Path, *, title: str | None = None, reference: Any = None, num_draws: int = 2000
) -> Path:
    """Write the report of `fit` to `path`, and return the path.

    **Arguments:**

    - `fit`: of `provi.fit` or `provi.load`. Its `target` is needed for k-hat and its `call` for how to reproduce it;
      where they are None, `dataclasses.replace(fit, target=..., call=...)` fills them in.
    - `title`: of the page.
    - `reference`: draws of the posterior from elsewhere (NUTS), to show beside the marginals: a dictionary by variable
      of arrays (draws, ...) or (chains, draws, ...) in the model's own space, or free coordinates, one draw a row.
    - `num_draws`: of the diagnostics, each a gradient of the log density over all data; 0 leaves them out. More are
      taken of a small target where q looks bad.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    page = render_report(fit, title=title, reference=reference, num_draws=num_draws)
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


@double_precision
def render_report(fit: Any, *, title: str | None = None, reference: Any = None, num_draws: int = 2000) -> str:
    """The report as text; the arguments are those of `write_report`."""
    found = _looked_at_again(fit, _diagnose(fit, check_count("num_draws", num_draws, minimum=0)))
    known = found if isinstance(found, ImportanceDiagnostics) else None
    posterior, certificate, summary = fit.posterior, fit.certificate, fit.posterior.summary(0.94)
    correlation = tables.correlation_matrix(posterior)
    drawn = not isinstance(correlation, str)
    return _environment().get_template("report.html.jinja").render(
        title=title or "Report of a variational fit",
        family=family_words(fit),
        verdict=verdict(fit, known),
        misses_posterior=is_bad(known),
        answers=answers(fit),
        estimate=estimate_words(fit, known),
        figures=_key_figures(fit, known),
        run_pictures=run_pictures(fit),
        marginals=marginals_pictures(posterior, reference),
        densities=densities_pictures(posterior, reference),
        reference=reference is not None,
        parameters=tables.parameters(summary),
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
    if isinstance(found, str) or found.pareto_k is None or found.adequate or found.num_draws >= _MORE_DRAWS:
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
    return jinja2.Environment(
        loader=jinja2.PackageLoader("provi.report.html", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


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
    digest = hashlib.sha256(type(target).__name__.encode())
    for leaf in jax.tree.leaves(target):
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int):
            array = np.ascontiguousarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()[:16]
