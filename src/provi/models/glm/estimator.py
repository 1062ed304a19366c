r"""What the estimators of generalised linear models share: the prior, the fit, and the linear predictor at new rows.

With the intercept b and the coefficients w, $\eta(x) = b + x'w$. Under $q(b, w) = N(m, V)$ it is Gaussian, with the
mean $\tilde x'm$ and the variance $\tilde x'V\tilde x$, $\tilde x = (1, x)$. With more columns than rows q is known by
its sites s, $V = (\Sigma_0^{-1} + X'SX)^{-1} = \Sigma_0 - T'T$ with $T = L^{-1}S^{1/2}X\Sigma_0$ and
$LL' = I + S^{1/2}X\Sigma_0X'S^{1/2}$: no matrix has the size of V.
"""

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import block_diag, solve_triangular
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from provi.core.arguments import check_positive
from provi.families.dual_gaussian import DualGaussian
from provi.families.scales import Diagonal
from provi.fit import fit
from provi.models.certified_estimator import AbstractCertifiedEstimator
from provi.result import Posterior
from provi.runtime.record import Outcome
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import gaussian_prior

_NUMBERS_AT_ONCE = 2**22
"""Entries of a product of new rows with a matrix of the posterior: 32 MiB in float64."""


@dataclass(frozen=True)
class LinearPredictor:
    r"""The distribution of $\eta = \tilde x'z$, z ~ N(m, V), in NumPy.

    - `root`: R with RR' = V, or its diagonal; with `explained`, T' of the formulae above, RR' is that of the prior.
    """

    mean: np.ndarray
    root: np.ndarray
    explained: np.ndarray | None
    intercept: bool

    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance at each row of X, in blocks of bounded memory."""
        width = max(len(self.mean), 1 if self.explained is None else self.explained.shape[1])
        size = max(1, _NUMBERS_AT_ONCE // width)
        parts = [self._block(X[start : start + size]) for start in range(0, len(X), size)]
        return np.concatenate([mean for mean, _ in parts]), np.concatenate([variance for _, variance in parts])

    def _block(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = X.astype(self.mean.dtype, copy=False)
        if self.intercept:
            rows = np.concatenate([np.ones((len(rows), 1), rows.dtype), rows], axis=1)
        spread = rows * self.root[None, :] if self.root.ndim == 1 else rows @ self.root
        variance = np.sum(spread**2, axis=1)
        if self.explained is not None:
            variance = np.maximum(variance - np.sum((rows @ self.explained) ** 2, axis=1), 0)
        return rows @ self.mean, variance


class AbstractGLM(AbstractCertifiedEstimator):
    """A linear model under a Gaussian prior with the scikit-learn interface; subclasses say which one."""

    n_features_in_: int

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
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
        self.prior_scale = prior_scale
        self.prior_covariance = prior_covariance
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.intercept_scale = intercept_scale
        self.tol = tol
        self.progress = progress
        self.random_state = random_state

    @abstractmethod
    def _target(self, X: np.ndarray, y: np.ndarray, **prior: Any) -> AbstractLinearModel:
        """The target of checked data; `prior` are arguments that all linear models have."""

    def predict_latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor, intercept and inner product, at each row of X."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return self._predictor.moments(rows)

    def _fit_target(self, X: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fit to checked data; sets all that is learned but `coef_` and `intercept_`: returns m, and its deviations.

        Both have the intercept first, zero where there is none.
        """
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else tuple(map(str, names))
        target = self._target(X, y, names=names, **self._prior(X.shape[1]))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        found = fit(target, tol=self.tol, seed=seed, progress=bool(self.progress))
        remedy = "scale the columns of X, and y if it is real, or take a smaller prior_scale"
        self._store_fit(found, target.likelihood, remedy)
        if found.outcome not in (Outcome.TOLERANCE, Outcome.CONDITIONAL):
            warnings.warn(
                f"The fit did not reach tol={self.tol} nats ({found.message}); certificate_ says what is proven.",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.n_iter_ = found.num_steps
        self._predictor = _linear_predictor(found.posterior, target, bool(self.fit_intercept))
        moments = found.posterior.mean, found.posterior.standard_deviation
        if self.fit_intercept:
            return moments
        first, second = (np.concatenate([np.zeros(1, moment.dtype), moment]) for moment in moments)
        return first, second

    def _prior(self, columns: int) -> dict[str, Any]:
        """The prior of the intercept and of the coefficients as arguments of a target; a wrong one is named."""
        if np.ndim(self.prior_scale) > 0 and np.shape(self.prior_scale) != (columns,):
            raise ValueError(
                f"prior_scale must be a number or have shape ({columns},), one standard deviation a column of X; its "
                f"shape is {np.shape(self.prior_scale)}. That of the intercept is intercept_scale; pass a matrix as "
                f"prior_covariance."
            )
        prior = gaussian_prior(columns, self.prior_scale, self.prior_covariance, self.prior_mean, np.float64)
        mean, factor = np.asarray(prior.mean), np.asarray(prior.factor)
        if factor.ndim < 2:
            factor = np.broadcast_to(factor, (columns,))
        if self.fit_intercept:
            first = check_positive("intercept_scale", self.intercept_scale)
            mean = np.concatenate([np.zeros(1), mean])
            factor = np.concatenate([[first], factor]) if factor.ndim == 1 else block_diag(first, factor)
        scale = {"prior_scale": factor} if factor.ndim == 1 else {"prior_covariance": factor @ factor.T}
        return {"prior_mean": mean, "intercept": bool(self.fit_intercept), **scale}


def _linear_predictor(posterior: Posterior, target: AbstractLinearModel, intercept: bool) -> LinearPredictor:
    if isinstance(posterior.family, DualGaussian):
        return _dual_predictor(posterior, target, intercept)
    if isinstance(posterior.point.scale, Diagonal):
        return LinearPredictor(posterior.mean, posterior.standard_deviation, None, intercept)
    return LinearPredictor(posterior.mean, np.linalg.cholesky(posterior.covariance), None, intercept)


def _dual_predictor(posterior: Posterior, target: AbstractLinearModel, intercept: bool) -> LinearPredictor:
    """In float64, for a difference of two variances is taken, and in the type of the fit at the end."""
    mean, prior = posterior.mean, target.prior
    root = np.asarray(prior.factor, np.float64)
    if root.ndim < 2:
        root = np.broadcast_to(root, (target.dim,))
    deviation = np.sqrt(np.asarray(posterior.point.site_precision, np.float64))
    scaled = deviation[:, None] * np.asarray(target.design, np.float64)
    half = scaled * root[None, :] if root.ndim == 1 else scaled @ root
    lower = np.linalg.cholesky(np.eye(len(half)) + half @ half.T)
    white = solve_triangular(lower, half, lower=True)
    explained = (white * root[None, :] if root.ndim == 1 else white @ root.T).T
    return LinearPredictor(mean, root.astype(mean.dtype), explained.astype(mean.dtype), intercept)
