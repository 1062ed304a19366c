"""Options that commands share, and their meaning."""

import enum
import inspect
import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


class Model(enum.StrEnum):
    """The models of `provi fit TABLE`."""

    LOGISTIC = "logistic"
    POISSON = "poisson"
    LINEAR = "linear"
    STUDENT_T = "student-t"
    NEGATIVE_BINOMIAL = "negative-binomial"
    MULTINOMIAL = "multinomial"
    ORDINAL = "ordinal"
    WEIBULL = "weibull"
    EXPONENTIAL = "exponential"
    LOG_NORMAL = "log-normal"
    GP = "gp"
    MISSING_LOGISTIC = "missing-logistic"


Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the files that are written.")]


def _check_seed(value: int) -> int:
    if not 0 <= value < 2**63:
        raise typer.BadParameter(f"{value} is not a whole number from 0 to 2^63 - 1.")
    return value


Seed = Annotated[int, typer.Option(metavar="N", help="Random seed.", callback=_check_seed)]

# Of `provi fit` and `provi certify`.
Confidence = Annotated[float, typer.Option(metavar="LEVEL", help="Of the certificate, where it is not deterministic.")]
BudgetText = Annotated[
    str | None,
    typer.Option("--budget", metavar="BUDGET", help="At most so many gradient evaluations (100000), or seconds (60s)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output, nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict only; warnings go to standard error.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

# Of `provi fit`.
Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="MODEL.py:NAME, or a table: data.csv, data.tsv, data.parquet.")
]
Tolerance = Annotated[float, typer.Option(metavar="NATS", help="Stop when the gap is certified to be at most this.")]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report there.")]
Check = Annotated[
    bool, typer.Option("--check/--no-check", help="Whether to compare the data with data simulated from the fit.")
]
SaveFile = Annotated[
    Path | None, typer.Option("--save", metavar="FILE", help="Write the fit there, for provi predict and provi.load.")
]

CheckpointFile = Annotated[
    Path | None, typer.Option("--checkpoint", metavar="FILE", help="Save the run there as it goes, for --resume.")
]
CheckpointSeconds = Annotated[
    float | None,
    typer.Option("--checkpoint-seconds", metavar="SECONDS", help="From one checkpoint to the next. Default: 30."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the file of --checkpoint, if there is one.")]

# Of `provi fit` with a table.
ResponseColumn = Annotated[
    str | None, typer.Option("--target", "-t", metavar="COLUMN", help="Table: the column of the response.")
]
ModelName = Annotated[Model | None, typer.Option("--model", "-m", help="Table: the model.")]
FormulaText = Annotated[
    str | None,
    typer.Option("--formula", metavar="FORMULA", help="Table: a mixed model, 'y ~ x + (1 | g)', instead of a model."),
]
FamilyName = Annotated[
    str | None,
    typer.Option("--family", metavar="FAMILY", help="Of --formula: gaussian, bernoulli, binomial, poisson, ..."),
]
UsedColumns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="COLUMNS", help="Table: the columns to use, a,b,c; repeatable. Default: all."),
]
DroppedColumns = Annotated[
    list[str] | None, typer.Option("--drop", metavar="COLUMNS", help="Table: columns to leave out, a,b,c; repeatable.")
]
CategoricalColumns = Annotated[
    list[str] | None,
    typer.Option("--categorical", metavar="COLUMNS", help="Table: columns of numbers that are categories, a,b,c."),
]
PositiveLabel = Annotated[
    str | None,
    typer.Option("--positive", metavar="LABEL", help="Table: the label that is 1. Default: the later in order."),
]
DecimalComma = Annotated[bool, typer.Option("--decimal-comma", help="Table: 1,5 is a number, one and a half.")]
CompleteRows = Annotated[
    bool, typer.Option("--complete-rows", help="Table: leave out rows with missing entries, instead of refusing.")
]
Stream = Annotated[
    bool | None,
    typer.Option(
        "--stream/--no-stream",
        help="Table: read Parquet or Arrow files in blocks, never all at once. Without it files do that whose rows "
        "would take more than half of the free memory.",
    ),
]
Standardise = Annotated[bool, typer.Option(help="Table: bring columns of numbers to mean 0 and standard deviation 1.")]
PriorScale = Annotated[
    float | None,
    typer.Option(
        "--prior-scale", metavar="SD", help="Table: prior standard deviation of all coefficients, as they are encoded."
    ),
]
PriorTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--prior", metavar="NAME=PRIOR", help="Table: 'age=normal(0,0.1)', in the column's units; repeatable."
    ),
]
OffsetColumn = Annotated[
    str | None, typer.Option("--offset", metavar="COLUMN", help="Table: added to the linear predictor of each row.")
]
ExposureColumn = Annotated[
    str | None, typer.Option("--exposure", metavar="COLUMN", help="Table: counts are in proportion to it.")
]
WeightsColumn = Annotated[
    str | None, typer.Option("--weights", metavar="COLUMN", help="Table: how often each row counts.")
]
CensoredColumn = Annotated[
    str | None, typer.Option("--censored", metavar="COLUMN", help="Table of times: 1 where one was cut short, else 0.")
]
Devices = Annotated[
    int | None, typer.Option("--devices", metavar="N", help="Divide the rows or draws among so many local devices.")
]
Distributed = Annotated[
    bool, typer.Option("--distributed", help="One of several processes, started by srun, mpirun or torchrun.")
]
Hosts = Annotated[
    str | None, typer.Option("--hosts", metavar="A,B", help="The hosts of all processes, first that of rank 0; a:PORT.")
]
Rank = Annotated[
    int | None, typer.Option("--rank", metavar="K", help="Which of --hosts this is, from 0, unless a launcher says it.")
]


def command_line(command: Callable[..., None], given: Mapping[str, Any]) -> str:
    """The call of a command as the user could type it again; options that are at their defaults are left out.

    **Arguments:**

    - `given`: the arguments of `command` by name. Option names are theirs, with `as_json` for --json.
    """
    words = ["provi", command.__name__]
    for name, parameter in inspect.signature(command).parameters.items():
        value, option = given[name], name.removeprefix("as_").replace("_", "-")
        if parameter.default is parameter.empty:
            words.append(str(value))
        elif value == parameter.default or value is None:
            continue
        elif isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            values = value if isinstance(value, list) else [value]
            words += [word for item in values for word in (f"--{option}", str(item))]
    return shlex.join(words)


def read_checkpoint(path: Path | None, seconds: float | None, resume: bool) -> dict[str, Any]:
    """What `provi.fit` takes of the three options; nothing where none is given."""
    if path is None:
        given = "--resume" if resume else "--checkpoint-seconds" if seconds is not None else None
        if given is not None:
            raise ValueError(f"{given} needs --checkpoint FILE, the file of the run.")
        return {}
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ValueError(f"--checkpoint-seconds must be 0 or more, not {seconds}.")
    interval = {} if seconds is None else {"checkpoint_seconds": seconds}
    return {"checkpoint": path, "resume": resume, **interval}


def read_budget(text: str | None) -> Any:
    """A `Budget`: a number of gradient evaluations, or of seconds with an `s` behind it."""
    if text is None:
        return None
    from provi.runtime.run import Budget  # with JAX, for which help and completion need not wait

    try:
        return Budget(seconds=float(text[:-1])) if text.endswith("s") else Budget(gradients=int(text))
    except ValueError:
        raise ValueError(f"--budget must be a positive number, 100000 gradients or 60s, not {text!r}.") from None
