"""`provi fit`: a model file or a table in, an approximation of the posterior with its certificate out.

Light, as help and completion read it: what does the work, `cli.fitting`, is imported when it is called.
"""

import contextlib
import io
import sys

import typer

from provi.cli.errors import check_destinations, kept_for_the_answer
from provi.cli.model_file import is_model_file, path_of
from provi.cli.options import (
    BudgetText,
    CategoricalColumns,
    CensoredColumn,
    Check,
    CheckpointFile,
    CheckpointSeconds,
    CompleteRows,
    Confidence,
    Debug,
    DecimalComma,
    Devices,
    Distributed,
    DroppedColumns,
    ExposureColumn,
    FamilyName,
    FormulaText,
    Hosts,
    Json,
    ModelName,
    OffsetColumn,
    PositiveLabel,
    PriorScale,
    PriorTexts,
    Quiet,
    Rank,
    ReportFile,
    ResponseColumn,
    Resume,
    SaveFile,
    Seed,
    Source,
    Standardise,
    Stream,
    Tolerance,
    UsedColumns,
    WeightsColumn,
    command_line,
    read_budget,
    read_checkpoint,
)
from provi.cli.program import INTERRUPTED


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
    prior: PriorTexts = None,
    offset: OffsetColumn = None,
    exposure: ExposureColumn = None,
    weights: WeightsColumn = None,
    censored: CensoredColumn = None,
    stream: Stream = None,
    tol: Tolerance = 0.01,
    confidence: Confidence = 0.99,
    budget: BudgetText = None,
    seed: Seed = 0,
    report: ReportFile = None,
    save: SaveFile = None,
    checkpoint: CheckpointFile = None,
    checkpoint_seconds: CheckpointSeconds = None,
    resume: Resume = False,
    check: Check = True,
    devices: Devices = None,
    distributed: Distributed = False,
    hosts: Hosts = None,
    rank: Rank = None,
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
      linear            numbers; the noise scale is integrated
      student-t         numbers with outliers; scale and tails estimated, no certificate
      negative-binomial counts that spread more; the dispersion is integrated
      ordinal           grades in an order; the cut points are integrated
      multinomial       several classes without an order
      weibull, exponential, log-normal   times until an event, some --censored
      gp                Gaussian process: two classes, or numbers; kernel learnt
      missing-logistic  two classes, missing entries integrated out; maximum likelihood
    A --formula with a --family is a mixed model of the columns as they are.

    \b
    Examples:
      provi fit data.csv --target outcome --model logistic --report report.html
      provi fit data.csv --target outcome --model logistic --drop id --positive yes
      provi fit visits.parquet --target visits --model poisson --json > visits.json
      provi fit "part-*.parquet" -t clicked -m logistic --stream
      provi fit visits.csv -t visits -m negative-binomial --exposure days
      provi fit data.csv -t outcome -m logistic --prior "age=normal(0,0.1)"
      provi fit trial.csv -t time -m weibull --censored lost
      provi fit visits.csv --formula "visits ~ age + (1 | clinic)" --family poisson
      provi fit model.py:target --tol 0.01 --budget 60s --save fit.safetensors
      provi fit model.py:target --checkpoint run.ckpt --resume
      srun -n 4 provi fit big.parquet -t outcome -m logistic --distributed
      provi fit big.csv -t outcome -m logistic --hosts node1,node2 --rank 0

    \b
    Exit code 0: good. Certified within --tol; or converged, of a --formula, whose
    integration over scales has an estimated error, and of missing-logistic and
    student-t, which have no certificate; and the model fits its data. 1: not
    converged or not to be trusted: no certificate, k-hat too large, or a model that
    does not fit; the verdict says which. 2: bad input. 75: another process was lost.
    130: interrupted, by Ctrl-C or SIGTERM; what was reached is said and written.
    """
    call = command_line(fit, locals())
    if rank is not None and hosts is None and not distributed:
        raise ValueError("--rank needs --hosts A,B, the hosts of all processes.")
    mesh, first = _joined(hosts, rank) if distributed or hosts is not None else (devices, True)
    from provi.cli.answer import deliver
    from provi.cli.fitting import FitOptions, answer
    from provi.cli.table_data import TableOptions

    table = TableOptions(
        target, model, columns or (), drop or (), categorical or (), positive, decimal_comma, complete_rows,
        standardise, prior_scale, prior or (), offset, exposure, weights, censored, stream,
    )  # fmt: skip
    with kept_for_the_answer(as_json or quiet):
        report, save = (report, save) if first else (None, None)
        written = {"--report": report, "--save": save, "--checkpoint": checkpoint if first else None}
        check_destinations(path_of(source) if is_model_file(source) else source, written)
        progress = False if as_json or quiet or not first else None
        limits, brief = read_budget(budget), quiet and not as_json
        saving = read_checkpoint(checkpoint, checkpoint_seconds, resume)
        options = FitOptions(tol, confidence, limits, seed, report, save, progress, call, brief, check, saving, mesh)
        found = answer(source, formula, family, table, options)
    with contextlib.nullcontext() if first else contextlib.redirect_stdout(io.StringIO()):
        code = deliver(found, as_json, quiet)
    if code == INTERRUPTED:  # all is said: typer's own way would add an error to it
        sys.exit(code)
    raise typer.Exit(code)


def _joined(hosts: str | None, rank: int | None) -> tuple[int, bool]:
    """Join the other processes. **Returns:** the devices of all of them, and whether this one writes."""
    import jax

    from provi.runtime.distributed import is_first, start

    start(hosts, rank)
    return jax.device_count(), is_first()
