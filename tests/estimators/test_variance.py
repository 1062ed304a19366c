"""The noise of the estimators: 1/N in the batch, zero at a Gaussian posterior, less with a baseline."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.estimators import Energy, ScoreFunction, StickingTheLanding, minibatch_gradient
from provi.families import Gaussian
from provi.targets import Gaussian as GaussianTarget
from support.members import FACTOR, LOC, family_of, flat, point_of, quick_jit
from support.statistics import assert_mean

TARGET = GaussianTarget(LOC, FACTOR @ FACTOR.T)
PRECISION = np.linalg.inv(FACTOR @ FACTOR.T)


@quick_jit
def minibatches(estimator, family, point, num_draws):
    def one(key):
        return minibatch_gradient(key, estimator, TARGET.potential, family, point, num_draws)

    return jax.vmap(one)(jax.random.split(jax.random.key(1), 10_000))


@quick_jit
def sticking(family, point):
    """100 gradients from one draw each."""
    estimator = StickingTheLanding()
    prepared = estimator.prepare(family, point)
    keys = jax.random.split(jax.random.key(1), 100)
    return jax.vmap(lambda key: estimator.mean_over_draws(key, TARGET.potential, family, point, prepared, 1))(keys)


def test_the_variance_of_a_minibatch_is_that_of_one_draw_over_its_size():
    """Cov(g_m) = Q CC' Q / N in closed form, for N draws that are independent; false-alarm rate 5e-6."""
    family = family_of("normal", "triangular")
    shifted = family.point(LOC + 1.0, 0.5 * np.eye(3) + 0.3 * np.tril(np.ones((3, 3)), -1))
    matrix = np.asarray(shifted.scale.matrix)
    covariance = PRECISION @ matrix @ matrix.T @ PRECISION
    for num_draws in (1, 3, 10, 34, 45):
        gradient = minibatches(Energy(), family, shifted, jnp.asarray(num_draws)).loc
        noise = np.asarray(gradient) - PRECISION @ np.ones(3)
        assert_mean(num_draws * noise[:, :, None] * noise[:, None, :], covariance)


@pytest.mark.parametrize("scale", ["triangular", "symmetric"])
def test_sticking_the_landing_vanishes_draw_by_draw_at_a_gaussian_posterior(scale):
    family = Gaussian(3, scale)
    optimum = family.point_from_covariance(LOC, FACTOR @ FACTOR.T)
    gradients = sticking(family, optimum)
    assert np.abs(np.asarray(gradients.loc)).max() < 1e-12
    assert np.abs(np.asarray(gradients.scale.matrix)).max() < 1e-12
    assert np.abs(flat(sticking(family, family.point(LOC, 1.0)))).max() > 1e-2


def without_baseline(key, family, point, num):
    """The plain score-function gradient in m and C, by differentiating log q at fixed draws."""
    draws = jax.lax.stop_gradient(family.sample(key, point, num))
    weights = jax.vmap(TARGET.potential)(draws)
    return jax.grad(lambda w: jnp.mean(weights * jax.vmap(lambda z: family.log_prob(w, z))(draws)))(point)


@pytest.mark.parametrize("num", [1, 8])
def test_the_baseline_lowers_the_variance_of_the_score_function(num):
    """Both have the same mean; the total variance is compared over 4000 replicates."""
    family = family_of("normal", "triangular")
    point = point_of(family)

    @quick_jit
    def both(keys):
        prepared = ScoreFunction().prepare(family, point)
        with_baseline = jax.vmap(
            lambda key: ScoreFunction().mean_over_draws(key, TARGET.potential, family, point, prepared, num)
        )
        return with_baseline(keys), jax.vmap(lambda key: without_baseline(key, family, point, num))(keys)

    with_baseline, plain = both(jax.random.split(jax.random.key(0), 4000))
    rows = [np.concatenate([g.loc, g.scale.matrix.reshape(4000, 9)], axis=1) for g in (with_baseline, plain)]
    assert_mean(rows[0] - rows[1], 0.0)
    ratio = rows[0].var(axis=0).sum() / rows[1].var(axis=0).sum()
    assert ratio < 0.5


def test_without_a_baseline_the_two_formulas_of_the_score_function_agree():
    """With the baseline put back, draw by draw: the weights are potentials minus the mean of the others."""
    family = family_of("normal", "triangular")
    point = point_of(family)
    key, prepared = jax.random.key(2), ScoreFunction().prepare(family, point)
    result = ScoreFunction().mean_over_draws(key, TARGET.potential, family, point, prepared, 4)
    draws = family.sample(key, point, 4)
    values = np.asarray(jax.vmap(TARGET.potential)(draws))
    baseline = np.array([np.delete(values, i).mean() for i in range(4)])
    log_prob = quick_jit(jax.vmap(jax.grad(family.log_prob), in_axes=(None, 0)))(point, draws)
    weights = (values - baseline) / 4
    np.testing.assert_allclose(result.loc, np.einsum("i,ij->j", weights, log_prob.loc), rtol=1e-10)
    expected = np.tril(np.einsum("i,ijk->jk", weights, log_prob.scale.matrix))
    np.testing.assert_allclose(result.scale.matrix, expected, rtol=1e-9, atol=1e-12)
