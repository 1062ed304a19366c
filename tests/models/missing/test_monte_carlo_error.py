"""The estimated gap and its Monte-Carlo error against the exact likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.compilation import quick_jit
from provi.models.missing.chains import start_chains
from provi.models.missing.conditional import Parameters
from provi.models.missing.monte_carlo_error import assess, sweep
from provi.models.missing.stochastic_solvers import Carried, Pass, sweep_pass, zero_mean
from provi.models.missing.surrogate import MissingSurrogate
from support.missing_rows import P, solved_problem
from support.statistics import assert_mean


@pytest.fixture(scope="module")
def problem():
    return solved_problem()


def test_remaining_and_noise_agree_at_the_maximum(problem):
    # There the score is all noise, so that both have the same mean: E g'I^-1 g = tr(I^-1 Cov g).
    rows, _, best, _ = problem
    surrogate = MissingSurrogate(rows, jnp.zeros(P + 1), "newton", "exact", 4)

    @quick_jit
    def repeated(surrogate, best, keys):
        def one(key):
            found = sweep(key, surrogate, best, None, jnp.asarray(4), False)
            return found.mean, found.spread

        return jax.lax.map(one, keys)

    means, spreads = repeated(surrogate, best, jax.random.split(jax.random.key(0), 100))
    found = [assess(surrogate, best, *jax.tree.map(lambda x, i=i: x[i], (means, spreads))) for i in range(100)]
    remaining, noise = (np.array([float(getattr(f, name)) for f in found]) for name in ("remaining", "noise"))
    assert_mean(remaining - noise, 0.0, alarm=1e-6)
    assert 0.8 < remaining.mean() / noise.mean() < 1.25


def test_estimated_gap_is_the_exact_one_away_from_the_maximum(problem):
    rows, _, best, gap = problem
    surrogate = MissingSurrogate(rows, jnp.zeros(P + 1), "newton", "metropolis", 8)
    moved = Parameters(best.coefficients + 0.02, best.mean - 0.01, best.covariance * 1.01)
    chains = start_chains(jax.random.key(1), rows.labels)
    carried = Carried(None, zero_mean(moved), chains, jnp.asarray(np.zeros((), int)))
    given = Pass(jax.random.key(2), np.asarray(1), surrogate, np.asarray(400), moved)
    verdict = assess(surrogate, moved, *sweep_pass(given, carried, np.asarray(1.0), False)[2])
    assert float(verdict.noise) < 0.01 * gap(moved)
    # Half the squared Newton step against the difference of log-likelihoods: cubic terms are a few percent here.
    np.testing.assert_allclose(float(verdict.remaining), gap(moved), rtol=0.1)
    distance = np.abs(np.asarray(best.coefficients - moved.coefficients))
    np.testing.assert_allclose(np.asarray(verdict.coefficient_errors), distance, rtol=0.3)
