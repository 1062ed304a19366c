"""A linear model with any log-concave likelihood: against SciPy and the models written out."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import GeneralisedLinearModel, LinearRegression, LogisticRegression, PoissonRegression, likelihoods
from support.members import quick_jit

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(12, 3)), np.array([0.4, -1.0, 0.2])
COUNTS = RNG.poisson(2.0, 12)


@quick_jit
def potential(model, z):
    return model.potential(z)


def test_potential_against_scipy():
    model = GeneralisedLinearModel(X, COUNTS, likelihoods.NegativeBinomial(1.7), 2.0)
    rate = np.exp(X @ Z)
    true = -stats.nbinom.logpmf(COUNTS, 1.7, 1.7 / (1.7 + rate)).sum() - stats.norm.logpdf(Z, 0, 2.0).sum()
    assert float(potential(model, jnp.asarray(Z))) == pytest.approx(true, rel=1e-13)


@pytest.mark.parametrize(
    ("likelihood", "model", "y"),
    [
        (likelihoods.BernoulliLogit(), LogisticRegression, COUNTS > 1),
        (likelihoods.Poisson(), PoissonRegression, COUNTS),
        (likelihoods.GaussianNoise(1.0), LinearRegression, COUNTS),
    ],
)
def test_agrees_with_the_named_models(likelihood, model, y):
    general, named = GeneralisedLinearModel(X, y, likelihood, intercept=True), model(X, y, intercept=True)
    z = jnp.asarray(RNG.normal(size=4))
    assert float(potential(general, z)) == float(potential(named, z))
    assert general.parameter_names == named.parameter_names
    assert repr(general.constants) == repr(named.constants)


def test_constants_bound_the_hessian():
    """Counts bound the curvature of the negative binomial, which is unbounded over all counts."""
    r = 1.7
    model = GeneralisedLinearModel(X, COUNTS, likelihoods.NegativeBinomial(r), 2.0)
    constants = model.constants
    largest, smallest = constants.smoothness.value, constants.strong_convexity.value
    assert constants.smoothness.status == "proven" and largest is not None and smallest is not None
    for z in RNG.normal(size=(200, 3)) * 2:
        rate = np.exp(X @ z)
        weight = (COUNTS + r) * r * rate / (r + rate) ** 2
        values = np.linalg.eigvalsh(np.eye(3) / 4 + X.T @ (weight[:, None] * X))
        assert smallest <= values[0] and values[-1] <= largest


def test_refusals():
    with pytest.raises(ValueError, match="likelihood StudentT is not log-concave"):
        GeneralisedLinearModel(X, COUNTS, likelihoods.StudentT())
    unknown = likelihoods.UserLikelihood(lambda y, eta: -((y - eta) ** 2))
    with pytest.raises(ValueError, match="log_concave=True"):
        GeneralisedLinearModel(X, COUNTS, unknown)
    with pytest.raises(ValueError, match="^likelihood must be one of"):
        GeneralisedLinearModel(X, COUNTS, "poisson")
    with pytest.raises(ValueError, match="y must hold counts"):
        GeneralisedLinearModel(X, COUNTS + 0.5, likelihoods.NegativeBinomial())
