"""Binary classification by a Gaussian process, with the scikit-learn interface and a certificate."""

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from provi.core.arguments import double_precision
from provi.models.certified_estimator import AbstractBinaryClassifier, read_two_classes
from provi.models.gp.estimator import AbstractGPEstimator
from provi.targets.likelihoods import AbstractLikelihood, BernoulliLogit, BernoulliProbit

LIKELIHOODS = {"logit": BernoulliLogit, "probit": BernoulliProbit}


class GPClassifier(AbstractBinaryClassifier, AbstractGPEstimator):
    r"""$P(y = 1) = \sigma(f(x))$, $f \sim GP(0, k)$: the best Gaussian approximation of the posterior of f.

    **Arguments:**

    - `length_scale`, `amplitude`: of the squared-exponential kernel $a^2e^{-|x - x'|^2/(2\ell^2)}$; `length_scale` may
      have one number for each column. `kernel`: another one, of `provi.kernels`, in their place.
    - `jitter`: added to the diagonal of the kernel matrix, noise of the function values at the data. With
      `num_inducing` it is a share of the mean variance, added at the inducing points.
    - `likelihood`: `"logit"`, `"probit"`, or a likelihood of `provi.targets.likelihoods` for labels 0 and 1.
    - `optimise_hyperparameters`: maximise the ELBO over the kernel's numbers, from the given ones; `num_restarts`
      further starts (exact process only).
    - `num_inducing`: None for the exact process, O(N^3); a number of inducing points for a sparse one.
    - `tol`: the fit ends when the ELBO is proven to be within `tol` nats of the best Gaussian's.
    - `progress`: whether to show a bar. `random_state`: of restarts and of the choice of inducing points.

    **Attributes:** `classes_`; `elbo_`, a lower bound on the log evidence, in nats; `certificate_`, what is proven
    about it; `kernel_`, `likelihood_`; `fit_`, the `provi.Fit` with the posterior; `n_features_in_`.

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
        self.optimise_hyperparameters = optimise_hyperparameters
        self.num_restarts = num_restarts
        self.num_inducing = num_inducing
        self.tol = tol
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any) -> "GPClassifier":
        """Fit to the rows of X and their labels y, of any type."""
        values, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        classes, response = read_two_classes(labels, type(self).__name__)
        self._fit_process(values, response, self._chosen_likelihood())
        self.classes_ = classes
        return self

    def _chosen_likelihood(self) -> AbstractLikelihood:
        if isinstance(self.likelihood, AbstractLikelihood):
            return self.likelihood
        if not isinstance(self.likelihood, str) or self.likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood must be 'logit', 'probit' or a likelihood object, not {self.likelihood!r}.")
        return LIKELIHOODS[self.likelihood]()
