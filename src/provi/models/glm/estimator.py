r"""What the estimators of generalised linear models share: the prior, the fit, and the linear predictor at new rows.

With the intercept b and the coefficients w, $\eta(x) = b + x'w$. Under $q(b, w) = N(m, V)$ it is Gaussian, with the
mean $\tilde x'm$ and the variance $\tilde x'V\tilde x$, $\tilde x = (1, x)$. With more columns than rows q is known by
its sites s, $V = (\Sigma_0^{-1} + X'SX)^{-1} = \Sigma_0 - T'T$ with $T = L^{-1}S^{1/2}X\Sigma_0$ and
$LL' = I + S^{1/2}X\Sigma_0X'S^{1/2}$: no matrix has the size of V.
"""

import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from provi.core.arguments import as_array, check_positive
from provi.fit import fit
from provi.models.certified_estimator import AbstractCertifiedEstimator, validate_data
from provi.models.glm.coefficients import NestedPredictor, nested_problem, summarise_regression
from provi.models.weak_priors import WeakPriors, response_location, weak_priors
from provi.result.predictors import linear_predictor
from provi.runtime.record import Outcome
from provi.targets.data import default_names
from provi.targets.likelihoods import (
    AbstractLikelihood,
    GaussianNoise,
    LogNormalSurvival,
    NegativeBinomial,
    Poisson,
    StudentT,
    Weibull,
)
from provi.targets.likelihoods.rows import log_exposure, read_row_table, read_weights
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import gaussian_prior
from provi.targets.regressions import by_name


