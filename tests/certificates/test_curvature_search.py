"""The search for negative curvature against Hessians formed in full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.certificates import RefutedDeclarationError
from provi.certificates.monte_carlo.convexity import find_negative_curvature
from provi.families import LocationScale
from provi.fit import choose
from provi.targets import Gaussian, LogDensity, LogisticRegression
from support.hidden import hidden

ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 40)))[0]


def check_counterexample(target, found):
    """The Hessian at the point says the same as the counter-example."""
    assert found is not None
    hessian = np.asarray(jax.hessian(target.potential)(jnp.asarray(found.point, target.dtype)))
    assert np.isclose(np.linalg.norm(found.direction), 1)
    exact = found.direction @ hessian @ found.direction
    assert np.isclose(found.curvature, exact, rtol=1e-3 if target.dtype == jnp.float32 else 1e-8)
    assert found.curvature < found.claimed
    assert "at least" in str(found)


def mixture(z):
    return jnp.logaddexp(-0.5 * jnp.sum((z - 2) ** 2), -0.5 * jnp.sum((z + 2) ** 2))


def banana(z):
    return -0.5 * (z[0] ** 2 / 4 + (z[1] - z[0] ** 2) ** 2)


@pytest.mark.parametrize("scale", ["triangular", "diagonal", "low_rank"])
@pytest.mark.parametrize("density", [mixture, banana])
def test_finds_what_is_not_convex(density, scale):
    target, family = LogDensity(density, 2), LocationScale(2, scale=scale, rank=1)
    check_counterexample(target, find_negative_curvature(target, family, family.point(np.zeros(2), 1.5), seed=1))


def test_float32():
    target, family = LogDensity(mixture, 2, dtype=jnp.float32), LocationScale(2)
    check_counterexample(target, find_negative_curvature(target, family, family.point(np.zeros(2), 1.5), seed=1))


_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(200, 3))
_Y = _X @ np.ones(3) + 0.5 * _RNG.normal(size=200)


def far_mixture(z):
    """0.01 N(0, I) + 0.99 N(20, I): what lies between is a slab half a deviation thick, which no draw meets."""
    return jnp.logaddexp(jnp.log(0.01) - 0.5 * jnp.sum(z**2), jnp.log(0.99) - 0.5 * jnp.sum((z - 20) ** 2))


@pytest.mark.parametrize("claims", [{}, {"log_concave": True}])
def test_two_modes_refute_log_concavity_however_far_apart(claims, tmp_path):
    """From draws of q alone either mode passed for all there is: within 0 nats, whatever was declared."""
    target = LogDensity(far_mixture, 3, **claims)
    if claims:
        with pytest.raises(RefutedDeclarationError, match="log_concave.* found at") as error:
            provi.fit(target)
        fit = error.value.fit
    else:
        fit = provi.fit(target)
    for certificate in (fit.certificate, choose(target).certificate(fit.posterior.point)):
        found = certificate.counterexample
        assert certificate.status == "none" and certificate.gap is None and found.curvature < 0
        # By the slopes at both ends, which the formula above does not use.
        start, end = (np.asarray(jax.grad(target.potential)(z)) for z in (found.point, found.point + found.direction))
        assert (end - start) @ found.direction < 0
    assert len(fit.modes) == 2 and fit.modes.chosen == 0
    np.testing.assert_allclose(fit.posterior.mean, 20.0, atol=0.05)
    np.testing.assert_allclose(fit.modes.missed, 0.01, rtol=1e-3)
    assert "2 modes found" in str(fit) and "covers the posterior" not in fit.diagnose().advice
    fit.save(tmp_path / "fit.provi")
    loaded = provi.load(tmp_path / "fit.provi", target=target)
    assert str(loaded.modes) == str(fit.modes)
    np.testing.assert_array_equal(loaded.modes[1].factor, fit.modes[1].factor)


def unknown_scale(z):
    return -0.5 * jnp.sum((_Y - _X @ z[:3]) ** 2) * jnp.exp(-2 * z[3]) - 200 * z[3] - 0.5 * jnp.sum(z**2)


def student(z):
    return -2.5 * jnp.sum(jnp.log1p((_Y - _X @ z) ** 2)) - 0.5 * jnp.sum(z**2)


@pytest.mark.parametrize(("density", "dim"), [(unknown_scale, 4), (student, 3)])
def test_what_is_convex_wherever_q_has_draws_is_refuted_farther_out(density, dim):
    """Declared log-concave, both had a certificate: their posteriors are narrow, and convex where they lie."""
    target = LogDensity(density, dim, log_concave=True)
    mean = np.array([*np.linalg.lstsq(_X, _Y)[0], np.log(0.5)])[:dim]
    hessian = np.asarray(jax.hessian(target.potential)(jnp.asarray(mean)))
    with pytest.raises(RefutedDeclarationError, match="log_concave.* found at") as error:
        provi.certify(target, (mean, np.linalg.inv(hessian)), compare=False)
    check_counterexample(target, error.value.counterexample)
    assert error.value.certificate.status == "none"


@pytest.mark.parametrize(
    "density",
    [
        lambda z: jnp.sum(jnp.log(jnp.where(_Y > 0, *_probabilities(z)))) - 0.5 * jnp.sum(z**2),
        lambda z: jnp.sum(2 * (_X @ z) - jnp.exp(_X @ z)) - 0.5 * jnp.sum(z**2),
        lambda z: -jnp.sum(jnp.abs(_Y - _X @ z)) - 0.5 * jnp.sum(z**2),
        lambda z: jnp.sum(jax.scipy.stats.norm.logcdf(_X @ z)) - 0.5 * jnp.sum(z**2),
    ],
    ids=["logistic by probabilities", "Poisson", "Laplace errors", "probit"],
)
def test_rounding_far_out_is_no_counterexample(density):
    target, family = LogDensity(density, 3, log_concave=True), LocationScale(3)
    for seed in range(3):
        assert find_negative_curvature(target, family, family.point(np.ones(3), 0.1 * 10**seed), seed=seed) is None


def _probabilities(z):
    ones = jax.nn.sigmoid(_X @ z)
    return ones, 1 - ones


def saddle(curvatures, z):
    return -0.5 * jnp.sum(curvatures * (jnp.asarray(ROTATION) @ z) ** 2)


def test_one_direction_among_forty():
    # One eigenvalue of -0.05 below a spectrum from 1 to 10; the exact smallest eigenvalue is known.
    curvatures = jnp.asarray(np.r_[-0.05, np.linspace(1, 10, 39)])
    target, family = LogDensity(jax.tree_util.Partial(saddle, curvatures), 40), LocationScale(40)
    found = find_negative_curvature(target, family, family.point(np.zeros(40)), seed=0, num_points=2)
    check_counterexample(target, found)
    assert found is not None and np.isclose(found.curvature, -0.05, rtol=0.05)
    convex = LogDensity(jax.tree_util.Partial(saddle, jnp.abs(curvatures)), 40)
    assert find_negative_curvature(convex, family, family.point(np.zeros(40)), seed=0, num_points=2) is None


def test_claimed_strong_convexity_is_tested_in_the_original_coordinates():
    precision = np.diag([0.5, 4.0, 30.0])
    family = LocationScale(3)
    # In the whitened coordinates all curvatures are 1: the claim is about the original ones.
    point = family.point(np.zeros(3), np.diagonal(precision) ** -0.5)
    for claimed, refuted in ((0.49, False), (0.51, True), (3.0, True)):
        target = LogDensity(lambda z: -0.5 * z @ jnp.asarray(precision) @ z, 3, strong_convexity=claimed)
        found = find_negative_curvature(target, family, point, seed=0)
        assert (found is not None) == refuted
        if found is not None:
            check_counterexample(target, found)
            assert found.claimed == claimed


def test_convex_targets_pass():
    rng = np.random.default_rng(3)
    family = LocationScale(6)
    # Separable and nearly flat far out: curvature far below the prior's would be rounding.
    logistic = LogisticRegression(5 * rng.normal(size=(10, 6)), np.arange(10) % 2 == 0, 100.0)
    for target in (logistic, Gaussian(np.zeros(6), np.geomspace(1e-6, 1e6, 6))):
        assert find_negative_curvature(target, family, family.point(np.zeros(6), 3.0), seed=2) is None


def test_points_outside_the_support_are_no_counterexample():
    target, family = LogDensity(lambda z: jnp.sum(jnp.log(z) - z), 2, start=np.ones(2)), LocationScale(2)
    assert find_negative_curvature(target, family, family.point(np.ones(2)), seed=0) is None


def test_same_seed_same_result_and_bad_arguments():
    target, family = LogDensity(banana, 2), LocationScale(2)
    point = family.point(np.zeros(2))
    first, again = (find_negative_curvature(target, family, point, seed=4) for _ in range(2))
    assert first is not None and again is not None and (first.point == again.point).all()
    with pytest.raises(ValueError, match="num_points"):
        find_negative_curvature(target, family, point, seed=0, num_points=0)
    wrong = LocationScale(3)
    with pytest.raises(ValueError, match="dimension 3"):
        find_negative_curvature(target, wrong, wrong.point(np.zeros(3)), seed=0)


@pytest.mark.parametrize("scale", ["triangular", "diagonal"])
def test_an_exact_claim_is_not_refuted_by_rounding(scale):
    """The Hessian is 5 I, and 5 is declared: what is left of it is rounding, and nothing to compare rounding with."""
    target = LogDensity(lambda z: -2.5 * jnp.sum((hidden(z) - 0.3) ** 2), 7, strong_convexity=5.0)
    family = LocationScale(7, scale=scale)
    assert find_negative_curvature(target, family, family.point(np.zeros(7), 5**-0.5), seed=0) is None
    overstated = LogDensity(lambda z: -2.5 * jnp.sum((hidden(z) - 0.3) ** 2), 7, strong_convexity=5.01)
    check_counterexample(
        overstated, find_negative_curvature(overstated, family, family.point(np.zeros(7), 5**-0.5), seed=0)
    )
