"""The samplers of the linear predictor against quadrature of its density given the label."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.models.missing.chains import Chains, exact_draws, metropolis_draws, start_chains
from provi.models.missing.chains import _normals as normals_of
from support.statistics import assert_mean

# (mu, s, y): ordinary rows, a wide one, rows that contradict their label (the last two by far)
ROWS = np.array([[0.3, 1.0, 1], [-0.5, 2.0, -1], [-1.0, 4.0, 1], [3.0, 1.5, -1], [-8.0, 1.5, 1], [12.0, 2.0, -1]])
MILD = ROWS[:4]
GRID = np.linspace(-14, 14, 20001)


def density(mu, s, y):
    """The law of u on GRID by the trapezoid rule, exact to rounding: the integrand is analytic and vanishes."""
    log_weight = -0.5 * GRID**2 - np.logaddexp(0, -y * (mu + s * GRID))
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def moments(rows):
    weights = np.array([density(*row) for row in rows])
    return weights @ GRID, weights @ GRID**2


def columns(rows, dtype=np.float64):
    return (jnp.asarray(column.astype(dtype)) for column in rows.T)


def check_law(draws, row, alarm):
    """Kolmogorov-Smirnov test of independent draws of one row; `alarm` is its false-alarm rate."""
    below = np.cumsum(density(*row))
    result = stats.kstest(draws, lambda u: np.interp(u, GRID, below))
    assert result.pvalue > alarm, (row, result.pvalue)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exact_draws_have_the_law_of_the_predictor_given_the_label(dtype):
    draws = jax.jit(exact_draws, static_argnums=4)(jax.random.key(1), *columns(ROWS, dtype), 40000)
    assert draws.dtype == dtype
    draws = np.asarray(draws, np.float64)
    first, second = moments(ROWS)
    assert_mean(draws, first, alarm=1e-6)
    assert_mean(draws**2, second, alarm=1e-6)
    for row, column in zip(ROWS, draws.T, strict=True):
        check_law(column, row, alarm=1e-6)


def run_chains(key, rows, steps, dtype=np.float64):
    """`steps` blocks of four draws after a burn-in; chains in the leading axis of the answer."""
    mu, s, y = columns(rows, dtype)

    def block(carry, key):
        carry, draws = metropolis_draws(key, carry, mu, s, y, 4)
        return carry, draws

    start, burn_in, main = jax.random.split(key, 3)
    chains, _ = jax.lax.scan(block, start_chains(start, mu), jax.random.split(burn_in, 25))
    chains, draws = jax.lax.scan(block, chains, jax.random.split(main, steps))
    return chains, draws.reshape(-1, len(rows))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_chains_have_the_law_of_the_predictor_given_the_label(dtype):
    # 400 independent chains a row, each one mean over 80 draws: the chains' means are independent samples.
    repeated = np.repeat(MILD, 400, axis=0)
    chains, draws = jax.jit(lambda key: run_chains(key, repeated, 20, dtype))(jax.random.key(2))
    assert draws.dtype == dtype
    draws = np.asarray(draws, np.float64)
    first, second = moments(MILD)
    assert_mean(draws.mean(axis=0).reshape(4, 400).T, first, alarm=1e-6)
    assert_mean((draws**2).mean(axis=0).reshape(4, 400).T, second, alarm=1e-6)
    for row, last in zip(MILD, draws[-1].reshape(4, 400), strict=True):
        check_law(last, row, alarm=1e-6)
    assert int(chains.proposed.min()) == int(chains.proposed.max()) == 4 * (25 + 20)


def test_acceptance_is_the_mean_of_the_acceptance_probability():
    # E over u of the law, u' ~ N(0, 1), of min(1, sigma(y eta')/sigma(y eta)), by a sum over two grids
    mu, s, y = row = np.array([0.4, 1.2, 1])
    grid = np.linspace(-9, 9, 1201)
    likelihood = 1 / (1 + np.exp(-y * (mu + s * grid)))
    proposal = stats.norm.pdf(grid)
    law = proposal * likelihood / (proposal @ likelihood)
    expected = law @ np.minimum(1, likelihood[None] / likelihood[:, None]) @ proposal / proposal.sum()
    chains, _ = jax.jit(lambda key: run_chains(key, np.repeat(row[None], 500, axis=0), 50))(jax.random.key(3))
    assert_mean(np.asarray(chains.accepted) / np.asarray(chains.proposed), expected, alarm=1e-6)
    assert 0.7 < float(chains.acceptance) < 0.9


def test_complete_rows_are_not_counted_and_the_state_does_not_depend_on_theta():
    zero, one = jnp.zeros(3), jnp.ones(3)
    start = Chains(jnp.array([0.5, -1.0, 2.0]), jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.int32))
    move = jax.jit(metropolis_draws, static_argnums=5)
    chains, draws = move(jax.random.key(4), start, one, zero, one, 4)
    assert int(chains.proposed.sum()) == int(chains.accepted.sum()) == 0
    assert draws.shape == (4, 3)
    # A proposal is always accepted where the label says nothing: the ratio is one.
    bits_only, _ = move(jax.random.key(4), start, 5 * one, zero, -one, 4)
    np.testing.assert_array_equal(chains.residual, bits_only.residual)


def test_far_tails_stay_finite():
    mu, s, y = (jnp.array(x) for x in ([-300.0, 300.0, -800.0], [3.0, 0.5, 20.0], [1.0, -1.0, 1.0]))
    draws = jax.jit(exact_draws, static_argnums=4)(jax.random.key(5), mu, s, y, 2000)
    start = Chains(jnp.zeros(3), jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.int32))
    chains, path = jax.jit(metropolis_draws, static_argnums=5)(jax.random.key(6), start, mu, s, y, 8)
    assert jnp.isfinite(draws).all() and jnp.isfinite(path).all() and jnp.isfinite(chains.residual).all()
    # Far against its label, sigma(y eta) is exp(y eta): the law is N(y s, 1) in u. Alarm rate 1e-6.
    assert_mean(np.asarray(draws), np.asarray(y * s), alarm=1e-6)


def test_the_largest_and_smallest_bits_give_finite_normals():
    bits = jnp.asarray(np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32))
    normals = np.asarray(normals_of(bits, jnp.float64))
    assert np.isfinite(normals).all()
    np.testing.assert_allclose(normals[[0, -1]], stats.norm.ppf([2.0**-24, 1 - 2.0**-24]), rtol=1e-3)
