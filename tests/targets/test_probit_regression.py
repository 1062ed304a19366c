"""Probit regression: density, derivatives far into both tails, constants, mini-batches, no retracing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from provi.core.normal_cdf import TAIL, negative_log_normal_cdf
from provi.targets import ProbitRegression

RNG = np.random.default_rng(3)
X = RNG.normal(size=(7, 3))
Y = np.array([0, 1, 1, 0, 1, 0, 1])
MEAN = np.array([0.3, -0.2, 0.1])
COVARIANCE = np.array([[1.3, 0.4, -0.3], [0.4, 0.9, 0.1], [-0.3, 0.1, 0.6]])
TARGET = ProbitRegression(X, Y, prior_covariance=COVARIANCE, prior_mean=MEAN)
POINTS = RNG.normal(size=(5, 3))

# Both sides of the switch between formulas, and as far as the brief asks: |eta| = 40.
LOWER = np.array([-40.0, -33.3, -20.0, -12.5, -6.0, -5.001, TAIL, -4.999, -3.0, -0.5])
UPPER = np.array([0.0, 0.5, 2.0, 5.0, 5.5, 12.0, 25.0, 37.0])
first = jax.jit(jax.vmap(jax.grad(negative_log_normal_cdf)))
second = jax.jit(jax.vmap(jax.grad(jax.grad(negative_log_normal_cdf))))
third = jax.jit(jax.vmap(jax.grad(jax.grad(jax.grad(negative_log_normal_cdf)))))


def truncated_moments(t):
    """Mean and variance of E = t - Z given Z < t, whose density is proportional to exp(t e - e^2/2) on e > 0."""
    scale = 1 / (1 + abs(t))
    weights = [
        integrate.quad(lambda v, p=p: v**p * np.exp(t * scale * v - (scale * v) ** 2 / 2), 0, 80, epsabs=0, limit=200)[
            0
        ]
        for p in range(3)
    ]
    mean = weights[1] / weights[0]
    return scale * mean, scale**2 * (weights[2] / weights[0] - mean**2)


def test_potential_against_scipy():
    for z in POINTS:
        likelihood = special.log_ndtr(np.where(Y == 1, X @ z, -X @ z)).sum()
        expected = -stats.multivariate_normal(MEAN, COVARIANCE).logpdf(z) - likelihood
        np.testing.assert_allclose(TARGET.potential(jnp.asarray(z)), expected, rtol=1e-12)


def test_values_against_scipy_in_both_tails():
    t = np.concatenate([LOWER, [-1e3, -1e8]])
    np.testing.assert_allclose(negative_log_normal_cdf(jnp.asarray(t)), -special.log_ndtr(t), rtol=4e-15)
    # -log(1 - Q) = Q + Q^2/2 + ..., from the tail probability: log_ndtr itself loses digits between 4 and 6.
    np.testing.assert_allclose(
        negative_log_normal_cdf(jnp.asarray(UPPER)), -np.log1p(-special.ndtr(-UPPER)), rtol=1e-12
    )


def test_derivatives_in_the_lower_tail_against_truncated_moments():
    moments = np.array([truncated_moments(t) for t in LOWER])
    # d/dt -log Phi = E[Z | Z < t] = t - E[e]; d^2/dt^2 = 1 - Var(Z | Z < t).
    np.testing.assert_allclose(first(jnp.asarray(LOWER)), LOWER - moments[:, 0], rtol=1e-12)
    np.testing.assert_allclose(second(jnp.asarray(LOWER)), 1 - moments[:, 1], rtol=2e-13)
    # What a cancelling formula loses first: the distance to 1, which is 1/t^2.
    far = LOWER <= -12
    np.testing.assert_allclose(1 - second(jnp.asarray(LOWER[far])), moments[far, 1], rtol=1e-12)


def test_derivatives_in_the_upper_tail_against_the_density():
    hazard = np.exp(stats.norm.logpdf(UPPER) - special.log_ndtr(UPPER))
    np.testing.assert_allclose(first(jnp.asarray(UPPER)), -hazard, rtol=1e-12)
    np.testing.assert_allclose(second(jnp.asarray(UPPER)), hazard * (UPPER + hazard), rtol=1e-12)
    # Beyond 38.6 the exact numbers are below the smallest float64.
    assert float(first(jnp.asarray([40.0]))[0]) == float(second(jnp.asarray([40.0]))[0]) == 0.0


def test_third_derivative_against_finite_differences():
    t = jnp.asarray(np.concatenate([LOWER, UPPER]))
    step = 1e-5
    numeric = (second(t + step) - second(t - step)) / (2 * step)
    np.testing.assert_allclose(third(t), numeric, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_curvature_stays_within_its_bounds(dtype):
    t = np.concatenate([np.linspace(-60, 60, 4801), [-1e8, -1e4, 1e4, 1e8]]).astype(dtype)
    curvature = second(jnp.asarray(t))
    assert curvature.dtype == dtype and bool(jnp.all((curvature >= 0) & (curvature <= 1)))
    assert bool(jnp.all(jnp.isfinite(first(jnp.asarray(t)))))
    exact = np.sqrt(2 / np.pi) / special.erfcx(-t[np.abs(t) < 30].astype(np.float64) / np.sqrt(2))
    # exp(-t^2/2) carries the rounding of its exponent, t^2/2 epsilons.
    tolerance = 2e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(first(jnp.asarray(t[np.abs(t) < 30])), -exact, rtol=tolerance, atol=1e-37)


def test_gradient_and_hessian_far_from_the_origin():
    target = ProbitRegression([[1.0], [1.0]], [0, 1], prior_scale=1e3)
    hessian, gradient = jax.jit(jax.hessian(target.potential)), jax.jit(jax.grad(target.potential))
    for eta in (-40.0, 40.0):
        mean, variance = truncated_moments(-40.0)
        # One label is certain and adds nothing, the other one is surprised.
        expected = np.sign(eta) * (40 + mean) + eta / 1e6
        np.testing.assert_allclose(gradient(jnp.asarray([eta])), [expected], rtol=1e-12)
        np.testing.assert_allclose(hessian(jnp.asarray([eta])), [[1 - variance + 1e-6]], rtol=1e-12)


def test_constants_are_proven_and_tight():
    constants = TARGET.constants
    assert {constants.log_concave.status, constants.strong_convexity.status, constants.smoothness.status} == {"proven"}
    exact = np.linalg.eigvalsh(np.linalg.inv(COVARIANCE) + X.T @ X)[-1]
    np.testing.assert_allclose(constants.smoothness.value, exact, rtol=1e-11)


def test_both_ends_of_the_curvature_are_approached():
    # All labels wrong and far away: every weight is near 1; all right: every weight is near 0.
    target = ProbitRegression([[1.0], [2.0]], [1, 1], prior_scale=10.0)
    hessian = jax.jit(jax.hessian(target.potential))
    np.testing.assert_allclose(hessian(jnp.asarray([-1e3])), [[5.01]], rtol=1e-5)
    np.testing.assert_allclose(hessian(jnp.asarray([1e3])), [[0.01]], rtol=1e-12)


def test_names():
    target = ProbitRegression(X, Y, intercept=True, names=["a", "b", "c"])
    assert target.parameter_names == ("intercept", "a", "b", "c") and target.linear_model() is target


def test_wrong_labels_are_named():
    with pytest.raises(ValueError, match=r"^y must hold 0 and 1 only; it holds -1, 1: .*\(y \+ 1\) / 2"):
        ProbitRegression(X, 2 * Y - 1)
