"""Gradients from a batch of data terms: unbiased, and equal to the full gradient when the batch is an epoch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import ProxSGD
from provi.algorithms.proximal.stochastic_proximal import step_gradient, step_potential
from provi.estimators import Energy, Entropy
from provi.families import Gaussian
from provi.families.marginals import marginal_quadrature
from provi.schedules import ReshuffledSampling, UniformSampling
from provi.targets import LogisticRegression
from support.members import quick_jit
from support.statistics import assert_mean

RNG = np.random.default_rng(5)
X = RNG.normal(size=(12, 2)) * [1.0, 3.0]
Y = RNG.random(12) < 0.4
TARGET = LogisticRegression(X, Y, prior_scale=2.0)
FAMILY = Gaussian(2)
POINT = FAMILY.point([0.4, -0.3], [[0.8, 0.0], [0.5, 1.1]])
STATE = ProxSGD(0.1).init(POINT)


def exact_gradient(includes_entropy):
    nodes, weights = (jnp.asarray(x) for x in marginal_quadrature(FAMILY.base, 2))

    def objective(m, C):
        radius = jnp.sqrt(jnp.sum((jnp.asarray(X) @ C) ** 2, axis=1))
        eta = (jnp.asarray(X) @ m)[:, None] + radius[:, None] * nodes[None, :]
        sign = jnp.asarray(1 - 2.0 * Y)[:, None]
        likelihood = jnp.sum(jax.nn.softplus(sign * eta) @ weights)
        entropy = jnp.sum(jnp.log(jnp.diagonal(C))) if includes_entropy else 0.0
        return likelihood + (jnp.sum(m**2) + jnp.sum(C**2)) / 8 - entropy

    m, C = jax.jit(jax.grad(objective, (0, 1)))(POINT.loc, POINT.scale.matrix)
    return np.concatenate([m, np.tril(C).ravel()])


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("estimator", [Energy(), Entropy()], ids=["energy", "entropy"])
def test_uniform_minibatches_are_unbiased(batch, estimator):
    """Four z-tests of false-alarm rate 1e-6, against quadrature over all data."""

    def one(key):
        return step_gradient(key, STATE, TARGET, FAMILY, estimator, jnp.asarray(2), UniformSampling(batch))

    gradient = quick_jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 20_000))
    rows = np.concatenate([gradient.loc, gradient.scale.matrix.reshape(20_000, 4)], axis=1)
    assert_mean(rows, exact_gradient(estimator.includes_entropy))


def test_reshuffled_minibatches_add_up_to_the_full_potential_over_an_epoch():
    z, key = jnp.asarray([0.2, -0.9]), jax.random.key(3)
    values = [float(step_potential(key, jnp.asarray(t), TARGET, ReshuffledSampling(4))(z)) for t in range(6)]
    assert np.mean(values[:3]) == pytest.approx(float(TARGET.potential(z)), rel=1e-13)
    assert np.mean(values[3:]) == pytest.approx(float(TARGET.potential(z)), rel=1e-13)
    assert np.ptp(values) > 0.1


def test_without_sampling_the_whole_target_is_seen():
    z = jnp.asarray([0.2, -0.9])
    seen = step_potential(jax.random.key(0), jnp.asarray(0), TARGET, None)(z)
    assert float(seen) == float(TARGET.potential(z))
