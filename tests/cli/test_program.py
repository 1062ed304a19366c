"""The command as a whole: help, versions, completion, and every way in which it can end."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
import typer
from typer.testing import CliRunner

from provi import __version__
from provi.cli import app
from provi.cli.program import exit_code

COMMANDS = [(), ("fit",), ("certify",), ("demo",), ("reproduce",), ("data", "list"), ("data", "path")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples_and_every_option_a_text(provi, command):
    result = provi(*command, "--help")
    assert result.exit_code == 0 and "Examples:" in result.stdout
    group = typer.main.get_command(app)
    for name in command:
        group = group.commands[name]
    assert all(parameter.help for parameter in group.params)
    assert provi(*command, "-h").stdout == result.stdout


def test_exit_codes_are_in_the_help(provi):
    for command in ((), ("fit",), ("certify",)):
        assert "Exit code 0" in provi(*command, "--help").stdout


def test_version_is_an_option_too(provi):
    assert provi("--version").stdout == provi("version").stdout == f"{__version__}\n"


def test_alone_it_shows_the_help(provi):
    result = provi()
    assert result.exit_code == 2 and not result.stdout and "Examples:" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fti",), "No such command 'fti'. Did you mean 'fit'? See root --help."),
        (("data", "lst"), "Did you mean 'list'?"),
        (("data", "path", "sonr"), "Did you mean 'sonar'?"),
        (("demo", "--output", "/proc/nowhere"), "/proc/nowhere: No such file or directory."),
        (("demo", "--seed", "one"), "'--seed'"),
    ],
)
def test_errors_of_every_command_are_one_line(provi, words, said):
    result = provi(*words)
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2 and not result.stdout and line.startswith("Error: ") and said in line


def test_errors_of_options_are_json_too(provi):
    result = provi("fit", "data.csv", "--json", "--no-such-option")
    assert result.exit_code == 2 and "No such option" in json.loads(result.stdout)["error"]


def test_data_sets_as_json(provi):
    rows = json.loads(provi("data", "list", "--json").stdout)
    assert [row["name"] for row in rows] == [line.split()[0] for line in provi("data", "list").stdout.splitlines()]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("provi data path a9", ["a9a"]),
        ("provi fit data.csv --model mi", ["missing-logistic"]),
        ("provi fit --deb", ["--debug"]),
        ("provi cer", ["certify"]),
    ],
)
def test_completion(typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_PROVI_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, [], env=words, prog_name="provi")
    assert result.stdout.split() == offered


class TestEndings:
    """`exit_code` with every kind of ending."""

    @staticmethod
    def end(capsys, raised, *words):
        def run():
            raise raised

        code = exit_code(run, words)
        return code, *capsys.readouterr()

    def test_interrupted(self, capsys):
        assert self.end(capsys, KeyboardInterrupt()) == (130, "", "Error: Interrupted.\n")
        code, out, _ = self.end(capsys, typer.Abort(), "--json")
        assert code == 130 and json.loads(out)["error"] == "Interrupted."

    def test_an_error_nobody_expected(self, capsys):
        assert self.end(capsys, KeyError("k")) == (2, "", "Error: KeyError: 'k'\n")
        assert (
            self.end(capsys, PermissionError(13, "Permission denied", "d.csv"))[2]
            == "Error: d.csv: Permission denied.\n"
        )
        assert self.end(capsys, ValueError("two\n  lines " + 700 * "x"))[2].startswith("Error: two lines xxx")

    def test_traceback_with_debug_alone(self, capsys):
        assert "Traceback" not in self.end(capsys, ValueError("no"))[2]
        code, _, said = self.end(capsys, ValueError("no"), "--debug")
        assert code == 2 and "Traceback (most recent call last)" in said and said.endswith("Error: no\n")

    def test_a_reader_that_has_gone(self, monkeypatch, tmp_path):
        with (tmp_path / "out").open("w") as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            assert exit_code(lambda: (_ for _ in ()).throw(BrokenPipeError()), ()) == 141

    def test_warnings_are_one_line(self, capsys):
        def run():
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn("take\ncare", UserWarning, stacklevel=1)

        assert exit_code(run, ()) == 0
        assert capsys.readouterr().err == "Warning: take care\n"

    def test_exit_of_shell_completion_passes(self, capsys):
        with pytest.raises(SystemExit):
            self.end(capsys, SystemExit(1), "fit")


SLOW = """
import os
import time
import provi
target = provi.targets.Gaussian([0.0], [[1.0]])
os.write(1, b"written without asking Python\\n")
def slow():
    open("started", "w").close()
    time.sleep(60)
"""


def test_a_process_is_interrupted_and_leaves_one_object(write, tmp_path):
    """Ctrl-C in a process of its own. What the file writes to the descriptor is not on standard output either."""
    words = [sys.executable, "-m", "provi.cli", "fit", f"{write('slow.py', SLOW)}:slow", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=tmp_path, text=True, **pipes) as process:
        for _ in range(600):
            if (tmp_path / "started").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out) == {"verdict": "error", "error": "Interrupted."}
    assert err.splitlines() == ["written without asking Python", "Error: Interrupted."]
