"""Gaussian means of the links: against fine quadrature in NumPy, with the errors that they state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from provi.targets import LinearRegression, LogisticRegression, PoissonRegression, ProbitRegression
from provi.targets.likelihoods.moments import LARGEST_DEVIATION, quadrature_moments, trapezoid_rule
from support.members import quick_jit

ROW = np.ones((1, 1))
MODELS = {
    "linear": LinearRegression(ROW, [0.0], 0.7),
    "logistic": LogisticRegression(ROW, [1]),
    "poisson": PoissonRegression(ROW, [1]),
    "probit": ProbitRegression(ROW, [1]),
}
RESPONSES = {
    "linear": np.array([-1.5, 0.4, 30.0]),
    "logistic": np.array([0.0, 1.0]),
    "poisson": np.array([0.0, 1.0, 17.0]),
    "probit": np.array([0.0, 1.0]),
}
LARGEST = {"linear": 100.0, "logistic": 300.0, "poisson": 5.0, "probit": LARGEST_DEVIATION}
models = pytest.mark.parametrize("name", MODELS)

# 80001 nodes: 3e-4 apart, and 0.1 in eta at the largest deviation of all, where the sigmoid is resolved to 1e-15.
NODES = np.linspace(-13.0, 13.0, 80001)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


def link(name, eta, y):
    """The link potential, its first and its second derivative, in SciPy."""
    sign = 2 * y - 1
    match name:
        case "linear":
            z = (eta - y) / 0.7
            return 0.5 * z**2 + np.log(0.7) + 0.5 * np.log(2 * np.pi), z / 0.7, np.full_like(z, 1 / 0.49)
        case "logistic":
            tail = special.expit(-sign * eta)
            return np.logaddexp(0.0, -sign * eta), -sign * tail, tail * (1 - tail)
        case "poisson":
            return np.exp(eta) - y * eta + special.gammaln(y + 1), np.exp(eta) - y, np.exp(eta)
        case _:
            t = sign * eta
            hazard = np.sqrt(2 / np.pi) / special.erfcx(-t / np.sqrt(2))
            # h(t + h) loses its digits in the left tail, where it tends to 1 - 1/t^2; nothing here compares it there.
            return -special.log_ndtr(t), -sign * hazard, hazard * (t + hazard)


def grid(name):
    """Means, deviations and responses: random, with those of the first rows at the ends."""
    rng = np.random.default_rng(0)
    deviation = np.r_[1e-3, LARGEST[name], np.exp(rng.uniform(np.log(1e-3), np.log(LARGEST[name]), 58))]
    mean = rng.uniform(-3, 3, 60) * np.minimum(np.maximum(deviation, 1.0), 10.0)
    return mean, deviation, rng.choice(RESPONSES[name], 60)


def truth(name, mean, deviation, y):
    values, slopes, weights = [], [], []
    for m, s, response in zip(mean, deviation, y, strict=True):
        value, slope, _ = link(name, m + s * NODES, response)
        values.append(value @ WEIGHTS)
        slopes.append(slope @ WEIGHTS)
        # E[l' t]/s, less l'(mean) that cancels: the digits of E l'' also at a small s.
        weights.append((NODES * WEIGHTS) @ (slope - link(name, np.array([m]), response)[1]) / s)
    return np.array(values), np.array(slopes), np.array(weights)


@models
def test_moments_are_within_their_stated_errors(name):
    mean, deviation, y = grid(name)
    arguments = tuple(jnp.asarray(x) for x in (mean, deviation**2, y))
    moments, errors = MODELS[name].gaussian_moments(*arguments), MODELS[name].moment_errors(*arguments)
    value, slope, weight = truth(name, mean, deviation, y)
    # The reference's own error: about 1e-14 of the sizes of what is summed.
    own = (
        3e-14 * (1 + np.abs(value)),
        3e-14 * (1 + np.abs(slope)),
        3e-14 * (1 + np.abs(weight) + np.abs(slope) / deviation),
    )
    for found, true, error, slack in zip(
        jax.tree.leaves(moments), (value, slope, weight), jax.tree.leaves(errors), own, strict=True
    ):
        assert np.isfinite(error).all() and (np.asarray(error) >= 0).all()
        assert (np.abs(np.asarray(found) - true) <= np.asarray(error) + slack).all()


def test_quadrature_refuses_what_it_cannot_resolve():
    mean, y = jnp.zeros(2), jnp.ones(2)
    deviation = jnp.asarray([LARGEST_DEVIATION, 1.01 * LARGEST_DEVIATION])
    errors = MODELS["probit"].moment_errors(mean, deviation**2, y)
    for error in jax.tree.leaves(errors):
        assert np.isfinite(error[0]) and np.isinf(error[1])


@models
def test_value_error_of_the_whole_model_bounds_a_term(name):
    """Up to a spread of 3: what `fit` reports as the error of its ELBO."""
    rng = np.random.default_rng(1)
    mean, deviation, y = rng.uniform(-3, 3, 30), rng.uniform(0.1, 3, 30), rng.choice(RESPONSES[name], 30)
    found = MODELS[name].gaussian_moments(*(jnp.asarray(x) for x in (mean, deviation**2, y))).value
    value = truth(name, mean, deviation, y)[0]
    assert (np.abs(np.asarray(found) - value) <= MODELS[name].value_error * (1 + np.abs(value))).all()


@models
def test_slope_and_weight_are_derivatives(name):
    """By automatic differentiation of the value: Bonnet's and Price's theorems."""
    mean, deviation, y = (jnp.asarray(x[2:30]) for x in grid(name))
    variance = deviation**2

    def total(mean, variance):
        return jnp.sum(MODELS[name].gaussian_moments(mean, variance, y).value)

    moments = MODELS[name].gaussian_moments(mean, variance, y)
    slope, half_weight = quick_jit(jax.grad(total, argnums=(0, 1)))(mean, variance)
    size = 1 + np.abs(np.asarray(moments.slope))
    np.testing.assert_allclose(slope / size, moments.slope / size, atol=1e-10)
    np.testing.assert_allclose(2 * half_weight, moments.weight, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["linear", "logistic", "poisson"])
def test_self_concordance(name):
    """|t'''| <= M t'' on a grid, by automatic differentiation."""
    model = MODELS[name]
    second = jax.grad(jax.grad(lambda eta: model.link_potential(eta[None], jnp.ones(1))[0]))
    eta = jnp.linspace(-20.0, 20.0, 401)
    curvature, third = quick_jit(jax.vmap(jax.value_and_grad(second)))(eta)
    assert (np.abs(third) <= model.self_concordance * np.abs(curvature) * (1 + 1e-12)).all()


def test_probit_has_no_such_constant():
    assert MODELS["probit"].self_concordance is None
    with pytest.raises(ValueError, match="ProbitRegression is not self-concordant"):
        MODELS["probit"].curvature_moments(jnp.zeros(1), jnp.ones(1))


@pytest.mark.parametrize("name", ["linear", "logistic", "poisson"])
def test_curvature_moments(name):
    rng = np.random.default_rng(2)
    mean, deviation = rng.uniform(-4, 4, 20), np.exp(rng.uniform(-4, 1, 20))
    *found, error = MODELS[name].curvature_moments(jnp.asarray(mean), jnp.asarray(deviation))
    for power, moment in enumerate(found):
        curvature = [link(name, m + s * NODES, 1.0)[2] for m, s in zip(mean, deviation, strict=True)]
        true = np.asarray(curvature) @ (NODES**power * WEIGHTS)
        assert (np.abs(np.asarray(moment) - true) <= error + 1e-12 * (1 + np.abs(true))).all()


def test_a_row_without_spread():
    """A row of zeros: the value at the mean, and nothing that is not finite."""
    moments = quadrature_moments(lambda eta: eta**2, jnp.asarray([2.0]), jnp.zeros(1))
    np.testing.assert_allclose([moments.value[0], moments.slope[0], moments.weight[0]], [4.0, 4.0, 0.0], rtol=1e-14)


def test_trapezoid_rule_has_gaussian_moments():
    for stride in (1, 2, 4):
        nodes, weights = trapezoid_rule(stride)
        np.testing.assert_allclose([weights @ nodes**k for k in (0, 1, 2, 4)], [1, 0, 1, 3], atol=1e-13)
