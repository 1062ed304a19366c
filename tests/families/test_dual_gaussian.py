"""Gaussians in dual form against dense formulas: moments, density, entropy, draws, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.families import DualGaussian, DualPoint, dual_gaussian
from provi.kernels import Matern32, SquaredExponential
from provi.targets import GaussianProcess, LogisticRegression
from provi.targets.likelihoods import StudentT
from support.members import quick_jit
from support.statistics import assert_mean

SIZE, COLUMNS, DRAWS = 5, 8, 20_000
RNG = np.random.default_rng(0)
INPUTS, RESPONSE = RNG.normal(size=(SIZE, 1)), np.array([0, 1, 1, 0, 1.0])
DESIGN = RNG.normal(size=(SIZE, COLUMNS))
ROOT = np.tril(RNG.normal(size=(COLUMNS, COLUMNS))) + 2 * np.eye(COLUMNS)
A, S = 0.3 * RNG.normal(size=SIZE), np.array([0.2, 0.0, 1.5, 30.0, 0.01])


def process(inputs=INPUTS, **options):
    return GaussianProcess(inputs, RESPONSE, Matern32(0.8, 1.3), **options)


TARGETS = {
    "process": process(mean=-0.7),
    "negative sites": process(likelihood=StudentT(3.0, 0.5)),
    "one prior scale": LogisticRegression(DESIGN, RESPONSE, 0.7, prior_mean=0.4),
    "prior scales": LogisticRegression(DESIGN, RESPONSE, np.linspace(0.3, 2, COLUMNS)),
    "prior covariance": LogisticRegression(DESIGN, RESPONSE, prior_covariance=ROOT @ ROOT.T),
}


def sites(name):
    """Some of them negative where that is allowed: V stays positive definite."""
    return np.where(np.arange(SIZE) % 2, -0.15, S) if name == "negative sites" else S


def dense(target, a, s):
    """Prior covariance, mean and covariance of z by plain inverses."""
    if isinstance(target, GaussianProcess):
        design, prior = np.eye(target.dim), np.asarray(target.gram)
        mean = np.full(target.dim, float(target.mean))
    else:
        design, factor = np.asarray(target.design), target.prior.covariance_factor()
        prior, mean = factor @ factor.T, np.asarray(target.prior.mean)
    seen = prior @ design.T
    # (Sigma_0^-1 + X'SX)^-1 without the inverse of Sigma_0, which may be singular.
    covariance = np.linalg.solve(np.eye(len(prior)) + seen @ np.diag(s) @ design, prior)
    return prior, mean + seen @ a, covariance


@quick_jit
def everything(family, point, key, z):
    return {
        "mean": family.mean(point),
        "covariance": family.covariance(point),
        "deviation": family.marginal_standard_deviation(point),
        "density": jax.vmap(lambda row: family.log_prob(point, row))(z),
        "entropy": family.entropy(point),
        "draws": family.sample(key, point, DRAWS),
    }


@pytest.mark.parametrize("name", TARGETS)
def test_it_is_the_gaussian_of_the_dense_formulas(name):
    target, s = TARGETS[name], sites(name)
    family, point = dual_gaussian(target), DualPoint(jnp.asarray(A), jnp.asarray(s))
    _, mean, covariance = dense(target, A, s)
    z = mean + RNG.normal(size=(3, target.dim))
    found = everything(family, point, jax.random.key(1), jnp.asarray(z))
    np.testing.assert_allclose(found["mean"], mean, atol=1e-12)
    np.testing.assert_allclose(found["covariance"], covariance, atol=1e-11)
    np.testing.assert_allclose(found["deviation"], np.sqrt(np.diagonal(covariance)), atol=1e-11)
    truth = stats.multivariate_normal(mean, (covariance + covariance.T) / 2)
    np.testing.assert_allclose(found["density"], truth.logpdf(z), rtol=1e-9)
    assert float(found["entropy"]) == pytest.approx(truth.entropy(), rel=1e-10)
    assert_moments(found["draws"], mean, covariance)


def assert_moments(draws, mean, covariance):
    """First and second moments, at a false-alarm rate of 1e-6 each."""
    centred = np.asarray(draws) - mean
    assert_mean(centred, 0.0)
    assert_mean(centred[:, :, None] * centred[:, None, :], covariance)


def test_a_singular_kernel_matrix():
    """Duplicate rows and no jitter: equal coordinates in every draw, exact moments, and no density."""
    target = process(np.r_[INPUTS[:3], INPUTS[:2]], jitter=0.0)
    family, point = dual_gaussian(target), DualPoint(jnp.asarray(A), jnp.asarray(S))
    _, mean, covariance = dense(target, A, S)
    found = everything(family, point, jax.random.key(2), jnp.asarray(mean[None, :]))
    np.testing.assert_allclose(found["covariance"], covariance, atol=1e-12)
    np.testing.assert_allclose(found["deviation"], np.sqrt(np.diagonal(covariance)), atol=1e-10)
    draws = np.asarray(found["draws"])
    np.testing.assert_allclose(draws[:, 3:], draws[:, :2], atol=1e-6)
    assert_moments(draws[:, :3], mean[:3], covariance[:3, :3])
    assert not np.isfinite(found["density"]).any() and not np.isfinite(found["entropy"])


def test_a_nearly_deterministic_posterior_keeps_its_variances():
    """Sites of 1e8 on a prior variance of 1e4: the variance 1e-8 is not lost in K - T'T by more than rounding."""
    target = GaussianProcess(INPUTS, RESPONSE, SquaredExponential(0.01, 100.0))
    family, point = dual_gaussian(target), DualPoint(jnp.asarray(A), jnp.asarray(np.full(SIZE, 1e8)))
    found = np.asarray(family.marginal_standard_deviation(point))
    np.testing.assert_allclose(found**2, np.full(SIZE, 1e-8), atol=1e4 * 1e-15)


