"""Models of NumPyro fitted by nested integration: against exact integrals, centred or not, in their own names."""

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

numpyro = pytest.importorskip("numpyro")

import numpyro.distributions as dist  # noqa: E402

import provi  # noqa: E402

EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
RNG = np.random.default_rng(3)
N, LEVELS = 240, 40
GROUPS = RNG.integers(0, LEVELS, N)
LABELS = (RNG.random(N) < 1 / (1 + np.exp(-RNG.normal(size=LEVELS)[GROUPS]))).astype(int)


@pytest.fixture(autouse=True)
def numpyro_promotes_ranks():
    """The tests forbid silent rank promotion, which NumPyro relies on."""
    with jax.numpy_rank_promotion("allow"):
        yield


def schools(centred):
    def model():
        mean, scale = numpyro.sample("mu", dist.Normal(1.0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            if centred:
                effect = numpyro.sample("theta", dist.Normal(mean, scale))
            else:
                effect = numpyro.deterministic("theta", mean + scale * numpyro.sample("raw", dist.Normal(0, 1)))
            numpyro.sample("y", dist.Normal(effect, ERRORS), obs=EFFECTS)

    return model


def exact_schools():
    """log Z, and mean and sd of tau, mu and the first effect, by a sum over log tau of exact Gaussian posteriors."""
    grid = np.linspace(-14, 7, 8001)
    tau = np.exp(grid)
    log_density, moments = [], []
    for scale in tau:
        covariance = np.diag(ERRORS**2 + scale**2) + 25.0
        log_density.append(stats.multivariate_normal(np.full(8, 1.0), covariance).logpdf(EFFECTS))
        precision = 1 / 25 + np.sum(1 / (ERRORS**2 + scale**2))
        mean = (1 / 25 + np.sum(EFFECTS / (ERRORS**2 + scale**2))) / precision
        share = scale**2 / (scale**2 + ERRORS[0] ** 2)
        own = share * EFFECTS[0] + (1 - share) * mean
        moments.append((mean, 1 / precision, own, share * ERRORS[0] ** 2 + (1 - share) ** 2 / precision))
    terms = np.array(log_density) + stats.halfcauchy(scale=5).logpdf(tau) + grid + np.log(grid[1] - grid[0])
    evidence = logsumexp(terms)
    weights, (mean, variance, own, spread) = np.exp(terms - evidence), np.array(moments).T
    found = {"tau": (weights @ tau, np.sqrt(weights @ tau**2 - (weights @ tau) ** 2))}
    for name, centre, inside in (("mu", mean, variance), ("theta[0]", own, spread)):
        found[name] = weights @ centre, np.sqrt(weights @ (inside + centre**2) - (weights @ centre) ** 2)
    return evidence, found


@pytest.mark.parametrize("centred", [True, False])
def test_eight_schools_are_integrated_exactly(centred):
    target = provi.from_numpyro(schools(centred))
    fit = provi.fit(target, progress=False)
    evidence, exact = exact_schools()
    assert fit.evidence.lower - 0.01 <= evidence <= fit.evidence.upper + 0.01
    assert abs(float(fit.elbo) - evidence) < 0.01
    table = fit.posterior.summary().to_dict()
    for name, (mean, sd) in exact.items():
        assert abs(table[name]["mean"] - mean) < 0.05 * sd
        # What is computed from draws has their noise.
        assert abs(table[name]["sd"] / sd - 1) < 0.08
    assert set(fit.posterior.draws(10, 0)) == {"mu", "tau", "theta"} | (set() if centred else {"raw"})
    assert set(fit.posterior.hyperparameters) == {"tau"}


def grouped(centred):
    def model():
        mean, scale = numpyro.sample("m", dist.Normal(0.3, 2.0)), numpyro.sample("s", dist.HalfNormal(1.5))
        with numpyro.plate("groups", LEVELS):
            if centred:
                effect = numpyro.sample("u", dist.Normal(mean, scale))
            else:
                effect = numpyro.deterministic("u", mean + scale * numpyro.sample("raw", dist.Normal(0, 1)))
        numpyro.sample("y", dist.Bernoulli(logits=effect[GROUPS]), obs=LABELS)

    return model


def test_grouped_models_are_one_in_both_forms():
    """And their own coordinates are what moments, draws, intervals and densities are of."""
    first, second = (provi.fit(provi.from_numpyro(grouped(centred)), progress=False) for centred in (True, False))
    model = first.target.latent_gaussian()
    assert (model.layout.count, model.layout.width, model.layout.border) == (LEVELS, 1, 1)
    np.testing.assert_allclose(float(first.elbo), float(second.elbo), atol=1e-6)
    one, other = (fit.posterior.hyperparameters["s"] for fit in (first, second))
    np.testing.assert_allclose([one.mean, one.sd], [other.mean, other.sd], rtol=1e-5)
    posterior = first.posterior
    draws = posterior.sample(4000, seed=1)
    assert draws.shape[1] == first.target.dim == LEVELS + 2
    np.testing.assert_allclose(draws.mean(0), posterior.mean, atol=5 * posterior.standard_deviation.max() / 60)
    np.testing.assert_allclose(draws.std(0), posterior.standard_deviation, rtol=0.12)
    np.testing.assert_allclose(np.sqrt(np.diag(posterior.covariance)), posterior.standard_deviation, rtol=1e-6)
    inside = (draws > posterior.interval(0.9)[:, 0]) & (draws < posterior.interval(0.9)[:, 1])
    np.testing.assert_allclose(inside.mean(0), 0.9, atol=0.04)
    effects = posterior.effects["u"]
    np.testing.assert_allclose(effects.mean, posterior.mean[2:], rtol=1e-9)
    np.testing.assert_allclose(effects.sd, posterior.standard_deviation[2:], rtol=1e-9)
    table, drawn = posterior.summary().to_dict(), second.posterior.draws(8000, seed=2)["u"]
    np.testing.assert_allclose(drawn.mean(0), [table[f"u[{j}]"]["mean"] for j in range(LEVELS)], atol=0.08)


def test_another_family_is_fitted_to_the_joint_density():
    target = provi.from_numpyro(schools(False))
    fit = provi.fit(target, provi.families.Gaussian(target.dim), budget=2000, progress=False)
    assert type(fit.posterior).__name__ == "Posterior"
