"""NumPyro models that are linear given a few scales: recognised with the same density, or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

numpyro = pytest.importorskip("numpyro")

import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.infer.reparam import LocScaleReparam  # noqa: E402

import provi  # noqa: E402
from provi.frontends.numpyro.anatomy import anatomy_of  # noqa: E402
from provi.frontends.recognise.nested import conditional_glm_of  # noqa: E402

RNG = np.random.default_rng(1)
N, LEVELS = 40, 10
X = RNG.normal(size=(N, 2))
GROUPS = np.arange(N) % LEVELS
LABELS = (RNG.random(N) < 0.5).astype(int)
COUNTS = RNG.poisson(2.0, N)
TRIALS = RNG.integers(1, 9, N)
HITS = RNG.binomial(TRIALS, 0.4)
REAL = RNG.normal(size=N)
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 8], [8, 9], [0, 9]])


@pytest.fixture(autouse=True)
def numpyro_promotes_ranks():
    """The tests forbid silent rank promotion, which NumPyro relies on."""
    with jax.numpy_rank_promotion("allow"):
        yield


def recognised(model):
    target = provi.from_numpyro(model)
    anatomy = anatomy_of(target.model, target.unravel, target.start)
    found = None if anatomy is None else conditional_glm_of(anatomy, target.potential, target.unravel, target.start)
    return target, found


def coefficients():
    return numpyro.sample("a", dist.Normal(0.5, 2.0)) + X @ numpyro.sample("b", dist.Normal(0, 1.5).expand([2]))


def centred_schools():
    mean, scale = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        effect = numpyro.sample("theta", dist.Normal(mean, scale))
        numpyro.sample("y", dist.Normal(effect, ERRORS), obs=EFFECTS)


def schools():
    mean, scale = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        effect = numpyro.deterministic("theta", mean + scale * numpyro.sample("raw", dist.Normal(0, 1)))
        numpyro.sample("y", dist.Normal(effect, ERRORS), obs=EFFECTS)


def logistic():
    eta, scale = coefficients(), numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("groups", LEVELS):
        raw = numpyro.sample("raw", dist.Normal(0, 1))
    with numpyro.plate("rows", N):
        numpyro.sample("y", dist.Bernoulli(logits=eta + (scale * raw)[GROUPS]), obs=LABELS)


def centred_poisson():
    eta, scale = coefficients(), numpyro.sample("s", dist.Exponential(1.0))
    effect = numpyro.sample("u", dist.Normal(numpyro.sample("m", dist.Normal()), scale).expand([LEVELS]).to_event(1))
    numpyro.sample("y", dist.Poisson(TRIALS * jnp.exp(eta + effect[GROUPS])), obs=COUNTS)


def slopes():
    """Correlated intercepts and slopes, non-centred, binomial data."""
    scale = numpyro.sample("s", dist.HalfNormal(1.0).expand([2]))
    factor = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([2, LEVELS]))
    effect = ((scale[:, None] * factor) @ raw)[:, GROUPS]
    numpyro.sample("y", dist.Binomial(TRIALS, logits=coefficients() + effect[0] + effect[1] * X[:, 0]), obs=HITS)


def centred_slopes():
    scale = numpyro.sample("s", dist.HalfNormal(1.0).expand([2]))
    factor = scale[:, None] * numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", LEVELS):
        effect = numpyro.sample("u", dist.MultivariateNormal(np.array([0.5, -1.0]), scale_tril=factor))[GROUPS]
    numpyro.sample("y", dist.Poisson(jnp.exp(coefficients() + effect[:, 0] + effect[:, 1] * X[:, 0])), obs=COUNTS)


def regression():
    numpyro.sample("y", dist.Normal(coefficients(), numpyro.sample("noise", dist.InverseGamma(2.0, 1.0))), obs=REAL)


def counts():
    mean = jnp.exp(coefficients())
    numpyro.sample("y", dist.NegativeBinomial2(mean, numpyro.sample("r", dist.Gamma(2.0, 0.1))), obs=COUNTS)


def walk():
    """A walk whose first step is its own, and its scale."""
    steps = dist.GaussianRandomWalk(numpyro.sample("s", dist.HalfNormal(1.0)), num_steps=N)
    numpyro.sample("y", dist.Poisson(jnp.exp(numpyro.sample("w", steps) + 0.3)), obs=COUNTS)


def graph():
    """An intrinsic field by a factor, made proper by a soft constraint."""
    scale = numpyro.sample("s", dist.HalfNormal(1.0))
    field = numpyro.sample("phi", dist.ImproperUniform(dist.constraints.real_vector, (), (LEVELS,)))
    numpyro.factor("edges", -0.5 * jnp.sum((field[EDGES[:, 0]] - field[EDGES[:, 1]]) ** 2))
    numpyro.factor("sum", dist.Normal(0, 0.01 * LEVELS).log_prob(jnp.sum(field)))
    numpyro.sample("y", dist.Poisson(jnp.exp(coefficients() + scale * field[GROUPS])), obs=COUNTS)


def two_kinds():
    """Normal data beside counts: part of the quadratic."""
    eta, scale = coefficients(), numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("w", dist.Normal(2.0 * eta, scale), obs=REAL)
    numpyro.sample("y", dist.Poisson(jnp.exp(eta)), obs=COUNTS)


def real_scale():
    """A scale whose sign is free: not positive, and yet it multiplies."""
    scale = numpyro.sample("s", dist.Normal(0, 1))
    effect = scale * numpyro.sample("raw", dist.Normal(0, 1).expand([LEVELS]))
    numpyro.sample("y", dist.Bernoulli(logits=coefficients() + effect[GROUPS]), obs=LABELS)


def student_intercept():
    """A location that is not normal is a scale like the others."""
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.StudentT(3.0)) + coefficients(), 1.0), obs=REAL)


reparametrised = handlers.reparam(centred_poisson, config={"u": LocScaleReparam(centered=0.3)})
RECOGNISED = {
    "schools, centred": (centred_schools, {"tau"}),
    "schools": (schools, {"tau"}),
    "logistic": (logistic, {"s"}),
    "Poisson, centred": (centred_poisson, {"s"}),
    "reparametrised": (reparametrised, {"s"}),
    "slopes": (slopes, {"s", "L"}),
    "slopes, centred": (centred_slopes, {"s", "L"}),
    "noise": (regression, {"noise"}),
    "negative binomial": (counts, {"r"}),
    "walk": (walk, {"s"}),
    "graph": (graph, {"s"}),
    "two kinds": (two_kinds, {"s"}),
    "real scale": (real_scale, {"s"}),
    "Student intercept": (student_intercept, {"m"}),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_recognised_with_the_same_normalised_density(name):
    model, scales = RECOGNISED[name]
    target, found = recognised(model)
    assert found is not None and set(found.scales.names) == scales
    assert found.scales.size + found.effects.size == target.dim

    @jax.jit
    def both(theta, u):
        vector, _ = found.coordinates(theta, u)
        return found.log_density(theta, u), -target.potential(vector)

    for _ in range(4):
        theta, u = RNG.normal(size=found.scales.size), RNG.normal(size=found.effects.size)
        ours, numpyros = both(jnp.asarray(theta), jnp.asarray(u))
        # JAX's logarithm of the beta function, which NumPyro calls, is off by 1e-6.
        np.testing.assert_allclose(ours, numpyros, rtol=1e-6 if model is counts else 1e-9)


def test_forms_of_one_model_are_one():
    """Centred and not: the same rows and the same prior of the scale, also where the scale is tiny."""
    first, second = (recognised(model)[1] for model in (centred_schools, schools))
    for log_scale in (1.0, -30.0):
        theta = jnp.asarray([log_scale])
        one, other = first.conditional(theta), second.conditional(theta)
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-300)


def test_no_density_where_a_scale_is_negative():
    """A real number taken as a standard deviation: some of its values are none."""

    def model():
        scale = 1.0 + numpyro.sample("s", dist.Normal(0.0, 1.0))
        vector = numpyro.sample("u", dist.Normal(0, scale).expand([LEVELS]))
        numpyro.sample("y", dist.Bernoulli(logits=vector[GROUPS]), obs=LABELS)

    found = recognised(model)[1]
    assert found is not None
    log_prior = jax.jit(lambda theta: found.log_prior(theta))
    assert np.isfinite(log_prior(jnp.asarray([0.5]))) and log_prior(jnp.asarray([-2.0])) == -np.inf


def observe(effect, size=LEVELS, prior=None, likelihood=None):
    """A model whose predictor is a function of a vector and of a scale."""

    def model():
        scale = numpyro.sample("s", dist.HalfNormal(1.0))
        vector = numpyro.sample("u", (prior or (lambda scale: dist.Normal(0, 1)))(scale).expand([size]))
        eta = effect(vector, scale)
        numpyro.sample("y", (likelihood or (lambda eta, scale: dist.Bernoulli(logits=eta)))(eta, scale), obs=LABELS)

    return model


def linear(vector, scale):
    return scale * vector[GROUPS]


def product_of_vectors():
    left, right = (numpyro.sample(name, dist.Normal(0, 1).expand([LEVELS])) for name in "uv")
    numpyro.sample("y", dist.Bernoulli(logits=(left * right)[GROUPS]), obs=LABELS)


def latent_scale():
    """A scale for each level, itself latent: too many to integrate."""
    scale = jnp.exp(numpyro.sample("log_s", dist.Normal(0, 1).expand([LEVELS])))
    numpyro.sample("y", dist.Bernoulli(logits=numpyro.sample("u", dist.Normal(0, scale))[GROUPS]), obs=LABELS)


def own_scale():
    """The scale of the data depends on the effects."""
    vector = numpyro.sample("u", dist.Normal(0, numpyro.sample("s", dist.HalfNormal(1.0))).expand([LEVELS]))
    numpyro.sample("y", dist.Normal(vector[GROUPS], jnp.exp(vector[GROUPS])), obs=REAL)


def factor():
    vector = numpyro.sample("u", dist.Normal(0, numpyro.sample("s", dist.HalfNormal(1.0))).expand([LEVELS]))
    numpyro.factor("penalty", -jnp.sum(jnp.exp(vector)))
    numpyro.sample("y", dist.Bernoulli(logits=vector[GROUPS]), obs=LABELS)


def indefinite():
    """Quadratic, and no prior: its curvature is of the wrong sign."""
    vector = numpyro.sample("u", dist.Normal(0, 1).expand([LEVELS]))
    numpyro.factor("bonus", jnp.sum(vector**2))
    numpyro.sample("y", dist.Normal(vector[GROUPS], numpyro.sample("s", dist.HalfNormal(1.0))), obs=REAL)


def mixture():
    vector = numpyro.sample("u", dist.Normal(0, numpyro.sample("s", dist.HalfNormal(1.0))).expand([LEVELS]))
    parts = dist.Normal(jnp.stack([vector[GROUPS], -vector[GROUPS]], -1), 1.0)
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(np.full((N, 2), 0.5)), parts), obs=REAL)


def latent_data():
    vector = numpyro.sample("u", dist.Normal(0, 1).expand([LEVELS]))
    numpyro.sample("y", dist.Normal(vector[GROUPS], 1.0), obs=REAL * numpyro.sample("s", dist.HalfNormal(1.0)))


def own_concentrations():
    """A concentration for each row."""
    shape = numpyro.sample("r", dist.HalfNormal(1.0)) * np.arange(1.0, N + 1)
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(coefficients()), shape), obs=COUNTS)


NOT_RECOGNISED = {
    "tanh": observe(lambda u, s: jnp.tanh(s * u[GROUPS])),
    "exponential": observe(lambda u, s: jnp.exp(s * u[GROUPS])),
    "round": observe(lambda u, s: s * jnp.round(u)[GROUPS]),
    "stop_gradient": observe(lambda u, s: s * jax.lax.stop_gradient(u)[GROUPS]),
    "branch": observe(lambda u, s: jnp.where(u[GROUPS] > 0, s, -s)),
    "Student vector": observe(linear, prior=lambda s: dist.StudentT(3.0, 0.0, s)),
    "Laplace vector": observe(linear, prior=lambda s: dist.Laplace(0.0, s)),
    "log-normal vector": observe(linear, prior=lambda s: dist.LogNormal(0.0, s)),
    "Student data": observe(linear, likelihood=lambda eta, s: dist.StudentT(4.0, eta, s)),
    "probit": observe(linear, likelihood=lambda eta, s: dist.Bernoulli(probs=jax.scipy.stats.norm.cdf(eta))),
    "product of vectors": product_of_vectors,
    "latent scale": latent_scale,
    "own scale": own_scale,
    "factor": factor,
    "indefinite": indefinite,
    "mixture": mixture,
    "latent data": latent_data,
    "own concentrations": own_concentrations,
    "weights": handlers.scale(logistic, scale=2.0),
    "weighted data": observe(linear, likelihood=lambda eta, s: dist.Bernoulli(logits=eta).mask(np.arange(N) > 3)),
}


@pytest.mark.parametrize("name", NOT_RECOGNISED)
def test_not_recognised(name):
    assert recognised(NOT_RECOGNISED[name])[1] is None
