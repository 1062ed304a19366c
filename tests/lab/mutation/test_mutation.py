"""Changes are real ones, and a survivor is told from what a test notices, in a copy of the tree."""

import ast
import re

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


def test_the_sample_is_of_the_rooms_and_repeats_itself():
    sample = command.sampled(["theory", "geometry"], 5, 1)
    assert [trial.room for trial in sample] == ["theory"] * 5 + ["geometry"] * 5
    assert sample == command.sampled(["theory", "geometry"], 5, 1) != command.sampled(["theory", "geometry"], 5, 2)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small tree of its own: one module, of whose two functions the tests look at one."""
    root = tmp_path / "root"
    for folder in ("src/provi/theory", "src/provi_lab/mutation", "tests/theory"):
        (root / folder).mkdir(parents=True)
    (root / "src/provi/__init__.py").write_text("")
    (root / "src/provi/theory/__init__.py").write_text("")
    code = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n\n\ndef alone(x):\n    return x + 1\n"
    (root / "src/provi/theory/numbers.py").write_text(code)
    test = "from provi.theory.numbers import double, half\n\n\ndef test():\n    assert double(3) == 6 and half(2)\n"
    (root / "tests/theory/test_numbers.py").write_text(test)
    for name in ("__init__.py", "lines.py"):
        (root / "src/provi_lab/mutation" / name).write_text((trials.ROOT / "src/provi_lab/mutation" / name).read_text())
    (root / "src/provi_lab/__init__.py").write_text("")
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (root / name).write_text("")
    monkeypatch.setattr(trials, "ROOT", root)
    monkeypatch.setattr(command, "ROOT", root)
    return root


def test_survivors_are_told_from_what_is_noticed(tree, capsys):
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    command.main(["--rooms", "theory", "--sample", "99"])
    told = re.findall(
        r"^(\w+(?: run)?) +src/provi/theory/numbers.py:(\d+): (\w+):", capsys.readouterr().out, re.MULTILINE
    )
    ends = {(int(line), kind): end for end, line, kind in told}
    assert ends[2, "arithmetic"] == ends[2, "return"] == ends[6, "return"] == "killed"
    assert ends[6, "arithmetic"] == ends[6, "constant"] == "survived"
    assert {end for (line, _), end in ends.items() if line == 10} == {"not run"}
    assert before == {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
