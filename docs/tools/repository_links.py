"""Links from a page to files of the repository outside docs/: the site brings those files along."""

import os
import re
from pathlib import Path

from execution import PageError

_LINK = re.compile(r"(?<=\]\()(?P<target>(?:\.\./)+[^)#\s]+)(?=[)#])")
FOLDER = "repository"


def linked_files(page: Path, docs: Path) -> list[Path]:
    """The files outside docs/ that a page links to; one that is missing is a `PageError`."""
    linked = []
    for match in _LINK.finditer(page.read_text()):
        file = (page.parent / match["target"]).resolve()
        if not file.is_relative_to(docs):
            if not file.is_file():
                raise PageError(f"{page}: the link {match['target']} leads to no file.")
            linked.append(file)
    return linked


def point_into_the_site(markdown: str, page: Path, docs: Path) -> str:
    """The page with these links changed to the site's copies."""

    def change(match: re.Match[str]) -> str:
        file = (page.parent / match["target"]).resolve()
        if file.is_relative_to(docs):
            return match["target"]
        return os.path.relpath(docs / FOLDER / file.relative_to(docs.parent), page.parent)

    return _LINK.sub(change, markdown)
