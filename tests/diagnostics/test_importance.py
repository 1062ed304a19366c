"""The importance-sampled estimates against closed forms for Gaussian posteriors and quadrature on a line.

Estimates are compared with exact values within five of their own standard errors (false-alarm rate 6e-7 each).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from provi.diagnostics.importance import importance_diagnostics
from provi.families import Gaussian, Laplace, LocationScale, Normal, StudentT, Uniform
from provi.targets import LinearRegression, LogDensity, LogisticRegression

RNG = np.random.default_rng(11)
DESIGN = RNG.normal(size=(20, 3))
TARGET = LinearRegression(DESIGN, DESIGN @ [0.3, -0.7, 1.1] + 0.5 * RNG.normal(size=20), noise_scale=2.0)
MEAN, COVARIANCE = TARGET.exact_posterior()
PRECISION = np.linalg.inv(COVARIANCE)


def wide_point(family):
    """A q off the posterior in mean, width and correlation, but wide enough for weights with many moments."""
    deviations = np.sqrt(np.diagonal(COVARIANCE))
    if family.scale in ("diagonal", "low_rank"):
        return family.point(MEAN + 0.2 * deviations, 1.2 * deviations)
    return family.point_from_covariance(MEAN + 0.2 * deviations, 1.3 * COVARIANCE + np.diag(0.1 * deviations**2))


def divergence(mean, covariance):
    """KL(N(mean, covariance) || posterior)."""
    away = mean - MEAN
    log_dets = np.linalg.slogdet(COVARIANCE)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(PRECISION @ covariance) - 3 + away @ PRECISION @ away + log_dets)


def check_estimate(value, error, expected):
    assert 0 < error < 0.1
    assert abs(value - expected) <= 5 * error


@pytest.mark.parametrize("scale", ["triangular", "diagonal", "low_rank"])
def test_gaussian_posterior_in_closed_form(scale):
    """log w is a quadratic in u, so that all moments are known: x = a'u + u'Bu/2, B = I - C'PC, a = C'P(m - mean)."""
    family = Gaussian(3, scale, rank=2)
    point = wide_point(family)
    mean, covariance = np.asarray(point.loc), np.asarray(point.scale.covariance())
    found = importance_diagnostics(TARGET, family, point, num_draws=20_000)
    evidence, kl = TARGET.log_evidence(), divergence(mean, covariance)
    check_estimate(found.elbo, found.elbo_standard_error, evidence - kl)
    check_estimate(found.log_evidence, found.log_evidence_standard_error, evidence)
    check_estimate(found.kl_estimate, found.kl_standard_error, kl)
    assert found.kl_estimate == found.log_evidence - found.elbo
    root = np.linalg.cholesky(covariance)
    linear, quadratic = root.T @ PRECISION @ (mean - MEAN), np.eye(3) - root.T @ PRECISION @ root
    squares = np.sum(quadratic**2)
    half_variance = (linear @ linear + squares / 2) / 2
    check_estimate(found.half_variance_log_weights, found.half_variance_standard_error, half_variance)
    check_estimate(found.fisher_sixth, found.fisher_sixth_standard_error, (linear @ linear + squares) / 6)
    # n / ESS estimates E w^2 / (E w)^2 = E exp(2x) / (E exp x)^2, and E exp(tx) is a Gaussian integral.
    log_moments = [
        -0.5 * np.linalg.slogdet(np.eye(3) - t * quadratic)[1]
        + 0.5 * t**2 * linear @ np.linalg.solve(np.eye(3) - t * quadratic, linear)
        for t in (1, 2)
    ]
    share = np.exp(2 * log_moments[0] - log_moments[1])
    assert found.effective_sample_size / 20_000 == pytest.approx(share, rel=0.05)
    assert found.pareto_k < 0.5 and "covers the posterior" in found.advice


def test_total_variation_of_two_gaussians():
    """Equal covariances, means d sds apart: 2 Phi(d/2) - 1; |w - 1|/2 has an sd below its mean."""
    family = Gaussian(3)
    for distance in (0.05, 0.5):
        shift = distance * np.linalg.cholesky(COVARIANCE)[:, 0]
        point = family.point_from_covariance(MEAN + shift, COVARIANCE)
        found = importance_diagnostics(TARGET, family, point, num_draws=20_000)
        expected = 2 * stats.norm.cdf(distance / 2) - 1
        assert abs(found.total_variation - expected) < 6 * expected / 20_000**0.5
        assert found.adequate == (distance < 0.1)


def test_a_thin_heavy_tail_leaves_q_adequate():
    """A Poisson regression with many data: log w grows like a cube, so k-hat may be large, and means hardly matter."""
    target = LogDensity(lambda z: jnp.sum(jnp.full(400, 3.0) * z[0] - jnp.exp(z[0])), 1, log_concave=True)
    family = Gaussian(1)
    mode = np.log(3.0)
    point = family.point(np.array([mode]), 1 / np.sqrt(1200))
    found = importance_diagnostics(target, family, point, num_draws=10_000)
    assert found.adequate and "no posterior probability is off by more" in found.advice
    exact, _ = integrate.quad(
        lambda x: abs(stats.loggamma(1200, -np.log(400)).pdf(x) - stats.norm(mode, 1200**-0.5).pdf(x)) / 2,
        mode - 0.3,
        mode + 0.3,
    )
    assert found.total_variation == pytest.approx(exact, rel=0.1)


def test_standard_errors_are_the_spread_over_seeds():
    """60 seeds: the spread is known to 9%, so 50% is more than five of its standard deviations.

    So near the posterior the errors of ELBO and log evidence nearly cancel in the KL.
    """
    family = Gaussian(3)
    point = family.point_from_covariance(MEAN + 0.05, 1.1 * COVARIANCE)
    runs = [importance_diagnostics(TARGET, family, point, num_draws=2000, seed=seed) for seed in range(60)]
    for value, error in (
        ("elbo", "elbo_standard_error"),
        ("log_evidence", "log_evidence_standard_error"),
        ("kl_estimate", "kl_standard_error"),
        ("half_variance_log_weights", "half_variance_standard_error"),
        ("fisher_sixth", "fisher_sixth_standard_error"),
    ):
        spread = np.std([getattr(run, value) for run in runs], ddof=1)
        assert spread == pytest.approx(np.mean([getattr(run, error) for run in runs]), rel=0.5), value


@pytest.mark.parametrize("base", [Laplace(), Uniform(), StudentT(7.0)], ids=lambda base: base.name)
def test_other_bases(base):
    """The energy of a quadratic potential is that of the Gaussian with the same moments; only the entropy differs.

    The evidence is exact except for the bounded base, which misses the tails.
    """
    family = LocationScale(3, base, "symmetric")
    point = wide_point(family)
    found = importance_diagnostics(TARGET, family, point, num_draws=20_000)
    elbo = TARGET.log_evidence() - divergence(np.asarray(point.loc), np.asarray(point.scale.covariance()))
    check_estimate(found.elbo, found.elbo_standard_error, elbo + float(base.entropy(3)) - Normal().entropy(3))
    bounded = isinstance(base, Uniform)
    if not bounded:
        check_estimate(found.log_evidence, found.log_evidence_standard_error, TARGET.log_evidence())
    else:
        assert found.log_evidence < TARGET.log_evidence() - 0.01
    assert any("bounded" in note for note in found.notes) == bounded
    assert found.fisher_sixth is None and found.fisher_sixth_standard_error is None


def test_three_estimates_of_the_divergence_agree_at_a_stationary_point():
    """Logistic regression on a line: evidence and KL by quadrature, the best Gaussian by scipy."""
    rows, labels = np.array([1.0, 2.0, -1.5, 0.7]), np.array([1, 1, 0, 1])
    signs = rows * np.where(labels == 1, 1, -1)

    def potential(z):
        return np.logaddexp(0, -np.multiply.outer(z, signs)).sum(axis=-1) - stats.norm.logpdf(z, 0, 2)

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def negative_elbo(w):
        return weights @ potential(w[0] + np.exp(w[1]) * nodes) - stats.norm.entropy(0, np.exp(w[1]))

    best = optimize.minimize(negative_elbo, [0.5, 0.0], tol=1e-10)
    evidence = np.log(integrate.quad(lambda z: np.exp(-potential(z)), -25, 25, epsabs=1e-14, limit=200)[0])
    kl = evidence + best.fun
    target, family = LogisticRegression(rows[:, None], labels, prior_scale=2.0), Gaussian(1)
    loc, scale = best.x[:1], np.exp(best.x[1])
    found = importance_diagnostics(target, family, family.point(loc, scale), num_draws=40_000)
    check_estimate(found.log_evidence, found.log_evidence_standard_error, evidence)
    check_estimate(found.kl_estimate, found.kl_standard_error, kl)
    assert found.half_variance_log_weights == pytest.approx(kl, rel=0.2)
    assert found.fisher_sixth == pytest.approx(kl, rel=0.2)
    assert not any("stationary" in note for note in found.notes)
    away = importance_diagnostics(target, family, family.point(loc + 0.8, scale), num_draws=40_000)
    assert any("not stationary" in note for note in away.notes)


def test_rounding_is_no_reason_to_run_on():
    """A mixture whose other part is far away: log w is constant but for its last bits, and the score is smaller."""

    def log_density(z):
        parts = jnp.array([jnp.log(0.01) - jnp.sum(z**2) / 2, jnp.log(0.99) - jnp.sum((z - 20) ** 2) / 2])
        return jax.scipy.special.logsumexp(parts)

    family = Gaussian(2)
    found = importance_diagnostics(LogDensity(log_density, 2), family, family.point(np.full(2, 20.0), np.eye(2)))
    assert 0 < found.fisher_sixth < found.half_variance_log_weights < 1e-25
    assert found.notes == ()


def test_q_equal_to_the_posterior():
    family = Gaussian(3)
    point = family.point_from_covariance(MEAN, COVARIANCE)
    found = importance_diagnostics(TARGET, family, point, num_draws=2000)
    assert found.elbo == pytest.approx(TARGET.log_evidence(), rel=1e-12)
    assert found.log_evidence == pytest.approx(TARGET.log_evidence(), rel=1e-12)
    assert found.effective_sample_size == pytest.approx(2000, rel=1e-9)
    assert found.pareto_k == -np.inf and "good" in found.advice
    assert max(found.half_variance_log_weights, found.fisher_sixth) < 1e-20


def test_a_narrow_q_is_found_out():
    """q with a twentieth of the posterior's variance: the tail index of the weights is 0.95."""
    family = Gaussian(3)
    found = importance_diagnostics(
        TARGET, family, family.point_from_covariance(MEAN, 0.05 * COVARIANCE), num_draws=2000
    )
    assert found.pareto_k > 0.7 and "cannot be trusted" in found.advice
    assert "cannot be trusted" in str(found).replace("\n", " ") and "k-hat" in str(found)


