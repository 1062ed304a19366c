"""The sub-commands of `provi bench`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Measure ProVI, alone and beside its peers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

Problems = Annotated[list[str] | None, typer.Option("--problems", help="A problem; repeat for more. Default: all.")]
Methods = Annotated[list[str] | None, typer.Option("--methods", help="A method; repeat for more. Default: all.")]
Quick = Annotated[bool, typer.Option("--quick", help="Breast cancer only, at most 10 seconds a run.")]
Seconds = Annotated[float, typer.Option(help="Limit of one run, without compilation.", min=0.1)]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Checkout to write benchmarks/results and docs/benchmarks.md in.")
]
Pythons = Annotated[
    list[Path] | None,
    typer.Option("--python", exists=True, dir_okay=False, help="Another Python to look for peers in; repeatable."),
]
Environments = Annotated[
    Path | None,
    typer.Option(
        "--environments",
        exists=True,
        file_okay=False,
        help="Folder that `provi bench environments` filled: each peer runs in its own Python there, if it has one.",
    ),
]


@app.command()
def blackbox(
    quick: Quick = False,
    problems: Problems = None,
    methods: Methods = None,
    seconds: Seconds = 120.0,
    python: Pythons = None,
    environments: Environments = None,
    output: Output = None,
) -> None:
    """Time to a true gap of 1, 0.1 and 0.01 nats, beside other libraries; without --output it only prints."""
    from provi_lab.bench.blackbox import SECTION, compare
    from provi_lab.bench.logistic import BLACKBOX_PROBLEMS, METHODS

    chosen = _found(_chosen("methods", methods, METHODS), python, environments)
    made = _load("problems", ["breast-cancer"] if quick and not problems else problems, BLACKBOX_PROBLEMS)
    _show(SECTION, compare(made, chosen, min(seconds, 10.0) if quick else seconds, typer.echo), output)


@app.command()
def glm(
    quick: Quick = False,
    problems: Problems = None,
    seconds: Seconds = 120.0,
    repeats: Annotated[int, typer.Option(help="Processes a problem; the least times count.", min=1)] = 3,
    output: Output = None,
) -> None:
    """Certified gap, true gap and time on logistic regressions up to 49,749 x 301 and 11,552 x 785."""
    from provi_lab.bench.logistic import GLM_PROBLEMS, SECTION, measure

    made = _load("problems", ["breast-cancer"] if quick and not problems else problems, GLM_PROBLEMS)
    limit, times = (min(seconds, 10.0), 1) if quick else (seconds, repeats)
    _show(SECTION, measure(made, limit, typer.echo, times), output)


@app.command()
def passes(
    quick: Annotated[bool, typer.Option("--quick", help="20,000 x 100 only, one repeat.")] = False,
    large: Annotated[bool, typer.Option("--large", help="Also 1,000,000 x 100, which is 0.8 GB.")] = False,
    output: Output = None,
) -> None:
    """Certified fits of logistic regressions beside a natural gradient in NumPy, and how they grow with N and D."""
    from provi_lab.bench.passes import LARGE, SECTION, SIZES, measure_passes

    sizes = SIZES[:1] if quick else SIZES
    _show(SECTION, measure_passes([*sizes, LARGE] if large else sizes, 1 if quick else 3, typer.echo), output)


@app.command()
def scaling(
    quick: Annotated[
        bool, typer.Option("--quick", help="Small problems, two devices, 100 draws, one repetition: does it work?")
    ] = False,
    output: Output = None,
) -> None:
    """A fit and a Monte-Carlo step on 1, 2, 4 and 8 simulated devices, and a black-box step of 10 to 10,000 draws."""
    from provi_lab.bench.scaling import DEVICES, DRAWS, QUICK_DEVICES, QUICK_DRAWS, SECTION, measure_scaling

    sizes = (QUICK_DEVICES, QUICK_DRAWS) if quick else (DEVICES, DRAWS)
    _show(SECTION, measure_scaling(*sizes, quick=quick, report=typer.echo), output)


@app.command()
def gp(
    quick: Annotated[bool, typer.Option("--quick", help="Ionosphere only, at most 2 seconds a run.")] = False,
    problems: Problems = None,
    methods: Methods = None,
    seconds: Seconds = 60.0,
    python: Pythons = None,
    environments: Environments = None,
    output: Output = None,
) -> None:
    """Gaussian-process classification: time to a true gap of 0.01 and 0.001 nats, beside other libraries."""
    from provi_lab.bench.gp import GP_METHODS, GP_PROBLEMS, SECTION, compare_gp

    chosen = _found(_chosen("methods", methods, GP_METHODS), python, environments)
    made = _load("problems", ["ionosphere"] if quick and not problems else problems, GP_PROBLEMS)
    _show(SECTION, compare_gp(made, chosen, min(seconds, 2.0) if quick else seconds, typer.echo), output)


@app.command()
def gp_sparse(
    methods: Methods = None,
    seconds: Seconds = 120.0,
    python: Pythons = None,
    environments: Environments = None,
    output: Output = None,
) -> None:
    """Sparse Gaussian processes, 100,000 points: seconds a pass, ELBO and held-out log loss beside other libraries."""
    from provi_lab.bench.gp import SPARSE_METHODS, SPARSE_SECTION, measure_sparse, synthetic

    chosen = _found(_chosen("methods", methods, SPARSE_METHODS), python, environments)
    _show(SPARSE_SECTION, measure_sparse([synthetic()], chosen, seconds, typer.echo), output)


@app.command()
def distance(
    quick: Annotated[bool, typer.Option("--quick", help="The small problems alone.")] = False,
    problems: Annotated[
        list[str] | None,
        typer.Option("--problems", help="A part of their names; repeat for more. Default: all."),
    ] = None,
    processes: Annotated[int, typer.Option(help="Problems at a time.", min=1)] = 1,
    output: Output = None,
) -> None:
    """Bounds on KL(q || posterior) and brackets of the evidence against the truth, beside the log-Sobolev bound."""
    from provi_lab.bench.distance import SECTION, measure

    _show(SECTION, measure(problems, quick=quick, processes=processes, report=typer.echo), output)


@app.command()
def missing(
    quick: Annotated[bool, typer.Option("--quick", help="One data set of the first problem.")] = False,
    problems: Problems = None,
    methods: Methods = None,
    seconds: Seconds = 120.0,
    python: Pythons = None,
    environments: Environments = None,
    output: Output = None,
) -> None:
    """Logistic regression with missing covariates: time of a fit and gap to the exact maximum, beside others."""
    from provi_lab.bench.missing import MISSING_METHODS, MISSING_PROBLEMS, SECTION, measure_missing

    chosen = _found(_chosen("methods", methods, MISSING_METHODS), python, environments)
    groups = _load("problems", ["10%"] if quick and not problems else problems, MISSING_PROBLEMS)
    made = [problem for group in groups for problem in (group[:1] if quick else group)]
    _show(SECTION, measure_missing(made, chosen, seconds, typer.echo), output)


@app.command()
def topics(
    quick: Annotated[bool, typer.Option("--quick", help="One split of the documents; the smallest sizes.")] = False,
    throughput: Annotated[
        bool, typer.Option("--throughput", help="Words a second and memory of ProVI alone, as the sizes grow.")
    ] = False,
    problems: Annotated[
        list[str] | None, typer.Option("--problems", help="ap or nips; repeat for more. Default: ap.")
    ] = None,
    methods: Methods = None,
    seconds: Seconds = 120.0,
    python: Pythons = None,
    environments: Environments = None,
    output: Output = None,
) -> None:
    """Correlated topic model: score of held-out words and time of a fit, beside other libraries' topic models."""
    from provi_lab.bench.topics import SECTION, TOPICS_METHODS, TOPICS_PROBLEMS, measure_topics

    chosen = _found(_chosen("methods", methods, TOPICS_METHODS), python, environments)
    if throughput:
        _topics_throughput(quick, seconds, output)
        return
    groups = _load("problems", problems or ["ap"], TOPICS_PROBLEMS)
    made = [problem for group in groups for problem in (group[:1] if quick else group)]
    _show(SECTION, measure_topics(made, chosen, seconds, typer.echo), output)


