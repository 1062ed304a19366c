"""`provi fit`: a model file or a table in, an approximation of the posterior with its certificate out; what is
said about it for people, as plain data, in files.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import typer
from rich.console import Console

from provi.cli.answer import Answer, deliver, judge, print_plain
from provi.cli.errors import check_destinations, kept_for_the_answer
from provi.cli.formula import formula_answer
from provi.cli.model_file import is_model_file, load_target, path_of
from provi.cli.options import (
    BudgetText,
    CategoricalColumns,
    CompleteRows,
    Confidence,
    Debug,
    DecimalComma,
    DroppedColumns,
    FamilyName,
    FormulaText,
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
from provi.cli.table_models import Problem, fit_missing, make_problem
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
    """What the options about the fit say."""

    tol: float
    confidence: float
    budget: Budget | None
    seed: int
    report: Path | None
    save: Path | None
    progress: bool | None
    call: str
    verdict_only: bool = False


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
    )
    result = dataclasses.replace(result, call=options.call)
    # The family as well: that of a Gaussian process holds the kernel matrix.
    arrays = jax.tree.leaves((problem.target, result.posterior.family))
    small = sum(np.size(array) for array in arrays) <= _SMALL
    num_draws = _DRAWS if small else _FEWER_DRAWS
    if options.report is not None or (small and not options.verdict_only):
        with contextlib.suppress(ValueError):  # the summary and the report say why there is no k-hat
            result.diagnose(num_draws)
    written = _write(result, options, num_draws)
    verdict = judge(result.certificate, options.tol, result.message)
    if options.verdict_only:
        return Answer(verdict, {}, lambda console: None)
    summary = result.posterior.summary()
    about_rows = [note for note in summary.notes if not note.startswith(_WARNING)]
    about_tails = [note for note in summary.notes if note.startswith(_WARNING)] or [_tails(result)]

    def show(console: Console) -> None:
        described = [] if data is None else data.description()
        table = summary.table(_LISTED_VALUES if problem.hyperparameters else _LISTED)
        print_plain(console, *described, problem.words, "", table, *about_rows, "", _run_line(result), "")
        result.certificate.print(console)
        print_plain(console, *(f"Wrote {path}." for path in written.values()))

    document = {
        "model": problem.words,
        **({} if data is None else {"data": data.to_dict()}),
        **({"hyperparameters": problem.hyperparameters} if problem.hyperparameters else {}),
        **_result_document(result, options),
        "answers": list(result.certificate.lines),
        "parameters": [{"name": name, **row} for name, row in summary.to_dict().items()],
        "interval_probability": summary.probability,
        "notes": about_rows,
        "k_hat": _k_hat(result),
        "advice": " ".join(note.removeprefix(_WARNING) for note in about_tails),
        "files": {name: str(path) for name, path in written.items()},
    }
    return Answer(verdict, document, show, tuple(about_tails))


def _write(result: Fit, options: FitOptions, num_draws: int) -> dict[str, Path]:
    if options.save is not None:
        result.save(options.save)
    if options.report is not None:
        result.report(options.report, num_draws=num_draws)
    files = {"save": options.save, "report": options.report}
    return {name: path for name, path in files.items() if path is not None}


def _tails(result: Fit) -> str:
    """What k-hat says of the distance to the posterior, on which the certificate is silent."""
    found = result.posterior.latest_diagnosis
    if found is None:
        return "k-hat was not computed, as the data are large: --report computes it."
    if found.pareto_k is None:
        return "k-hat, the distance to the posterior itself, was not computed: pip install 'provi[arviz]'."
    return found.advice


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


def fit(
    source: Source,
    target: ResponseColumn = None,
    model: ModelName = None,
    formula: FormulaText = None,
    family: FamilyName = None,
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
    A --formula with a --family is a mixed model of the columns as they are.

    \b
    Examples:
      provi fit data.csv --target outcome --model logistic --report report.html
      provi fit data.csv --target outcome --model logistic --drop id --positive yes
      provi fit visits.parquet --target visits --model poisson --json > visits.json
      provi fit visits.csv --formula "visits ~ age + (1 | clinic)" --family poisson
      provi fit model.py:target --tol 0.01 --budget 60s --save fit.safetensors

    \b
    Exit code 0: certified within --tol. 1: fitted, not certified; the verdict says
    why (missing-logistic never is, nor a --formula, whose integration over scales
    has an estimated error). 2: bad input; one line says what.
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
        if formula is not None or family is not None:
            answer = _formula_answer(source, formula, family, table, options)
        else:
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
