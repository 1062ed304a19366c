"""Regressions of grades, of times until an event, of several classes, and with outliers: scikit-learn's interface."""

from typing import Any

import numpy as np
from scipy import stats
from scipy.special import logsumexp, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from provi.core.arguments import as_array, check_length, double_precision
from provi.core.frames import check_frame
from provi.models.certified_estimator import validate_data
from provi.models.glm.coefficients import (
    RegressionSummary,
    default_numbers,
    gaussian_summary,
    log_normal_numbers,
    one_node,
    prior_notes,
    student_t_target,
)
from provi.models.glm.estimator import AbstractGLM, read_sample_weight
from provi.result.predictors import log_predictive_densities, response_means
from provi.runtime.record import Outcome
from provi.targets import GeneralisedLinearModel, MultinomialLogistic, latent
from provi.targets.data import read_real
from provi.targets.likelihoods import (
    AbstractLikelihood,
    BernoulliLogit,
    LogNormalSurvival,
    OrdinalLogit,
    StudentT,
    Weibull,
)
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.student_t_regression import NUMBERS

DISTRIBUTIONS = ("weibull", "exponential", "log-normal")
_DRAWS, _SEED, _NUMBERS_AT_ONCE = 4000, 0, 2**24


class OrdinalRegression(ClassifierMixin, AbstractGLM):
    r"""$P(y \le k) = \sigma(c_k - x'w)$: grades in an order, with proportional odds and unknown cut points.

    An estimator: `fit(X, y)`, `predict(X)`. The cut points are integrated numerically (`provi.targets.LatentGaussian`),
    under the priors N(0, 3) of the first, at the columns' means, and LogNormal(0, 1) of the distances.

    **Arguments:** `prior_scale`, `prior_mean`, `priors`, `tol`, `progress`, `random_state`: as for
    `provi.models.LogisticRegression`.

    **Attributes:** `classes_`, in ascending order; `coef_`, (columns,), and `coef_sd_`; `cutpoints_`, the posterior
    means at x = 0; `numbers_`, the posteriors of the cut points at the columns' means; `priors_`, `elbo_`,
    `certificate_`, `fit_`, `n_features_in_`, `feature_names_in_`. `summary(ratios=True)` has odds ratios.
    """

    fit_intercept, intercept_scale, prior_covariance = False, None, None
    _centred = True

    def __init__(
        self,
        prior_scale: Any = None,
        *,
        prior_mean: Any = 0.0,
        priors: Any = None,
        tol: Any = 0.01,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.prior_scale = prior_scale
        self.prior_mean = prior_mean
        self.priors = priors
        self.tol = tol
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> "OrdinalRegression":
        """Fit to the rows of X and their grades y: numbers, or texts in the order of the alphabet."""
        values, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(labels)
        self.classes_, grades = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has one class only: grades of two at least are needed.")
        mean, deviation = self._fit_target(values, grades.astype(float), sample_weight, offset, None)
        self.coef_, self.coef_sd_ = mean[1:], deviation[1:]
        found = np.array([marginal.mean for marginal in self.numbers_.values()])
        predictor: Any = self._predictor
        self.cutpoints_ = found + predictor.shift @ self.coef_
        return self

    def _likelihood(self) -> AbstractLikelihood:
        count = len(self.classes_) - 1
        return OrdinalLogit(np.linspace(-1.5, 1.5, count) if count > 1 else np.zeros(1))

    def _unknown(self, likelihood: AbstractLikelihood, unit: float) -> dict[str, Any]:
        gaps = (latent.LogNormal(0.0, 1.0),) * (len(self.classes_) - 2)
        return {"cutpoints": (latent.Normal(0.0, 3.0), *gaps)}

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        raise NotImplementedError  # cut points are always unknown

    def predict_proba(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """The predictive probabilities, a column for each of `classes_`: averages over the posterior."""
        nodes = self._mixture(X, offset, None)
        assert nodes is not None
        predictor, rows, moved = nodes
        means, variances = predictor.by_node(rows)
        below = np.zeros((len(rows), len(self.classes_) - 1))
        for weight, node, mean, variance in zip(
            predictor.weights, predictor.likelihoods, means, variances, strict=True
        ):
            for k, cut in enumerate(np.asarray(node.cutpoints)):  # pyright: ignore[reportAttributeAccessIssue]
                below[:, k] += weight * response_means(BernoulliLogit(), cut - mean - moved, variance)
        ends = np.zeros((len(rows), 1)), np.ones((len(rows), 1))
        return np.maximum(np.diff(np.concatenate([ends[0], below, ends[1]], axis=1), axis=1), 0.0)

    def predict(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """The most probable grade."""
        return self.classes_[np.argmax(self.predict_proba(X, offset=offset), axis=1)]


class SurvivalRegression(AbstractGLM):
    r"""Times until an event, some of them cut short: proportional hazards or accelerated failure times.

    "weibull": the hazard $kt^{k-1}e^{b + x'w}$ with an unknown shape k; "exponential": k = 1; "log-normal": $\log T$ of
    the law $N(b + x'w, \sigma^2)$ with an unknown $\sigma$. An estimator: `fit(X, time, event)`, `predict(X)`.

    **Arguments:**

    - `distribution`: one of these three.
    - `prior_scale`, `prior_covariance`, `prior_mean`, `priors`, `fit_intercept`, `intercept_scale`, `tol`, `progress`,
      `random_state`: as for `provi.models.LogisticRegression`.

    **Attributes:** `coef_`, (columns,), and `intercept_`, `coef_sd_`, `intercept_sd_`; `numbers_`, the posterior of
    the shape or of sigma; `priors_`, `elbo_`, `certificate_`, `fit_`, `n_features_in_`, `feature_names_in_`.
    `summary(ratios=True)` has hazard ratios, or ratios of times.
    """

    def __init__(
        self,
        distribution: Any = "weibull",
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
        self.distribution = distribution
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

    @double_precision
    def fit(
        self, X: Any, y: Any, event: Any = None, sample_weight: Any = None, *, offset: Any = None
    ) -> "SurvivalRegression":
        """Fit to the rows of X and their times y.

        - `event`: whether the event was seen at the time, or the row was censored there; None for all seen.
        """
        values, times = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=True)
        times = np.asarray(times, np.float64)
        if not (times > 0).all():
            raise ValueError(f"y must hold positive times; its smallest entry is {times.min():g}.")
        seen = np.ones(len(times), bool) if event is None else _read_events(event, len(times))
        if not seen.any():
            raise ValueError("Every time is censored: no event was seen.")
        mean, deviation = self._fit_target(values, np.where(seen, times, -times), sample_weight, offset, None)
        self.intercept_, self.coef_ = mean[0], mean[1:]
        self.intercept_sd_, self.coef_sd_ = deviation[0], deviation[1:]
        return self

    def _likelihood(self) -> AbstractLikelihood:
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(f"distribution must be one of {', '.join(DISTRIBUTIONS)}, not {self.distribution!r}.")
        return LogNormalSurvival(1.0) if self.distribution == "log-normal" else Weibull(1.0)

    def _unknown(self, likelihood: AbstractLikelihood, unit: float) -> dict[str, Any]:
        if self.distribution == "exponential":
            return {}
        return default_numbers(likelihood, unit)

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        return GeneralisedLinearModel(X, y, self._likelihood(), **options)

    def predict(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """The mean time until the event at each row of X."""
        nodes = self._mixture(X, offset, None)
        if nodes is not None:
            return nodes[0].mean_response(nodes[1], nodes[2])
        return response_means(self.likelihood_, *self.predict_latent(X, offset=offset))

    def predict_survival(self, X: Any, times: Any, *, offset: Any = None) -> np.ndarray:
        """P(T > t), (rows of X, times): averages over the posterior."""
        grid = as_array("times", times, ndim=1).astype(np.float64)
        if not (grid > 0).all():
            raise ValueError(f"times must be positive; the smallest is {grid.min():g}.")
        nodes = self._mixture(X, offset, None)
        found = []
        for time in grid:
            if nodes is not None:
                predictor, rows, moved = nodes
                found.append(predictor.log_predictive_density(rows, moved, np.full(len(rows), -time)))
            else:
                mean, variance = self.predict_latent(X, offset=offset)
                found.append(log_predictive_densities(self.likelihood_, mean, variance, np.full(len(mean), -time)))
        return np.exp(np.stack(found, axis=1))


def _read_events(event: Any, length: int) -> np.ndarray:
    seen = as_array("event", event, ndim=1)
    check_length("event", seen, length, "one for each row of X")
    if not np.isin(seen, (0, 1)).all():
        raise ValueError("event must hold 1 (or True) where the event was seen, 0 where the time is censored.")
    return seen.astype(bool)


def _certified(found: Any, tol: float) -> bool:
    """Whether the gap is within `tol`, proven or at least statistically."""
    statistical = found.certificate.statistical_gap
    reached = found.outcome in (Outcome.TOLERANCE, Outcome.CONDITIONAL)
    return reached or (statistical is not None and statistical <= tol)


class MultinomialRegression(ClassifierMixin, AbstractGLM):
    r"""$P(y = k) \propto e^{b_k + x'w_k}$, zero for the first class: several classes without an order.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.MultinomialLogistic`:
    log-concave, but a row sees several numbers, so that its certificate comes from draws.

    **Arguments:** `prior_scale`, `prior_covariance`, `prior_mean`, `priors`, `fit_intercept`, `intercept_scale`, `tol`,
    `progress`, `random_state`: as for `provi.models.LogisticRegression`; each class but the first has that prior.

    **Attributes:** `classes_`, the first is the reference; `coef_`, (classes - 1, columns), `intercept_`, (classes -
    1,), and `coef_sd_`, `intercept_sd_`; `priors_`, `elbo_`, `certificate_`, `fit_`, `n_iter_`, `n_features_in_`,
    `feature_names_in_`.
    """

    @double_precision
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MultinomialRegression":
        """Fit to the rows of X and their labels y, of any type."""
        checked: Any = validate_data(self, X, y, dtype=[np.float64, np.float32])
        values, labels = checked
        check_classification_targets(labels)
        self.classes_, response = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has one class only: labels of two at least are needed.")
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else tuple(map(str, names))
        weights = read_sample_weight(sample_weight, values)
        likelihood = self._likelihood()
        priors, _ = self._weak_priors(values, response, likelihood, names, None, weights)
        self.names_, self.priors_ = priors.names, priors.words
        target = MultinomialLogistic(
            values,
            response,
            **priors.arguments(),
            intercept=bool(self.fit_intercept),
            names=names,
            classes=tuple(map(str, self.classes_)),
            weights=weights,
        )
        found = self._fit_by_draws(target, likelihood, lambda found: _certified(found, self.tol))
        mean, deviation = (target.coefficients(x) for x in (found.posterior.mean, found.posterior.standard_deviation))
        self._draws = target.coefficients(np.asarray(found.posterior.sample(_DRAWS, _SEED), np.float64))
        zero = np.zeros(len(mean))
        first = 1 if self.fit_intercept else 0
        self.intercept_, self.intercept_sd_ = (mean[:, 0], deviation[:, 0]) if first else (zero, zero)
        self.coef_, self.coef_sd_ = mean[:, first:], deviation[:, first:]
        return self

    def _likelihood(self) -> AbstractLikelihood:
        return BernoulliLogit()  # of each class against the first: its kind for the priors and for the ratios

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        raise NotImplementedError  # no linear model of one number a row

    def predict_latent(self, X: Any, **_: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictors, (rows, classes - 1), from draws of the posterior."""
        eta = np.concatenate(list(self._predictors(X)), axis=1)
        return eta.mean(axis=0), eta.var(axis=0)

    def _predictors(self, X: Any) -> Any:
        """(draws, rows, classes - 1), some rows at a time."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        if self.fit_intercept:
            rows = np.concatenate([np.ones((len(rows), 1)), rows], axis=1)
        size = max(1, _NUMBERS_AT_ONCE // (self._draws.shape[0] * self._draws.shape[1]))
        for start in range(0, len(rows), size):
            yield np.einsum("skd,nd->snk", self._draws, rows[start : start + size])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The predictive probabilities, a column for each of `classes_`: averages over 4000 draws of the posterior."""
        parts = []
        for eta in self._predictors(X):
            full = np.concatenate([np.zeros((*eta.shape[:2], 1)), eta], axis=2)
            parts.append(softmax(full, axis=2).mean(axis=0))
        return np.concatenate(parts)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

    def summary(self, probability: float = 0.94, *, ratios: bool = False) -> RegressionSummary:
        """A table of the coefficients of each class but the first, with the priors under it; `ratios`: odds ratios."""
        check_is_fitted(self)
        names = (("intercept",) if self.fit_intercept else ()) + tuple(self.names_)
        labels = tuple(f"{label}: {name}" for label in map(str, self.classes_[1:]) for name in names)
        moments = self.fit_.posterior.mean, self.fit_.posterior.standard_deviation
        found = gaussian_summary(labels, *moments, probability, self.likelihood_, ratios)
        chosen = tuple(name for name in labels if not name.endswith(": intercept"))
        return RegressionSummary(**{**vars(found), "ratio_names": chosen, "notes": prior_notes(self.priors_)})


class StudentTRegression(RegressorMixin, AbstractGLM):
    r"""$y = b + x'w + \sigma e$, $e \sim t_\nu$, with unknown $\sigma$ and $\nu$: outliers do not carry it away.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.StudentTRegression`, by a
    Gaussian over $(b, w, \log\sigma, \log\nu)$. It is not log-concave: there is no certificate, and the fit ends where
    the Gaussian stops moving. `fit_.diagnose()` estimates how far that is from the posterior.

    **Arguments:** `prior_scale`, `prior_covariance`, `prior_mean`, `priors`, `fit_intercept`, `intercept_scale`, `tol`,
    `progress`, `random_state`: as for `provi.models.LinearRegression`. In `priors` are also "sigma", half-normal with
    2.5 deviations of y by default, and "nu", Gamma(2, 0.1) by default (Juarez and Steel 2010).

    **Attributes:** `coef_`, (columns,), and `intercept_`, `coef_sd_`, `intercept_sd_`; `numbers_`, the posteriors of
    sigma and nu; `priors_`, `elbo_`, `certificate_`, of the status "none", `fit_`, `n_iter_`, `n_features_in_`,
    `feature_names_in_`. `score` is $R^2$, which outliers do carry away: `log_predictive_density` compares models.
    """

    _numbers = NUMBERS

    @double_precision
    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> "StudentTRegression":
        """Fit to the rows of X and their responses y.

        - `sample_weight`: how often each row counts. - `offset`: added to the linear predictor of each row.
        """
        check_frame("X", X)
        checked: Any = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=True)
        values, response = checked
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else tuple(map(str, names))
        likelihood, weights = self._likelihood(), read_sample_weight(sample_weight, values)
        shift = self._offset(likelihood, offset, None, len(values))
        priors, unit = self._weak_priors(values, np.asarray(response), likelihood, names, shift, weights)
        target, words = student_t_target(
            values, response, priors, unit, self.priors or {}, offset=shift, weights=weights, names=names
        )
        self.names_, self.priors_ = priors.names, {**priors.words, **words}
        found = self._fit_by_draws(target, likelihood, lambda found: found.outcome is Outcome.STATIONARY)
        self._predictor = one_node(found.posterior, target.design.shape[1], likelihood, bool(self.fit_intercept))
        self.numbers_ = log_normal_numbers(found.posterior, NUMBERS)
        self.likelihood_ = StudentT(self.numbers_["nu"].mean, self.numbers_["sigma"].mean)
        self._draws = np.asarray(found.posterior.sample(_DRAWS, _SEED), np.float64)
        mean, deviation = self._predictor.coefficients()
        self.intercept_, self.coef_ = mean[0], mean[1:]
        self.intercept_sd_, self.coef_sd_ = deviation[0], deviation[1:]
        return self

    def _likelihood(self) -> AbstractLikelihood:
        return StudentT()  # its kind, for the priors

    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        raise NotImplementedError  # no linear model: sigma and nu are unknown

    def predict(self, X: Any, return_std: bool = False, *, offset: Any = None) -> np.ndarray:
        """The posterior mean of $b + x'w$ at each row: of the mean of y where nu > 1, and of its median always."""
        if return_std:
            raise ValueError(
                "return_std: y has no variance where nu <= 2, which no posterior excludes. fit_.predict(X, "
                "kind='response') has intervals of y, predict_latent(X) the variance of the predictor."
            )
        return self.predict_latent(X, offset=offset)[0]

    def log_predictive_density(self, X: Any, y: Any, *, offset: Any = None) -> np.ndarray:
        """log E p(y | x) for each row of X and its response y, over 4000 draws of the posterior."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        response, shift = read_real(y, len(rows)), self._offset(self.likelihood_, offset, None, len(rows))
        response = response if shift is None else response - shift
        rows = np.concatenate([np.ones((len(rows), 1)), rows], axis=1) if self.fit_intercept else rows
        log_sigma, nu = self._draws[:, -2:-1], np.exp(self._draws[:, -1:])
        found, size = [], max(1, _NUMBERS_AT_ONCE // _DRAWS)
        for start in range(0, len(rows), size):
            eta = self._draws[:, :-2] @ rows[start : start + size].T
            logs = stats.t.logpdf((response[start : start + size] - eta) / np.exp(log_sigma), nu) - log_sigma
            found.append(logsumexp(logs, axis=0) - np.log(_DRAWS))
        return np.concatenate(found)
