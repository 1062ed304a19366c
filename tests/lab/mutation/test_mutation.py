"""Changes are real ones, and a survivor is told from what a test notices, in children."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from math import comb

import pytest

from provi_lab.mutation import command, trials
from provi_lab.mutation.mutants import mutants

SOURCE = '''"""A text with 1 number."""

LIMIT = 3


def clipped(x: int = 0) -> float:
    """Of é, 2."""
    if x < LIMIT and not x == -1:
        return max(x * 2.0, 1)
    raise ValueError(f"{x + 1}")
'''


def test_changes_are_code_that_differs_in_one_place():
    found = mutants(SOURCE)
    assert all(ast.dump(ast.parse(each.applied(SOURCE))) != ast.dump(ast.parse(SOURCE)) for each in found)
    changes = {(each.line, each.kind, each.new) for each in found}
    assert changes == {
        (3, "constant", "(4)"),
        (6, "constant", "(1)"),
        (8, "condition", "(x < LIMIT or not x == -1)"),
        (8, "condition", "(not (x < LIMIT and (not x == -1)))"),
        (8, "comparison", "(x >= LIMIT)"),
        (8, "condition", "(x == -1)"),
        (8, "comparison", "(x != -1)"),
        (8, "sign", "(1)"),
        (8, "constant", "(2)"),
        (9, "return", "(None)"),
        (9, "call", "(min(x * 2.0, 1))"),
        (9, "arithmetic", "(x / 2.0)"),
        (9, "constant", "(4.0)"),
        (9, "constant", "(2)"),
    }


def test_every_beginning_is_a_sample_of_each_room():
    every = {"theory": command.population("theory"), "geometry": command.population("geometry")}
    order = command.shuffled(every, 1)
    assert order == command.shuffled(every, 1) != command.shuffled(every, 2)
    assert sorted(trial.key for trial in order) == sorted(t.key for several in every.values() for t in several)
    begun = [trial.room for trial in order[:100]]
    ratio = (len(every["theory"]) / len(every["geometry"])) ** 0.5
    assert begun.count("theory") / begun.count("geometry") == pytest.approx(ratio, rel=0.1)
    first = [trial.mutant.line for trial in order if trial.room == "theory"][:50]
    assert first != sorted(first)


def test_the_interval_covers_as_often_as_it_says():
    """All samples of 9 of 20 changes, of which `noticed` would be noticed: exact probabilities, against 95 per cent."""
    for noticed in range(21):
        covered = 0.0
        for count in range(max(0, noticed - 11), min(9, noticed) + 1):
            low, high = command.interval(count, 9, 20)
            if low <= noticed / 20 <= high:
                covered += comb(noticed, count) * comb(20 - noticed, 9 - count) / comb(20, 9)
        assert covered >= 0.95
    assert command.interval(7, 9, 9) == (7 / 9, 7 / 9) and command.interval(0, 0, 9) == (0.0, 1.0)


def test_known_equivalents_are_changes_of_the_code_of_now():
    keys = [(each["module"], each["source"], each["old"], each["new"]) for each in command.equivalents()]
    assert len(set(keys)) == len(keys) and all(each["reason"] for each in command.equivalents())
    for module, source, old, new in keys:
        text = (trials.ROOT / "src" / module).read_text()
        rows = text.splitlines()
        there = [(rows[m.line - 1].strip(), m.old, m.new) for m in mutants(text)]
        assert (source, old, new) in there, f"{module} has no such change any more: {source}"


def test_tests_that_were_left_out_are_told_from_those_that_failed():
    """By the seconds that are allowed; of the child's way to end, only a signal says something of the tests."""
    mutant = mutants(SOURCE)[0]

    def test(seconds):
        return {"passed": True, "seconds": seconds, "lines": {"m.py": [3]}}

    known = {"a.py::one": test(1.0), "a.py::two": test(2.0), "b.py::three": test(9.0)}
    for most, tests, whole in ((20, 3, True), (12, 3, True), (11, 2, False), (0, 1, False)):
        found = trials.chosen("m.py", mutant, known, most)
        assert (sum(map(len, found.tests)), found.whole) == (tests, whole)
    assert trials._end_of(0) == trials._end_of(1 << 8) == "unfinished"
    assert trials._end_of(signal.SIGSEGV) == "killed" and trials._end_of(signal.SIGXCPU) == "timed out"


