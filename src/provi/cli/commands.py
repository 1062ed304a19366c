"""The command line. Experiments and data sets are tables of names; there are no others in the library."""

from pathlib import Path
from typing import Annotated

import typer

from provi.bench.command import app as bench_app
from provi.cli.certify import certify
from provi.cli.fit import fit
from provi.cli.options import Output, Seed

app = typer.Typer(
    help="ProVI: provable variational inference.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(fit)
app.command()(certify)

data_app = typer.Typer(help="Real data sets, by name.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")


@app.callback()
def callback() -> None:
    """ProVI: provable variational inference."""
    from provi.core.compilation import enable_compilation_cache

    enable_compilation_cache()


@app.command()
def demo(output: Output = Path("out"), seed: Seed = 0) -> None:
    """Bayesian logistic regression on the breast-cancer data: summary, ELBO and certificate; writes a picture."""
    from provi.demo import demo as run_demo

    run_demo(output, seed)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="The experiment; 'list' names them all.")],
    output: Output = Path("out"),
    quick: Annotated[bool, typer.Option("--quick", help="A small version, in seconds.")] = False,
    seed: Seed = 0,
) -> None:
    """Repeat an experiment of the papers: prints a table, writes CSV and a picture, says which claims hold."""
    from provi.experiments import EXPERIMENTS

    if name == "list":
        typer.echo("\n".join(EXPERIMENTS))
        return
    if name not in EXPERIMENTS:
        typer.echo(f"There is no experiment {name!r}. Choose one of: {', '.join(EXPERIMENTS)}.", err=True)
        raise typer.Exit(2)
    try:
        EXPERIMENTS[name](output, quick=quick, seed=seed)
    except FileNotFoundError as error:  # data that are not here; the message says how to get them
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@data_app.command("list")
def list_data() -> None:
    """Name the data sets: each with its file here, or else how it is got, and what it is."""
    from provi.data.loaders import local_copy
    from provi.data.sources import SOURCES

    for name, source in SOURCES.items():
        place = local_copy(name) or ("can be downloaded" if source.urls else "by hand")
        typer.echo(f"{name:16}{source.about} [{place}]")


@data_app.command("path")
def data_path(name: Annotated[str, typer.Argument(help="The data set; `provi data list` names them all.")]) -> None:
    """Print the file of a data set, checked, and downloaded into the cache if need be."""
    from provi.data import path

    try:
        typer.echo(path(name))
    except (ValueError, FileNotFoundError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@app.command()
def version() -> None:
    """Print the version."""
    from provi import __version__

    typer.echo(__version__)


def main() -> None:
    """Entry point of the `provi` command."""
    app()
