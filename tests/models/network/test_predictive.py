"""Predictive draws against the network called by hand, closed forms, and in blocks of any length."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.models.network import predictive
from provi.models.network.predictive import BLOCK, SMALL_BLOCK, predict_draws
from provi.nets import Perceptron
from provi.targets import BayesianNetwork

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(3)
X = RNG.normal(size=(BLOCK + 7, 4)).astype(np.float32)
KEY = jax.random.key(4)


@pytest.fixture(scope="module")
def target():
    return BayesianNetwork(Perceptron(jax.random.key(0), 4, [5], 3), X, np.arange(len(X)) % 3)


@pytest.fixture(scope="module")
def spread(target):
    return RNG.uniform(0.1, 0.5, target.dim)


@pytest.fixture(scope="module")
def drawn(target, spread):
    return predict_draws(target, target.start, spread, X, KEY, 3)


def test_probabilities_are_those_of_the_network_with_drawn_weights(target, spread, drawn):
    assert drawn.shape == (3, len(X), 3) and drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.sum(axis=2), 1, rtol=1e-5)
    for s in range(3):
        noise = np.asarray(jax.random.normal(jax.random.fold_in(KEY, s), (target.dim,), np.float32))
        module = target.network.unravel(jnp.asarray(target.start + spread.astype(np.float32) * noise))
        hidden, last = module.layers
        scores = np.maximum(X @ np.asarray(hidden.weight).T + np.asarray(hidden.bias), 0) @ np.asarray(last.weight).T
        powers = np.exp(scores + np.asarray(last.bias))
        np.testing.assert_allclose(drawn[s], powers / powers.sum(axis=1, keepdims=True), atol=2e-6)


@pytest.mark.parametrize("count", [1, SMALL_BLOCK, SMALL_BLOCK + 1, BLOCK])
def test_a_row_has_the_same_draws_in_any_company(target, spread, drawn, count):
    few = predict_draws(target, target.start, spread, X[:count], KEY, 3)
    np.testing.assert_allclose(few, drawn[:, :count], atol=1e-6)


def test_two_programs_for_all_numbers_of_rows(target, spread, monkeypatch):
    traced, original = [], predictive._drawn.__wrapped__

    def counted(*arguments):
        traced.append(arguments[4].shape)
        return original(*arguments)

    monkeypatch.setattr(predictive, "_drawn", eqx.filter_jit(counted))
    for count in (1, 5, 32, 33, 100, 256, 260):
        predict_draws(target, target.start, spread, X[:count], KEY, 2)
    assert traced == [(SMALL_BLOCK, 4), (BLOCK, 4)]


def test_a_linear_model_has_gaussian_predictions(spread):
    linear = BayesianNetwork(Perceptron(jax.random.key(0), 4, [], 1), X, X[:, 0], likelihood="gaussian")
    sd = spread[: linear.dim]
    rows = X[:4]
    draws = predict_draws(linear, linear.start, sd, rows, KEY, 4000)[..., 0]
    names, start = linear.network.names, np.asarray(linear.start)
    bias = [k for k, name in enumerate(linear.parameter_names) if "bias" in name]
    assert len(names) == 2 and len(bias) == 1
    slopes = [k for k in range(linear.dim) if k not in bias]
    mean = rows @ start[slopes] + start[bias]
    variance = rows**2 @ sd[slopes] ** 2 + sd[bias] ** 2
    # Each of four rows at 5 standard errors: a false alarm in 4e5 for means, about as rare for variances.
    assert (np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(variance / 4000)).all()
    assert (np.abs(draws.var(axis=0) / variance - 1) < 5 * np.sqrt(2 / 4000)).all()


@pytest.mark.parametrize("inputs", [X[:0], X[:, :3]])
def test_wrong_rows_are_refused(target, spread, inputs):
    with pytest.raises(ValueError, match="inputs must be rows of shape"):
        predict_draws(target, target.start, spread, inputs, KEY, 1)
