"""Draws in place of q: importance and NUTS, against closed forms."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import provi
from provi.diagnostics.pareto import smoothed_log_weights, weighed_moments
from provi.families import Gaussian
from provi.result.corrected import _Proposal
from provi.result.posterior import Posterior
from provi.targets import LogDensity

SHAPE = 2.0


def gamma(parameters):
    """Two independent Gamma(2, 1): skew to the left in z = log x, with mean digamma(2) and variance trigamma(2)."""
    x = parameters["x"]
    return jnp.sum((SHAPE - 1) * jnp.log(x) - x)


@pytest.fixture(scope="module")
def skew():
    target = LogDensity(gamma, {"x": np.ones(2)}, constraints={"x": "positive"})
    return provi.fit(target)


def errors(found):
    """The largest error of a mean in deviations, and of a deviation, in free coordinates."""
    deviation = special.polygamma(1, SHAPE) ** 0.5
    shift = np.abs(found.mean - special.digamma(SHAPE)).max() / deviation
    return shift, np.abs(found.standard_deviation / deviation - 1).max()


def test_weights_repair_moments_and_intervals(skew):
    """q's means are off by 0.05 deviations, corrected ones by 0.01; intervals are those of the gamma law."""
    corrected = skew.posterior.corrected()
    before, after = errors(skew.posterior), errors(corrected)
    assert before[0] > 0.03 and before[1] > 0.03
    assert after[0] < 0.015 and after[1] < 0.02
    assert corrected.pareto_k < 0.7 and 1000 < corrected.effective_sample_size < 40_000 and corrected.reliable
    np.testing.assert_allclose(corrected.shift, (skew.posterior.mean - corrected.mean) / corrected.standard_deviation)
    row = corrected.summary(0.9).to_dict()["x[0]"]
    assert row["mean"] == pytest.approx(SHAPE, rel=0.02) and row["sd"] == pytest.approx(SHAPE**0.5, rel=0.04)
    assert row["low"] == pytest.approx(special.gammaincinv(SHAPE, 0.05), rel=0.08)
    assert row["high"] == pytest.approx(special.gammaincinv(SHAPE, 0.95), rel=0.03)
    assert "k-hat" in corrected.summary().notes[0] and skew.posterior.corrected() is corrected


def test_moments_are_those_of_the_weights_themselves(skew):
    """By all draws at once: blocks, the second pass and the resampling lose and repeat nothing."""
    corrected = skew.posterior.corrected(4500, seed=3)
    proposal = _Proposal(skew.posterior, 3)
    z = np.concatenate(list(proposal.blocks(4500)))
    cloud = z - skew.posterior.mean
    inverse = np.linalg.inv(skew.posterior.covariance)
    squares = np.sum(cloud @ inverse * cloud, axis=1)
    size = -0.5 * np.linalg.slogdet(skew.posterior.covariance)[1]
    normal = size - np.log(2 * np.pi) - squares / 2
    student = size - np.log(2 * np.pi) - 2.5 * np.log1p(squares / 3)  # in two dimensions, of three degrees of freedom
    log_p = np.sum(SHAPE * z - np.exp(z), axis=1)
    weights = np.exp(smoothed_log_weights(log_p - np.logaddexp(normal, student))[0])
    np.testing.assert_allclose(corrected.mean, weights @ z, rtol=1e-9)
    away = z - weights @ z
    np.testing.assert_allclose(corrected.covariance, (away * weights[:, None]).T @ away, rtol=1e-8)
    np.testing.assert_allclose(corrected.standard_error, np.sqrt((weights**2) @ away**2), rtol=1e-8)
    np.testing.assert_allclose(corrected.effective_sample_size, 1 / np.sum(weights**2))
    resampled = corrected.rows
    assert resampled.shape == (4500, 2) and np.isin(resampled[:, 0], z[:, 0]).all()
    np.testing.assert_allclose(resampled.mean(axis=0), corrected.mean, atol=3 * corrected.standard_error.max())
    assert corrected.draws(10, 0)["x"].shape == (10, 2) and (corrected.draws(10, 0)["x"] > 0).all()


