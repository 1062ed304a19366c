"""`provi compare a.fit b.fit`: the same numbers as `provi.compare`, from files alone."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

import provi as library
from provi.result.evidence import response_fingerprint
from provi.targets import LogisticRegression

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3))
Y = RNG.random(80) < 1 / (1 + np.exp(-2 * X[:, 0]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The column that made the labels, one of noise, and other labels."""
    folder = tmp_path_factory.mktemp("fits")
    fits = {
        "right": library.fit(LogisticRegression(X[:, :1], Y)),
        "noise": library.fit(LogisticRegression(X[:, 1:2], Y)),
        "other": library.fit(LogisticRegression(X[:, :1], X[:, 2] > 0)),
    }
    for name, fit in fits.items():
        fit.save(folder / f"{name}.fit")
    return folder, fits


def test_equals_the_library(provi, saved):
    folder, fits = saved
    by_hand = library.compare({name: fits[name] for name in ("noise", "right")})
    result = provi("compare", folder / "noise.fit", folder / "right.fit", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["verdict"] == "decided" and found["sentence"] == by_hand.verdict and found["notes"] == []
    for row, (name, numbers) in zip(found["models"], by_hand.to_dict().items(), strict=True):
        assert row["name"] == name and {key: row[key] for key in numbers} == pytest.approx(numbers)
    plain = provi("compare", folder / "noise.fit", folder / "right.fit")
    assert "Models by evidence" in plain.stdout and plain.stdout.splitlines()[-1] == by_hand.verdict
    assert provi("compare", folder / "noise.fit", folder / "right.fit", "-q").stdout == by_hand.verdict + "\n"


def test_what_overlaps_is_not_decided(provi, saved, tmp_path):
    folder, _ = saved
    (tmp_path / "twin.fit").write_bytes((folder / "right.fit").read_bytes())
    result = provi("compare", folder / "right.fit", "twin.fit", "--report", "both.html")
    assert result.exit_code == 1 and "Not decided between right and twin" in result.stdout
    assert result.stdout.splitlines()[-1] == "Wrote both.html."
    assert "Not decided" in (tmp_path / "both.html").read_text()


class Text(HTMLParser):
    """The words of a page, and its tags, which must be closed in their order."""

    def __init__(self):
        super().__init__()
        self.words, self.open = "", []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "line", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("line", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_the_report_is_one_page(saved, tmp_path):
    fits = saved[1]
    comparison = library.compare({"<b>right</b>": fits["right"], "noise": fits["noise"]})
    page = comparison.report(tmp_path / "new" / "comparison.html").read_text()
    parser = Text()
    parser.feed(page)
    assert not parser.open and "://" not in page and "<script" not in page
    assert comparison.verdict in parser.words and "<b>right</b>" in parser.words and "Decided" in parser.words
    for bracket in comparison.brackets:
        assert f"{np.floor(1000 * bracket.lower) / 1000:.3f}".replace("-", "\N{MINUS SIGN}") in parser.words


def test_bad_input_is_one_line(provi, saved, write):
    folder, _ = saved
    for words, message in (
        ([folder / "right.fit"], "compare needs two files or more"),
        ([folder / "right.fit", "gone.fit"], "There is no file gone.fit."),
        ([folder / "right.fit", write("text.fit", "no fit")], "text.fit is not a fit saved by ProVI"),
        ([folder / "right.fit", folder / "right.fit"], "is named twice"),
        ([folder / "right.fit", folder / "other.fit"], "were fitted to different responses"),
        ([folder / "right.fit", folder / "noise.fit", "--report", "no/such.html"], "there is no folder no"),
    ):
        result = provi("compare", *words)
        assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_responses_are_the_same_in_any_order_and_precision():
    first = LogisticRegression(X, Y)
    assert response_fingerprint(first) == response_fingerprint(LogisticRegression(X[::-1, :1], Y[::-1]))
    counts = np.arange(80)
    assert response_fingerprint(first) != response_fingerprint(library.targets.PoissonRegression(X, counts))
    assert response_fingerprint(None) is None is response_fingerprint(library.targets.Gaussian(np.zeros(2)))
