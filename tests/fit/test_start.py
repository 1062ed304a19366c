"""Where the default begins: at the Laplace approximation, unless that is a spike without mass."""

import jax.numpy as jnp
import numpy as np

import provi
from support.hidden import hidden

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def normal(x, mean, scale):
    return -0.5 * ((x - mean) / scale) ** 2 - jnp.log(scale)


def centred_schools(z):
    """Rubin's eight schools, centred: the density is unbounded where log tau = z[1] falls."""
    mu, tau, theta = z[0], jnp.exp(z[1]), z[2:]
    prior = normal(mu, 0.0, 5.0) + normal(tau, 0.0, 5.0) + z[1]
    return prior + normal(theta, mu, tau).sum() + normal(EFFECTS, theta, ERRORS).sum()


def test_a_spike_is_no_start():
    """From the spike at log tau = -16 the run used to take all of its 3000 steps to come back, or stay there.

    The best of long runs from other starts has a mean of log tau of 1.42 with sd 0.25, and means of mu of 4.41.
    """
    fit = provi.fit(provi.targets.LogDensity(centred_schools, 10), seed=0)
    assert fit.outcome is provi.Outcome.STATIONARY
    np.testing.assert_allclose(fit.posterior.mean[:2], [4.41, 1.42], atol=0.05)
    np.testing.assert_allclose(fit.posterior.standard_deviation[1], 0.25, atol=0.02)


def test_a_declared_log_concave_density_costs_no_race():
    """The gradients are those of the run and of its certificate."""
    target = provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(hidden(z) ** 2), 2, log_concave=True)
    fit = provi.fit(target, tol=0.1)
    undeclared = provi.fit(provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(hidden(z) ** 2), 2), tol=0.1)
    assert fit.gradient_evaluations < undeclared.gradient_evaluations
