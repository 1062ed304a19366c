"""What the Gaussian-process classifier and regressor share: arguments, the fit, latent predictions."""

from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from provi.algorithms.natural.sparse_learning import learn_sparse_hyperparameters
from provi.core.arguments import available_bytes, check_count
from provi.families.location_scale import Gaussian
from provi.fit import fit
from provi.kernels import AbstractKernel, SquaredExponential
from provi.models.certified_estimator import AbstractCertifiedEstimator
from provi.models.gp.hyperparameters import learn_hyperparameters
from provi.models.gp.prediction import exact_predictor, predict_latent, sparse_predictor
from provi.result import Fit
from provi.structures.linear import LARGEST_LINEAR
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.likelihoods import AbstractLikelihood, UserLikelihood
from provi.targets.sparse_gaussian_process import SparseGaussianProcess

_MATRICES = 4
"""N x N matrices held at once at the least: K, and a factorisation for the predictions."""


class AbstractGPEstimator(AbstractCertifiedEstimator):
    """A Gaussian process with the scikit-learn interface; the constructors of the subclasses set the arguments."""

    length_scale: Any
    amplitude: Any
    jitter: Any
    kernel: Any
    optimise_hyperparameters: Any
    num_restarts: Any
    num_inducing: Any
    tol: Any
    progress: Any
    random_state: Any

    def predict_latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function f at each row of X, in blocks of bounded memory."""
        check_is_fitted(self)
        points: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return predict_latent(self._predictor, points)

    def _fit_process(self, X: Any, response: np.ndarray, likelihood: AbstractLikelihood) -> None:
        """Fit to checked data; sets `kernel_`, `likelihood_`, `fit_`, `elbo_`, `certificate_` and the predictor."""
        kernel = self._chosen_kernel()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self.num_inducing is None:
            target, found, predictor = self._fit_exact(X, response, kernel, likelihood, seed)
        else:
            target, found, predictor = self._fit_sparse(X, response, kernel, likelihood, seed)
        overflow = f"the mean of the {likelihood.name} likelihood may overflow under the prior"
        self._store_fit(found, target.likelihood, f"scale X and y, or take a smaller amplitude; {overflow}")
        self.kernel_ = target.kernel
        self._predictor = predictor

    def _fit_exact(self, X, response, kernel, likelihood, seed) -> tuple[GaussianProcess, Fit, Any]:
        needed = _MATRICES * len(X) ** 2 * X.dtype.itemsize
        if needed > available_bytes():
            raise ValueError(
                f"X has {len(X)} rows, and the exact process needs about {needed / 2**30:.1f} GiB for them: "
                f"set num_inducing=500 for a sparse one."
            )
        target, start = GaussianProcess(X, response, kernel, likelihood, jitter=self.jitter), None
        if self.optimise_hyperparameters:
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
        if self.optimise_hyperparameters:
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