def test_what_weights_cannot_repair_is_refused():
    """A q a tenth as wide as the posterior in ten dimensions; a q at one of two modes warns of the other."""
    family = Gaussian(10)
    narrow = Posterior(
        family, family.point(np.zeros(10), 0.1), tuple("abcdefghij"), LogDensity(lambda z: -0.5 * jnp.sum(z**2), 10)
    )
    with pytest.raises(ValueError, match="k-hat is .* cannot correct q.*sample_exact"):
        narrow.corrected(4000)
    two = provi.fit(LogDensity(lambda z: jnp.logaddexp(-0.5 * z[0] ** 2, -0.5 * (z[0] - 30) ** 2), 1))
    with pytest.warns(UserWarning, match="about 50% of the evidence is at modes"):
        found = two.posterior.corrected(2000)
    assert not found.reliable and found.summary().notes[1].startswith("Warning")
    with pytest.raises(ValueError, match="num_draws"):
        two.posterior.corrected(3)
    with pytest.raises(ValueError, match="target"):
        dataclasses.replace(two.posterior, target=None).corrected()


def test_draws_where_the_density_is_undefined_count_as_of_density_zero():
    """Half of the draws have Student's tails: some 0.5% lie beyond 6, where the logarithm of this density fails."""
    target = provi.targets.LogDensity(lambda z: jnp.sum(-0.5 * z**2 + 0 * jnp.log(36 - z**2)), 1)
    posterior = provi.fit(target, progress=False, starts=1).posterior
    with pytest.warns(UserWarning, match=r"not a number at \d+ of 40000 draws"):
        found = posterior.corrected()
    assert abs(found.mean[0]) < 0.03 and abs(found.standard_deviation[0] - 1) < 0.03
    worse = provi.targets.LogDensity(lambda z: jnp.sum(-0.5 * z**2 + 0 * jnp.log(9 - z**2)), 1)
    with pytest.raises(ValueError, match="of 40000 draws of q"):
        dataclasses.replace(posterior, target=worse).corrected()


def test_exact_draws_are_of_the_posterior(skew):
    """Moments within their Monte-Carlo errors, and how far q is, against the closed form."""
    pytest.importorskip("numpyro")
    exact = skew.sample_exact(1000, chains=2, num_warmup=200)
    deviation = special.polygamma(1, SHAPE) ** 0.5
    z_scores = (exact.mean - special.digamma(SHAPE)) / (deviation / np.sqrt(exact.effective_sample_size))
    assert exact.z.shape == (2, 1000, 2) and np.abs(z_scores).max() < 4 and exact.r_hat.max() < 1.02
    np.testing.assert_allclose(exact.standard_deviation, deviation, rtol=0.1)
    np.testing.assert_allclose(exact.ratio, skew.posterior.standard_deviation / deviation, rtol=0.1)
    assert "q was off by" in exact.notes()[1]
    groups = exact.to_arviz(predictive=False)
    assert groups["posterior"]["x"].shape == (2, 1000, 2)
    np.testing.assert_allclose(np.log(groups["posterior"]["x"].values), exact.z)


def test_moments_by_weights_have_errors_of_their_own():
    """The square of a Pareto variable of index 2.2 has no variance, a normal one's has; errors against formulas."""
    rng = np.random.default_rng(5)
    values = np.column_stack([rng.normal(size=20_000), rng.pareto(2.2, size=20_000), np.ones(20_000)])
    found = weighed_moments(values, np.full(20_000, 1 / 20_000))
    np.testing.assert_allclose(found.mean_error[0], 20_000**-0.5, rtol=1e-6)
    np.testing.assert_allclose(found.deviation_error[0], (2 * 20_000) ** -0.5, rtol=0.05)
    assert found.tail[0] < 0.5 and found.tail[1] > 0.7 and list(found.doubtful(20_000)) == [False, True, False]
    off = found.discrepancy(found.mean + np.array([0.2, 0, 0]) * found.deviation, found.deviation)
    assert off[0] == pytest.approx(0.2) and off[1] == off[2] == 0


def test_a_small_mode_far_away_is_warned_of():
    """1% of the evidence 20 deviations away: no probability is off by more than 0.01, the deviation is by half."""
    target = LogDensity(
        lambda z: jnp.logaddexp(jnp.log(0.99) - 0.5 * jnp.sum(z**2), jnp.log(0.01) - 0.5 * jnp.sum((z - 20) ** 2)), 2
    )
    fit = provi.fit(target, progress=False, seed=0)
    assert fit.modes.missed > 0
    found = fit.diagnose()
    assert not found.adequate and found.moment_error > 0.5 and found.wrong
    assert fit.posterior.summary().notes[-1].startswith("Warning")
