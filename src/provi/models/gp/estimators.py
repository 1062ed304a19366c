"""Gaussian-process classification and regression, also of counts, with the scikit-learn interface and a certificate."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from provi.algorithms.natural.sparse_learning import learn_sparse_hyperparameters
from provi.core.arguments import available_bytes, check_count, double_precision
from provi.core.frames import check_frame
from provi.families.location_scale import Gaussian
from provi.fit import fit
from provi.kernels import AbstractKernel, SquaredExponential
from provi.models.certified_estimator import (
    AbstractBinaryClassifier,
    AbstractCertifiedEstimator,
    read_two_classes,
    validate_data,
)
from provi.models.gp.hyperparameters import learn_hyperparameters
from provi.models.gp.integration import integrate_hyperparameters
from provi.models.gp.mixture import MixturePredictor
from provi.result import Fit
from provi.result.predictors import (
    exact_predictor,
    log_predictive_densities,
    predict_latent,
    response_means,
    sparse_predictor,
)
from provi.structures.linear import LARGEST_LINEAR
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.likelihoods import (
    AbstractLikelihood,
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    NegativeBinomial,
    Poisson,
    StudentT,
    UserLikelihood,
)
from provi.targets.sparse_gaussian_process import SparseGaussianProcess

_MATRICES = 4
"""N x N matrices held at once at the least: K, and a factorisation for the predictions."""


HYPERPARAMETER_MODES = ("fixed", "optimise", "integrate")


class AbstractGPEstimator(AbstractCertifiedEstimator):
    """A Gaussian process with the scikit-learn interface; the constructors of the subclasses set the arguments."""

    length_scale: Any
    amplitude: Any
    jitter: Any
    kernel: Any
    hyperparameters: Any
    hyperparameter_priors: Any
    optimise_hyperparameters: Any
    num_restarts: Any
    num_inducing: Any
    tol: Any
    progress: Any
    random_state: Any

    def predict_latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function f at each row of X, in blocks of bounded memory."""
        return self._latent(self._new_points(X))

    def _latent(self, points: Any) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(self._predictor, MixturePredictor):
            return self._predictor.latent(points)
        return predict_latent(self._predictor, points)

    def _new_points(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=[np.float64, np.float32])

    def _fit_process(self, X: Any, response: np.ndarray, likelihood: AbstractLikelihood) -> None:
        """Fit to checked data; sets `kernel_`, `likelihood_`, `fit_`, `elbo_`, `certificate_` and the predictor."""
        kernel = self._chosen_kernel()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.__dict__.pop("hyperparameters_", None)  # of an earlier fit with another mode
        mode = self._mode()
        if mode == "integrate":
            self._integrate(X, response, kernel, likelihood, seed)
            return
        if self.num_inducing is None:
            target, found, predictor = self._fit_exact(X, response, kernel, likelihood, seed)
        else:
            target, found, predictor = self._fit_sparse(X, response, kernel, likelihood, seed)
        overflow = f"the mean of the {likelihood.name} likelihood may overflow under the prior"
        self._store_fit(found, target.likelihood, f"scale X and y, or take a smaller amplitude; {overflow}")
        self.kernel_ = target.kernel
        self._predictor = predictor

    def _mode(self) -> str:
        """One of `HYPERPARAMETER_MODES`; `optimise_hyperparameters` is the older word for the second."""
        if self.hyperparameters not in HYPERPARAMETER_MODES:
            raise ValueError(
                f"hyperparameters must be one of {', '.join(HYPERPARAMETER_MODES)}, not {self.hyperparameters!r}."
            )
        if self.hyperparameters != "integrate":
            if self.hyperparameter_priors is not None:
                raise ValueError("hyperparameter_priors are for hyperparameters='integrate'.")
            return "optimise" if self.optimise_hyperparameters else self.hyperparameters
        for name in ("optimise_hyperparameters", "num_inducing"):
            if getattr(self, name):
                raise ValueError(f"hyperparameters='integrate' and {name} do not go together: take one of them.")
        return "integrate"

    def _integrate(self, X, response, kernel, likelihood, seed) -> None:
        found = integrate_hyperparameters(
            X, response, kernel, likelihood, priors=self.hyperparameter_priors, jitter=self.jitter, tol=self.tol,
            seed=seed, progress=bool(self.progress),
        )  # fmt: skip
        self._store_fit(found.found, found.likelihood, "scale X and y, or give narrower hyperparameter_priors")
        self.kernel_, self.hyperparameters_ = found.kernel, found.hyperparameters
        self._predictor = found.predictor

    def _fit_exact(self, X, response, kernel, likelihood, seed) -> tuple[GaussianProcess, Fit, Any]:
        needed = _MATRICES * len(X) ** 2 * X.dtype.itemsize
        if needed > available_bytes():
            raise ValueError(
                f"X has {len(X)} rows, and the exact process needs about {needed / 2**30:.1f} GiB for them: "
                f"set num_inducing=500 for a sparse one."
            )
        target, start = GaussianProcess(X, response, kernel, likelihood, jitter=self.jitter), None
        if self._mode() == "optimise":
            learnt = learn_hyperparameters(
                target, num_restarts=self.num_restarts, seed=seed, progress=bool(self.progress)
            )
            target, start = learnt.target, learnt.start
        found = fit(target, tol=self.tol, seed=seed, start=start, progress=bool(self.progress))
        return target, found, exact_predictor(target, found.posterior.point)

    def _fit_sparse(self, X, response, kernel, likelihood, seed) -> tuple[SparseGaussianProcess, Fit, Any]:
        if check_count("num_inducing", self.num_inducing) > LARGEST_LINEAR:
            raise ValueError(f"num_inducing must be at most {LARGEST_LINEAR}, not {self.num_inducing}.")
        target = SparseGaussianProcess(
            X, response, self.num_inducing, kernel, likelihood, relative_jitter=self.jitter, seed=seed
        )
        start = None
        if self._mode() == "optimise":
            # The width of a user's likelihood is a setting of the quadrature, not of the model.
            numbers = not isinstance(likelihood, UserLikelihood)
            learnt = learn_sparse_hyperparameters(target, learn_likelihood=numbers, seed=seed)
            target, start = learnt.target, learnt.start
        family = Gaussian(target.dim)
        found = fit(target, family, tol=self.tol, seed=seed, start=start, progress=bool(self.progress))
        return target, found, sparse_predictor(target, found.posterior.point)

    def _chosen_kernel(self) -> AbstractKernel:
        if self.kernel is None:
            return SquaredExponential(self.length_scale, self.amplitude)
        if not isinstance(self.kernel, AbstractKernel):
            raise ValueError(
                f"kernel must be a kernel such as provi.kernels.SquaredExponential(0.5), not {self.kernel!r}."
            )
        for name in ("length_scale", "amplitude"):
            if np.ndim(getattr(self, name)) > 0 or getattr(self, name) != 1.0:
                raise ValueError(f"kernel and {name} are both given: set {name} in the kernel itself.")
        return self.kernel