class AbstractGLM(AbstractCertifiedEstimator):
    """A linear model under a Gaussian prior with the scikit-learn interface; subclasses say which one."""

    n_features_in_: int
    _centred: bool = False
    """Whether columns lose their means although there is no intercept: beside cut points."""
    _numbers: tuple[str, ...] = ()
    """Names in `priors` that are numbers of the likelihood and no coefficients."""

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
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
        self.prior_scale = prior_scale
        self.prior_covariance = prior_covariance
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.intercept_scale = intercept_scale
        self.priors = priors
        self.tol = tol
        self.progress = progress
        self.random_state = random_state

    @abstractmethod
    def _likelihood(self) -> AbstractLikelihood:
        """The likelihood; a `ValueError` names what is wrong with it."""

    def _unknown(self, likelihood: AbstractLikelihood, unit: float) -> dict[str, Any]:
        """Priors of numbers of the likelihood that are estimated, by field; `unit` is that of the responses."""
        del likelihood, unit
        return {}

    @abstractmethod
    def _target(self, X: np.ndarray, y: np.ndarray, **options: Any) -> AbstractLinearModel:
        """The target of checked data; `options` are arguments that all linear models have."""

    def predict_latent(self, X: Any, *, offset: Any = None, exposure: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor, intercept, inner product and `offset`, at each row of X."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        mean, variance = self._predictor.moments(rows)
        moved = self._offset(self.likelihood_, offset, exposure, len(mean))
        return mean if moved is None else mean + moved.astype(mean.dtype), variance

    def _mixture(self, X: Any, offset: Any, exposure: Any) -> tuple[NestedPredictor, np.ndarray, Any] | None:
        """The predictor over nodes of the likelihood's numbers, checked rows and their offset; None without such."""
        check_is_fitted(self)
        if not isinstance(self._predictor, NestedPredictor):
            return None
        rows: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        moved = self._offset(self.likelihood_, offset, exposure, len(rows))
        return self._predictor, rows, 0.0 if moved is None else moved

    def _offset(self, likelihood: AbstractLikelihood, offset: Any, exposure: Any, length: int) -> np.ndarray | None:
        if exposure is not None:
            return log_exposure(likelihood, exposure, offset, length)
        return None if offset is None else read_row_table("offset", offset, length)

    def _fit_target(self, X: Any, y: np.ndarray, sample_weight: Any, offset: Any, exposure: Any) -> tuple[Any, Any]:
        """Fit to checked data; sets all that is learned but `coef_` and `intercept_`: returns m, and its deviations.

        Both have the intercept first, zero where there is none.
        """
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else tuple(map(str, names))
        likelihood = self._likelihood()
        offset = self._offset(likelihood, offset, exposure, len(X))
        weights = read_sample_weight(sample_weight, X)
        priors, unit = self._weak_priors(X, y, likelihood, names, offset, weights)
        self.names_, self.priors_ = priors.names, priors.words
        rows = {"offset": offset, "weights": weights}
        unknown = self._unknown(likelihood, unit)
        if unknown:
            nested = nested_problem(X, y, likelihood, unknown, priors, centred=self._centred, **rows)
            self.priors_ = {**self.priors_, **nested.words}
            target: Any = nested.target
        else:
            nested, given = None, {**priors.arguments(), "intercept": bool(self.fit_intercept)}
            target = self._target(X, y, names=names, **given, **rows)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        found = fit(target, tol=self.tol, seed=seed, progress=bool(self.progress))
        remedy = "scale the columns of X, and y if it is real, or take a smaller prior_scale"
        self._store_fit(found, target.likelihood.plain, remedy)
        if found.outcome not in (Outcome.TOLERANCE, Outcome.CONDITIONAL):
            warnings.warn(
                f"The fit did not reach tol={self.tol} nats ({found.message}); certificate_ says what is proven.",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.n_iter_ = found.num_steps
        if nested is not None:
            self._predictor, self.numbers_ = nested.predictor(found.posterior), nested.numbers(found.posterior)
            return self._predictor.coefficients()
        self._predictor = linear_predictor(found.posterior, bool(self.fit_intercept))
        moments = found.posterior.mean, found.posterior.standard_deviation
        if self.fit_intercept:
            return moments
        first, second = (np.concatenate([np.zeros(1, moment.dtype), moment]) for moment in moments)
        return first, second

    def _fit_by_draws(self, target: Any, likelihood: AbstractLikelihood, enough: Callable[[Any], bool]) -> Any:
        """The fit of a density that is no linear model; where it is not `enough`, a warning."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        found = fit(target, tol=self.tol, seed=seed, progress=bool(self.progress))
        remedy = "scale the columns of X, or take a smaller prior_scale; of responses with noise, most must have some"
        self._store_fit(found, likelihood, remedy)
        if not enough(found):
            warnings.warn(
                f"The fit did not reach tol={self.tol} nats ({found.message}); certificate_ says what is proven.",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.n_iter_ = found.num_steps
        return found

    def _weak_priors(
        self, X: np.ndarray, y: np.ndarray, likelihood: AbstractLikelihood, names: Any, offset: Any, weights: Any
    ) -> tuple[WeakPriors, float]:
        """The prior of the intercept and of the coefficients, and the responses' unit; a wrong prior is named."""
        columns, intercept = X.shape[1], bool(self.fit_intercept)
        names = default_names("coefficient", columns) if names is None else names
        kind = response_kind(likelihood)
        about_zero = kind == "gaussian" and not intercept
        shift = 0.0 if offset is None else offset
        location = response_location(kind, np.asarray(y, np.float64), shift, weights, intercept=intercept)
        given = {name: prior for name, prior in dict(self.priors or {}).items() if name not in self._numbers}
        if isinstance(self.prior_scale, Mapping):
            given = {**self.prior_scale, **given}
        found = weak_priors(
            X, names, location, intercept=intercept, about_zero=about_zero, weights=weights, given=given
        )
        mean, factor = found.mean + self._prior_mean(columns, names), found.factor
        if self.prior_covariance is not None or not (self.prior_scale is None or isinstance(self.prior_scale, Mapping)):
            if given:
                raise ValueError("priors by name go with the default prior_scale; pass one scale a column instead.")
            factor = self._factor(columns)
        found = dataclasses.replace(found, mean=mean, factor=factor)
        if intercept and self.intercept_scale is not None:
            own = 0.0, check_positive("intercept_scale", self.intercept_scale)
            found = dataclasses.replace(found, intercept=own, at_zero=True)
        return found, location[1]

    def _prior_mean(self, columns: int, names: Any) -> np.ndarray:
        mean = as_array("prior_mean", by_name("prior_mean", self.prior_mean, names, 0.0))
        if mean.shape not in ((), (columns,)):
            raise ValueError(f"prior_mean must be a number or have shape ({columns},); its shape is {mean.shape}.")
        return np.broadcast_to(mean, (columns,))

    def _factor(self, columns: int) -> np.ndarray:
        """The deviations of the coefficients, or a factor of their covariance, as the user gives them."""
        if np.ndim(self.prior_scale) > 0 and np.shape(self.prior_scale) != (columns,):
            raise ValueError(
                f"prior_scale must be a number or have shape ({columns},), one standard deviation a column of X; its "
                f"shape is {np.shape(self.prior_scale)}. That of the intercept is intercept_scale; pass a matrix as "
                f"prior_covariance."
            )
        scale = 1.0 if self.prior_scale is None else self.prior_scale
        factor = np.asarray(gaussian_prior(columns, scale, self.prior_covariance, 0.0, np.float64).factor)
        return np.broadcast_to(factor, (columns,)) if factor.ndim < 2 else factor

    def summary(self, probability: float = 0.94, *, ratios: bool = False) -> Any:
        """A table of the intercept, the coefficients and estimated numbers, with the priors under it.

        **Arguments:**

        - `ratios`: also exp(coefficient) with its interval: odds ratios of a logit link, rate ratios of a log link.
        """
        check_is_fitted(self)
        return summarise_regression(self, probability, ratios)


def read_sample_weight(sample_weight: Any, X: Any) -> np.ndarray | None:
    """How often each row counts, checked; None for once."""
    if sample_weight is None:
        return None
    return read_weights(_check_sample_weight(sample_weight, X, dtype=np.float64), len(X))


def response_kind(likelihood: AbstractLikelihood) -> str:
    """What `response_location` calls the responses."""
    match likelihood:
        case GaussianNoise() | StudentT():
            return "gaussian"
        case Poisson() | NegativeBinomial():
            return "counts"
        case Weibull():
            return "hazard"
        case LogNormalSurvival():
            return "log time"
    return "other"