def _topics_throughput(quick: bool, seconds: float, output: Path | None) -> None:
    from provi_lab.bench.throughput import SECTION, STREAM_BATCHES, measure_throughput, sizes
    from provi_lab.bench.topics import read_corpus

    found = _load("problems", ["ap"], {"ap": lambda: read_corpus("ap_corpus")})
    if not found:
        raise typer.Exit(1)
    pairs = [(100, 5), (200, 5)] if quick else sizes()
    batches = STREAM_BATCHES // 10 if quick else STREAM_BATCHES
    _show(SECTION, measure_throughput(found[0], pairs, seconds, typer.echo, batches), output)


@app.command()
def environments(
    peers: Annotated[list[str] | None, typer.Argument(help="Peers by name. Default: all.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to make them, one folder a peer; without it they are only listed.")
    ] = None,
) -> None:
    """Make a virtual environment for each peer library with pip, and print how the benches are told of them."""
    from provi_lab.bench.environments import EnvironmentFailed, commands, environment_cells, make_environment
    from provi_lab.bench.peers.environments import ENVIRONMENTS
    from provi_lab.common.tables import print_cells

    unknown = [name for name in peers or () if name not in ENVIRONMENTS]
    if unknown:
        raise typer.BadParameter(
            f"there is no {unknown[0]!r}. Choose of: {', '.join(ENVIRONMENTS)}.", param_hint="PEERS"
        )
    chosen, failed = list(dict.fromkeys(peers or ENVIRONMENTS)), []
    if folder is None:
        print_cells("Environments of the peers", environment_cells(chosen, None), words=range(4))
        typer.echo("Make them: provi bench environments --folder FOLDER")
        return
    for name in chosen:
        try:
            make_environment(name, folder, typer.echo)
        except EnvironmentFailed as error:  # the others can be made all the same
            typer.echo(str(error), err=True)
            failed.append(name)
    print_cells("Environments of the peers", environment_cells(chosen, folder), words=range(4))
    typer.echo("\n".join(commands([name for name in chosen if name not in failed], folder)))
    if failed:
        raise typer.Exit(1)