@pytest.mark.parametrize(
    ("codes", "failed", "whole", "end"),
    [
        ([0], "", True, "survived"),
        ([0], "", False, "cut short"),
        ([0, 4], "", True, "cut short"),  # tests that pytest did not find were not asked
        ([4], "", True, "not run"),
        ([5], "", True, "not run"),
        ([0, 1], "a.py::one", False, "killed"),
    ],
)
def test_the_end_of_a_trial_is_what_was_asked_and_failed(codes, failed, whole, end, monkeypatch):
    given = iter(codes)

    def run(words, watch):
        code = next(given)
        watch.failed = failed if code == 1 else ""
        return code

    monkeypatch.setattr(trials, "_pytest", run)
    monkeypatch.setattr(trials.in_place, "changed_in_place", lambda *_: True)
    assert trials.judged("m.py", "", [["a.py::one"]] * len(codes), whole)["end"] == end


@pytest.fixture
def tree(tmp_path):
    """A small tree of its own: one module, of whose functions the tests look at two."""
    root = tmp_path / "root"
    for folder in ("src/provi/theory", "src/provi_lab", "tests/theory"):
        (root / folder).mkdir(parents=True)
    for package in ("provi", "provi/theory", "provi_lab"):
        (root / "src" / package / "__init__.py").write_text("")
    shutil.copytree(trials.ROOT / "src/provi_lab/mutation", root / "src/provi_lab/mutation")
    (root / "src/provi/theory/numbers.py").write_text(
        "LIMIT = 6\n\n\ndef double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n\n\n"
        "def alone(x):\n    return x + 1\n\n\ndef up(x):\n    while x < LIMIT:\n        x += 1\n    return x\n"
    )
    (root / "tests/theory/test_numbers.py").write_text(
        "from provi.theory.numbers import double, half, up\n\n\ndef test_numbers():\n"
        "    assert double(3) == 6 and half(2)\n\n\ndef test_up():\n    assert up(3) == 6\n\n\n"
        "def test_broken():\n    assert half(3) == 7\n"
    )
    # Settings that import a neighbour, which pytest finds by its own path: so do those of this repository.
    (root / "tests/neighbour.py").write_text("KEPT = 1\n")
    (root / "tests/conftest.py").write_text("from neighbour import KEPT\n")
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["tests"]\n')
    return root


def test_survivors_are_told_from_what_is_noticed(tree):
    """In children of a process of its own, which has imported nothing of the library; and a second run goes on."""
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    words = [sys.executable, "-m", "provi_lab.mutation", "--cold", "--rooms", "theory"]
    words += ["--out", str(tree.parent / "out.json")]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*more):
        ran = subprocess.run([*words, *more], env=environment, cwd=tree, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout, json.loads((tree.parent / "out.json").read_text())

    said, held = run("--sample", "5")
    assert "does not pass unchanged: tests/theory/test_numbers.py::test_broken" in said
    assert held["scores"]["theory"]["tried"] == 5 and held["about"]["controls"] == {"tried": 1, "failed": []}
    said, held = run("--seconds", "250")
    ends = {(each["line"], each["kind"]): each["end"] for each in held["trials"]}
    assert ends[1, "constant"] == ends[5, "arithmetic"] == ends[5, "return"] == ends[9, "return"] == "killed"
    assert ends[9, "arithmetic"] == ends[9, "constant"] == "survived"
    assert ends[13, "return"] == ends[13, "arithmetic"] == "not run"
    assert ends[17, "comparison"] == "killed" and held["scores"]["all"]["tried"] == len(ends)
    score = held["scores"]["theory"]
    assert score["low"] == score["high"] == score["score"] == score["noticed"] / len(ends)
    (tree / "tests/theory/test_more.py").write_text(
        "from provi.theory.numbers import alone, half\n\n\n"
        "def test_more():\n    assert half(4) == 2 and alone(1) == 2\n"
    )
    _, held = run("--again", "--record", str(tree.parent / "kept.json"))
    assert held["scores"]["theory"]["score"] == 1.0
    kept = json.loads((tree.parent / "kept.json").read_text())
    assert kept["scores"] == held["scores"] and kept["not_noticed"] == [] and "--again" in kept["command"]
    (tree / "tests/theory/test_more.py").unlink()
    after = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert before == after
