"""Bayesian logistic, linear, Poisson and generalised linear regression: scikit-learn's interface, a certificate."""

import warnings
from functools import singledispatch
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import d2_tweedie_score

from provi.core.arguments import check_positive, double_precision
from provi.core.frames import check_frame
from provi.models.certified_estimator import AbstractBinaryClassifier, read_two_classes, validate_data
from provi.models.glm.coefficients import default_numbers
from provi.models.glm.estimator import AbstractGLM
from provi.result.predictors import log_predictive_densities, response_means
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

    - `prior_scale`: the standard deviation of the coefficients w under the prior, one for all, one for each column or
      some by name; None for 2.5 deviations of the linear predictor a deviation of the column, as rstanarm has it
      (`provi.models.weak_priors`). `prior_covariance`: in its place variances or a covariance matrix. `prior_mean`: a
      number, one a column, or some by name.
    - `priors`: single priors by name, `{"age": "normal(0, 0.1)", "intercept": "normal(0, 5)"}`.
    - `fit_intercept`: whether there is a b. At the columns' means it has the prior N(0, 2.5^2); with `intercept_scale`
      b itself has N(0, `intercept_scale`^2), independent of w.
    - `tol`: the fit ends when the ELBO is proven to be within `tol` nats of the best Gaussian's.
    - `progress`: whether to show a bar. `random_state`: of the fit, where it draws random numbers.

    **Attributes:** `classes_`; `coef_`, (1, columns), and `intercept_`, (1,), the posterior means, and `coef_sd_` and
    `intercept_sd_` the standard deviations; `priors_`, in words; `elbo_`, a lower bound on the log evidence, in nats;
    `certificate_`, what is proven about it; `fit_`, the `provi.Fit` with the posterior; `n_iter_`, steps of the fit;
    `n_features_in_`, `feature_names_in_`. `summary(ratios=True)` has odds ratios.

    The posterior has a full covariance up to 1000 columns, and with fewer than 5000 rows, if there are more columns
    than rows; otherwise a diagonal one.

    Only two classes: wrap it in `sklearn.multiclass.OneVsRestClassifier` for more. With one class in y it is fitted to
    equal labels, and predicts that class.
    """

    @double_precision
    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> "LogisticRegression":
        """Fit to the rows of X and their labels y, of any type.

        - `sample_weight`: how often each row counts. - `offset`: added to the linear predictor of each row.
        """
        check_frame("X", X)
        values, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        classes, response = read_two_classes(labels, type(self).__name__)
        mean, deviation = self._fit_target(values, response, sample_weight, offset, None)
        self.classes_ = classes
        self.intercept_, self.coef_ = mean[:1], mean[None, 1:]
        self.intercept_sd_, self.coef_sd_ = deviation[:1], deviation[None, 1:]
        return self

    def _likelihood(self) -> AbstractLikelihood:
        return BernoulliLogit()

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        return LogisticTarget(X, y, **options)


class AbstractGLMRegressor(RegressorMixin, AbstractGLM):
    """A generalised linear model of numbers: the mean and the spread of y, averaged over the posterior."""

    @double_precision
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None, exposure: Any = None
    ) -> "AbstractGLMRegressor":
        """Fit to the rows of X and their responses y.

        - `sample_weight`: how often each row counts. - `offset`: added to the linear predictor of each row.
        - `exposure`: of counts, E_n: their mean is E_n exp(b + x'w).
        """
        check_frame("X", X)
        values, response = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=True)
        mean, deviation = self._fit_target(values, np.asarray(response), sample_weight, offset, exposure)
        self.intercept_, self.coef_ = mean[0], mean[1:]
        self.intercept_sd_, self.coef_sd_ = deviation[0], deviation[1:]
        return self

    def predict(self, X: Any, return_std: bool = False, *, offset: Any = None, exposure: Any = None) -> Any:
        """E[y] at each row of X; with `return_std` also the standard deviation of y, its own noise included.

        Both under the predictive distribution: y given the linear predictor, that one averaged over the posterior. The
        deviation is that of scikit-learn's `BayesianRidge`; `GPRegressor` gives that of E[y | f] alone, as
        scikit-learn's Gaussian process does. `offset`, `exposure`: of these rows; none of those of the fit is kept.
        """
        nodes = self._mixture(X, offset, exposure)
        if nodes is not None:
            predictor, rows, moved = nodes
            if not return_std:
                return predictor.mean_response(rows, moved)
            expected, variances = predictor.response_moments(rows, moved, response_variances)
            return expected, np.sqrt(variances)
        mean, variance = self.predict_latent(X, offset=offset, exposure=exposure)
        expected = response_means(self.likelihood_, mean, variance)
        if not return_std:
            return expected
        return expected, np.sqrt(response_variances(self.likelihood_, mean, variance))

    def log_predictive_density(self, X: Any, y: Any, *, offset: Any = None, exposure: Any = None) -> np.ndarray:
        """log E p(y | x'z) for each row of X and its response y: the score to compare models by on new data."""
        nodes = self._mixture(X, offset, exposure)
        if nodes is not None:
            predictor, rows, moved = nodes
            response = np.asarray(self.likelihood_.read_response(y, len(rows)), np.float64)
            return predictor.log_predictive_density(rows, moved, response)
        mean, variance = self.predict_latent(X, offset=offset, exposure=exposure)
        response = self.likelihood_.read_response(y, len(mean))
        return log_predictive_densities(self.likelihood_, mean, variance, response)


class LinearRegression(AbstractGLMRegressor):
    r"""$y \sim N(b + x'w, \sigma^2)$ under a Gaussian prior: the posterior itself.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.LinearRegression`.

    **Arguments:**

    - `noise_scale`: $\sigma$, in units of y; None to estimate it, under a half-normal prior of 2.5 deviations of y, by
      numerical integration (`provi.targets.LatentGaussian`): `numbers_["sigma"]` is then its posterior.
    - `prior_scale`, `prior_covariance`, `prior_mean`, `priors`, `fit_intercept`, `intercept_scale`, `tol`, `progress`,
      `random_state`: as for `provi.models.LogisticRegression`. The prior is in units of y for a unit of a column; the
      default has the deviation of y for a unit of the linear predictor, and the mean of y for the intercept at the
      columns' means.

    **Attributes:** `coef_`, (columns,), and `intercept_`, the posterior means, `coef_sd_` and `intercept_sd_`;
    `elbo_`, here within `tol` of the log evidence; `certificate_`, `fit_`, `n_iter_`, `n_features_in_`,
    `feature_names_in_`.

    With `intercept_scale` the prior mean of the intercept is 0. `score` is $R^2$. With more than 1000 columns, and more
    rows than columns, the fitted covariance is diagonal.
    """

    def __init__(
        self,
        noise_scale: Any = 1.0,
        prior_scale: Any = None,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: Any = True,
        intercept_scale: Any = None,
        priors: Any = None,
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
            priors=priors,
            tol=tol,
            progress=progress,
            random_state=random_state,
        )

    def _likelihood(self) -> AbstractLikelihood:
        return GaussianNoise(1.0 if self.noise_scale is None else check_positive("noise_scale", self.noise_scale))

    def _unknown(self, likelihood: AbstractLikelihood, unit: float) -> dict[str, Any]:
        return default_numbers(likelihood, unit) if self.noise_scale is None else {}

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        return LinearTarget(X, y, self.noise_scale, **options)


class PoissonRegression(AbstractGLMRegressor):
    r"""$y \sim \mathrm{Poisson}(e^{b + x'w})$ under a Gaussian prior: the best Gaussian approximation of the posterior.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.PoissonRegression`.

    **Arguments:** `prior_scale`, `prior_covariance`, `prior_mean`, `priors`, `fit_intercept`,
    `intercept_scale`, `tol`, `progress`, `random_state`: as for `provi.models.LogisticRegression`; the default prior of
    the intercept lies around the logarithm of the mean rate. y holds counts 0, 1, 2, ...; scikit-learn's
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

    def _likelihood(self) -> AbstractLikelihood:
        return Poisson()

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        return PoissonTarget(X, y, **options)

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
    - `shape`: "estimate" to integrate the likelihood's own number, the dispersion of counts or the noise scale, under
      its default prior; or such a prior, "gamma(2, 0.1)". None takes it as known.
    - `prior_scale`, `prior_covariance`, `prior_mean`, `priors`, `fit_intercept`, `intercept_scale`, `tol`, `progress`,
      `random_state`: as for `provi.models.LogisticRegression`.

    **Attributes:** `coef_`, (columns,), and `intercept_`, the posterior means, `coef_sd_` and `intercept_sd_`;
    `likelihood_`, `elbo_`, `certificate_`, `fit_`, `n_iter_`, `n_features_in_`, `feature_names_in_`.

    It is a regressor whatever the likelihood: for labels 0 and 1 `predict` gives the probability of a 1. `score` is
    $R^2$; `log_predictive_density` compares likelihoods.
    """

    def __init__(
        self,
        likelihood: Any,
        prior_scale: Any = None,
        *,
        shape: Any = None,
        prior_covariance: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: Any = True,
        intercept_scale: Any = None,
        priors: Any = None,
        tol: Any = 0.01,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.likelihood = likelihood
        self.shape = shape
        super().__init__(
            prior_scale,
            prior_covariance=prior_covariance,
            prior_mean=prior_mean,
            fit_intercept=fit_intercept,
            intercept_scale=intercept_scale,
            priors=priors,
            tol=tol,
            progress=progress,
            random_state=random_state,
        )

    def _likelihood(self) -> AbstractLikelihood:
        likelihood = self.likelihood
        if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
            likelihood = LIKELIHOODS[likelihood]()
        if not isinstance(likelihood, AbstractLikelihood):
            raise ValueError(
                f"likelihood must be one of {', '.join(LIKELIHOODS)} or a likelihood object, not {self.likelihood!r}."
            )
        return likelihood

    def _unknown(self, likelihood: AbstractLikelihood, unit: float) -> dict[str, Any]:
        if self.shape is None:
            return {}
        usual = default_numbers(likelihood, unit)
        if not usual:
            raise ValueError(f"shape cannot be estimated: the {likelihood.name} likelihood has no number to estimate.")
        if self.shape == "estimate":
            return usual
        return dict.fromkeys(usual, self.shape)

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        return GeneralisedLinearModel(X, y, self._likelihood(), **options)


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
