"""The site is built strictly: no broken link or anchor, no page outside the menus, no formula unread, no network."""

import html
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from execution import PageError
from formulas import as_mathml
from repository_links import linked_files, point_into_the_site

ROOT = Path(__file__).parents[2]


class _Loaded(HTMLParser):
    """The addresses that a browser fetches to show a page: links that a reader may follow are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("img", "script", "iframe", "source", "video"):
            self.addresses.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload", "manifest"):
            self.addresses.append(given.get("href") or "")


def test_the_site_is_built_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "PROVI_DOCS_EXECUTE": "0", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_nothing_is_loaded_from_elsewhere(tmp_path)
    check_formulas_are_mathml(tmp_path)
    assert list((tmp_path / "repository").rglob("*.json")), "files that pages link to come along"
    check_notebooks_come_along(tmp_path)
    check_signatures_have_types(tmp_path)


def check_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        reader = _Loaded()
        reader.feed(page.read_text())
        outside = [address for address in reader.addresses if re.match(r"(https?:)?//", address)]
        assert not outside, f"{page.relative_to(site)} loads {outside}"


def check_notebooks_come_along(site):
    written = sorted((site / "notebooks").glob("*.ipynb"))
    assert len(written) > 10
    for notebook in written:
        page = (site / "tutorials" / f"{notebook.stem}.html").read_text()
        assert f'href="../notebooks/{notebook.name}"' in page


def check_signatures_have_types(site):
    page = (site / "api" / "fit.html").read_text()
    signature = page[page.index('doc-signature highlight"') :]
    signature = html.unescape(re.sub("<[^>]*>", "", signature[: signature.index("</div>")]))
    assert "target: AbstractTarget" in signature and "tol: float = 0.01" in signature and "-> Fit" in signature


def check_formulas_are_mathml(site):
    """On the pages and in the docstrings."""
    page = (site / "theory" / "certificates.html").read_text()
    assert page.count("<math") > 200
    assert "$" not in re.sub(r"<(script|style|code)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert (site / "api" / "targets.html").read_text().count("<math") > 10


def test_a_formula_that_is_not_understood_is_refused():
    assert "<mfrac>" in as_mathml(r"\frac12", display=False)
    with pytest.raises(PageError, match="nosuchthing"):
        as_mathml(r"\nosuchthing x", display=False)


def test_links_out_of_docs_are_found_and_changed(tmp_path):
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (tmp_path / "data.csv").write_text("1")
    page = docs / "sub" / "page.md"
    page.write_text("[a](../../data.csv) [b](../other.md)")
    assert linked_files(page, docs) == [tmp_path / "data.csv"]
    assert point_into_the_site(page.read_text(), page, docs) == "[a](../repository/data.csv) [b](../other.md)"
    (tmp_path / "data.csv").unlink()
    with pytest.raises(PageError, match="leads to no file"):
        linked_files(page, docs)
