"""The picture of a report in the gallery: `python docs/tools/gallery.py [BROWSER]` writes docs/images/report.png.

All other pictures of the gallery are drawn by the page itself; a page of HTML needs a browser: pip install playwright,
and BROWSER is the path of a Chromium where playwright has none of its own. Neither is a dependency of ours.
"""

import sys
import tempfile
from pathlib import Path

from execution import find_blocks

PAGE = Path(__file__).parents[1] / "gallery.md"
PICTURE = Path(__file__).parents[1] / "images" / "report.png"
WIDTH, HEIGHT = 1080, 860


def write_report(path: Path) -> None:
    """The report of the gallery's first fit, by the code of the page."""
    names: dict = {}
    fitted, written = (
        b.code for b in find_blocks(PAGE.read_text()) if "fit = provi.fit(" in b.code or ".report(" in b.code
    )
    exec(fitted + written.replace('"report.html"', repr(str(path))), names)


def photograph(page: Path, picture: Path, browser: str | None) -> None:
    """The top of a page, as it is in light mode."""
    try:
        from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("The picture of the report needs playwright: pip install playwright.") from error
    with sync_playwright() as play:
        # One process: containers without a sandbox of their own start no others.
        options = ["--no-sandbox", "--disable-gpu", "--single-process", "--no-zygote"]
        opened = play.chromium.launch(executable_path=browser, args=options)
        view = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        view.goto(page.as_uri())
        view.screenshot(path=picture)
        opened.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        write_report(report)
        photograph(report, PICTURE, sys.argv[1] if len(sys.argv) > 1 else None)