CLASSIFICATION_LIKELIHOODS = {"logit": BernoulliLogit, "probit": BernoulliProbit}


class GPClassifier(AbstractBinaryClassifier, AbstractGPEstimator):
    r"""$P(y = 1) = \sigma(f(x))$, $f \sim GP(0, k)$: the best Gaussian approximation of the posterior of f.

    **Arguments:**

    - `length_scale`, `amplitude`: of the squared-exponential kernel $a^2e^{-|x - x'|^2/(2\ell^2)}$; `length_scale` may
      have one number for each column. `kernel`: another one, of `provi.kernels`, in their place.
    - `jitter`: added to the diagonal of the kernel matrix, noise of the function values at the data. With
      `num_inducing` it is a share of the mean variance, added at the inducing points.
    - `likelihood`: `"logit"`, `"probit"`, or a likelihood of `provi.targets.likelihoods` for labels 0 and 1.
    - `hyperparameters`: `"fixed"`, as given; `"optimise"`, the ELBO's maximum over the kernel's numbers, from the given
      ones, with `num_restarts` further starts (exact process only); `"integrate"`, averages over their posterior.
      `optimise_hyperparameters=True` is the older way to say `"optimise"`, and an error beside `"integrate"`.
    - `hyperparameter_priors`: for `"integrate"`, by name (`provi.kernels.parameter_names(kernel)` lists them), of
      `provi.targets.latent`. Default: log-normal around the median distance of the inputs for length-scales,
      `HalfNormal(2.5)` for the others.
    - `num_inducing`: None for the exact process, O(N^3); a number of inducing points for a sparse one.
    - `tol`: the fit ends when the ELBO is proven to be within `tol` nats of the best Gaussian's.
    - `progress`: whether to show a bar. `random_state`: of restarts and of the choice of inducing points.

    **Attributes:** `classes_`; `elbo_`, a lower bound on the log evidence, in nats; `certificate_`, what is proven
    about it; `kernel_`, `likelihood_`; `fit_`, the `provi.Fit` with the posterior; `n_features_in_`.

    **Integrated hyperparameters.** The kernel's numbers are explored on a rule of nodes, with the best Gaussian of f at
    each; every prediction is an average over the nodes. `hyperparameters_` has the marginal posterior of each number by
    its name; `kernel_` is the kernel at their means, to look at. `length_scale` and `amplitude` then say no more than
    how many numbers there are, `jitter` is a share of the largest variance, and equal rows of X share their function
    value. Dense, some hundred factorisations: for 1000 different rows at most, about ten N x N matrices (80 MB).

    Only two classes: wrap it in `sklearn.multiclass.OneVsRestClassifier` for more. With one class in y it is fitted to
    equal labels, and predicts that class.
    """

    def __init__(
        self,
        length_scale: Any = 1.0,
        amplitude: Any = 1.0,
        *,
        jitter: Any = 1e-6,
        kernel: Any = None,
        likelihood: Any = "logit",
        hyperparameters: Any = "fixed",
        hyperparameter_priors: Any = None,
        optimise_hyperparameters: Any = False,
        num_restarts: Any = 0,
        num_inducing: Any = None,
        tol: Any = 0.01,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.length_scale = length_scale
        self.amplitude = amplitude
        self.jitter = jitter
        self.kernel = kernel
        self.likelihood = likelihood
        self.hyperparameters = hyperparameters
        self.hyperparameter_priors = hyperparameter_priors
        self.optimise_hyperparameters = optimise_hyperparameters
        self.num_restarts = num_restarts
        self.num_inducing = num_inducing
        self.tol = tol
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any) -> "GPClassifier":
        """Fit to the rows of X and their labels y, of any type."""
        check_frame("X", X)
        values, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        classes, response = read_two_classes(labels, type(self).__name__)
        self._fit_process(values, response, self._chosen_likelihood())
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of the predictive probability of `classes_[1]`; the latent number is in `predict_latent`."""
        check_is_fitted(self)
        if isinstance(self._predictor, MixturePredictor):
            return self._predictor.log_odds(self._new_points(X))
        return super().decision_function(X)

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class."""
        check_is_fitted(self)
        if isinstance(self._predictor, MixturePredictor):
            # The mean of a mixture may have another sign than its log-odds.
            return self.classes_[np.where(self.decision_function(X) > 0, len(self.classes_) - 1, 0)]
        return super().predict(X)

    def _chosen_likelihood(self) -> AbstractLikelihood:
        if isinstance(self.likelihood, AbstractLikelihood):
            return self.likelihood
        if not isinstance(self.likelihood, str) or self.likelihood not in CLASSIFICATION_LIKELIHOODS:
            raise ValueError(f"likelihood must be 'logit', 'probit' or a likelihood object, not {self.likelihood!r}.")
        return CLASSIFICATION_LIKELIHOODS[self.likelihood]()


