"""`provi fit`: a model file or a table in, an approximation of the posterior with its certificate out."""

import dataclasses
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from provi.cli.answer import Answer, deliver, judge, print_plain
from provi.cli.errors import check_destination, kept_for_the_answer, one_line_errors
from provi.cli.missing import fit_missing
from provi.cli.model_file import is_model_file, load_target
from provi.cli.options import (
    BudgetText,
    CategoricalColumns,
    CompleteRows,
    Confidence,
    Debug,
    DroppedColumns,
    Json,
    ModelName,
    PositiveLabel,
    PriorScale,
    Quiet,
    ReportFile,
    ResponseColumn,
    SaveFile,
    Seed,
    Source,
    Standardise,
    Tolerance,
    UsedColumns,
    command_line,
    read_budget,
)
from provi.cli.table_data import Model, TableData, TableOptions, read_data
from provi.cli.table_models import Problem, make_problem
from provi.fit import fit as run_fit
from provi.result import Fit
from provi.runtime.budget import Budget

_LISTED_VALUES = 10


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """What the options about the fit say."""

    tol: float
    confidence: float
    budget: Budget | None
    seed: int
    report: Path | None
    save: Path | None
    progress: bool | None
    call: str


def fit(
    source: Source,
    target: ResponseColumn = None,
    model: ModelName = None,
    columns: UsedColumns = None,
    drop: DroppedColumns = None,
    categorical: CategoricalColumns = None,
    positive: PositiveLabel = None,
    complete_rows: CompleteRows = False,
    standardise: Standardise = True,
    prior_scale: PriorScale = None,
    tol: Tolerance = 0.01,
    confidence: Confidence = 0.99,
    budget: BudgetText = None,
    seed: Seed = 0,
    report: ReportFile = None,
    save: SaveFile = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit the best Gaussian to a posterior, and certify it.

    SOURCE is a Python file with the name of a target in it (or of a function that returns one), or a table. Of a table,
    texts become 0/1 indicators with the first level as the reference, and numbers are standardised.

    \b
    provi fit model.py:target --tol 0.01 --report fit.html
    provi fit data.csv --target outcome --model logistic --drop id
    provi fit data.csv --target outcome --model missing-logistic

    \b
    Exit code 0: certified within --tol. 1: fitted, not certified; the last line says why
    (missing-logistic never is). 2: bad input; one line says what.
    """
    call = command_line(fit, locals())
    table = TableOptions(
        target, model, columns or (), drop or (), categorical or (), positive, complete_rows, standardise, prior_scale
    )
    with one_line_errors(source, debug, as_json):
        with kept_for_the_answer(as_json or quiet):
            check_destination("--report", report)
            check_destination("--save", save)
            progress = False if as_json or quiet else None
            options = FitOptions(tol, confidence, read_budget(budget), seed, report, save, progress, call)
            answer = _answer(source, table, options)
        code = deliver(answer, as_json, quiet)
    raise typer.Exit(code)


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
        return _fit_answer(Problem(target, words), None, options)
    data = read_data(source, table)
    assert table.model is not None
    if table.model is Model.MISSING_LOGISTIC:
        _refuse_for_missing(table, options)
        return fit_missing(data, options.tol, options.seed, bool(options.progress))
    problem = make_problem(data, table.model, table.prior_scale, options.seed, options.progress)
    return _fit_answer(problem, data, options)


def _refuse_for_missing(table: TableOptions, options: FitOptions) -> None:
    """Maximum likelihood has no prior, and gives no `Fit` to save or to report on."""
    values = {
        "--prior-scale": table.prior_scale,
        "--budget": options.budget,
        "--report": options.report,
        "--save": options.save,
    }
    for option, value in values.items():
        if value is not None:
            raise ValueError(f"{option} cannot be used with --model missing-logistic; --json has all of its results.")


def _fit_answer(problem: Problem, data: TableData | None, options: FitOptions) -> Answer:
    result = run_fit(
        problem.target,
        tol=options.tol,
        confidence=options.confidence,
        budget=options.budget,
        seed=options.seed,
        start=problem.start,
        progress=options.progress,
    )
    # The report needs the target for its diagnostics, and says how to do this again.
    result = dataclasses.replace(result, target=problem.target, call=options.call)
    written = _write(result, options)
    summary = result.posterior.summary()

    def show(console: Console) -> None:
        described = [] if data is None else data.description()
        largest = _LISTED_VALUES if problem.hyperparameters else 40
        print_plain(console, *described, problem.words, "", summary.table(largest), "", _run_line(result), "")
        result.certificate.print(console)
        print_plain(console, *(f"Wrote {path}." for path in written.values()))

    document = {
        "model": problem.words,
        **({} if data is None else {"data": data.to_dict()}),
        **({"hyperparameters": problem.hyperparameters} if problem.hyperparameters else {}),
        **_result_document(result, options),
        "files": {name: str(path) for name, path in written.items()},
    }
    return Answer(judge(result.certificate, options.tol, result.message), document, show)


def _write(result: Fit, options: FitOptions) -> dict[str, Path]:
    if options.save is not None:
        result.save(options.save)
    if options.report is not None:
        result.report(options.report)
    files = {"save": options.save, "report": options.report}
    return {name: path for name, path in files.items() if path is not None}


def _run_line(result: Fit) -> str:
    return (
        f"ELBO {result.elbo} nats; {result.num_steps} steps, {result.gradient_evaluations} gradient evaluations, "
        f"{result.seconds:.1f} s with compilation."
    )


def _result_document(result: Fit, options: FitOptions) -> dict[str, Any]:
    columns = zip(
        result.posterior.names, result.posterior.mean, result.posterior.standard_deviation,
        result.posterior.interval(), strict=True,
    )  # fmt: skip
    return {
        "tol": options.tol,
        "seed": options.seed,
        "elbo": dataclasses.asdict(result.elbo),
        "gap": result.certificate.gap,
        "status": result.certificate.status,
        "outcome": result.outcome.name,
        "message": result.message,
        "parameters": [
            {"name": name, "mean": mean, "sd": sd, "low": low, "high": high} for name, mean, sd, (low, high) in columns
        ],
        "interval_probability": 0.94,
        "certificate": result.certificate.to_dict(),
        "num_steps": result.num_steps,
        "gradient_evaluations": result.gradient_evaluations,
        "seconds": result.seconds,
    }
