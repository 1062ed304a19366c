"""Bayesian logistic, linear, Poisson and generalised linear regression: scikit-learn's interface, a certificate."""

import warnings
from functools import singledispatch
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import validate_data

from provi.core.arguments import double_precision
from provi.models.certified_estimator import AbstractBinaryClassifier, read_two_classes
from provi.models.glm.estimator import AbstractGLM
from provi.models.gp.prediction import log_predictive_densities, response_means
from provi.targets.likelihoods import (
    AbstractLikelihood,
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    NegativeBinomial,
    Poisson,
)
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.regressions import GeneralisedLinearModel
from provi.targets.regressions import LinearRegression as LinearTarget
from provi.targets.regressions import LogisticRegression as LogisticTarget
from provi.targets.regressions import PoissonRegression as PoissonTarget

LIKELIHOODS = {
    "gaussian": GaussianNoise,
    "logit": BernoulliLogit,
    "negative-binomial": NegativeBinomial,
    "poisson": Poisson,
    "probit": BernoulliProbit,
}


class LogisticRegression(AbstractBinaryClassifier, AbstractGLM):
    r"""$P(y = 1) = \sigma(b + x'w)$ under a Gaussian prior: the best Gaussian approximation of the posterior.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.LogisticRegression`.

    **Arguments:**

    - `prior_scale`: the standard deviation of the coefficients w under the prior, one for all or one for each column.
      `prior_covariance`: in its place their variances or covariance matrix. `prior_mean`: a number, or one a column.
    - `fit_intercept`: whether there is a b. Its prior is N(0, `intercept_scale`^2), independent of w.
    - `tol`: the fit ends when the ELBO is proven to be within `tol` nats of the best Gaussian's.
    - `progress`: whether to show a bar. `random_state`: of the fit, where it draws random numbers.

    **Attributes:** `classes_`; `coef_`, (1, columns), and `intercept_`, (1,), the posterior means, and `coef_sd_` and
    `intercept_sd_` the standard deviations; `elbo_`, a lower bound on the log evidence, in nats; `certificate_`, what
    is proven about it; `fit_`, the `provi.Fit` with the posterior; `n_iter_`, steps of the fit;
    `n_features_in_`, `feature_names_in_`.

    The posterior has a full covariance up to 1000 columns, and with fewer than 5000 rows, if there are more columns
    than rows; otherwise a diagonal one. Scale the columns: the prior is the same for all.

    Only two classes: wrap it in `sklearn.multiclass.OneVsRestClassifier` for more. With one class in y it is fitted to
    equal labels, and predicts that class.
    """

    @double_precision
    def fit(self, X: Any, y: Any) -> "LogisticRegression":
        """Fit to the rows of X and their labels y, of any type."""
        values, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        classes, response = read_two_classes(labels, type(self).__name__)
        mean, deviation = self._fit_target(values, response)
        self.classes_ = classes
        self.intercept_, self.coef_ = mean[:1], mean[None, 1:]
        self.intercept_sd_, self.coef_sd_ = deviation[:1], deviation[None, 1:]
        return self

    def _target(self, X: np.ndarray, y: np.ndarray, **prior: Any) -> AbstractLinearModel:
        return LogisticTarget(X, y, **prior)