TRACES = []


def counted(z):
    TRACES.append(1)
    return -0.5 * jnp.sum(z**2)


def test_compiled_once_and_every_seed_gives_other_draws():
    target, family = LogDensity(counted, 2), Gaussian(2)
    first = importance_diagnostics(target, family, family.point(np.zeros(2), 1.3), num_draws=101)
    count = len(TRACES)
    assert count > 0
    for seed in (0, 1, 2):
        other = importance_diagnostics(target, family, family.point(np.zeros(2), 1.3), num_draws=101, seed=seed)
        importance_diagnostics(target, family, family.point(np.ones(2), 0.9), num_draws=101, seed=seed)
        assert (other == first) == (seed == 0)
    assert len(TRACES) == count
    assert first.num_draws == 101


def test_single_precision():
    single = LinearRegression(DESIGN.astype(np.float32), np.asarray(TARGET.response), noise_scale=2.0)
    family = Gaussian(3, "diagonal")
    point = wide_point(family)
    point = family.point(np.asarray(point.loc, np.float32), np.asarray(point.scale.diagonal, np.float32))
    found = importance_diagnostics(single, family, point, num_draws=2000)
    assert point.loc.dtype == single.dtype == np.float32
    kl = divergence(np.asarray(point.loc), np.asarray(point.scale.covariance()))
    check_estimate(found.elbo, found.elbo_standard_error, TARGET.log_evidence() - kl)
    check_estimate(found.log_evidence, found.log_evidence_standard_error, TARGET.log_evidence())


def test_densities_that_vanish_or_break():
    family = Gaussian(1)
    point = family.point(np.zeros(1), 1.0)
    half = LogDensity(lambda z: jnp.where(z[0] > 0, -0.5 * z[0] ** 2, -jnp.inf), 1, start=[1.0])
    found = importance_diagnostics(half, family, point, num_draws=4000)
    assert found.elbo == -np.inf and found.kl_estimate == np.inf and found.half_variance_log_weights == np.inf
    # p is half of a normal density without its constant.
    assert found.log_evidence == pytest.approx(0.5 * np.log(2 * np.pi) - np.log(2), abs=0.1)
    with pytest.raises(ValueError, match="NaN"):
        importance_diagnostics(LogDensity(lambda z: jnp.log(z[0]), 1, start=[1.0]), family, point, num_draws=4000)
    with pytest.raises(ValueError, match="density zero"):
        importance_diagnostics(half, family, family.point(np.full(1, -99.0), 1.0), num_draws=4000)
    with pytest.raises(ValueError, match="dimension 1"):
        importance_diagnostics(TARGET, family, point)
    with pytest.raises(ValueError, match="num_draws"):
        importance_diagnostics(half, family, point, num_draws=24)
