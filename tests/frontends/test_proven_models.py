"""Models that are no linear ones, proven log-concave from their programs; and models that are not, and are not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its next version, PyTensor that it found no BLAS
    numpyro = pytest.importorskip("numpyro")
    pm = pytest.importorskip("pymc")

import numpyro.distributions as dist  # noqa: E402
import pytensor.tensor as pt  # noqa: E402

from provi.frontends import from_numpyro, from_pymc  # noqa: E402

RNG = np.random.default_rng(3)
X = RNG.normal(size=(20, 3))
HITS, COUNTS, REALS = RNG.integers(0, 2, 20), RNG.poisson(2.0, 20), RNG.normal(size=20)
KINDS, GROUPS = RNG.integers(0, 3, 20), RNG.integers(0, 4, 20)
COVARIANCE = np.eye(3) + 0.5


def regression(prior, likelihood, data):
    def model():
        numpyro.sample("y", likelihood(X @ numpyro.sample("b", prior)), obs=data)

    return model


def independent(law, *shape):
    return law.expand(list(shape)).to_event(len(shape))


def correlated():
    return dist.MultivariateNormal(jnp.zeros(3), covariance_matrix=jnp.asarray(COVARIANCE))


def gamma_poisson():
    numpyro.sample("y", dist.Poisson(numpyro.sample("rate", dist.Gamma(2.0, 1.0)) * jnp.ones(20)), obs=COUNTS)


def half_cauchy_precision():
    numpyro.sample("scale", dist.HalfCauchy(1.0))
    numpyro.sample("rate", dist.Exponential(2.0))


def random_walk():
    steps = numpyro.sample("x", dist.GaussianRandomWalk(0.5, num_steps=20))
    numpyro.sample("y", dist.Poisson(jnp.exp(steps)), obs=COUNTS)


def subsampled():
    b = numpyro.sample("b", independent(dist.Laplace(0, 1), 3))
    with numpyro.plate("rows", 20, subsample_size=5) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=jnp.asarray(X)[rows] @ b), obs=jnp.asarray(HITS)[rows])


def probit():
    b = numpyro.sample("b", independent(dist.Normal(0, 2), 3))
    numpyro.factor("y", jnp.sum(jax.scipy.stats.norm.logcdf((2 * HITS - 1) * (X @ b))))


def group_scale():
    effects = numpyro.sample("scale", dist.HalfNormal(1.0)) * numpyro.sample("a", independent(dist.Normal(0, 1), 4))
    numpyro.sample("y", dist.Bernoulli(logits=effects[GROUPS]), obs=HITS)


def horseshoe():
    scales = numpyro.sample("scales", independent(dist.HalfCauchy(1.0), 3))
    b = numpyro.sample("b", dist.Normal(jnp.zeros(3), scales).to_event(1))
    numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=REALS)


def unknown_noise():
    b = numpyro.sample("b", independent(dist.Normal(0, 1), 3))
    numpyro.sample("y", dist.Normal(X @ b, numpyro.sample("scale", dist.HalfNormal(1.0))), obs=REALS)


def mixture():
    means = numpyro.sample("means", independent(dist.Normal(0, 3), 2))
    parts = [dist.Normal(mean, 1.0).log_prob(REALS) for mean in means]
    numpyro.factor("y", jnp.sum(jnp.logaddexp(*parts)))


NORMAL, LAPLACE = independent(dist.Normal(0, 1), 3), independent(dist.Laplace(0, 1), 3)
NUMPYRO = {
    "laplace prior, logistic": (regression(LAPLACE, lambda x: dist.Bernoulli(logits=x), HITS), 0.0),
    "correlated prior, logistic": (regression(correlated(), lambda x: dist.Bernoulli(logits=x), HITS), 0.4),
    "correlated prior, binomial": (
        regression(correlated(), lambda x: dist.Binomial(9, logits=x), COUNTS),
        0.4,
    ),
    "correlated prior, poisson": (regression(correlated(), lambda x: dist.Poisson(jnp.exp(x)), COUNTS), 0.4),
    "laplace noise": (regression(NORMAL, lambda x: dist.Laplace(x, 1.0), REALS), 1.0),
    "logistic noise": (regression(NORMAL, lambda x: dist.Logistic(x, 1.0), REALS), 1.0),
    "gumbel noise": (regression(NORMAL, lambda x: dist.Gumbel(x, 1.0), REALS), 1.0),
    "weibull": (regression(NORMAL, lambda x: dist.Weibull(jnp.exp(x), 2.0), np.abs(REALS) + 0.1), 1.0),
    "gamma": (regression(NORMAL, lambda x: dist.Gamma(2.0, jnp.exp(x)), np.abs(REALS) + 0.1), 1.0),
    "negative binomial": (regression(NORMAL, lambda x: dist.NegativeBinomial2(jnp.exp(x), 3.0), COUNTS), 1.0),
    "multinomial": (
        regression(independent(dist.Normal(0, 1), 3, 3), lambda x: dist.Categorical(logits=x), KINDS),
        1.0,
    ),
    "probit": (probit, 0.25),
    "gamma, poisson": (gamma_poisson, 0.0),
    "scales alone": (half_cauchy_precision, 0.0),
    "random walk": (random_walk, None),
    "subsampled": (subsampled, 0.0),
    "student noise": (regression(NORMAL, lambda x: dist.StudentT(4.0, x, 1.0), REALS), False),
    "cauchy prior": (
        regression(independent(dist.Cauchy(0, 1), 3), lambda x: dist.Bernoulli(logits=x), HITS),
        False,
    ),
    "scale of the groups": (group_scale, False),
    "horseshoe": (horseshoe, False),
    "unknown noise": (unknown_noise, False),
    "mixture": (mixture, False),
}


def check(target, convexity):
    """Proven with the strong convexity that the prior gives, or `False`: not proven."""
    assert target.linear_model() is None
    constants = target.constants
    if convexity is False:
        assert constants.log_concave.status == "unknown" and target.curvature_bounds() is None
        assert not constants.strong_convexity.known
        return
    assert constants.log_concave.status == "proven" and "rules of convexity" in constants.log_concave.reason
    if convexity:
        assert (1 - 1e-2) * convexity < constants.strong_convexity.value <= convexity
    elif convexity is not None:
        assert not constants.strong_convexity.known
    low, high = target.curvature_bounds()
    points = np.random.default_rng(0).normal(size=(4, target.dim))
    hessians = np.asarray(jax.jit(jax.vmap(jax.hessian(target.potential)))(points))
    slack = 1e-9 * max(1.0, np.abs(hessians).max())
    assert np.linalg.eigvalsh(hessians - low).min() > -slack
    assert high is None or np.linalg.eigvalsh(high - hessians).min() > -slack


@pytest.mark.parametrize("name", NUMPYRO)
def test_numpyro(name):
    model, convexity = NUMPYRO[name]
    check(from_numpyro(model), convexity)


def pymc_model(prior, likelihood):
    with pm.Model() as model:
        likelihood(pm.math.dot(X, prior()))
    return model


def plain():
    return pm.Normal("b", 0, 1, shape=3)


def correlated_pymc():
    return pm.MvNormal("b", np.zeros(3), cov=COVARIANCE)


PYMC = {
    "laplace prior, logistic": (
        lambda: pm.Laplace("b", 0, 1, shape=3),
        lambda x: pm.Bernoulli("y", logit_p=x, observed=HITS),
        0.0,
    ),
    "correlated prior, logistic": (correlated_pymc, lambda x: pm.Bernoulli("y", logit_p=x, observed=HITS), 0.4),
    "correlated prior, poisson": (correlated_pymc, lambda x: pm.Poisson("y", pt.exp(x), observed=COUNTS), 0.4),
    "laplace noise": (plain, lambda x: pm.Laplace("y", x, 1.0, observed=REALS), 1.0),
    "logistic noise": (plain, lambda x: pm.Logistic("y", x, 1.0, observed=REALS), 1.0),
    "negative binomial": (plain, lambda x: pm.NegativeBinomial("y", mu=pt.exp(x), alpha=3.0, observed=COUNTS), 1.0),
    "student noise": (plain, lambda x: pm.StudentT("y", nu=4, mu=x, sigma=1.0, observed=REALS), False),
    "unknown noise": (plain, lambda x: pm.Normal("y", x, pm.HalfNormal("scale", 1.0), observed=REALS), False),
    "horseshoe": (
        lambda: pm.Normal("b", 0, pm.HalfCauchy("scales", 1.0, shape=3), shape=3),
        lambda x: pm.Normal("y", x, 1.0, observed=REALS),
        False,
    ),
}


@pytest.mark.parametrize("name", PYMC)
def test_pymc(name):
    prior, likelihood, convexity = PYMC[name]
    check(from_pymc(pymc_model(prior, likelihood)), convexity)