REGRESSION_LIKELIHOODS = ("gaussian", "student-t", "poisson", "negative-binomial")


class GPRegressor(RegressorMixin, AbstractGPEstimator):
    r"""$y \sim p(y | f(x))$, $f \sim GP(0, k)$: the best Gaussian approximation of the posterior of f.

    With Gaussian noise the posterior itself: `elbo_` is then the log marginal likelihood.

    **Arguments:**

    - `length_scale`, `amplitude`, `kernel`, `jitter`, `hyperparameters`, `hyperparameter_priors`,
      `optimise_hyperparameters`, `num_restarts`, `num_inducing`, `tol`, `progress`, `random_state`: as for
      `GPClassifier`; the likelihood's own numbers below are optimised or integrated, too, by the names `noise_scale`
      (prior half-normal, 2.5 deviations of y) and `dispersion` (Gamma(2, 0.1)). With Gaussian noise amplitudes have
      the prior `HalfNormal(2.5 sqrt(mean y^2))`. A Student-t likelihood cannot be integrated.
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
        hyperparameters: Any = "fixed",
        hyperparameter_priors: Any = None,
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
        self.hyperparameters = hyperparameters
        self.hyperparameter_priors = hyperparameter_priors
        self.optimise_hyperparameters = optimise_hyperparameters
        self.num_restarts = num_restarts
        self.num_inducing = num_inducing
        self.tol = tol
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any) -> "GPRegressor":
        """Fit to the rows of X and their responses y."""
        check_frame("X", X)
        values, response = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=True)
        self._fit_process(values, np.asarray(response), self._chosen_likelihood())
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y] at each row of X; with `return_std` also the standard deviation of E[y | f], which has no noise of y.

        That is the deviation of f itself for Gaussian and Student-t noise, as scikit-learn's, and of $e^f$ for counts.
        """
        points, counts = self._new_points(X), isinstance(self.likelihood_, Poisson | NegativeBinomial)
        known = counts or isinstance(self.likelihood_, GaussianNoise | StudentT)
        if return_std and not known:
            raise ValueError("return_std is not known for this likelihood: see predict_latent for the latent variance.")
        if isinstance(self._predictor, MixturePredictor):
            if not return_std:
                return self._predictor.response_means(points)
            expected, variance = self._predictor.response_moments(points, counts)
            return expected, np.sqrt(variance)
        mean, variance = self._latent(points)
        expected = response_means(self.likelihood_, mean, variance)
        if not return_std:
            return expected
        return expected, expected * np.sqrt(np.expm1(variance)) if counts else np.sqrt(variance)

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """log E p(y | f(x)) for each row of X and its response y: the score to compare models by on new data."""
        points = self._new_points(X)
        response = self.likelihood_.read_response(y, len(points))
        if isinstance(self._predictor, MixturePredictor):
            return self._predictor.log_predictive(points, np.asarray(response))
        mean, variance = self._latent(points)
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
            f"likelihood must be one of {', '.join(REGRESSION_LIKELIHOODS)} or a likelihood object, "
            f"not {self.likelihood!r}."
        )
