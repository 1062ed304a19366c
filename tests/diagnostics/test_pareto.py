"""Pareto k-hat of weights whose tails are known, and the words made of it."""

import sys

import numpy as np
import pytest
from scipy import stats

from provi.diagnostics.pareto import pareto_k, tail_advice


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_pareto_k_of_known_tails(shape):
    """Weights of a generalised Pareto law. The mean of 100 fits has a standard error of at most 0.011; the bias of
    the fit, part of it by its prior around 1/2, was at most 0.034 over 200 other fits. False-alarm rate 2e-7."""
    rng = np.random.default_rng(3)
    weights = stats.genpareto(shape).rvs(size=(100, 10_000), random_state=rng)
    fitted = np.mean([pareto_k(np.log(row)) for row in weights])
    assert fitted == pytest.approx(shape, abs=0.09)
    zeros = np.log(weights[0]).copy()
    zeros[np.argsort(zeros)[:100]] = -np.inf
    assert pareto_k(zeros) == pytest.approx(pareto_k(np.log(weights[0])), abs=1e-12)


def test_pareto_k_of_degenerate_weights():
    assert pareto_k(np.full(50, 2.5)) == -np.inf
    assert np.isnan(pareto_k(np.repeat([0.0, 1.0], [50, 50])))
    with pytest.raises(ValueError, match="25 or more"):
        pareto_k(np.zeros(24))
    with pytest.raises(ValueError, match="log_weights has 1 entries"):
        pareto_k(np.append(np.arange(40.0), np.nan))


def test_advice_follows_the_thresholds():
    words = [tail_advice(k, 10_000, 0.3) for k in (0.49, 0.51, 0.69, 0.71, np.nan, None)]
    for text, expected in zip(
        words, ["not close", "usable", "usable", "cannot be trusted", "not be fitted", "not computed"], strict=True
    ):
        assert expected in text
    assert "cannot be trusted" in tail_advice(0.6, 100, 0.3)  # 1 - 1/log10(100) = 1/2


def test_a_heavy_tail_of_little_weight_is_no_alarm():
    assert "good" in tail_advice(0.3, 10_000, 0.02)
    assert all("do not reweight" in tail_advice(k, 10_000, 0.02) for k in (0.6, 0.9))


def test_without_arviz_stats(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_stats", None)
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    monkeypatch.setitem(sys.modules, "arviz_stats.base.array", None)
    with pytest.raises(ImportError, match=r"provi\[arviz\]"):
        pareto_k(np.arange(30.0))
