"""`provi fit TABLE --formula`: a mixed model of the columns of a table."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from provi.cli.answer import Answer, check_document, check_fit, check_lines, judge_fit, print_plain
from provi.data.tables import read_table

_LISTED = 40


def formula_answer(source: str, formula: str, family: str, decimal_comma: bool, options: Any) -> Answer:
    """Fit a `MixedModel`, write the files that are asked for, and say what was found.

    **Arguments:**

    - `options`: those of `provi.cli.fitting.FitOptions`.
    """
    from provi.models import MixedModel

    columns = read_table(Path(source), decimal_comma=decimal_comma)
    progress = False if options.progress is None else options.progress
    model: Any = MixedModel(
        formula, columns, family=family, tol=options.tol, confidence=options.confidence, budget=options.budget,
        random_state=options.seed, progress=progress, **options.saving,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        # What they say stands in the description and in the verdict; with --quiet they are all that does.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        model.fit()
    model.fit_ = dataclasses.replace(model.fit_, call=options.call)
    checked = check_fit(model.fit_, options.check)
    written = _write(model, options)
    verdict = judge_fit(model.fit_, options.tol, checked)
    said = (" ".join(str(warning.message).split()) for warning in caught)
    verdict = dataclasses.replace(verdict, warnings=tuple(dict.fromkeys((*said, *verdict.warnings))))
    if options.verdict_only:
        return Answer(verdict, {}, lambda console: None)
    summary, assembly = model.summary(), model.assembly_
    if assembly.observed.link in ("logit", "log", "log time"):
        summary = model.summary(ratios=True)

    def show(console: Console) -> None:
        print_plain(console, f"{source}:", *assembly.lines(), "", summary.table(_LISTED), *summary.notes, "")
        print_plain(console, f"{model.fit_.seconds:.1f} s with compilation.", "")
        model.fit_.certificate.print(console)
        print_plain(console, *check_lines(checked), *(f"Wrote {path}." for path in written.values()))

    document = _document(model, summary, options, written)
    document["check"] = check_document(checked)
    return Answer(verdict, document, show)


def _write(model: Any, options: Any) -> dict[str, Path]:
    if options.save is not None:
        model.save(options.save)
    if options.report is not None:
        model.report(options.report, check=options.check)
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
