"""The README's code runs and prints what the README shows; its commands run on a table of the reader's own."""

import re
from pathlib import Path

import pytest
from execution import find_blocks, run_page

README = Path(__file__).parents[2] / "README.md"
BLOCKS = find_blocks(README.read_text())
PYTHON = [block for block in BLOCKS if block.language == "python"]
TABLE = """\
```python
import numpy as np
rng = np.random.default_rng(0)
x = rng.standard_normal((80, 2))
outcome = np.where(rng.random(80) < 1 / (1 + np.exp(-x[:, 0])), "yes", "no")
with open("data.csv", "w") as file:
    print("age,dose,outcome", *(f"{a:.3f},{b:.3f},{c}" for (a, b), c in zip(x, outcome)), sep="\\n", file=file)
```
"""


def without_trailing_spaces(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def test_readme_has_examples():
    assert len(PYTHON) >= 4


@pytest.mark.parametrize("index", range(len(PYTHON)))
def test_example_prints_what_is_shown(index, as_a_reader):
    shown = BLOCKS[BLOCKS.index(PYTHON[index]) + 1]
    assert shown.language == "text", "each example of the README is followed by what it prints"
    [output] = run_page(README, f"```python\n{PYTHON[index].code}```\n")
    assert without_trailing_spaces(output.text) == without_trailing_spaces(shown.code)


def test_commands_run_on_a_table(as_a_reader):
    commands = [block for block in BLOCKS if block.language in ("bash", "console")]
    page = TABLE + "".join(
        f"\n```{' '.join([block.language, *block.options])}\n{block.code}```\n" for block in commands
    )
    assert len(run_page(README, page)) == 1 + len(commands)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[)#]", README.read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (README.parent / link).exists(), link
