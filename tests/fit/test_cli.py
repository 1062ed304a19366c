"""The command line as a user calls it."""

from typer.testing import CliRunner

from provi import __version__
from provi.cli import app

runner = CliRunner()


def test_version():
    assert runner.invoke(app, ["version"]).output.strip() == __version__


def test_help_names_the_commands():
    output = runner.invoke(app, ["--help"]).output
    assert "demo" in output and "reproduce" in output


def test_unknown_experiment_is_refused_with_the_list():
    result = runner.invoke(app, ["reproduce", "no-such-figure"])
    assert result.exit_code == 2
    assert "mpsgd-figure1" in result.output


def test_experiments_are_listed():
    output = runner.invoke(app, ["reproduce", "list"]).output.split()
    assert {"mpsgd-figure1", "mpsgd-figure2", "mpsgd-figure3", "prox-proj-rates", "stl-gaussian"} <= set(output)


def test_demo_writes_its_picture(tmp_path):
    result = runner.invoke(app, ["demo", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "demo.png").stat().st_size > 20_000
    for words in ("worst texture", "ELBO -55.4", "Proven: within", "Assumptions"):
        assert words in result.output
