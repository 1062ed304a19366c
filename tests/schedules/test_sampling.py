"""Sampling of data terms: uniform in law, or every term exactly once an epoch; nothing of the data's size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.schedules import ReshuffledSampling, UniformSampling
from support.members import quick_jit

KEY = jax.random.key(0)


def sequence(sampling, num_terms, num_steps, key=KEY):
    draw = quick_jit(jax.vmap(lambda t: sampling.indices(key, t, num_terms)))
    return np.asarray(draw(jnp.arange(num_steps))).ravel()


@pytest.mark.parametrize(
    ("num_terms", "batch"),
    [(1, 1), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2), (7, 7), (17, 5), (64, 10), (65, 100), (1000, 64), (1000, 1)],
)
def test_reshuffled_sees_every_term_once_an_epoch(num_terms, batch):
    epochs = 4
    indices = sequence(ReshuffledSampling(batch), num_terms, -(-epochs * num_terms // batch))
    for epoch in range(epochs):
        part = indices[epoch * num_terms : (epoch + 1) * num_terms]
        np.testing.assert_array_equal(np.sort(part), np.arange(num_terms))


def test_epochs_and_keys_differ():
    orders = sequence(ReshuffledSampling(50), 200, 8).reshape(2, 200)
    other = sequence(ReshuffledSampling(50), 200, 4, jax.random.key(1))
    for first, second in [(orders[0], orders[1]), (orders[0], other)]:
        # The number of agreements of two random permutations is nearly Poisson(1); P(> 12) < 1e-10.
        assert (first == second).sum() <= 12
    assert (orders[0] == np.arange(200)).sum() <= 12


def test_reshuffled_orders_are_spread_evenly():
    """Where the first term of an epoch falls: chi-square over 5000 epochs, false-alarm rate 1e-6."""
    first = sequence(ReshuffledSampling(1), 10, 50_000).reshape(5000, 10)
    for column in (0, 4, 9):
        assert stats.chisquare(np.bincount(first[:, column], minlength=10)).pvalue > 3e-7
    pairs = np.bincount(first[:, 0] * 10 + first[:, 1], minlength=100).reshape(10, 10)
    assert stats.chisquare(pairs[~np.eye(10, dtype=bool)]).pvalue > 3e-7


def test_small_permutations_are_all_reached():
    orders = {tuple(row) for row in sequence(ReshuffledSampling(3), 3, 200).reshape(200, 3)}
    assert len(orders) == 6


@pytest.mark.parametrize("num_terms", [1, 2, 3, 1000])
def test_uniform(num_terms):
    """Chi-square for the counts and for successive pairs; false-alarm rate 2e-6 for each size."""
    indices = sequence(UniformSampling(20), num_terms, 1000)
    assert indices.min() >= 0 and indices.max() < num_terms
    if num_terms == 1:
        return
    assert stats.chisquare(np.bincount(indices, minlength=num_terms)).pvalue > 1e-6
    coarse = indices * 2 // num_terms if num_terms > 3 else indices
    kinds = coarse.max() + 1
    pairs = np.bincount(coarse[::2] * kinds + coarse[1::2], minlength=kinds**2)
    assert stats.chisquare(pairs).pvalue > 1e-6


@pytest.mark.parametrize("sampling", [UniformSampling(4), ReshuffledSampling(4)])
def test_nothing_has_the_size_of_the_data(sampling):
    jaxpr = jax.make_jaxpr(lambda t: sampling.indices(KEY, t, 1_000_003))(jnp.asarray(5))

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            for variable in (*equation.invars, *equation.outvars):
                yield int(np.prod(variable.aval.shape))
            for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from sizes(inner)

    found = list(sizes(jaxpr.jaxpr))
    assert len(found) > 20
    assert max(found) <= 64


def test_long_runs_do_not_overflow():
    """Step 2^31 of a batch of 1000: positions need 64 bits."""
    sampling = ReshuffledSampling(1000)
    start = 2**31 - 2**31 % 7  # a step at which an epoch of 7000 terms begins
    steps = start + jnp.arange(7)
    indices = quick_jit(jax.vmap(lambda t: sampling.indices(KEY, t, 7000)))(steps)
    np.testing.assert_array_equal(np.sort(np.asarray(indices).ravel()), np.arange(7000))


@pytest.mark.parametrize("kind", [UniformSampling, ReshuffledSampling])
@pytest.mark.parametrize("bad", [0, -1, True])
def test_bad_batches_are_refused(kind, bad):
    with pytest.raises(ValueError, match="batch must be"):
        kind(bad)
