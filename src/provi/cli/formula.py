"""`provi fit TABLE --formula`: a mixed model of the columns of a table."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from provi.certificates.bounds import at_most
from provi.certificates.distance.bound import rounded_down_text, rounded_up_text
from provi.cli.answer import Answer, Verdict, judge, print_plain
from provi.data.tables import read_table

_LISTED = 40


def formula_answer(source: str, formula: str, family: str, decimal_comma: bool, options: Any) -> Answer:
    """Fit a `MixedModel`, write the files that are asked for, and say what was found.

    **Arguments:**

    - `options`: those of `provi.cli.fit.FitOptions`.
    """
    from provi.models import MixedModel

    columns = read_table(Path(source), decimal_comma=decimal_comma)
    progress = False if options.progress is None else options.progress
    model: Any = MixedModel(
        formula, columns, family=family, tol=options.tol, confidence=options.confidence, budget=options.budget,
        random_state=options.seed, progress=progress,
    )  # fmt: skip
    with warnings.catch_warnings():
        # What they say stands in the description and in the verdict.
        warnings.simplefilter("ignore", UserWarning)
        model.fit()
    model.fit_ = dataclasses.replace(model.fit_, call=options.call)
    written = _write(model, options)
    verdict = _verdict(model.fit_, options.tol)
    if options.verdict_only:
        return Answer(verdict, {}, lambda console: None)
    summary, assembly = model.summary(), model.assembly_

    def show(console: Console) -> None:
        print_plain(console, f"{source}:", *assembly.lines(), "", summary.table(_LISTED), *summary.notes, "")
        print_plain(console, f"{model.fit_.seconds:.1f} s with compilation.", "")
        model.fit_.certificate.print(console)
        print_plain(console, *(f"Wrote {path}." for path in written.values()))

    return Answer(verdict, _document(model, summary, options, written), show)


def _verdict(found: Any, tol: float) -> Verdict:
    """What is proven given the rule over the hyperparameters; as its error is an estimate, that is a condition."""
    certificate, evidence = found.certificate, found.evidence
    if certificate.gap is not None or certificate.kl is None:
        return judge(certificate, tol, found.message)
    proven = {"proven": "is proven to be", "statistical": "is, statistically,"}.get(evidence.status, "is")
    ended = found.message[:1].upper() + found.message[1:]
    return Verdict(
        "conditional",
        f"Given the rule over the hyperparameters KL(q || posterior) {proven} at most {at_most(certificate.kl)} nats, "
        f"and the log evidence to lie in [{rounded_down_text(evidence.lower)}, {rounded_up_text(evidence.upper)}]; the "
        f"error of the rule is estimated, not proven. {ended}.",
    )


def _write(model: Any, options: Any) -> dict[str, Path]:
    if options.save is not None:
        model.fit_.save(options.save)
    if options.report is not None:
        model.report(options.report)
    files = {"save": options.save, "report": options.report}
    return {name: path for name, path in files.items() if path is not None}


def _document(model: Any, summary: Any, options: Any, written: dict[str, Path]) -> dict[str, Any]:
    found, assembly = model.fit_, model.assembly_
    rows = assembly.design.rows
    evidence = found.evidence
    return {
        "formula": model.formula,
        "family": assembly.observed.family,
        "link": assembly.observed.link,
        "data": {
            "rows": int(rows.kept.sum()),
            "rows_left_out": rows.num_dropped,
            "missing_entries": rows.missing,
            "response": {"name": assembly.design.response.name, "meaning": assembly.observed.words},
            "reference_levels": assembly.design.encoding.references,
            "groups": {group.name: len(group.factor.levels) for group in assembly.design.groups},
        },
        "priors": assembly.priors.words,
        "tol": options.tol,
        "seed": options.seed,
        "elbo": dataclasses.asdict(found.elbo),
        "log_evidence": {"lower": evidence.lower, "upper": evidence.upper, "status": evidence.status},
        "gap": found.certificate.gap,
        "kl": found.certificate.kl,
        "status": found.certificate.status,
        "outcome": found.outcome.name,
        "message": found.message,
        "certificate": found.certificate.to_dict(),
        "answers": list(found.certificate.lines),
        "seconds": found.seconds,
        "parameters": [{"name": name, **row} for name, row in summary.to_dict().items()],
        "interval_probability": summary.probability,
        "effects": model.ranef().to_dict(orient="records"),
        "files": {name: str(path) for name, path in written.items()},
    }
