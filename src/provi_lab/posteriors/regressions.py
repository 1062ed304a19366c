"""Regressions: each of rows, coefficients and at most a few parameters of the noise."""

# NumPyro says of a site only that it is an array or a number.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false, reportOptionalOperand=false, reportCallIssue=false

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

from provi_lab.posteriors.posterior import Posterior, design, generator

_LOG = dist.transforms.ExpTransform().inv


def _coefficients(columns: int, scale: float = 2.0) -> Any:
    return numpyro.sample("b", dist.Normal(0, scale).expand([columns]).to_event(1))


def logistic(X: Any, y: Any) -> None:
    numpyro.sample("y", dist.Bernoulli(logits=X @ _coefficients(X.shape[1])), obs=y)


def _logistic_data() -> tuple[Any, ...]:
    rng = generator(1)
    X = design(rng, 120, 6)
    return X, rng.binomial(1, expit(X @ np.array([1, -0.5, 0.3, 0, 0.8, -1])))


def few_rows(X: Any, y: Any) -> None:
    """Data that a plane separates: the prior alone keeps the posterior, which is skewed, from infinity."""
    numpyro.sample("y", dist.Bernoulli(logits=X @ _coefficients(X.shape[1], 3.0)), obs=y)


def _few_rows_data() -> tuple[Any, ...]:
    X = design(generator(2), 12, 3)
    return X, (X[:, 0] - 0.5 * X[:, 1] > 0).astype(int)


def poisson(X: Any, y: Any) -> None:
    numpyro.sample("y", dist.Poisson(jnp.exp(numpyro.sample("a", dist.Normal(0, 2)) + X @ _coefficients(4))), obs=y)


def _poisson_data() -> tuple[Any, ...]:
    rng = generator(3)
    X = design(rng, 80, 4)
    return X, rng.poisson(np.exp(0.5 + X @ np.array([0.4, -0.3, 0.2, 0])))


def linear_unknown_noise(X: Any, y: Any) -> None:
    noise = numpyro.sample("noise", dist.HalfCauchy(2))
    numpyro.sample("y", dist.Normal(X @ _coefficients(X.shape[1]), noise), obs=y)


def _linear_data() -> tuple[Any, ...]:
    rng = generator(4)
    X = design(rng, 15, 4)
    return X, X @ np.array([1, -1, 0.5, 0]) + rng.normal(size=15)


def robust(X: Any, y: Any) -> None:
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    numpyro.sample("y", dist.StudentT(4.0, X @ _coefficients(X.shape[1]), noise), obs=y)


def robust_unknown_tails(X: Any, y: Any) -> None:
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    tails = numpyro.sample("tails", dist.Gamma(2.0, 0.1))
    numpyro.sample("y", dist.StudentT(tails, X @ _coefficients(X.shape[1]), noise), obs=y)


def _robust_data() -> tuple[Any, ...]:
    rng = generator(5)
    X = design(rng, 60, 4)
    return X, X @ np.array([1, -1, 0.5, 0]) + rng.standard_t(3, size=60)


def negative_binomial(X: Any, y: Any) -> None:
    size = numpyro.sample("size", dist.Gamma(2.0, 0.5))
    rate = jnp.exp(numpyro.sample("a", dist.Normal(0, 2)) + X @ _coefficients(X.shape[1]))
    numpyro.sample("y", dist.NegativeBinomial2(rate, size), obs=y)


def _negative_binomial_data() -> tuple[Any, ...]:
    rng = generator(6)
    X = design(rng, 60, 3)
    return X, rng.poisson(np.exp(1 + X @ np.array([0.5, -0.5, 0])) * rng.gamma(1.5, 1 / 1.5, 60))


def ordinal(X: Any, y: Any) -> None:
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(dist.Normal(0, 1).expand([3]).to_event(1), _ordered()))
    numpyro.sample("y", dist.OrderedLogistic(X @ _coefficients(X.shape[1]), cuts), obs=y)


def _ordered() -> Any:
    return dist.transforms.OrderedTransform()


def _ordinal_data() -> tuple[Any, ...]:
    rng = generator(7)
    X = design(rng, 80, 3)
    latent = X @ np.array([1, -0.5, 0]) + rng.logistic(size=80)
    return X, np.digitize(latent, [-1.0, 0.5, 2.0])


def softmax(X: Any, y: Any) -> None:
    weights = numpyro.sample("w", dist.Normal(0, 2).expand([X.shape[1], 2]).to_event(2))
    logits = jnp.concatenate([jnp.zeros((X.shape[0], 1)), X @ weights], axis=1)
    numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def _softmax_data() -> tuple[Any, ...]:
    rng = generator(8)
    X = design(rng, 60, 3)
    logits = np.c_[np.zeros(60), X @ np.array([[1, 0], [0, 1], [-0.5, 0.5]])]
    return X, (logits + rng.gumbel(size=(60, 3))).argmax(1)


def heteroscedastic(X: Any, y: Any) -> None:
    spread = numpyro.sample("g", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ _coefficients(X.shape[1]), jnp.exp(X @ spread)), obs=y)


