"""The gradient of the value function against finite differences; what L-BFGS does with it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.families.dual_gaussian import DualPoint
from provi.kernels import Constant, SquaredExponential
from provi.kernels.base import AbstractKernel
from provi.models.gp.hyperparameters import (
    learn_hyperparameters,
    learnt_numbers,
    log_hyperparameters,
    value_and_gradient,
    with_log_hyperparameters,
)
from provi.targets import GaussianProcess
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, Poisson, StudentT, UserLikelihood

RNG = np.random.default_rng(1)
N = 14
X = RNG.normal(size=(N, 2))
VALUES = np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=N)
RESPONSES = {"labels": (VALUES > 0).astype(float), "real": VALUES, "counts": RNG.poisson(np.exp(VALUES)).astype(float)}
TIGHT = jnp.asarray(1e-22)
TRACES, BROKEN = [], []


class Counted(SquaredExponential):
    """Counts how often it is traced or called."""

    def correlation(self, squared_distance):
        TRACES.append(1)
        return jnp.exp(-0.5 * squared_distance)


class Fragile(SquaredExponential):
    """NaN for length scales above 0.6."""

    def correlation(self, squared_distance):
        too_long = self.length_scale > 0.6
        jax.debug.callback(lambda bad: BROKEN.append(1) if bad else None, too_long)
        return jnp.where(too_long, jnp.nan, jnp.exp(-0.5 * squared_distance))


def process(likelihood, response, kernel: AbstractKernel | None = None, jitter=1e-3):
    kernel = SquaredExponential([0.8, 1.3], 1.2) if kernel is None else kernel
    return GaussianProcess(X, RESPONSES[response], kernel, likelihood, jitter=jitter, mean=0.1)


@eqx.filter_jit
def energy(likelihood, mean, variance, response):
    return likelihood.moments(mean, variance, response).value.sum()


def dense_negative_elbo(target, point):
    """F(a, s) by general solves, with no use of the families' code."""
    gram, a, s = (np.asarray(x) for x in (target.gram, point.dual_mean, point.site_precision))
    inner = np.eye(N) + gram @ np.diag(s)
    variance = np.diagonal(np.linalg.solve(inner, gram))
    mean = float(target.mean) + gram @ a
    return float(energy(target.likelihood, mean, variance, target.response)) + 0.5 * (
        np.linalg.slogdet(inner)[1] - s @ variance + a @ gram @ a
    )


def differences(function, vector, step):
    return np.asarray([(function(vector + e) - function(vector - e)) / (2 * step) for e in step * np.eye(len(vector))])


CASES = [(BernoulliLogit(), "labels"), (StudentT(4.0, 0.5), "real")]


@pytest.mark.parametrize(("likelihood", "response"), CASES, ids=lambda x: getattr(x, "name", x))
def test_partial_and_envelope_gradients_against_differences(likelihood, response):
    target = process(likelihood, response)
    learnt = learnt_numbers(target, likelihood=True, jitter=True)
    vector = log_hyperparameters(target, learnt)
    assert len(vector) == 4 + len(jax.tree.leaves(likelihood))
    # At any (a, s) the formula is the derivative of F with (a, s) held fixed.
    sites = RNG.uniform(-0.02 if not likelihood.log_concave else 0.1, 1.0, N)
    point = DualPoint(jnp.asarray(RNG.normal(size=N)), jnp.asarray(sites))

    def fixed(v):
        return dense_negative_elbo(with_log_hyperparameters(target, jnp.asarray(v), learnt), point)

    # A fit that may end at any gap stays where it starts.
    value, found, same = value_and_gradient(jnp.asarray(vector), target, learnt, point, jnp.asarray(np.inf))
    np.testing.assert_array_equal(same.dual_mean, point.dual_mean)
    np.testing.assert_allclose(value, fixed(vector), rtol=1e-10)
    np.testing.assert_allclose(found, differences(fixed, vector, 1e-5), rtol=1e-5, atol=1e-6)
    # At the optimum it is the derivative of F*, whose (a, s) move (envelope theorem).
    start = DualPoint(jnp.zeros(N), jnp.zeros(N))
    value, gradient, best = value_and_gradient(jnp.asarray(vector), target, learnt, start, TIGHT)
    np.testing.assert_allclose(value, dense_negative_elbo(target, best), rtol=1e-10)

    def optimal(v):
        return float(value_and_gradient(jnp.asarray(v), target, learnt, best, TIGHT)[0])

    np.testing.assert_allclose(gradient, differences(optimal, vector, 1e-4), rtol=1e-5, atol=1e-5)


