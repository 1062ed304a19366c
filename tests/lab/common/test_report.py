"""Reports: verdicts, tables, pages and files."""

import csv
import io

from rich.console import Console

from provi_lab.common.report import Claim, Report, finish
from provi_lab.common.tables import format_value, write_rows


def _report(tmp_path):
    rows = ({"method": "A", "gap [nats]": 1.23456789}, {"method": "B", "gap [nats]": 2e-9})
    files = (tmp_path / "x.png", write_rows(tmp_path / "x.csv", rows))
    claims = (Claim.of("one", True, "1 < 2"), Claim.of("two", 0, "|x| > 1"), Claim("three", "not tested", "no time"))
    return Report("x", "A title", "The setting.", rows, claims, files, 1.0)


def test_verdicts_follow_the_test():
    assert Claim.of("s", True, "").verdict == "holds"
    assert Claim.of("s", False, "").verdict == "does not hold"


def test_the_page_has_table_claims_picture_and_surroundings(tmp_path):
    report = finish(_report(tmp_path), tmp_path)
    page = (tmp_path / "x.md").read_text()
    assert report.files[-1] == tmp_path / "x.md"
    assert "![A title](x.png)" in page and "[x.csv](x.csv)" in page
    assert "| A | 1.235 |" in page and "| two | **does not hold** | \\|x\\| > 1 |" in page
    assert "provi reproduce x" in page and "jax" in page


def test_printing_shows_every_claim(tmp_path):
    console = Console(file=io.StringIO(), width=120)
    _report(tmp_path).print(console)
    text = console.file.getvalue()
    assert all(word in text for word in ("holds: one", "does not hold: two", "not tested: three", "1.23", "gap [nats]"))


def test_csv_keeps_full_precision(tmp_path):
    path = write_rows(tmp_path / "deep" / "y.csv", [{"a": 1 / 3, "b": "text"}])
    with path.open() as stream:
        (row,) = csv.DictReader(stream)
    assert float(row["a"]) == 1 / 3 and row["b"] == "text"


def test_numbers_for_people():
    assert format_value(123.456) == "123.5" and format_value(0.00012345, 3) == "0.000123" and format_value(7) == "7"
