"""Regression by a Gaussian process, also for counts and for outliers, with the scikit-learn interface."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from provi.core.arguments import double_precision
from provi.models.gp.estimator import AbstractGPEstimator
from provi.models.gp.prediction import log_predictive_densities, response_means
from provi.targets.likelihoods import AbstractLikelihood, GaussianNoise, NegativeBinomial, Poisson, StudentT

LIKELIHOODS = ("gaussian", "student-t", "poisson", "negative-binomial")


class GPRegressor(RegressorMixin, AbstractGPEstimator):
    r"""$y \sim p(y | f(x))$, $f \sim GP(0, k)$: the best Gaussian approximation of the posterior of f.

    With Gaussian noise the posterior itself: `elbo_` is then the log marginal likelihood.

    **Arguments:**

    - `length_scale`, `amplitude`, `kernel`, `jitter`, `optimise_hyperparameters`, `num_restarts`, `num_inducing`,
      `tol`, `progress`, `random_state`: as for `GPClassifier`; the likelihood's own numbers below are optimised, too.
    - `likelihood`: `"gaussian"`, `"student-t"`, `"poisson"` and `"negative-binomial"` (counts with the mean
      $e^{f(x)}$), or a likelihood of `provi.targets.likelihoods`. A Student-t is not log-concave: no certificate.
    - `noise_scale`: of the Gaussian and the Student-t noise, in units of y. `degrees_of_freedom`: of the Student-t.
    - `dispersion`: r of the negative binomial, whose variance is $\mu + \mu^2/r$.

    The prior mean of f is 0: subtract the mean of y where that is far off.

    **Attributes:** `elbo_`, `certificate_`, `kernel_`, `likelihood_`, `fit_`, `n_features_in_`.
    """

    def __init__(
        self,
        length_scale: Any = 1.0,
        amplitude: Any = 1.0,
        *,
        noise_scale: Any = 1.0,
        degrees_of_freedom: Any = 4.0,
        dispersion: Any = 1.0,
        jitter: Any = 1e-6,
        kernel: Any = None,
        likelihood: Any = "gaussian",
        optimise_hyperparameters: Any = False,
        num_restarts: Any = 0,
        num_inducing: Any = None,
        tol: Any = 0.01,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.length_scale = length_scale
        self.amplitude = amplitude
        self.noise_scale = noise_scale
        self.degrees_of_freedom = degrees_of_freedom
        self.dispersion = dispersion
        self.jitter = jitter
        self.kernel = kernel
        self.likelihood = likelihood
        self.optimise_hyperparameters = optimise_hyperparameters
        self.num_restarts = num_restarts
        self.num_inducing = num_inducing
        self.tol = tol
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any) -> "GPRegressor":
        """Fit to the rows of X and their responses y."""
        values, response = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=True)
        self._fit_process(values, np.asarray(response), self._chosen_likelihood())
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y] at each row of X; with `return_std` also the standard deviation of E[y | f], which has no noise of y.

        That is the deviation of f itself for Gaussian and Student-t noise, as scikit-learn's, and of $e^f$ for counts.
        """
        mean, variance = self.predict_latent(X)
        expected = response_means(self.likelihood_, mean, variance)
        if not return_std:
            return expected
        if isinstance(self.likelihood_, Poisson | NegativeBinomial):
            return expected, expected * np.sqrt(np.expm1(variance))
        if isinstance(self.likelihood_, GaussianNoise | StudentT):
            return expected, np.sqrt(variance)
        raise ValueError("return_std is not known for this likelihood: see predict_latent for the latent variance.")

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """log E p(y | f(x)) for each row of X and its response y: the score to compare models by on new data."""
        mean, variance = self.predict_latent(X)
        response = self.likelihood_.read_response(y, len(mean))
        return log_predictive_densities(self.likelihood_, mean, variance, response)

    def _chosen_likelihood(self) -> AbstractLikelihood:
        if isinstance(self.likelihood, AbstractLikelihood):
            return self.likelihood
        match self.likelihood:
            case "gaussian":
                return GaussianNoise(self.noise_scale)
            case "student-t":
                return StudentT(self.degrees_of_freedom, self.noise_scale)
            case "poisson":
                return Poisson()
            case "negative-binomial":
                return NegativeBinomial(self.dispersion)
        raise ValueError(
            f"likelihood must be one of {', '.join(LIKELIHOODS)} or a likelihood object, not {self.likelihood!r}."
        )