def _heteroscedastic_data() -> tuple[Any, ...]:
    rng = generator(9)
    X = np.c_[np.ones(50), design(rng, 50, 2)]
    return X, X @ np.array([1, 1, 0]) + np.exp(X @ np.array([0, 0.5, -0.3])) * rng.normal(size=50)


def gamma_regression(X: Any, y: Any) -> None:
    shape = numpyro.sample("shape", dist.LogNormal(0, 1))
    mean = jnp.exp(X @ _coefficients(X.shape[1]))
    numpyro.sample("y", dist.Gamma(shape, shape / mean), obs=y)


def _gamma_data() -> tuple[Any, ...]:
    rng = generator(10)
    X = np.c_[np.ones(40), design(rng, 40, 2)]
    return X, rng.gamma(2.0, np.exp(X @ np.array([0.5, 0.5, -0.5])) / 2)


def beta_regression(X: Any, y: Any) -> None:
    precision = numpyro.sample("precision", dist.HalfCauchy(10))
    mean = 1 / (1 + jnp.exp(-X @ _coefficients(X.shape[1])))
    numpyro.sample("y", dist.Beta(mean * precision, (1 - mean) * precision), obs=y)


def _beta_data() -> tuple[Any, ...]:
    rng = generator(11)
    X = np.c_[np.ones(40), design(rng, 40, 2)]
    mean = expit(X @ np.array([0.3, 0.7, -0.5]))
    return X, np.clip(rng.beta(8 * mean, 8 * (1 - mean)), 1e-4, 1 - 1e-4)


def zero_inflated(X: Any, y: Any) -> None:
    gate = numpyro.sample("gate", dist.Beta(1, 1))
    rate = jnp.exp(X @ _coefficients(X.shape[1]))
    numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)


def _zero_inflated_data() -> tuple[Any, ...]:
    rng = generator(12)
    X = np.c_[np.ones(60), design(rng, 60, 2)]
    return X, rng.poisson(np.exp(X @ np.array([0.3, 0.5, -0.4]))) * rng.binomial(1, 0.7, 60)


def michaelis_menten(x: Any, y: Any) -> None:
    most = numpyro.sample("most", dist.LogNormal(0, 1.5))
    half = numpyro.sample("half", dist.LogNormal(0, 1.5))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(most * x / (half + x), noise), obs=y)


def _michaelis_menten_data() -> tuple[Any, ...]:
    rng, x = generator(13), np.linspace(0.2, 3, 14)
    return x, 2 * x / (1.5 + x) + 0.12 * rng.normal(size=14)


def lasso(X: Any, y: Any) -> None:
    shrinkage = numpyro.sample("shrinkage", dist.HalfCauchy(1))
    b = numpyro.sample("b", dist.Laplace(0, shrinkage).expand([X.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(X @ b, noise), obs=y)


def horseshoe(X: Any, y: Any) -> None:
    """Half-Cauchy scales as their logarithms: the scales themselves have no mean, also a posteriori."""
    overall = numpyro.sample("log_overall", dist.TransformedDistribution(dist.HalfCauchy(0.5), _LOG))
    scales = dist.TransformedDistribution(dist.HalfCauchy(1).expand([X.shape[1]]).to_event(1), _LOG)
    local = numpyro.sample("log_local", scales)
    z = numpyro.sample("z", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(X @ (jnp.exp(overall + local) * z), noise), obs=y)


def half_normal_shrinkage(X: Any, y: Any) -> None:
    overall = numpyro.sample("overall", dist.HalfNormal(0.5))
    local = numpyro.sample("local", dist.HalfNormal(2).expand([X.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, overall * local).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(X @ b, noise), obs=y)


def _sparse_data() -> tuple[Any, ...]:
    rng = generator(14)
    X = design(rng, 40, 8)
    return X, X @ np.r_[2.0, -1.5, np.zeros(6)] + rng.normal(size=40)


REGRESSIONS = [
    Posterior("logistic", "regression", logistic, _logistic_data),
    Posterior("separated_logistic", "regression", few_rows, _few_rows_data),
    Posterior("poisson", "regression", poisson, _poisson_data),
    Posterior("linear_unknown_noise", "regression", linear_unknown_noise, _linear_data),
    Posterior("robust", "regression", robust, _robust_data),
    Posterior("robust_unknown_tails", "regression", robust_unknown_tails, _robust_data),
    Posterior("negative_binomial", "regression", negative_binomial, _negative_binomial_data),
    Posterior("ordinal", "regression", ordinal, _ordinal_data),
    Posterior("softmax", "regression", softmax, _softmax_data),
    Posterior("heteroscedastic", "regression", heteroscedastic, _heteroscedastic_data),
    Posterior("gamma", "regression", gamma_regression, _gamma_data),
    Posterior("beta", "regression", beta_regression, _beta_data),
    Posterior("zero_inflated", "regression", zero_inflated, _zero_inflated_data),
    Posterior("michaelis_menten", "regression", michaelis_menten, _michaelis_menten_data),
    Posterior("lasso", "shrinkage", lasso, _sparse_data),
    Posterior("horseshoe", "shrinkage", horseshoe, _sparse_data),
    Posterior("half_normal_shrinkage", "shrinkage", half_normal_shrinkage, _sparse_data, decentre=("b",)),
]
