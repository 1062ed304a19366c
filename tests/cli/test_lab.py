"""`provi bench` and `provi reproduce` find the lab when they are asked, and say what to install where it is absent."""

import subprocess
import sys

import pytest

ABSENT = (
    "Error: This command needs the lab, which is not installed: pip install 'provi[lab]', or pip install "
    "./src/provi_lab from a copy of the repository."
)


class NoLab:
    """An import finder for a Python without `provi_lab`."""

    def find_spec(self, name, path=None, target=None):
        if name == "provi_lab":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def no_lab(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "provi_lab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoLab(), *sys.meta_path])


@pytest.mark.parametrize("words", [("bench",), ("bench", "glm", "--quick"), ("reproduce", "list")], ids=" ".join)
def test_without_the_lab_one_line_says_what_to_install(provi, no_lab, words):
    result = provi(*words)
    assert result.exit_code == 2 and not result.stdout and result.stderr.splitlines() == [ABSENT]


def test_help_lists_both_commands_without_the_lab(provi, no_lab):
    text = provi("--help").stdout
    assert "bench " in text and "reproduce " in text
    assert provi("reproduce", "--help").exit_code == 0


def test_a_package_that_the_lab_misses_is_not_mistaken_for_the_lab(provi, monkeypatch):
    monkeypatch.setitem(sys.modules, "provi_lab.papers", None)  # stands for an import error inside
    result = provi("reproduce", "list")
    assert result.exit_code == 2 and "provi_lab.papers" in result.stderr and "pip install" not in result.stderr


def test_the_command_line_does_not_import_the_lab():
    program = "import sys, provi.cli; sys.exit(any(name.startswith('provi_lab') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_bench_is_the_labs_own_program(provi):
    for words in (("bench", "--help"), ("bench", "-h")):
        result = provi(*words)
        assert result.exit_code == 0 and "gp-sparse" in result.stdout and "missing" in result.stdout
    alone, wrong = provi("bench"), provi("bench", "glmm")
    assert alone.exit_code == 2 and "gp-sparse" in alone.stderr
    assert wrong.exit_code == 2 and "Did you mean 'glm'?" in wrong.stderr and "bench --help" in wrong.stderr
    other = provi("bench", "gp", "--methods", "nuts")
    assert other.exit_code == 2 and "there is no 'nuts'" in other.stderr


def test_reproduce_names_the_experiments(provi):
    listed = provi("reproduce", "list").stdout
    assert "mpsgd-figure1" in listed and "left out: " in listed
    assert "Did you mean 'mpsgd-figure1'?" in provi("reproduce", "mpsgd-figur1").stderr
