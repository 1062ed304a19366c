"""PyMC models that are linear given a few scales: recognised with the same density, or not at all."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its next version, PyTensor that it found no BLAS
    pm = pytest.importorskip("pymc")

import provi  # noqa: E402
from provi.frontends.pymc.anatomy import anatomy_of  # noqa: E402
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


def recognised(make):
    with pm.Model() as model:
        make()
    target = provi.from_pymc(model)
    anatomy, unravel = anatomy_of(target.program), target.program.unravel
    return target, None if anatomy is None else conditional_glm_of(anatomy, target.potential, unravel, target.start)


def coefficients():
    return pm.Normal("a", 0.5, 2.0) + pm.Data("X", X) @ pm.Normal("b", 0, 1.5, shape=2)


def factor():
    return pm.LKJCholeskyCov("L", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=True)[0]


def centred_schools():
    mean, scale = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    pm.Normal("y", pm.Normal("theta", mean, scale, shape=8), ERRORS, observed=EFFECTS)


def schools():
    mean, scale = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    effect = pm.Deterministic("theta", mean + scale * pm.Normal("raw", shape=8))
    pm.Normal("y", effect, ERRORS, observed=EFFECTS)


def logistic():
    effect = pm.HalfNormal("s") * pm.Normal("raw", shape=LEVELS)
    pm.Bernoulli("y", logit_p=coefficients() + effect[GROUPS], observed=LABELS)


def centred_poisson():
    effect = pm.Normal("u", pm.Normal("m"), pm.Exponential("s", 1.0), shape=LEVELS)
    pm.Poisson("y", TRIALS * pm.math.exp(coefficients() + effect[GROUPS]), observed=COUNTS)


def slopes():
    effect = (pm.Normal("raw", shape=(LEVELS, 2)) @ factor().T)[GROUPS]
    eta = coefficients() + effect[:, 0] + effect[:, 1] * X[:, 0]
    pm.Binomial("y", n=TRIALS, p=pm.math.sigmoid(eta), observed=HITS)


def centred_slopes():
    effect = pm.MvNormal("u", np.array([0.5, -1.0]), chol=factor(), shape=(LEVELS, 2))[GROUPS]
    pm.Poisson("y", pm.math.exp(coefficients() + effect[:, 0] + effect[:, 1] * X[:, 0]), observed=COUNTS)


def regression():
    pm.Normal("y", coefficients(), pm.HalfStudentT("noise", nu=3, sigma=1.0), observed=REAL)


def negative_binomial():
    mean = pm.math.exp(coefficients())
    pm.NegativeBinomial("y", mu=mean, alpha=pm.Gamma("r", 2.0, 0.1), observed=COUNTS)


def walk():
    steps = pm.GaussianRandomWalk("w", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(), shape=N)
    pm.Poisson("y", pm.math.exp(steps), observed=COUNTS)


def process():
    """A Gaussian process with unknown scale and length-scale."""
    kernel = pm.HalfNormal("s") ** 2 * pm.gp.cov.ExpQuad(2, ls=pm.Gamma("length", 2, 1))
    pm.Bernoulli("y", logit_p=pm.gp.Latent(cov_func=kernel).prior("f", X), observed=LABELS)


def two_kinds():
    eta = coefficients()
    pm.Normal("w", 2.0 * eta, pm.HalfNormal("s"), observed=REAL)
    pm.Poisson("y", pm.math.exp(eta), observed=COUNTS)


RECOGNISED = {
    "schools, centred": (centred_schools, {"tau"}),
    "schools": (schools, {"tau"}),
    "logistic": (logistic, {"s"}),
    "Poisson, centred": (centred_poisson, {"s"}),
    "slopes": (slopes, {"L"}),
    "slopes, centred": (centred_slopes, {"L"}),
    "noise": (regression, {"noise"}),
    "negative binomial": (negative_binomial, {"r"}),
    "walk": (walk, {"s"}),
    "process": (process, {"s", "length"}),
    "two kinds": (two_kinds, {"s"}),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_recognised_with_the_same_normalised_density(name):
    make, scales = RECOGNISED[name]
    target, found = recognised(make)
    assert found is not None and set(found.scales.names) == scales
    assert found.scales.size + found.effects.size == target.dim

    @jax.jit
    def both(theta, u):
        vector, _ = found.coordinates(theta, u)
        return found.log_density(theta, u), -target.potential(vector)

    # PyMC rounds the logarithms of some scales to single precision, once for each variable or datum.
    points = [[jnp.asarray(RNG.normal(size=part.size)) for part in (found.scales, found.effects)] for _ in range(4)]
    ours, pymcs = np.array([both(*point) for point in points]).T
    np.testing.assert_allclose(ours, pymcs, rtol=1e-9, atol=(N + 1) * 2.2e-8)
    np.testing.assert_allclose(ours - ours[0], pymcs - pymcs[0], rtol=1e-9, atol=1e-9 * np.abs(ours).max())


def vector():
    return pm.HalfNormal("s"), pm.Normal("u", shape=LEVELS)


def bernoulli(effect):
    def make():
        scale, effects = vector()
        pm.Bernoulli("y", logit_p=effect(effects, scale)[GROUPS], observed=LABELS)

    return make


def student_vector():
    effects = pm.StudentT("u", nu=3, mu=0, sigma=pm.HalfNormal("s"), shape=LEVELS)
    pm.Bernoulli("y", logit_p=effects[GROUPS], observed=LABELS)


def product_of_vectors():
    left, right = (pm.Normal(name, shape=LEVELS) for name in "uv")
    pm.Bernoulli("y", logit_p=(left * right)[GROUPS], observed=LABELS)


def latent_scale():
    effects = pm.Normal("u", 0, pm.math.exp(pm.Normal("log_s", shape=LEVELS)))
    pm.Bernoulli("y", logit_p=effects[GROUPS], observed=LABELS)


def own_scale():
    scale, effects = vector()
    pm.Normal("y", scale * effects[GROUPS], pm.math.exp(effects[GROUPS]), observed=REAL)


def potential():
    scale, effects = vector()
    pm.Potential("penalty", -(pm.math.exp(effects)).sum())
    pm.Bernoulli("y", logit_p=scale * effects[GROUPS], observed=LABELS)


def mixture():
    scale, effects = vector()
    parts = [pm.Normal.dist(effects[GROUPS], scale), pm.Normal.dist(-effects[GROUPS], scale)]
    pm.Mixture("y", w=[0.5, 0.5], comp_dists=parts, observed=REAL)


def other_share():
    """A share that is none of the kind shape / (mean + shape)."""
    scale, effects = vector()
    pm.NegativeBinomial("y", n=scale, p=scale / (pm.math.exp(effects[GROUPS]) + 2 * scale), observed=COUNTS)


NOT_RECOGNISED = {
    "tanh": bernoulli(lambda u, s: pm.math.tanh(s * u)),
    "exponential": bernoulli(lambda u, s: pm.math.exp(s * u)),
    "round": bernoulli(lambda u, s: s * pm.math.round(u)),
    "branch": bernoulli(lambda u, s: pm.math.switch(u > 0, s, -s)),
    "Student vector": student_vector,
    "product of vectors": product_of_vectors,
    "latent scale": latent_scale,
    "own scale": own_scale,
    "potential": potential,
    "mixture": mixture,
    "other share": other_share,
    "no data": vector,
    "order": lambda: pm.Bernoulli(
        "y",
        logit_p=pm.HalfNormal("s")
        * pm.Normal("u", shape=LEVELS, transform=pm.distributions.transforms.ordered, initval=np.arange(float(LEVELS)))[
            GROUPS
        ],
        observed=LABELS,
    ),
}


@pytest.mark.parametrize("name", NOT_RECOGNISED)
def test_not_recognised(name):
    assert recognised(NOT_RECOGNISED[name])[1] is None
