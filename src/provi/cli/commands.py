"""The command line. Experiments and data sets are tables of names; there are no others in the library."""

import contextlib
import difflib
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from provi.cli.certify import certify
from provi.cli.compare import compare
from provi.cli.fit import fit
from provi.cli.options import Json, Output, Seed
from provi.cli.predict import predict
from provi.cli.program import Program

app = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(fit)
app.command()(certify)
app.command()(predict)
app.command()(compare)

data_app = typer.Typer(help="Real data sets, by name.", no_args_is_help=True, rich_markup_mode=None)


_ABSENT = (
    "This command needs the lab, which is not installed: pip install 'provi[lab]', or pip install ./src/provi_lab from "
    "a copy of the repository."
)


def import_lab(module: str) -> Any:
    """The module `provi_lab.MODULE`; an `ImportError` that says what to install where there is no lab.

    The one way from the library to the lab, which is a distribution of its own and may be absent.
    """
    try:
        return importlib.import_module(f"provi_lab.{module}")
    except ModuleNotFoundError as error:
        if error.name != "provi_lab":
            raise  # a package that the lab needs
        raise ImportError(_ABSENT) from None


def _show_version(wanted: bool) -> bool:
    if wanted:
        version()
        raise typer.Exit
    return wanted


def _experiments(incomplete: str) -> list[str]:
    with contextlib.suppress(ImportError):
        return [name for name in ("list", *import_lab("papers").EXPERIMENTS) if name.startswith(incomplete)]
    return []


def _data_sets(incomplete: str) -> list[tuple[str, str]]:
    from provi.data.sources import SOURCES

    return [(name, source.about) for name, source in SOURCES.items() if name.startswith(incomplete)]


@app.callback()
def callback(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """ProVI: provable variational inference.

    \b
    Examples:
      provi demo
      provi fit data.csv --target outcome --model logistic --report report.html
      provi predict fit.safetensors new.csv --output predictions.csv
      provi fit model.py:target --tol 0.01
      provi certify model.py:target q.npz

    \b
    Exit code 0: done, and certified where that is the question. 1: done, but not
    certified. 2: bad input; one line on standard error says what. 130: interrupted.
    """


@app.command()
def demo(output: Output = Path("out"), seed: Seed = 0) -> None:
    """Show a fit, on the breast-cancer data.

    Bayesian logistic regression: prints summary, ELBO and certificate, and writes a picture.

    \b
    Examples:
      provi demo
      provi demo --output pictures
    """
    from rich.console import Console

    from provi.core.files import replacing
    from provi.data.loaders import breast_cancer
    from provi.fit import fit as run_fit
    from provi.targets.regressions import LogisticRegression

    output.mkdir(parents=True, exist_ok=True)  # before the work: a folder that cannot be made is bad input
    console = Console()
    data = breast_cancer()
    console.print(f"Breast-cancer data: {data.features.shape[0]} patients, {data.features.shape[1]} measurements.")
    console.print("Bayesian logistic regression, prior N(0, 1) on every coefficient; Gaussian approximation.\n")
    target = LogisticRegression(data.features, data.response, prior_scale=1.0, intercept=True, names=data.names)
    result = run_fit(target, seed=seed)
    console.print(result.posterior.summary().table())
    console.print(f"\nELBO {result.elbo} nats (in closed form, with a bound on its error)")
    console.print(
        f"{result.num_steps} natural-gradient steps, {result.gradient_evaluations} passes over the data with the "
        f"certificate's, {result.seconds:.1f} s with compilation.\n"
    )
    result.certificate.print(console)
    picture = output / "demo.png"
    with replacing(picture) as draft:
        result.plot().savefig(draft, dpi=150)
    console.print(f"\nPicture: {picture}")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="The experiment; 'list' names them all.", autocompletion=_experiments)],
    output: Output = Path("out"),
    quick: Annotated[bool, typer.Option("--quick", help="A small version, in seconds.")] = False,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="With 'list': as JSON.")] = False,
) -> None:
    """Repeat an experiment of the papers.

    Prints a table, writes CSV and a picture, says which claims hold. It is part of the lab (provi[lab]).
    'list' has every figure and table of the papers: complete, or what is left out and why; seeds, machine, date.

    \b
    Examples:
      provi reproduce list
      provi reproduce mpsgd-figure1 --quick
    """
    papers = import_lab("papers")
    if name == "list":
        import_lab("papers.catalogue").show(as_json)
        return
    if name not in papers.EXPERIMENTS:
        meant = _meant(name, papers.EXPERIMENTS)
        raise ValueError(f"There is no experiment {name!r}.{meant} Choose one of: {', '.join(papers.EXPERIMENTS)}.")
    output.mkdir(parents=True, exist_ok=True)
    papers.reproduce(name, output, quick=quick, seed=seed)


# The words after `bench` are the lab's: options, help and errors are those of its own program.
@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def bench(
    words: Annotated[list[str] | None, typer.Argument(metavar="NAME [OPTIONS]", help="The benchmark.")] = None,
) -> int | None:
    """Measure ProVI, alone and beside its peers.

    It is part of the lab (provi[lab]).

    \b
    Examples:
      provi bench --help
      provi bench glm --quick
    """
    program = typer.main.get_command(import_lab("bench.command").app)
    return program.main(words or [], prog_name="provi bench", standalone_mode=False)


@data_app.command("list")
def list_data(as_json: Json = False) -> None:
    """Name the data sets.

    Each with what it is and its file here, or else how it is got.

    \b
    Examples:
      provi data list
      provi data list --json
    """
    from provi.data.loaders import local_copy
    from provi.data.sources import SOURCES

    places = {name: local_copy(name) for name in SOURCES}
    if as_json:
        rows = [
            {"name": name, "about": source.about, "file": places[name] and str(places[name]), "route": source.route}
            for name, source in SOURCES.items()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    for name, source in SOURCES.items():
        place = places[name] or ("can be downloaded" if source.urls else "by hand")
        typer.echo(f"{name:16}{source.about} [{place}]")


@data_app.command("path")
def data_path(
    name: Annotated[
        str, typer.Argument(help="The data set; `provi data list` names them all.", autocompletion=_data_sets)
    ],
) -> None:
    """Print the file of a data set.

    It is checked, and downloaded into the cache if need be.

    \b
    Examples:
      provi data path a9a
      python -c "import numpy; print(numpy.load('$(provi data path a9a)').files)"
    """
    from provi.data import SOURCES, path

    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}; not {name!r}.{_meant(name, SOURCES)}")
    typer.echo(path(name))


app.add_typer(data_app, name="data")


@app.command()
def version() -> None:
    """Print the version."""
    from provi import __version__

    typer.echo(__version__)


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def main() -> None:
    """Entry point of the `provi` command."""
    app(prog_name="provi")
