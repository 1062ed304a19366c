"""What `provi fit` does: a problem is made and fitted, files are written, and what is said for people and as data."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from provi.cli.answer import (
    Answer,
    check_document,
    check_fit,
    check_lines,
    judge_fit,
    print_plain,
    table_description,
)
from provi.cli.formula import formula_answer
from provi.cli.model_file import is_model_file, load_target
from provi.cli.options import Model
from provi.cli.table_data import TableData, TableOptions, read_data
from provi.cli.table_models import Problem, fit_missing, make_problem, original_document
from provi.fit import fit as run_fit
from provi.result import Fit
from provi.runtime.run import Budget

_LISTED, _LISTED_VALUES = 40, 10  # rows of the summary: of parameters, and of the values of a process
# Draws for k-hat, where target and family hold so many numbers and where they hold more. With 2000 draws k-hat of a
# logistic regression whose KL to its posterior is 0.003 came out as 0.64, with 10,000 as 0.24.
_SMALL, _DRAWS, _FEWER_DRAWS = 10**5, 10_000, 2000
_WARNING = "Warning: "


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """What the options about the fit say; `saving`: of checkpoints, for `provi.fit`."""

    tol: float
    confidence: float
    budget: Budget | None
    seed: int
    report: Path | None
    save: Path | None
    progress: bool | None
    call: str
    verdict_only: bool = False
    check: bool = True
    saving: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mesh: int | None = None


def fit_answer(problem: Problem, data: TableData | None, options: FitOptions) -> Answer:
    """Fit the problem, write the files that are asked for, and say what was found."""
    result = run_fit(
        problem.target,
        tol=options.tol,
        confidence=options.confidence,
        budget=options.budget,
        seed=options.seed,
        start=problem.start,
        progress=options.progress,
        mesh=options.mesh,
        **options.saving,
    )
    if jax.process_count() > 1:
        _ = result.certificate.kl  # computed by all together; what follows each does by itself
    encoding = None if data is None else data.encoding
    if encoding is not None and problem.moved is not None:
        shift, slopes = (tuple(map(float, numbers)) for numbers in problem.moved)
        encoding = dataclasses.replace(encoding, shift=shift, slopes=slopes)
    description = None if data is None else table_description(data, problem.words, problem.target)
    result = dataclasses.replace(result, call=options.call, description=description, encoding=encoding)
    whole = problem.target.division is None  # else no process has all rows, and none can simulate them
    # The family as well: that of a Gaussian process holds the kernel matrix.
    arrays = jax.tree.leaves((problem.target, result.posterior.family))
    small = sum(np.size(array) for array in arrays) <= _SMALL and getattr(problem.target, "stream", None) is None
    num_draws = _DRAWS if small else _FEWER_DRAWS
    # Of a model without a certificate k-hat is all that vouches for the numbers.
    if whole and (options.report is not None or small or not problem.provable):
        with contextlib.suppress(ValueError):  # the summary and the report say why there is no k-hat
            result.diagnose(num_draws)
    checked = check_fit(result, options.check and whole)
    original = None if problem.original is None else problem.original(result)
    summarise = None if problem.summary is None else functools.partial(problem.summary, result)
    written = _write(result, options, num_draws, summarise, original)
    verdict = judge_fit(result, options.tol, checked, problem.provable)
    if options.verdict_only:
        return Answer(verdict, {}, lambda console: None)
    summary: Any = result.posterior.summary() if problem.summary is None else problem.summary(result)
    about_rows = [note for note in summary.notes if not note.startswith(_WARNING)]
    about_tails = [note for note in summary.notes if note.startswith(_WARNING)] or _tails(result)

    def show(console: Console) -> None:
        described = [] if data is None else data.description()
        table = summary.table(_LISTED_VALUES if problem.hyperparameters else _LISTED)
        print_plain(console, *described, problem.words, "", table, *about_rows, "", _run_line(result), "")
        if original is not None:
            print_plain(console, "In the units of the table:", "", original.table(_LISTED), *original.notes, "")
        result.certificate.print(console)
        print_plain(console, *check_lines(checked), *(f"Wrote {path}." for path in written.values()))

    document = {
        "model": problem.words,
        **({} if data is None else {"data": data.to_dict()}),
        **({"hyperparameters": problem.hyperparameters} if problem.hyperparameters else {}),
        **_result_document(result, options),
        "answers": list(result.certificate.lines),
        "parameters": [{"name": name, **row} for name, row in summary.to_dict().items()],
        **({} if original is None else {"original_units": original_document(original)}),
        **({"priors": problem.priors} if problem.priors else {}),
        "interval_probability": summary.probability,
        "notes": about_rows,
        "k_hat": _k_hat(result),
        "check": check_document(checked),
        "advice": " ".join(note.removeprefix(_WARNING) for note in about_tails),
        "files": {name: str(path) for name, path in written.items()},
    }
    return Answer(verdict, document, show, tuple(about_tails))


def _write(result: Fit, options: FitOptions, num_draws: int, summarise: Any, original: Any) -> dict[str, Path]:
    if options.save is not None:
        result.save(options.save)
    if options.report is not None:
        from provi.report.html.page import write_report

        write_report(
            result,
            options.report,
            num_draws=num_draws,
            check=options.check,
            summarise=summarise,
            original=original,
        )
    files = {"save": options.save, "report": options.report}
    return {name: path for name, path in files.items() if path is not None}


def _tails(result: Fit) -> list[str]:
    """What k-hat says of the distance to the posterior, on which the certificate is silent; a nested fit has none."""
    if result.certificate.opening:
        return []
    found = result.posterior.latest_diagnosis
    if found is None:
        return ["k-hat was not computed, as the data are large: --report computes it."]
    return [found.advice]


def _k_hat(result: Fit) -> float | None:
    found = result.posterior.latest_diagnosis
    return None if found is None else found.pareto_k


def _run_line(result: Fit) -> str:
    return (
        f"ELBO {result.elbo} nats; {result.num_steps} steps, {result.gradient_evaluations} gradient evaluations, "
        f"{result.seconds:.1f} s with compilation."
    )


def _result_document(result: Fit, options: FitOptions) -> dict[str, Any]:
    return {
        "tol": options.tol,
        "seed": options.seed,
        "elbo": dataclasses.asdict(result.elbo),
        "gap": result.certificate.gap,
        "status": result.certificate.status,
        "outcome": result.outcome.name,
        "message": result.message,
        "certificate": result.certificate.to_dict(),
        "num_steps": result.num_steps,
        "gradient_evaluations": result.gradient_evaluations,
        "seconds": result.seconds,
    }


def answer(source: str, formula: str | None, family: str | None, table: TableOptions, options: FitOptions) -> Answer:
    """The answer of `provi fit` to its options."""
    if jax.process_count() > 1 and (formula is not None or table.model is Model.MISSING_LOGISTIC):
        raise ValueError("--distributed is for tables with --model, other than missing-logistic, and model files.")
    if formula is not None or family is not None:
        return _formula_answer(source, formula, family, table, options)
    return _answer(source, table, options)


def _answer(source: str, table: TableOptions, options: FitOptions) -> Answer:
    if is_model_file(source):
        given = [field.name for field in dataclasses.fields(table) if getattr(table, field.name) != field.default]
        if given:
            option = given[0].replace("_", "-")
            raise ValueError(
                f"--{option} is for tables; {source} is a model file, which says all about its data itself."
            )
        target = load_target(source)
        words = f"{source}: {type(target).__name__}, {target.dim} parameters."
        return fit_answer(Problem(target, words), None, options)
    data = read_data(source, table)
    assert table.model is not None
    if table.model is Model.MISSING_LOGISTIC:
        _refuse_for_missing(table, options)
        return fit_missing(data, options.tol, options.seed, bool(options.progress), options.report, options.call)
    problem = make_problem(data, table, options.seed, options.progress)
    return fit_answer(problem, data, options)


def _formula_answer(
    source: str, formula: str | None, family: str | None, table: TableOptions, options: FitOptions
) -> Answer:
    if formula is None or family is None:
        raise ValueError("--formula and --family go together: --formula 'y ~ x + (1 | g)' --family gaussian.")
    if is_model_file(source):
        raise ValueError(f"--formula is for tables; {source} is a model file, which says all about its data itself.")
    given = [field.name for field in dataclasses.fields(table) if getattr(table, field.name) != field.default]
    other = [name for name in given if name != "decimal_comma"]
    if other:
        option = ("no-" if other[0] == "standardise" else "") + other[0].replace("_", "-")
        raise ValueError(f"--{option} cannot be used with --formula, which says which columns are used, and how.")
    return formula_answer(source, formula, family, table.decimal_comma, options)


def _refuse_for_missing(table: TableOptions, options: FitOptions) -> None:
    """Maximum likelihood has no prior, and gives no `Fit` to save."""
    values = {
        "--prior-scale": table.prior_scale,
        "--budget": options.budget,
        "--save": options.save,
        "--checkpoint": options.saving.get("checkpoint"),
    }
    for option, value in values.items():
        if value is not None:
            raise ValueError(f"{option} cannot be used with --model missing-logistic; --json has all of its results.")
