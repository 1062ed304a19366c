"""`provi compare`: which of several saved fits has the largest evidence, and by how much at least."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from provi.cli.options import Debug, Json, Quiet, ReportFile


def compare(
    files: Annotated[
        list[Path], typer.Argument(metavar="FIT FIT ...", help="Files of provi fit --save, of models of the same data.")
    ],
    report: ReportFile = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare models by their evidence.

    Each saved fit has its log evidence in a bracket; the difference of two of them bounds the log Bayes factor.

    \b
    Examples:
      provi fit data.csv --target outcome --model logistic --save all.fit
      provi fit data.csv --target outcome --model logistic --drop dose --save some.fit
      provi compare all.fit some.fit --report comparison.html

    \b
    Exit code 0: one model has the largest evidence. 1: not decided, as brackets
    overlap. 2: bad input, or models of different data; one line says what.
    """
    from provi.cli.errors import check_destinations
    from provi.result.evidence import compare_evidence, saved_evidence

    if len(files) < 2:
        raise ValueError("compare needs two files or more: provi compare a.fit b.fit.")
    for file in files:
        check_destinations(str(file), {"--report": report})
    saved = [saved_evidence(file) for file in files]
    titles = _titles(files)
    found = compare_evidence(titles, [fit.evidence for fit in saved], [fit.response for fit in saved])
    unknown = " and ".join(title for title, fit in zip(titles, saved, strict=True) if fit.response is None)
    caution = f"Not checked, as the file does not say: that {unknown} is of the same data." if unknown else ""
    if report is not None:
        found.report(report)
    if as_json:
        calls = {title: fit.call for title, fit in zip(titles, saved, strict=True)}
        models = [{"name": name, "call": calls[name], **row} for name, row in found.to_dict().items()]
        typer.echo(json.dumps(_document(found, models, caution, report), indent=2, allow_nan=False))
    else:
        from rich.console import Console

        if not quiet:
            Console(highlight=False, emoji=False, width=118).print(found.table())
            typer.echo()
        typer.echo(found.verdict)
        for line in (caution, f"Wrote {report}." if report is not None and not quiet else ""):
            if line:
                typer.echo(line)
    raise typer.Exit(0 if found.decided else 1)


def _document(found: Any, models: Sequence[dict[str, Any]], caution: str, report: Path | None) -> dict[str, Any]:
    """Plain data; null for an end that is not known."""
    return {
        "verdict": "decided" if found.decided else "not decided",
        "sentence": found.verdict,
        "confidence": found.confidence,
        "status": found.status,
        "models": [
            {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in model.items()}
            for model in models
        ],
        "notes": [caution] if caution else [],
        "files": {} if report is None else {"report": str(report)},
    }


def _titles(files: Sequence[Path]) -> list[str]:
    """The files' names without their endings, or the whole paths where two of those are the same."""
    stems = [file.stem for file in files]
    titles = stems if len(set(stems)) == len(stems) else [str(file) for file in files]
    twice = next((title for title in titles if titles.count(title) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice: give each fit once.")
    return titles
