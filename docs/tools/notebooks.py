"""The tutorials as notebooks, nbformat 4.5: the site brings them along, each tutorial links to its own.

Text becomes cells of Markdown, blocks of code become cells of code, and what the build printed and drew their outputs.
`python docs/tools/notebooks.py FOLDER` writes them without outputs.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from execution import Block, PageError, find_blocks

FOLDER = "notebooks"
TUTORIALS = Path(__file__).parents[1] / "tutorials"
_LINK_WITHIN_THE_SITE = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?!https?:)[^)\s]*\)")
_ONLY_OF_THE_SITE = re.compile(r"^(!!!|\?\?\?|===|<div|--8<--) ?.*", re.MULTILINE)


def tutorials(folder: Path = TUTORIALS) -> list[Path]:
    """The pages that have a notebook: those of the tutorials with code."""
    pages = sorted(folder.glob("*.md"))
    return [page for page in pages if any(block.language == "python" for block in find_blocks(page.read_text()))]


def address(page: Path) -> str:
    """Where the notebook of a page is, seen from the root of the site."""
    return f"{FOLDER}/{page.stem}.ipynb"


def as_notebook(markdown: str, outputs: list[dict] | None = None) -> dict[str, Any]:
    """A page, with the outputs of its blocks if they are known, as the dictionary that an .ipynb file holds in JSON."""
    lines = markdown.splitlines()
    cells: list[dict[str, Any]] = []
    told = iter(outputs or [])
    start = 0
    for block in find_blocks(markdown):
        if block.is_run:
            _add_text(cells, lines[start : block.first - 1])
            _add_code(cells, block, next(told) if outputs else None)
            start = block.last
    _add_text(cells, lines[start:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def written(notebook: dict[str, Any]) -> str:
    """The text of the .ipynb file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def link_to_notebook(markdown: str, page: Path) -> str:
    """The page of the site with a link to its notebook below the title."""
    title, _, rest = markdown.partition("\n")
    link = f'[Download as a notebook](../{address(page)}){{ .notebook download="{page.stem}.ipynb" }}'
    return f"{title}\n\n{link}\n{rest}"


def _add_text(cells: list[dict[str, Any]], lines: list[str]) -> None:
    text = "\n".join(lines).strip("\n")
    odd = _ONLY_OF_THE_SITE.search(text)
    if odd:
        raise PageError(f"a notebook cannot show {odd[0]!r}: write it as plain Markdown.")
    # A notebook that was downloaded lies beside no pages: their names stay, links that lead nowhere do not.
    text = _LINK_WITHIN_THE_SITE.sub(r"\g<text>", text)
    if text.strip():
        cells.append({"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)})


def _add_code(cells: list[dict[str, Any]], block: Block, output: dict | None) -> None:
    code = block.code if block.language == "python" else "%%bash\n" + re.sub(r"(?m)^\$ ", "", block.code)
    shown: list[dict[str, Any]] = []
    if output and output["text"]:
        shown.append({"name": "stdout", "output_type": "stream", "text": output["text"].splitlines(keepends=True)})
    for picture, alternative, _ in output["figures"] if output else ():
        data = {"image/png": picture, "text/plain": [alternative]}
        shown.append({"data": data, "metadata": {}, "output_type": "display_data"})
    count = 1 + sum(cell["cell_type"] == "code" for cell in cells) if output else None
    source = code.rstrip("\n").splitlines(keepends=True)
    cells.append(
        {"cell_type": "code", "execution_count": count, "metadata": {}, "outputs": shown, "source": source},
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for tutorial in tutorials():
        (folder / f"{tutorial.stem}.ipynb").write_text(written(as_notebook(tutorial.read_text())), encoding="utf-8")
