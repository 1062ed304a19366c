"""The README's code runs and prints what the README shows."""

import contextlib
import io
import re
from pathlib import Path

import jax
import pytest

README = Path(__file__).parents[2] / "README.md"
PAIRS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text(), flags=re.DOTALL)


def without_trailing_spaces(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def test_readme_has_four_examples():
    assert len(PAIRS) == 4


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_example_prints_what_is_shown(index, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    code, expected = PAIRS[index]
    output = io.StringIO()
    with jax.enable_x64(False), contextlib.redirect_stdout(output):
        exec(compile(code, str(README), "exec"), {})
    assert without_trailing_spaces(output.getvalue()) == without_trailing_spaces(expected)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
