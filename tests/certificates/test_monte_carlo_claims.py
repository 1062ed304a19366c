"""What Monte-Carlo certificates claim, on what grounds, and when they refuse."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from certificates.monte_carlo_problems import LOGISTIC, logistic_density, near_optimum
from laws.contracts import compilations
from provi.certificates.monte_carlo.bounds import NAMES, monte_carlo_bounds
from provi.certificates.monte_carlo.finite_sample import NAME
from provi.families import LocationScale
from provi.targets import LogDensity, PoissonRegression


def test_what_is_claimed_decides_what_is_proven():
    family, point, gap = near_optimum()
    options = {"max_gradients": 20_000}
    declared = monte_carlo_bounds(logistic_density(log_concave=True), family, point, **options)
    assert [bound.name for bound in declared.bounds] == [NAMES[0], NAMES[2]]
    # The potential grows around q in all directions, which says how far away the best mean can be.
    assert declared.bounds[0].status == "statistical" and declared.kl is None
    assert "the best mean lies within" in declared.bounds[0].detail and "grows" in declared.bounds[0].detail
    assert gap < declared.bounds[0].value < 6 * gap
    unknown = monte_carlo_bounds(logistic_density(), family, point, **options)
    assert {bound.status for bound in unknown.bounds} == {"conditional"}
    strong = monte_carlo_bounds(logistic_density(strong_convexity=1.0), family, point, **options)
    assert [bound.name for bound in strong.bounds] == list(NAMES) and strong.kl is not None
    assert strong.kl > gap
    smooth = logistic_density(strong_convexity=1.0, smoothness=float(LOGISTIC.constants.smoothness.value))
    proven = monte_carlo_bounds(smooth, family, point, max_gradients=200_000)
    assert [bound.name for bound in proven.bounds] == [NAME, *NAMES]
    assert [bound.status for bound in proven.bounds] == ["proven", "statistical", "statistical", "conditional"]
    assert gap < proven.bounds[0].value < 10 * gap
    assert monte_carlo_bounds(logistic_density(log_concave=False), family, point).num_gradients == 0


def test_a_claim_that_the_draws_refute_is_refused():
    family, point, _ = near_optimum()
    certificate = monte_carlo_bounds(logistic_density(strong_convexity=1000.0), family, point)
    counterexample = certificate.counterexample
    assert counterexample is not None and counterexample.claimed == 1000.0 and counterexample.curvature < 1000.0
    assert all(bound.value == math.inf and "refused" in bound.detail for bound in certificate.bounds)


@pytest.mark.parametrize(
    "log_density",
    [
        lambda z: jnp.logaddexp(-0.5 * jnp.sum((z - 2) ** 2), -0.5 * jnp.sum((z + 2) ** 2)),
        lambda z: -0.5 * (z[0] ** 2 / 4 + (z[1] - z[0] ** 2) ** 2),
    ],
    ids=["mixture", "banana"],
)
def test_targets_that_are_not_log_concave_are_refused(log_density):
    target, family = LogDensity(log_density, 2, log_concave=True), LocationScale(2)
    certificate = monte_carlo_bounds(target, family, family.point(np.zeros(2), 1.5))
    assert all(bound.value == math.inf for bound in certificate.bounds) and certificate.kl is None
    found = certificate.counterexample
    assert found is not None and found.curvature < 0
    # The gradients at the ends of the segment say the same.
    start, end = (jax.grad(target.potential)(jnp.asarray(z)) for z in (found.point, found.point + found.direction))
    average = float(jnp.dot(end - start, found.direction)) / float(np.sum(found.direction**2))
    assert math.isclose(average, found.curvature, rel_tol=1e-9)


def test_same_seed_same_result_and_more_draws_do_not_recompile():
    family, point, _ = near_optimum()
    run = functools.partial(monte_carlo_bounds, LOGISTIC, family)
    first = run(point, seed=5, max_gradients=3_000)
    run(point, seed=7, max_gradients=20_000)  # enough for every kind of bound
    with compilations() as made:
        assert run(point, seed=5, max_gradients=3_000) == first
        other = family.point(np.asarray(point.loc) + 0.1, np.asarray(point.scale.matrix))
        assert run(other, seed=6, max_gradients=40_000) != first
    assert not made


def test_potential_that_overflows_gives_no_bound():
    target, family = PoissonRegression(1e4 * np.ones((3, 1)), [1, 2, 3]), LocationScale(1)
    certificate = monte_carlo_bounds(target, family, family.point(np.zeros(1), 1.0), max_gradients=2_000)
    assert all(bound.value == math.inf for bound in certificate.bounds) and certificate.kl is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"wanted": -1.0}, "wanted"),
        ({"max_gradients": 10}, "max_gradients"),
    ],
)
def test_bad_arguments(options, message):
    family, point, _ = near_optimum()
    with pytest.raises(ValueError, match=message):
        monte_carlo_bounds(LOGISTIC, family, point, **options)


def test_bad_dimension():
    family = LocationScale(2)
    with pytest.raises(ValueError, match="dimension 2"):
        monte_carlo_bounds(LOGISTIC, family, family.point(np.zeros(2)))