def _chosen(option: str, names: list[str] | None, table: Mapping[str, Any]) -> list[Any]:
    unknown = [name for name in names or () if name not in table]
    if unknown:
        typer.echo(f"--{option}: there is no {unknown[0]!r}. Choose of: {', '.join(table)}.", err=True)
        raise typer.Exit(2)
    return [table[name] for name in names or table]


def _found(methods: list[Any], pythons: list[Path] | None, environments: Path | None) -> list[Any]:
    """The methods, each with its own Python, or else with the other one that it needs."""
    others = [str(path) for path in pythons or ()]
    return [method.in_environment(environments).found_in(others) for method in methods]


def _load(option: str, names: list[str] | None, table: Mapping[str, Callable[[], Any]]) -> list[Any]:
    """The problems whose data are here; the others are named and left out."""
    made = []
    for make in _chosen(option, names, table):
        try:
            made.append(make())
        except (FileNotFoundError, ImportError) as error:
            typer.echo(f"left out: {error}", err=True)
    return made


def _show(section: Any, rows: list[dict[str, Any]], output: Path | None) -> None:
    """The results on the terminal and, where a checkout is given, in its record and on its page."""
    section.show(rows, typer.echo)
    if output is None:
        return
    from provi_lab.bench.record import make_record, write_record

    for path in write_record(output, make_record(section.kind, rows)):
        typer.echo(f"wrote {path}")
