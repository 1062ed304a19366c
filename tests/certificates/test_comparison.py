"""Bound (g): the difference of two objectives, against closed forms, quadrature and its stated confidence."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from provi.certificates.comparison import difference_upper_bound, linear_difference_bound
from provi.diagnostics import exact_negative_elbo
from provi.families import Gaussian, Laplace, LocationScale
from provi.targets import LogDensity, LogisticRegression
from provi.targets.likelihoods.moments import LARGEST_DEVIATION
from support.linear_models import DIM, KINDS, linear_model, objective

FAMILY = Gaussian(DIM)
FIRST = np.array([0.4, -0.9, 0.2]), np.array([[0.5, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.4]])
SECOND = np.array([0.1, -0.2, 0.3]), np.array([[0.2, 0.0, 0.05], [0.0, 0.1, 0.0], [0.05, 0.0, 0.3]])
POINT, BETTER = (FAMILY.point_from_covariance(*pair) for pair in (FIRST, SECOND))


@pytest.mark.parametrize("kind", KINDS)
def test_difference_for_linear_models_is_exact_up_to_its_error(kind):
    target = linear_model(kind)
    expected = objective(target, *FIRST) - objective(target, *SECOND)
    there, passes = linear_difference_bound(target, FAMILY, POINT, BETTER)
    back, _ = linear_difference_bound(target, FAMILY, BETTER, POINT)
    assert passes == 2
    # Both are upper bounds, and their sum is twice the error that they state.
    assert there >= expected - 1e-12 and back >= -expected - 1e-12
    assert 0 <= there + back < 2 * target.num_terms * 5e-8


def test_difference_at_a_very_wide_member():
    """Spreads of hundreds, where fixed quadrature is off by 1e-2 nats: against adaptive integration of each row."""
    rng = np.random.default_rng(0)
    design, labels = rng.normal(size=(8, 2)), rng.integers(0, 2, 8)
    target, family = LogisticRegression(design, labels), Gaussian(2)
    loc, deviation = np.array([20.0, -30.0]), 200.0
    wide, unit = family.point(loc, deviation), family.point(np.zeros(2), 1.0)

    def energy(centre, spread, label):
        def integrand(t):
            return np.logaddexp(0.0, (1 - 2 * label) * (centre + spread * t)) * stats.norm.pdf(t)

        bend = -centre / spread
        ends = [-12.0, *np.clip([bend - 40 / spread, bend, bend + 40 / spread], -12, 12), 12.0]
        pieces = zip(ends[:-1], ends[1:], strict=True)
        return sum(
            integrate.quad(integrand, a, b, epsabs=1e-12, epsrel=1e-12, limit=200)[0] for a, b in pieces if b > a
        )

    def total(location, scale):
        centres, spreads = design @ location, scale * np.linalg.norm(design, axis=1)
        rows = sum(energy(*row) for row in zip(centres, spreads, labels, strict=True))
        return rows + 0.5 * location @ location + scale**2 - 2 * np.log(scale)

    expected = total(loc, deviation) - total(np.zeros(2), 1.0)
    found, _ = linear_difference_bound(target, family, wide, unit)
    assert expected <= found < expected + 1e-6


def test_difference_for_another_base():
    target, family = linear_model("logistic"), LocationScale(DIM, Laplace())
    pair = [family.point_from_covariance(*moments) for moments in (FIRST, SECOND)]
    expected = float(exact_negative_elbo(target, family, pair[0]) - exact_negative_elbo(target, family, pair[1]))
    found, _ = linear_difference_bound(target, family, *pair)
    assert expected <= found < expected + 1e-5


def test_what_cannot_be_computed_is_infinite():
    wide = FAMILY.point(np.zeros(DIM), 2 * LARGEST_DEVIATION)
    for kind in ("probit", "poisson"):
        assert linear_difference_bound(linear_model(kind), FAMILY, wide, BETTER)[0] == math.inf
    uneven = LocationScale(DIM, Laplace())
    wide = uneven.point(np.zeros(DIM), 30.0)
    assert linear_difference_bound(linear_model("logistic"), uneven, wide, uneven.point(np.zeros(DIM)))[0] == math.inf


def test_monte_carlo_difference_holds_at_its_confidence():
    """delta = 0.05 over 200 seeds: misses are at most Binomial(200, 0.05); false-alarm rate 1e-4."""
    target = linear_model("linear")
    density = LogDensity(lambda z: -target.potential(z), DIM)
    expected = objective(target, *FIRST) - objective(target, *SECOND)
    found = [difference_upper_bound(density, FAMILY, POINT, BETTER, delta=0.05, seed=seed)[0] for seed in range(200)]
    assert np.sum(np.array(found) < expected) <= stats.binom.isf(1e-4, 200, 0.05)
    assert np.median(found) < 1.3 * expected
    value, spent = difference_upper_bound(density, FAMILY, BETTER, POINT, delta=0.01, seed=0)
    # The worse member second: the difference is negative. 64 batches of 16 antithetic pairs at both members.
    assert -expected <= value < 0 and spent == 64 * 32 * 2


def test_monte_carlo_difference_that_is_not_finite():
    density = LogDensity(lambda z: jnp.sum(jnp.log(z + 3.0)), DIM)
    wide = FAMILY.point(np.zeros(DIM), 5.0)
    assert difference_upper_bound(density, FAMILY, wide, BETTER, delta=0.01, seed=0)[0] == math.inf