def test_float32_stays_float32():
    target = GaussianProcess(INPUTS.astype(np.float32), RESPONSE, Matern32(0.8, 1.3))
    family = dual_gaussian(target)
    point = DualPoint(jnp.asarray(A, np.float32), jnp.asarray(S, np.float32))
    _, mean, covariance = dense(target, A, S)
    found = everything(family, point, jax.random.key(1), jnp.asarray(mean[None, :], np.float32))
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype("float32")}
    np.testing.assert_allclose(found["mean"], mean, atol=1e-5)
    np.testing.assert_allclose(found["covariance"], covariance, atol=1e-5)


def test_the_prior_is_the_point_zero():
    for name in ("process", "prior covariance"):
        family = dual_gaussian(TARGETS[name])
        prior, mean, _ = dense(TARGETS[name], np.zeros(SIZE), np.zeros(SIZE))
        np.testing.assert_allclose(family.mean(family.prior_point()), mean, atol=1e-14)
        np.testing.assert_allclose(family.covariance(family.prior_point()), prior, atol=1e-12)


def test_points_and_targets_that_do_not_belong_are_refused():
    family = dual_gaussian(TARGETS["process"])
    good = DualPoint(jnp.asarray(A), jnp.asarray(S))
    family.check_point(good)
    for bad in (None, DualPoint(good.dual_mean[:2], good.site_precision[:2])):
        with pytest.raises(ValueError, match="does not belong to the family"):
            family.check_point(bad)
    with pytest.raises(ValueError, match="none may be negative"):
        family.check_point(DualPoint(good.dual_mean, -good.site_precision))
    dual_gaussian(TARGETS["negative sites"]).check_point(DualPoint(good.dual_mean, -good.site_precision))
    family.check_target(process(mean=-0.7))
    linear = dual_gaussian(TARGETS["prior scales"])
    linear.check_target(TARGETS["prior scales"])
    others = [
        (family, process()),
        (family, process(INPUTS + np.arange(SIZE)[:, None], mean=-0.7)),
        (family, TARGETS["prior scales"]),
        (linear, TARGETS["one prior scale"]),
        (linear, TARGETS["process"]),
        (linear, LogisticRegression(DESIGN + 1e-8, RESPONSE, np.linspace(0.3, 2, COLUMNS))),
    ]
    for own, other in others:
        with pytest.raises(ValueError, match="made for another target"):
            own.check_target(other)


def test_the_sites_of_a_linear_model_see_its_predictor():
    target = TARGETS["prior covariance"]
    family = dual_gaussian(target)
    assert isinstance(family, DualGaussian) and family.num_sites == SIZE and family.dim == COLUMNS
    factor = target.prior.covariance_factor()
    np.testing.assert_allclose(family.gram, DESIGN @ factor @ factor.T @ DESIGN.T, rtol=1e-12)
    np.testing.assert_allclose(family.site_mean, DESIGN @ np.asarray(target.prior.mean), atol=1e-14)
