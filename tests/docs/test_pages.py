"""Every block of code on every page of docs/ runs; a page is a test, so that none can be forgotten."""

from pathlib import Path

import pytest
from execution import find_blocks, is_run_by_hand, run_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# The page Getting started runs in test_wheel.py, as it is after `pip install provi`.
WITH_CODE = [
    page
    for page in PAGES
    if page.name != "getting-started.md" and any(block.is_run for block in find_blocks(page.read_text()))
]
# These are read from the page and run by test_wheel.py; another page may show them, word for word.
THREE_COMMANDS = next(b.code for b in find_blocks((DOCS / "command-line.md").read_text()) if b.code.startswith("pip "))
LANGUAGES = {"python", "bash", "console", "sh", "", "text", "stan", "json", "csv", "toml"}


@pytest.mark.parametrize("page", WITH_CODE, ids=[str(page.relative_to(DOCS)) for page in WITH_CODE])
def test_page_runs(page, as_a_reader, quick_compilation, monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # for the page's commands
    outputs = run_page(page)
    assert any(output.text or output.figures for output in outputs), "a page whose code shows nothing proves little"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem)
def test_fences_say_what_their_blocks_are(page):
    for block in find_blocks(page.read_text()):
        assert block.language in LANGUAGES, f"{page}:{block.first}: unknown language {block.language}"
        if block.language in ("sh", "") and page.name != "CONTRIBUTING.md":
            allowed = is_run_by_hand(block.code) or block.code == THREE_COMMANDS
            assert allowed, f"{page}:{block.first}: sh is for pip, git, make and cd only"


def test_outputs_are_not_typed_in():
    for page in PAGES:
        blocks = find_blocks(page.read_text())
        for before, block in zip(blocks, blocks[1:], strict=False):
            between = page.read_text().splitlines()[before.last : block.first - 1]
            typed = before.is_run and block.language == "text" and not any(line.strip() for line in between)
            assert not typed, f"{page}:{block.first}: the output of the block above is made at build; take this out"


def test_examples_are_listed():
    listed = (DOCS / "tutorials" / "index.md").read_text()
    scripts = sorted((ROOT / "examples").glob("*.py"))
    assert scripts
    for script in scripts:
        assert f"(../../examples/{script.name})" in listed, f"docs/tutorials/index.md does not list {script.name}"