def test_learning_compiles_once_and_ends_at_a_stationary_point():
    target = process(BernoulliLogit(), "labels", Counted(1.0, 1.0))
    first = learn_hyperparameters(target)
    traced = len(TRACES)
    again = learn_hyperparameters(target.with_kernel(Counted(0.5, 2.0)), num_restarts=1)
    # with_kernel makes one matrix; nothing else runs the kernel's Python code.
    assert len(TRACES) - traced <= 1
    assert first.converged and again.converged and first.num_evaluations > 3
    np.testing.assert_allclose(first.elbo, again.elbo, atol=1e-4)
    assert first.elbo >= -float(value_and_gradient(jnp.zeros(2), target, learnt_numbers(target), first.start, TIGHT)[0])
    # A gap of 1e-6 left by the inner fit is an error of about 1e-3 in the gradient.
    np.testing.assert_allclose(again.gradient, 0, atol=5e-3)


def test_warm_and_cold_inner_fits_agree():
    target = process(Poisson(), "counts")
    learnt = learnt_numbers(target)
    vector = jnp.asarray(log_hyperparameters(target, learnt))
    cold = value_and_gradient(vector, target, learnt, DualPoint(jnp.zeros(N), jnp.zeros(N)), TIGHT)
    warm = value_and_gradient(vector + 0.3, target, learnt, cold[2], TIGHT)
    back = value_and_gradient(vector, target, learnt, warm[2], TIGHT)
    np.testing.assert_allclose(back[0], cold[0], rtol=1e-12)
    np.testing.assert_allclose(back[2].dual_mean, cold[2].dual_mean, atol=1e-8)


def test_a_bad_step_is_survived_and_a_bad_start_named():
    # The ELBO grows towards longer length scales, where this kernel breaks.
    learnt = learn_hyperparameters(process(GaussianNoise(0.3), "real", Fragile(0.5, 1.2)))
    assert len(BROKEN) > 0 and np.isfinite(learnt.elbo) and np.isfinite(learnt.gradient).all()
    assert 0.55 < float(learnt.target.kernel.length_scale) <= 0.6
    nowhere = eqx.tree_at(lambda t: t.kernel.length_scale, learnt.target, jnp.asarray(0.7))
    with pytest.raises(ValueError, match="not finite at the first hyperparameters"):
        learn_hyperparameters(nowhere)


def test_what_is_learnt_and_wrong_arguments():
    target = process(GaussianNoise(0.3), "real", Constant(1.0) * SquaredExponential())
    assert len(log_hyperparameters(target, learnt_numbers(target))) == 4
    np.testing.assert_allclose(log_hyperparameters(target, learnt_numbers(target, likelihood=False)), 0, atol=1e-15)
    narrow = learn_hyperparameters(target, bounds=(0.5, 1.0))
    numbers = jax.tree.leaves((narrow.target.kernel, narrow.target.likelihood))
    assert all(0.3 - 1e-12 <= float(leaf) <= 1 + 1e-12 for leaf in numbers)
    written = process(UserLikelihood(lambda y, eta: -0.5 * (y - eta) ** 2, True), "real")
    assert len(log_hyperparameters(written, learnt_numbers(written))) == 3
    with pytest.raises(ValueError, match="start from jitter=1e-6"):
        learn_hyperparameters(process(GaussianNoise(0.3), "real", jitter=0.0), learn_jitter=True)
    with pytest.raises(ValueError, match="bounds must be two positive"):
        learn_hyperparameters(target, bounds=(1.0, 0.5))
