"""The target: its terms against NumPy, its errors, and that it runs through `provi.fit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax
from scipy.stats import norm

import provi
from provi.targets import BayesianNetwork

RNG = np.random.default_rng(0)
X, CLASSES = RNG.normal(size=(20, 3)), RNG.integers(0, 4, 20)
NET = eqx.nn.MLP(3, 4, 5, 1, key=jax.random.key(0))


def by_hand(z, X):
    """The perceptron 3-5-4 in NumPy."""
    parts = np.split(z, np.cumsum([15, 5, 20]))
    hidden = np.maximum(X @ parts[0].reshape(5, 3).T + parts[1], 0)
    return hidden @ parts[2].reshape(4, 5).T + parts[3]


def test_categorical_terms_and_prior():
    target = BayesianNetwork(NET, X, CLASSES, prior_sd=2.0, dtype=np.float64)
    z = RNG.normal(size=target.dim)
    expected = -log_softmax(by_hand(z, X), axis=1)[np.arange(20), CLASSES]
    np.testing.assert_allclose(target.term_potentials(jnp.asarray(z), slice(None)), expected, rtol=1e-12)
    np.testing.assert_allclose(target.prior_potential(jnp.asarray(z)), -norm(0, 2).logpdf(z).sum(), rtol=1e-12)
    np.testing.assert_allclose(target.log_likelihood(np.stack([z, z]))["y"], [-expected, -expected], rtol=1e-12)
    assert (target.dim, target.num_terms, target.num_tensors) == (44, 20, 4)
    assert np.bincount(target.tensor_of).tolist() == [15, 5, 20, 4]


def test_gaussian_terms():
    y = RNG.normal(size=(20, 4))
    target = BayesianNetwork(NET, X, y, noise_sd=0.5, dtype=np.float64)
    z = RNG.normal(size=target.dim)
    expected = -norm(by_hand(z, X), 0.5).logpdf(y).sum(axis=1)
    np.testing.assert_allclose(target.term_potentials(jnp.asarray(z), jnp.arange(20)), expected, rtol=1e-12)


def test_a_function_of_a_batch_is_the_same_as_a_module():
    params = {"a": np.asarray(NET.layers[0].weight), "b": np.asarray(NET.layers[0].bias)}

    def apply(params, x):
        return x @ params["a"].T + params["b"][None, :]

    function = BayesianNetwork(apply, X, RNG.integers(0, 5, 20), params=params)
    module = BayesianNetwork(NET.layers[0], X, np.asarray(function.outputs))
    np.testing.assert_array_equal(function.start, module.start)
    np.testing.assert_allclose(function.potential(function.start), module.potential(module.start), rtol=1e-6)
    assert module.parameter_names[:2] == ("weight[0,0]", "weight[0,1]")
    assert function.parameter_names[0] == "['a'][0,0]"
    with pytest.raises(ValueError, match="noise='weights'"):
        provi.algorithms.network_surrogate(function, noise="flipout")


def test_everything_is_single_precision_by_default():
    target = BayesianNetwork(NET, X, CLASSES)
    assert target.potential(target.start).dtype == jnp.float32
    assert jax.grad(target.potential)(target.start).dtype == jnp.float32
    assert target.default_location.dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": CLASSES + 1}, "class numbers from 0 to 3"),
        ({"y": CLASSES[:5]}, "y has length 5"),
        ({"y": np.zeros((20, 2)), "likelihood": "gaussian"}, "each of the 4 outputs"),
        ({"X": X[:, :2]}, r"network cannot be called on the rows of X, which have shape \(2,\)"),
        ({"X": np.where(X > 2, np.nan, X) * np.where(X == X[0, 0], np.nan, 1)}, "X has .* NaN"),
        ({"X": X[:, 0]}, "at least two axes"),
        ({"likelihood": "poisson"}, "likelihood must be one of"),
        ({"prior_sd": 0.0}, "prior_sd must be a positive number"),
        ({"network": lambda x: x}, "network must be an Equinox module"),
        ({"network": eqx.nn.Lambda(lambda x: x)}, "no floating arrays"),
        ({"network": eqx.nn.Lambda(lambda x: x), "params": 3}, "no floating arrays"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    given = {"network": NET, "X": X, "y": CLASSES, **arguments}
    with pytest.raises(ValueError, match=message):
        BayesianNetwork(**given)


def test_provi_fit_reaches_the_mean_field_optimum_of_a_linear_network():
    """A linear network with a Gaussian likelihood: the best mean field has precisions diag(A), mean A^-1 X'y."""
    X = RNG.normal(size=(60, 3))
    y = X @ np.array([1.0, -2.0, 0.5]) + 0.5 * RNG.normal(size=60)
    net = eqx.nn.Linear(3, 1, use_bias=False, key=jax.random.key(1))
    target = BayesianNetwork(net, X, y, likelihood="gaussian", noise_sd=0.5, dtype=np.float64)
    family = provi.families.Gaussian(3, scale="diagonal")
    precision = X.T @ X / 0.25 + np.eye(3)
    best, sds = np.linalg.solve(precision, X.T @ y / 0.25), 1 / np.sqrt(np.diagonal(precision))
    for algorithm in (
        provi.algorithms.Optax(optax.adam(0.02), num_draws=32),
        provi.algorithms.MISSO(1, num_draws=32, curvature=400.0),
    ):
        fit = provi.fit(target, family, algorithm, budget=provi.Budget(steps=1500), seed=0)
        # Both have a noise floor; at 1500 steps it is a twentieth of a posterior sd.
        np.testing.assert_allclose(fit.posterior.mean, best, atol=0.25 * sds.max())
        np.testing.assert_allclose(fit.posterior.standard_deviation, sds, rtol=0.15)
