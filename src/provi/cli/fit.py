"""`provi fit`: a model file or a table in, an approximation of the posterior with its certificate out."""

import dataclasses

import typer

from provi.cli.answer import Answer, deliver
from provi.cli.errors import check_destinations, kept_for_the_answer
from provi.cli.fit_answer import FitOptions, fit_answer
from provi.cli.missing import fit_missing
from provi.cli.model_file import is_model_file, load_target, path_of
from provi.cli.options import (
    BudgetText,
    CategoricalColumns,
    CompleteRows,
    Confidence,
    Debug,
    DecimalComma,
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
from provi.cli.table_data import Model, TableOptions, read_data
from provi.cli.table_models import Problem, make_problem


def fit(
    source: Source,
    target: ResponseColumn = None,
    model: ModelName = None,
    columns: UsedColumns = None,
    drop: DroppedColumns = None,
    categorical: CategoricalColumns = None,
    positive: PositiveLabel = None,
    decimal_comma: DecimalComma = False,
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
    Models of tables:
      logistic          two classes; Gaussian prior on the coefficients
      poisson           counts, log link; Gaussian prior on the coefficients
      gp                Gaussian process: two classes, or numbers; kernel learnt
      missing-logistic  two classes, missing entries integrated out; maximum likelihood

    \b
    Examples:
      provi fit data.csv --target outcome --model logistic --report report.html
      provi fit data.csv --target outcome --model logistic --drop id --positive yes
      provi fit visits.parquet --target visits --model poisson --json > visits.json
      provi fit model.py:target --tol 0.01 --budget 60s --save fit.safetensors

    \b
    Exit code 0: certified within --tol. 1: fitted, not certified; the verdict says
    why (missing-logistic never is). 2: bad input; one line says what.
    """
    call = command_line(fit, locals())
    table = TableOptions(
        target, model, columns or (), drop or (), categorical or (), positive, decimal_comma, complete_rows,
        standardise, prior_scale,
    )  # fmt: skip
    with kept_for_the_answer(as_json or quiet):
        check_destinations(path_of(source) if is_model_file(source) else source, {"--report": report, "--save": save})
        progress = False if as_json or quiet else None
        limits, brief = read_budget(budget), quiet and not as_json
        options = FitOptions(tol, confidence, limits, seed, report, save, progress, call, brief)
        answer = _answer(source, table, options)
    raise typer.Exit(deliver(answer, as_json, quiet))


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
        return fit_missing(data, options.tol, options.seed, bool(options.progress))
    problem = make_problem(data, table.model, table.prior_scale, options.seed, options.progress)
    return fit_answer(problem, data, options)


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
