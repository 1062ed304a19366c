"""NumPyro models that are linear models: recognised with proven constants, or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

numpyro = pytest.importorskip("numpyro")

import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402

import provi  # noqa: E402

RNG = np.random.default_rng(1)
N = 30
X = RNG.normal(size=(N, 3))
LABELS = (RNG.random(N) < 0.5).astype(int)
COUNTS = RNG.poisson(2.0, N)
TRIALS = RNG.integers(1, 9, N)
HITS = RNG.binomial(TRIALS, 0.4)
EXPOSURE = RNG.uniform(0.5, 3.0, N)
NOISE = RNG.uniform(0.5, 2.0, N)
GROUPS = np.arange(N) % 4


@pytest.fixture(autouse=True)
def numpyro_promotes_ranks():
    """The tests forbid silent rank promotion, which NumPyro relies on."""
    with jax.numpy_rank_promotion("allow"):
        yield


def coefficients():
    intercept = numpyro.sample("a", dist.Normal(0.5, 2.0))
    return intercept, numpyro.sample("b", dist.Normal(0.0, np.array([1.0, 2.0, 3.0])).to_event(1))


def logistic(X, y):
    intercept, slope = coefficients()
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + X @ slope), obs=y)


def logistic_with_offset(X, y):
    intercept, slope = coefficients()
    numpyro.sample("y", dist.Bernoulli(logits=intercept + X @ slope + EXPOSURE), obs=y)


def random_effects(X, y):
    """Non-centred, with a known scale: affine in independent Gaussians."""
    intercept, slope = coefficients()
    with numpyro.plate("groups", 4):
        raw = numpyro.sample("raw", dist.Normal(0, 1))
    effect = numpyro.deterministic("effect", intercept + 0.7 * raw)
    numpyro.sample("y", dist.Bernoulli(logits=effect[GROUPS] + X @ slope).to_event(1), obs=y)


def binomial(X, y):
    intercept, slope = coefficients()
    numpyro.sample("y", dist.Binomial(TRIALS, logits=intercept + X @ slope), obs=y)


def poisson(X, y):
    intercept, slope = coefficients()
    numpyro.sample("y", dist.Poisson(jnp.exp(intercept + X @ slope)), obs=y)


def poisson_with_exposure(X, y):
    intercept, slope = coefficients()
    numpyro.sample("y", dist.Poisson(EXPOSURE * jnp.exp(intercept + X @ slope)), obs=y)


def linear(X, y):
    intercept, slope = coefficients()
    numpyro.sample("y", dist.Normal(1.0 + intercept + X @ slope, NOISE), obs=y)


def two_sites(X, y):
    intercept, slope = coefficients()
    eta = intercept + X @ slope
    numpyro.sample("first", dist.Poisson(jnp.exp(eta[:10])), obs=y[:10])
    numpyro.sample("second", dist.Poisson(jnp.exp(eta[10:])), obs=y[10:])


REAL = X @ np.array([1.0, -1.0, 0.5]) + NOISE * RNG.normal(size=N)
RECOGNISED = {
    "logistic": (logistic, LABELS, "LogisticRegression"),
    "offset": (logistic_with_offset, LABELS, "GeneralisedLinearModel"),
    "random effects": (random_effects, LABELS, "LogisticRegression"),
    "binomial": (binomial, HITS, "GeneralisedLinearModel"),
    "poisson": (poisson, COUNTS, "PoissonRegression"),
    "exposure": (poisson_with_exposure, COUNTS, "PoissonRegression"),
    "linear": (linear, REAL, "LinearRegression"),
    "two sites": (two_sites, COUNTS, "PoissonRegression"),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_recognised_with_the_same_normalised_density(name):
    model, y, kind = RECOGNISED[name]
    target = provi.from_numpyro(model, X, y)
    found = target.linear_model()
    assert type(found).__name__ == kind
    assert {constant.status for constant in vars(target.constants).values()} <= {"proven", "unknown"}
    assert target.constants.log_concave.value is True and target.constants.strong_convexity.value >= 1 / 9 - 1e-9
    points = jnp.asarray(RNG.normal(size=(4, target.dim)))
    ours, numpyros = jax.jit(jax.vmap(lambda z: (found.potential(z), target.potential(z))))(points)
    np.testing.assert_allclose(ours, numpyros, rtol=1e-10)


def test_the_fit_is_that_of_the_models_own_target():
    target = provi.from_numpyro(logistic, X, LABELS)
    names = ("a", "b[0]", "b[1]", "b[2]")
    design = np.column_stack([np.ones(N), X])
    own = provi.targets.LogisticRegression(
        design, LABELS, np.array([2.0, 1.0, 2.0, 3.0]), prior_mean=np.array([0.5, 0.0, 0.0, 0.0]), names=names
    )
    np.testing.assert_array_equal(target.linear_model().design, design)
    first, second = provi.fit(target, progress=False), provi.fit(own, progress=False)
    np.testing.assert_allclose(first.posterior.mean, second.posterior.mean, rtol=1e-9)
    np.testing.assert_allclose(first.posterior.covariance, second.posterior.covariance, rtol=1e-9)
    np.testing.assert_allclose(first.elbo.value, second.elbo.value, rtol=1e-12)
    assert first.certificate.status == "proven" and first.certificate.confidence == second.certificate.confidence
    assert first.certificate.gap <= 0.01 and first.posterior.names == names


def test_gaussian_rows_with_their_own_scales_are_exact():
    found = provi.from_numpyro(linear, X, REAL).linear_model()
    design = np.column_stack([np.ones(N), X])
    prior = np.array([2.0, 1.0, 2.0, 3.0]) ** -2.0
    precision = np.diag(prior) + design.T @ (design / NOISE[:, None] ** 2)
    right = prior * np.array([0.5, 0, 0, 0]) + design.T @ ((REAL - 1.0) / NOISE**2)
    mean, covariance = found.exact_posterior()
    np.testing.assert_allclose(mean, np.linalg.solve(precision, right), rtol=1e-10)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-9, atol=1e-14)


def observe(predictor, prior=None):
    def model(X, y):
        slope = numpyro.sample("b", prior or dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=predictor(slope)), obs=y)

    return model


def with_a_scale(X, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    slope = numpyro.sample("b", dist.Normal(0, scale).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ slope), obs=y)


def with_a_latent_location(X, y):
    centre = numpyro.sample("centre", dist.Normal(0, 1))
    slope = numpyro.sample("b", dist.Normal(centre, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ slope), obs=y)


def with_unknown_noise(X, y):
    slope = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ slope, jnp.exp(slope[0])), obs=y)


def with_a_factor(X, y):
    slope = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.factor("penalty", jnp.sum(slope**4))
    numpyro.sample("y", dist.Bernoulli(logits=X @ slope), obs=y)


def with_latent_data(X, y):
    slope = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ slope, 1.0), obs=y * slope[0])


NOT_RECOGNISED = {
    "tanh": observe(lambda b: jnp.tanh(X @ b)),
    "round": observe(lambda b: X @ jnp.round(b)),
    "stop_gradient": observe(lambda b: X @ jax.lax.stop_gradient(b)),
    "branch": observe(lambda b: jnp.where(b[0] > 0, 1.0, -1.0) + 0 * X[:, 0]),
    "Laplace prior": observe(lambda b: X @ b, dist.Laplace(0, 1).expand([3]).to_event(1)),
    "masked prior": observe(lambda b: X @ b, dist.Normal(0, 1).expand([3]).mask(np.ones(3, bool))),
    "scale": with_a_scale,
    "location": with_a_latent_location,
    "noise": with_unknown_noise,
    "factor": with_a_factor,
    "data": with_latent_data,
    "weights": handlers.scale(observe(lambda b: X @ b), scale=2.0),
}


@pytest.mark.parametrize("name", NOT_RECOGNISED)
def test_not_recognised(name):
    target = provi.from_numpyro(NOT_RECOGNISED[name], X, LABELS)
    assert target.linear_model() is None


def test_soft_labels_are_a_plain_density():
    def model(X, y):
        slope = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ slope, validate_args=False), obs=y)

    assert provi.from_numpyro(model, X, np.full(N, 0.3)).linear_model() is None
