"""Where no certificate may be issued: targets that are not log-concave, false claims, tails that no draw sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import provi
from provi.families import LocationScale
from provi.fit import choose
from provi.targets import LogDensity


def mixture(z):
    """Two Gaussians at distance 6."""
    return jnp.logaddexp(-0.5 * jnp.sum((z - 3) ** 2), -0.5 * jnp.sum((z + 3) ** 2))


def banana(z):
    return -0.5 * z[0] ** 2 - 2 * (z[1] - z[0] ** 2) ** 2


def student(z):
    """Three degrees of freedom in each coordinate."""
    return -2 * jnp.sum(jnp.log1p(z**2 / 3))


def gaussian(z):
    return -0.5 * z[0] ** 2 - 2 * z[1] ** 2


CLAIMS = {"nothing": {}, "log-concave": {"log_concave": True}, "strongly convex": {"strong_convexity": 0.1}}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("density", [mixture, banana, student], ids=lambda function: function.__name__)
def test_targets_that_are_not_log_concave(density, claim):
    """Whatever is claimed; q covers all of the target."""
    target, family = LogDensity(density, 2, **CLAIMS[claim]), LocationScale(2)
    for seed in range(3):
        found = choose(target, family).certificate(family.point(np.zeros(2), 2.0), seed=seed, max_gradients=4000)
        check_refused(found, target, CLAIMS[claim].get("strong_convexity", 0.0))


@pytest.mark.parametrize(("claimed", "refused"), [(1.5, True), (0.99, False)])
def test_strong_convexity_claimed_too_large(claimed, refused):
    """Curvatures 1 and 4."""
    target, family = LogDensity(gaussian, 2, strong_convexity=claimed), LocationScale(2)
    point = family.point(np.asarray([0.1, 0.0]), np.asarray([[1.0, 0.0], [0.0, 0.5]]))
    found = choose(target, family).certificate(point, max_gradients=4000)
    if refused:
        check_refused(found, target, claimed)
    else:
        assert found.status == "proven"
        assert found.gap >= 0.005


def check_refused(found, target, claimed):
    """No bound at all, and a counterexample that the Hessian confirms."""
    assert (found.status, found.gap, found.kl, found.posterior) == ("none", None, None, None)
    assert any(row.status == "violated" for row in found.assumptions)
    shown = found.counterexample
    assert shown is not None
    assert shown.claimed == claimed
    unit = shown.direction / np.linalg.norm(shown.direction)
    curvature = unit @ np.asarray(jax.hessian(target.potential)(jnp.asarray(shown.point))) @ unit
    assert curvature < claimed
    np.testing.assert_allclose(shown.curvature, curvature, rtol=1e-6, atol=1e-9)


def exponential(width, along, z):
    """One Poisson count of zero under the prior N(0, width^2): exp(a'z) + |z|^2 / (2 width^2)."""
    return -jnp.exp(jnp.dot(along, z)) - 0.5 * jnp.sum(z**2) / width**2


def wall(steepness, place, along, z):
    """A Gaussian cut off beyond `place` by a spring: smooth, with constant 1 + steepness."""
    return -0.5 * steepness * jnp.maximum(jnp.dot(along, z) - place, 0.0) ** 2 - 0.5 * jnp.sum(z**2)


def direction(dim):
    along = np.random.default_rng(5).normal(size=dim)
    return along / np.linalg.norm(along)


@pytest.mark.parametrize("dim", [1, 20])
def test_exponential_with_unseen_tails(dim):
    """q is 5 to 6 wide along a: E exp(a'z) is made 5 deviations out, and each Monte-Carlo bound would miss it."""
    width, along = 30.0 if dim == 1 else 15.0, direction(dim)

    def objective(loc, spread):
        return np.exp(loc + spread**2 / 2) + (loc**2 + spread**2) / (2 * width**2) - np.log(spread)

    best = optimize.minimize(lambda x: objective(x[0], np.exp(x[1])), [-3.0, 0.0], method="BFGS")
    loc, spread = best.x[0], np.exp(best.x[1])
    assert objective(loc + spread, spread) - best.fun > 0.1
    target = LogDensity(
        jax.tree_util.Partial(exponential, jnp.asarray(width), jnp.asarray(along)), dim, strong_convexity=width**-2
    )
    line = np.outer(along, along)
    covariance = width**2 * (np.eye(dim) - line) + spread**2 * line
    check_unseen(target, (loc + spread) * along, covariance)


@pytest.mark.parametrize("dim", [1, 20])
@pytest.mark.parametrize("declared", [True, False])
def test_wall_beyond_all_draws(dim, declared):
    """phi = z^2/2 + M max(z - 5, 0)^2 / 2, q = N(0, 1): true smoothness M + 1 = 1e8 does not excuse from the audit."""
    steepness, place, along = 1e8, 5.0, direction(dim)

    def objective(loc, spread):
        away = loc - place
        cut = (away**2 + spread**2) * stats.norm.cdf(away / spread) + away * spread * stats.norm.pdf(away / spread)
        return 0.5 * steepness * cut + (loc**2 + spread**2) / 2 - np.log(spread)

    assert objective(0.0, 1.0) - objective(-0.3, 0.8) > 0.1
    claims = {"strong_convexity": 1.0, **({"smoothness": steepness + 1} if declared else {})}
    density = jax.tree_util.Partial(wall, jnp.asarray(steepness), jnp.asarray(place), jnp.asarray(along))
    check_unseen(LogDensity(density, dim, **claims), np.zeros(dim), np.eye(dim))


def check_unseen(target, mean, covariance):
    """Refused for its tails at every seed, also by `provi.certify`, which would search for a better member."""
    family = LocationScale(target.dim)
    point = family.point_from_covariance(mean, covariance)
    certificates = [
        *(choose(target, family).certificate(point, seed=seed, max_gradients=4000) for seed in range(10)),
        provi.certify(target, (mean, covariance), seed=3),
    ]
    for found in certificates:
        assert (found.status, found.gap, found.kl) == ("none", None, None)
        assert "draws" in next(row.statement for row in found.assumptions if row.status == "violated")
