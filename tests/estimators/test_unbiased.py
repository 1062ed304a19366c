"""Every estimator on every base and scale against the exact gradient, by z-tests.

The potential is a quadratic plus a softplus of one inner product. Its energy is exact: the quadratic needs
E u = 0 and E uu' = I only, and a'z = a'm + |C'a| u_1 in law, by sphericity, for the softplus.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.tree import add_scaled
from provi.estimators import Energy, Entropy, ScoreFunction, StickingTheLanding, minibatch_gradient
from provi.families import Point
from provi.families.marginals import marginal_quadrature
from support.members import BASES, FAMILIES, dense, family_of, flat, in_space, point_of, quick_jit
from support.statistics import assert_mean

ESTIMATORS = {
    "energy": Energy(),
    "entropy": Entropy(),
    "sticking_the_landing": StickingTheLanding(),
    "score_function": ScoreFunction(),
}
NEEDS_SCORE = ("sticking_the_landing", "score_function")
CENTRE = jnp.asarray([-0.5, 0.2, 0.9])
PRECISION = jnp.asarray([[2.0, 0.5, -0.2], [0.5, 1.0, 0.3], [-0.2, 0.3, 0.6]])
DIRECTION, OFFSET = jnp.asarray([1.5, -1.0, 0.5]), 0.3


def potential(z):
    x = z - CENTRE
    return 0.5 * x @ PRECISION @ x + jax.nn.softplus(DIRECTION @ z + OFFSET)


@functools.cache
def exact_gradients(base, scale):
    """(grad l, grad f) as vectors."""
    family = family_of(base, scale)
    nodes, weights = (jnp.asarray(x) for x in marginal_quadrature(BASES[base], family.dim))

    def parts(w):
        matrix, x = dense(w.scale), w.loc - CENTRE
        quadratic = 0.5 * (x @ PRECISION @ x + jnp.sum(matrix * (PRECISION @ matrix)))
        radius = jnp.sqrt(jnp.sum((matrix.T @ DIRECTION) ** 2))
        eta = DIRECTION @ w.loc + OFFSET + radius * nodes
        energy = quadratic + weights @ jax.nn.softplus(eta)
        return jnp.stack([energy, energy - 0.5 * jnp.linalg.slogdet(matrix @ matrix.T)[1]])

    both = quick_jit(jax.jacrev(parts))(point_of(family))
    gradients = (jax.tree.map(lambda x, i=i: x[i], both) for i in (0, 1))
    return [flat(Point(gradient.loc, in_space(gradient.scale))) for gradient in gradients]


def exact(base, scale, includes_entropy):
    return exact_gradients(base, scale)[int(includes_entropy)]


def as_rows(gradients):
    """A batched Point as (keys, entries)."""
    return np.concatenate([np.asarray(x).reshape(x.shape[0], -1) for x in jax.tree.leaves(gradients)], axis=1)


@functools.partial(quick_jit, static_argnums=(3, 4))
def samples(family, point, estimators, num_keys, num_draws):
    def one(key, estimator):
        prepared = estimator.prepare(family, point)
        gradient = estimator.mean_over_draws(key, potential, family, point, prepared, num_draws)
        constant = estimator.constant_part(point)
        return gradient if constant is None else add_scaled(gradient, 1.0, constant)

    keys = jax.random.split(jax.random.key(0), num_keys)
    return [jax.vmap(lambda key, e=e: one(key, e))(keys) for e in estimators]


@pytest.mark.parametrize(("base", "scale"), FAMILIES)
def test_unbiased(base, scale):
    """50 z-tests of false-alarm rate 1e-6 each: 5e-5 in all."""
    names = [name for name in ESTIMATORS if base != "uniform" or name not in NEEDS_SCORE]
    family = family_of(base, scale)
    gradients = samples(family, point_of(family), [ESTIMATORS[name] for name in names], 20_000, 2)
    for name, gradient in zip(names, gradients, strict=True):
        ESTIMATORS[name].check(family)
        assert_mean(as_rows(gradient), exact(base, scale, ESTIMATORS[name].includes_entropy))


@pytest.mark.parametrize("name", NEEDS_SCORE)
def test_a_base_that_jumps_is_refused_because_it_would_be_biased(name):
    family = family_of("uniform", "triangular")
    with pytest.raises(ValueError, match="biased for the uniform base.*Use estimator="):
        ESTIMATORS[name].check(family)
    gradient = samples(family, point_of(family), [ESTIMATORS[name]], 20_000, 2)[0]
    with pytest.raises(AssertionError, match="mean at"):
        assert_mean(as_rows(gradient), exact("uniform", "triangular", ESTIMATORS[name].includes_entropy))


@quick_jit
def minibatches(estimator, family, point, num_draws):
    keys = jax.random.split(jax.random.key(1), 5_000)
    return jax.vmap(lambda key: minibatch_gradient(key, estimator, potential, family, point, num_draws))(keys)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_minibatches_of_any_size_are_unbiased_and_compile_once(name):
    """Four z-tests an estimator, 1e-6 each."""
    family = family_of("normal", "triangular")
    point = point_of(family)
    before = minibatches._cache_size()
    for num_draws in (1, 3, 10, 45):
        rows = as_rows(minibatches(ESTIMATORS[name], family, point, jnp.asarray(num_draws)))
        assert_mean(rows, exact("normal", "triangular", ESTIMATORS[name].includes_entropy))
    assert minibatches._cache_size() == before + 1
