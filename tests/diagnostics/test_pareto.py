"""Pareto k-hat of weights whose tails are known, and the words made of it."""

import numpy as np
import pytest
from scipy import stats

from provi.diagnostics.pareto import pareto_k, smoothed_log_weights, tail_advice


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
    words = [tail_advice(k, 10_000, 0.3) for k in (0.49, 0.51, 0.69, 0.71, np.nan)]
    for text, expected in zip(
        words, ["not close", "usable", "usable", "cannot be trusted", "not be fitted"], strict=True
    ):
        assert expected in text
    assert "cannot be trusted" in tail_advice(0.6, 100, 0.3)  # 1 - 1/log10(100) = 1/2
    assert tail_advice(0.9, 10_000, 0.3, hints=("this", "that")).endswith("Next: this; or that.")


def test_q_covers_only_what_was_searched():
    """Draws of q do not see what is far from them: the phrase takes a search, and its finds take precedence."""
    assert "covers the posterior" not in tail_advice(0.1, 10_000, 0.02)
    assert "covers the posterior" in tail_advice(0.1, 10_000, 0.02, searched=True)
    for missed, words in ((0.05, "0.05 of the evidence"), (0.4, "misses others: about 0.4 of the evidence")):
        found = tail_advice(0.1, 10_000, 0.02, searched=True, missed=missed)
        assert words in found and "covers the posterior" not in found


def test_a_heavy_tail_of_little_weight_is_no_alarm():
    assert "good" in tail_advice(0.3, 10_000, 0.02)
    assert all("do not reweight" in tail_advice(k, 10_000, 0.02) for k in (0.6, 0.9))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("number", [25, 200, 230, 4000])
def test_the_fit_is_arviz_stats(number, seed):
    """Digit for digit, of light and heavy tails and of weights that are zero: k-hat, and the smoothed weights."""
    array_stats = pytest.importorskip("arviz_stats.base.array").array_stats
    rng = np.random.default_rng(seed)
    values = (0.2 + seed) * rng.standard_normal(number)
    values[rng.random(number) < 0.05] = -np.inf
    with np.errstate(all="ignore"):
        weights, tail = array_stats.psislw(values.max() - values)  # it takes the negatives of log weights
        theirs = array_stats.pareto_khat(np.exp(values - values.max()), chain_axis=None, r_eff=1.0, tail="right")
    ours, shape = smoothed_log_weights(values)
    np.testing.assert_allclose(ours, weights, rtol=1e-10, atol=1e-10)
    assert shape == pytest.approx(float(tail), abs=1e-10)
    assert pareto_k(values) == pytest.approx(float(theirs), abs=1e-10)


def test_smoothing_leaves_what_it_cannot_fit():
    equal, tail = smoothed_log_weights(np.full(40, 3.0))
    np.testing.assert_allclose(equal, -np.log(40))
    assert tail == -np.inf
    ties = np.repeat([0.0, 1.0], [50, 50])
    plain, tail = smoothed_log_weights(ties)
    np.testing.assert_allclose(np.exp(plain), np.exp(ties) / np.exp(ties).sum())
    assert np.isnan(tail)