class AbstractGLMRegressor(RegressorMixin, AbstractGLM):
    """A generalised linear model of numbers: the mean and the spread of y, averaged over the posterior."""

    @double_precision
    def fit(self, X: Any, y: Any) -> "AbstractGLMRegressor":
        """Fit to the rows of X and their responses y."""
        values, response = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=True)
        mean, deviation = self._fit_target(values, np.asarray(response))
        self.intercept_, self.coef_ = mean[0], mean[1:]
        self.intercept_sd_, self.coef_sd_ = deviation[0], deviation[1:]
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y] at each row of X; with `return_std` also the standard deviation of y, its own noise included.

        Both under the predictive distribution: y given the linear predictor, that one averaged over the posterior. The
        deviation is that of scikit-learn's `BayesianRidge`; `GPRegressor` gives that of E[y | f] alone, as
        scikit-learn's Gaussian process does.
        """
        mean, variance = self.predict_latent(X)
        expected = response_means(self.likelihood_, mean, variance)
        if not return_std:
            return expected
        return expected, np.sqrt(response_variances(self.likelihood_, mean, variance))

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """log E p(y | x'z) for each row of X and its response y: the score to compare models by on new data."""
        mean, variance = self.predict_latent(X)
        response = self.likelihood_.read_response(y, len(mean))
        return log_predictive_densities(self.likelihood_, mean, variance, response)


class LinearRegression(AbstractGLMRegressor):
    r"""$y \sim N(b + x'w, \sigma^2)$ with known $\sigma$ under a Gaussian prior: the posterior itself.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.LinearRegression`.

    **Arguments:**

    - `noise_scale`: $\sigma$, in units of y; it is taken as known.
    - `prior_scale`, `prior_covariance`, `prior_mean`, `fit_intercept`, `intercept_scale`, `tol`, `progress`,
      `random_state`: as for `provi.models.LogisticRegression`. The prior is in units of y for a unit of a column.

    **Attributes:** `coef_`, (columns,), and `intercept_`, the posterior means, `coef_sd_` and `intercept_sd_`;
    `elbo_`, here within `tol` of the log evidence; `certificate_`, `fit_`, `n_iter_`, `n_features_in_`,
    `feature_names_in_`.

    The prior mean of the intercept is 0: subtract the mean of y where that is large beside `intercept_scale`. `score`
    is $R^2$. With more than 1000 columns, and more rows than columns, the fitted covariance is diagonal.
    """

    def __init__(
        self,
        noise_scale: Any = 1.0,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: Any = True,
        intercept_scale: Any = 10.0,
        tol: Any = 0.01,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.noise_scale = noise_scale
        super().__init__(
            prior_scale,
            prior_covariance=prior_covariance,
            prior_mean=prior_mean,
            fit_intercept=fit_intercept,
            intercept_scale=intercept_scale,
            tol=tol,
            progress=progress,
            random_state=random_state,
        )

    def _target(self, X: np.ndarray, y: np.ndarray, **prior: Any) -> AbstractLinearModel:
        return LinearTarget(X, y, self.noise_scale, **prior)


class PoissonRegression(AbstractGLMRegressor):
    r"""$y \sim \mathrm{Poisson}(e^{b + x'w})$ under a Gaussian prior: the best Gaussian approximation of the posterior.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.PoissonRegression`.

    **Arguments:** `prior_scale`, `prior_covariance`, `prior_mean`, `fit_intercept`, `intercept_scale`, `tol`,
    `progress`, `random_state`: as for `provi.models.LogisticRegression`. y holds counts 0, 1, 2, ...; scikit-learn's
    `PoissonRegressor` takes any y >= 0, for which there is no likelihood.

    **Attributes:** `coef_`, (columns,), and `intercept_`, the posterior means, `coef_sd_` and `intercept_sd_`;
    `elbo_`, `certificate_`, `fit_`, `n_iter_`, `n_features_in_`, `feature_names_in_`.
    """

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        r"""$D^2$, the share of the Poisson deviance that the predictions explain.

        As of scikit-learn's `PoissonRegressor`: 1 at best; 0 for the mean of y at every row. $R^2$ would judge counts
        by the few largest ones.
        """
        if not np.any(np.asarray(y)):
            warnings.warn("D^2 is not defined where all counts are 0.", UndefinedMetricWarning, stacklevel=2)
            return float("nan")
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def _target(self, X: np.ndarray, y: np.ndarray, **prior: Any) -> AbstractLinearModel:
        return PoissonTarget(X, y, **prior)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class GLM(AbstractGLMRegressor):
    r"""$y \sim p(y \mid \eta = b + x'w)$ under a Gaussian prior, for any log-concave likelihood.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.GeneralisedLinearModel`.

    **Arguments:**

    - `likelihood`: one of `provi.targets.likelihoods`, such as `NegativeBinomial(2.0)` or a `UserLikelihood` that is
      declared log-concave; or a name, for one with its default numbers: `"gaussian"`, `"logit"`, `"probit"`,
      `"poisson"`, `"negative-binomial"`.
    - `prior_scale`, `prior_covariance`, `prior_mean`, `fit_intercept`, `intercept_scale`, `tol`, `progress`,
      `random_state`: as for `provi.models.LogisticRegression`.

    **Attributes:** `coef_`, (columns,), and `intercept_`, the posterior means, `coef_sd_` and `intercept_sd_`;
    `likelihood_`, `elbo_`, `certificate_`, `fit_`, `n_iter_`, `n_features_in_`, `feature_names_in_`.

    It is a regressor whatever the likelihood: for labels 0 and 1 `predict` gives the probability of a 1. `score` is
    $R^2$; `log_predictive_density` compares likelihoods.
    """

    def __init__(
        self,
        likelihood: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: Any = True,
        intercept_scale: Any = 10.0,
        tol: Any = 0.01,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.likelihood = likelihood
        super().__init__(
            prior_scale,
            prior_covariance=prior_covariance,
            prior_mean=prior_mean,
            fit_intercept=fit_intercept,
            intercept_scale=intercept_scale,
            tol=tol,
            progress=progress,
            random_state=random_state,
        )

    def _target(self, X: np.ndarray, y: np.ndarray, **prior: Any) -> AbstractLinearModel:
        likelihood = self.likelihood
        if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
            likelihood = LIKELIHOODS[likelihood]()
        if not isinstance(likelihood, AbstractLikelihood):
            raise ValueError(
                f"likelihood must be one of {', '.join(LIKELIHOODS)} or a likelihood object, not {self.likelihood!r}."
            )
        return GeneralisedLinearModel(X, y, likelihood, **prior)


@singledispatch
def response_variances(likelihood: AbstractLikelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    r"""Var y for $\eta \sim N(\mu, s^2)$: $E\,\mathrm{Var}(y \mid \eta) + \mathrm{Var}\,E(y \mid \eta)$."""
    raise ValueError(
        f"return_std is not known for the {likelihood.name} likelihood: see predict_latent for the variance of the "
        f"linear predictor."
    )


@response_variances.register
def _(likelihood: GaussianNoise, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return variance + np.asarray(likelihood.scale, variance.dtype) ** 2


@response_variances.register
def _(likelihood: Poisson, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    rate = np.exp(mean + variance / 2)
    return rate + rate**2 * np.expm1(variance)


@response_variances.register
def _(likelihood: NegativeBinomial, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    rate, dispersion = np.exp(mean + variance / 2), np.asarray(likelihood.dispersion, variance.dtype)
    return rate + rate**2 * (np.expm1(variance) + np.exp(variance) / dispersion)


@response_variances.register(BernoulliLogit)
@response_variances.register(BernoulliProbit)
def _(likelihood: AbstractLikelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    # P(1) P(0), each by itself: 1 - P(1) would lose the digits of a small one.
    return response_means(likelihood, mean, variance) * response_means(likelihood, -mean, variance)
