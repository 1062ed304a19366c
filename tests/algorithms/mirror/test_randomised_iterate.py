"""The random index and the choice among runs: laws of the draws, and the promise of the two phases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.mirror.proximal_gradient import draw_index, index_weights, two_phase
from provi.theory import pgsvi
from support.statistics import assert_mean

ALPHA, SMOOTHNESS, YOUNG = 1.5, 2.0, 0.8


def test_index_has_the_law_of_the_theorem():
    """20000 draws, frequencies of all indices; false-alarm rate 1e-6."""
    reduced = pgsvi.reduced_alpha(ALPHA, YOUNG)
    steps = np.linspace(0.1, 1.0, 7) * 2 * reduced / SMOOTHNESS
    keys = jax.random.split(jax.random.key(0), 20000)
    draws = jax.jit(jax.vmap(draw_index, (0, None, None, None)))(keys, jnp.asarray(steps), reduced, SMOOTHNESS)
    expected = pgsvi.index_probabilities(steps, ALPHA, SMOOTHNESS, YOUNG)
    assert expected[-1] == pytest.approx(0, abs=1e-15)
    assert_mean(np.asarray(draws)[:, None] == np.arange(7), expected, exact=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_follow_the_theory(dtype):
    steps = np.array([0.3, 1.5, 0.7], dtype)
    found = jax.jit(index_weights)(jnp.asarray(steps), ALPHA, SMOOTHNESS)
    assert found.dtype == dtype
    expected = pgsvi.progress(steps.astype(float), ALPHA, SMOOTHNESS)
    np.testing.assert_allclose(found, expected, rtol=20 * np.finfo(dtype).eps, atol=1e-15)


@pytest.mark.parametrize("steps", [[0.3, 1.6], [0.3, -0.1], [1.5, 1.5]])
def test_steps_without_a_law_are_refused(steps):
    with pytest.raises(Exception, match="step_sizes must be positive"):
        jax.block_until_ready(jax.jit(index_weights)(jnp.asarray(steps), ALPHA, SMOOTHNESS))


TRACES = []


def _run(key, args):
    """Noisy gradient descent on L|w|^2/2 for R steps, R drawn first."""
    TRACES.append(1)
    start, steps, noise = args
    index_key, key = jax.random.split(key)
    count = draw_index(index_key, steps, 1.0, SMOOTHNESS)

    def body(k, w):
        error = noise * jax.random.normal(jax.random.fold_in(key, k), w.shape, w.dtype)
        return w - steps[k] * (SMOOTHNESS * w + error)

    return jax.lax.fori_loop(0, count, body, start)


def _squared_length(key, w, args):
    """A fresh gradient of 16 draws."""
    _, _, noise = args
    return jnp.sum((SMOOTHNESS * w + noise / 4 * jax.random.normal(key, w.shape, w.dtype)) ** 2)


def test_best_of_several_runs_keeps_its_promise():
    """The level is passed with probability at most kappa^-S + delta'; 64 repetitions, each of 3 runs.

    Euclidean, alpha = 1, unbiased: B from `unbiased_bound` and `mapping_bound`. The promised rate is 0.375 with
    delta' = 1/4; if it were reached, more than 40 failures of 64 would have probability 1.5e-5.
    """
    dim, noise, num_steps = 2, 0.5, 40
    start, steps = np.array([1.0, -1.0]), np.full(num_steps, 0.4)
    args = (jnp.asarray(start), jnp.asarray(steps), jnp.asarray(noise))
    variance, gap, ones = dim * noise**2, SMOOTHNESS / 2 * start @ start, np.ones(num_steps)
    bound = pgsvi.unbiased_bound(steps, ones, gap, 1.0, SMOOTHNESS, variance)[-1]
    mapping = pgsvi.mapping_bound(bound, pgsvi.progress(steps, 1.0, SMOOTHNESS), ones, 1.0, variance)
    level = pgsvi.two_phase_level(3, 16, mapping, 1.0, variance, 0.25, ratio=2.0)
    keys = jax.random.split(jax.random.key(1), 64)
    repeat = jax.jit(jax.vmap(lambda key, args: two_phase(key, _run, _squared_length, args, 3), (0, None)))
    found = repeat(keys, args)
    exact = np.sum((SMOOTHNESS * np.asarray(found.best)) ** 2, axis=1)
    assert np.sum(exact > level) <= 40
    single = np.asarray(found.squared_lengths)
    np.testing.assert_array_equal(single.argmin(axis=1), found.index)
    # Choosing helps: the chosen is better than the average run.
    assert exact.mean() < single.mean() / 2
    before = len(TRACES)
    other = repeat(keys, (args[0] + 1, args[1] / 2, args[2] * 3))
    assert len(TRACES) == before  # new values do not compile again
    assert not np.allclose(other.squared_lengths, single)


def test_a_run_that_failed_is_not_chosen():
    def run(key, args):
        value = jax.random.uniform(key)
        return {"w": jnp.where(value < args, jnp.nan, value)}

    result = two_phase(jax.random.key(5), run, lambda key, w, args: w["w"] ** 2, jnp.asarray(0.5), 12)
    squared = np.asarray(result.squared_lengths)
    assert 0 < np.isinf(squared).sum() < 12
    assert float(result.best["w"]) ** 2 == pytest.approx(squared.min())
