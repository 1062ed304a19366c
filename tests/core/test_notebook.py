"""Results as HTML: every word that a terminal shows, escaped, in no colour of its own."""

import re
import sys
from html import unescape

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

import provi
from provi.core.notebook import as_html
from provi.diagnostics import leave_one_out
from provi.result import Summary

NAME = "<script>alert('x')</script>"


def words(html):
    return unescape(re.sub(r"<[^>]*>", "\n", html))


def test_words_are_escaped_and_markup_is_the_terminals():
    table = Table(title="A & B")
    table.add_column("name")
    table.add_column("value", justify="right")
    table.add_row(Text("a[b]<i>"), "[green]proven[/]")
    html = as_html("1 < 2", table, NAME)
    assert "<script" not in html and "<i>" not in html and "[green]" not in html
    for part in ("1 < 2", "A & B", "a[b]<i>", "proven", NAME):
        assert part in words(html)
    assert 'text-align:right">proven' in html and html.count("<td") == 2 == html.count("<th ")


def test_no_colour_but_the_pages_own():
    html = as_html("x", Summary(("a",), np.zeros(1), np.ones(1), np.zeros((1, 2)), 0.9).table())
    assert set(re.findall(r"(?<![-\w])color:([^;\"]*)", html)) == {"inherit"}
    assert set(re.findall(r"background:([^;\"]*)", html)) == {"transparent"} and "#" not in html


@pytest.fixture(scope="module")
def fit():
    x = np.random.default_rng(0).standard_normal((40, 2))
    return provi.fit(provi.targets.LogisticRegression(x, x[:, 0] > 0, names=("age", NAME)))


def test_results_show_in_notebooks_what_they_print(fit):
    summary, certificate = fit.posterior.summary(), fit.certificate
    loo, comparison = fit.loo(200), provi.compare({NAME: fit, "b": fit})
    for result in (fit, summary, certificate, loo, comparison):
        html = result._repr_html_()
        assert "<script" not in html and html.count("<table") == html.count("</table>") >= 1
    for result in (summary, certificate, loo, comparison):
        shown = words(result._repr_html_()).split()
        printed = re.sub(r"[━┃╇│─┼-]{1,}", " ", str(result)).split()
        missing = [word for word in printed if word not in " ".join(shown)]
        assert not missing, missing
    assert summary.to_dict()["age"]["mean"] == fit.posterior.mean[0]
    assert f"{fit.posterior.mean[0]:.3f}" in words(fit._repr_html_())


def test_leave_one_out_as_arviz_has_it(fit):
    arviz_stats = pytest.importorskip("arviz_stats")
    ours = fit.loo(500)
    data = ours.to_arviz()
    assert isinstance(data, arviz_stats.ELPDData) and data.kind == "loo" and data.approx_posterior
    assert (data.elpd, data.se, data.p) == (ours.elpd, ours.standard_error, ours.p_loo)
    assert (data.n_samples, data.n_data_points, data.warning) == (500, 40, bool(ours.bad))
    assert float(data.elpd_i.sel(datum="y[3]")) == ours.pointwise[3] and "elpd_loo" in str(data)
    worse = leave_one_out(np.full((500, 40), -2.0), np.zeros(500), ours.names)
    table = arviz_stats.compare({"worse": worse.to_arviz(), "logistic": data})
    assert list(table.index) == ["logistic", "worse"]
    assert table.loc["worse", "elpd_diff"] == pytest.approx(ours.elpd - worse.elpd, rel=1e-6)


def test_without_arviz_stats(monkeypatch):

    monkeypatch.setitem(sys.modules, "arviz_stats", None)
    with pytest.raises(ImportError, match=r"pip install 'provi\[arviz\]'"):
        leave_one_out(np.full((100, 2), -1.0), np.zeros(100), "ab").to_arviz()
