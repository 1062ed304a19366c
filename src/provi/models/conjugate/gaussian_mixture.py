"""A Bayesian Gaussian mixture with the scikit-learn interface, fitted by natural-gradient steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from provi.algorithms.mirror.conjugate_svi import answer_batch, forgetting_rate
from provi.core.arguments import check_count, check_positive, check_positive_definite, device_array, double_precision
from provi.core.compilation import padded_size
from provi.models.certified_estimator import validate_data
from provi.models.conjugate import gaussian_mixture_updates as updates
from provi.models.conjugate.ascent import coordinate_ascent, stochastic_ascent
from provi.models.conjugate.expectations import forgetting_option

_ROWS = 64
_FLOOR = 1e-6


class VariationalGaussianMixture(DensityMixin, BaseEstimator):
    r"""Mean-field posterior of a Gaussian mixture with a Dirichlet prior and Normal-Wishart or Normal-Gamma priors.

    **Arguments:**

    - `n_components`: the number of components; those that the data do not need end with a weight near zero.
    - `covariance_type`: `"full"` or `"diag"`.
    - `weight_concentration_prior`: each entry of the Dirichlet prior; default 1 / n_components.
    - `mean_prior`, `mean_precision_prior`: $m_0$ (default: the mean of the data) and $\kappa_0$ (default 1).
    - `degrees_of_freedom_prior`, `covariance_prior`: $\nu_0$ > d - 1 (default d) and the inverse scale $A_0$ of the
      Wishart, a matrix, or with `"diag"` a vector (default: the covariance of the data plus 1e-6 of the mean variance).
    - `solver`: `"coordinate"`, full-batch steps with r = 0, under which the ELBO never falls; or `"stochastic"`,
      batches of `batch_size` rows.
    - `learning_rate`: of the stochastic solver. `"automatic"` halves the rate when a pass brings no gain; `"decay"` is
      (`learning_offset` + k)^-`learning_decay` for batch k. `partial_fit` always takes the latter.
    - `max_iter`, `tol`: passes at most, and the gain of a pass in nats *per row* at which the fit ends.
    - `init_params`: `"kmeans"` or `"random"` responsibilities, or `responsibilities_init`, an (n, n_components) array.
    - `total_samples`: for `partial_fit`, the number of rows that the batches come from; default: the rows seen so far.

    **Attributes:** `weights_`, `means_`, `covariances_` (E[precision]^-1), `weight_concentration_`, `mean_precision_`,
    `degrees_of_freedom_`; `elbo_`, the ELBO at the start and after each pass, with all constants, in nats; `n_iter_`,
    `converged_`.
    """

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance_type: Any = "full",
        weight_concentration_prior: Any = None,
        mean_precision_prior: Any = None,
        mean_prior: Any = None,
        degrees_of_freedom_prior: Any = None,
        covariance_prior: Any = None,
        solver: Any = "coordinate",
        batch_size: Any = 256,
        learning_rate: Any = "automatic",
        learning_offset: Any = 10.0,
        learning_decay: Any = 0.7,
        max_iter: Any = 200,
        tol: Any = 1e-6,
        init_params: Any = "kmeans",
        responsibilities_init: Any = None,
        total_samples: Any = None,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.weight_concentration_prior = weight_concentration_prior
        self.mean_precision_prior = mean_precision_prior
        self.mean_prior = mean_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.covariance_prior = covariance_prior
        self.solver = solver
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_offset = learning_offset
        self.learning_decay = learning_decay
        self.max_iter = max_iter
        self.tol = tol
        self.init_params = init_params
        self.responsibilities_init = responsibilities_init
        self.total_samples = total_samples
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any = None) -> "VariationalGaussianMixture":
        """Fit to the rows of X; y is not used."""
        values = self._read(X, reset=True)
        forgetting = forgetting_option(self)
        generator = check_random_state(self.random_state)
        model, natural = self._start(values, generator)
        rows, tolerance = self._rows(values), float(self.tol * len(values))
        passes = check_count("max_iter", self.max_iter)
        if self.solver == "coordinate":
            ascent = coordinate_ascent(model, natural, (rows,), passes, tolerance)
        else:
            size = min(check_count("batch_size", self.batch_size), len(values))
            ascent = stochastic_ascent(
                model, natural, (rows,), (len(values),), generator, size, passes, tolerance, forgetting
            )
        self.elbo_, self.converged_, self.n_iter_ = ascent.elbo, ascent.converged, len(ascent.elbo) - 1
        return self._keep(model, ascent.natural)

    @double_precision
    def partial_fit(self, X: Any, y: Any = None) -> "VariationalGaussianMixture":
        """One natural-gradient step from the batch X; priors and start come from the first batch if not given."""
        first = not hasattr(self, "_natural")
        values = self._read(X, reset=first)
        forgetting_option(self)
        if first:
            self._model, self._natural = self._start(values, check_random_state(self.random_state))
        self.n_batch_iter_ = getattr(self, "n_batch_iter_", 0) + 1
        self.n_samples_seen_ = getattr(self, "n_samples_seen_", 0) + len(values)
        total = self.n_samples_seen_ if self.total_samples is None else self.total_samples
        rate = forgetting_rate(self.n_batch_iter_, self.learning_offset, self.learning_decay)
        scale, rate = (device_array(np.asarray(x, values.dtype)) for x in (total / len(values), rate))
        return self._keep(self._model, answer_batch(self._model, self._natural, (self._rows(values),), scale, rate))

    @double_precision
    def predict_proba(self, X: Any) -> np.ndarray:
        """The responsibilities q(z_n = k) of the rows of X."""
        return self._each_row(updates.responsibilities, X)

    def predict(self, X: Any) -> np.ndarray:
        """The component with the largest responsibility."""
        return np.argmax(self.predict_proba(X), axis=1)

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit to X and return its components."""
        return self.fit(X).predict(X)

    @double_precision
    def score_samples(self, X: Any) -> np.ndarray:
        """The log posterior predictive density of each row: a mixture of Student t, which integrates to one."""
        return self._each_row(updates.log_predictive, X)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of `score_samples`."""
        return float(np.mean(self.score_samples(X)))

    def _read(self, X, reset) -> Any:
        values: Any = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], ensure_min_samples=1 + reset)
        if reset and len(values) < check_count("n_components", self.n_components):
            raise ValueError(
                f"n_components is {self.n_components}, but X has {len(values)} rows; give at least as many."
            )
        return values

    def _rows(self, values):
        """Rows from the prior mean, padded to a size that other data share."""
        extra = padded_size(len(values), _ROWS) - len(values)
        centred = np.pad(values - self._centre, ((0, extra), (0, 0)))
        weights = np.pad(np.ones(len(values), values.dtype), (0, extra))
        return updates.Rows(jnp.asarray(centred), jnp.asarray(weights))

    def _each_row(self, function, X):
        check_is_fitted(self)
        values = self._read(X, reset=False).astype(self._centre.dtype)
        return np.asarray(function(self._natural, self._rows(values).values))[: len(values)]

    def _start(self, values, generator):
        """The model with its priors, and the natural parameter of the first responsibilities."""
        count, dim = self.n_components, values.shape[1]
        if self.covariance_type not in ("full", "diag"):
            raise ValueError(f"covariance_type must be 'full' or 'diag', not {self.covariance_type!r}.")
        centre = values.mean(axis=0, dtype=np.float64) if self.mean_prior is None else self.mean_prior
        self._centre = np.broadcast_to(np.asarray(centre, values.dtype), (dim,)).copy()
        concentration = 1 / count if self.weight_concentration_prior is None else self.weight_concentration_prior
        precision = 1.0 if self.mean_precision_prior is None else self.mean_precision_prior
        degrees = dim if self.degrees_of_freedom_prior is None else self.degrees_of_freedom_prior
        if not degrees > dim - 1:
            raise ValueError(f"degrees_of_freedom_prior must be more than {dim - 1} for {dim} columns, not {degrees}.")
        numbers = (
            check_positive("weight_concentration_prior", concentration),
            check_positive("mean_precision_prior", precision),
            np.zeros(dim),
            check_positive("degrees_of_freedom_prior", degrees),
            self._inverse_scale(values),
        )
        leaves = [np.broadcast_to(np.asarray(x, values.dtype), (count, *np.shape(x))) for x in numbers]
        model = updates.GaussianMixtureModel(updates.MixtureNatural(*(jnp.asarray(leaf) for leaf in leaves)))
        rows = self._rows(values)
        first = np.zeros((len(rows.weights), count), values.dtype)
        first[: len(values)] = self._responsibilities(values, generator)
        return model, updates.initial_natural(model, jnp.asarray(first), rows.values)

    def _inverse_scale(self, values):
        given, dim = self.covariance_prior, values.shape[1]
        if given is None:
            matrix = np.atleast_2d(np.cov(values.T.astype(np.float64)))
            # A constant column has no variance: the prior must still be proper.
            matrix = matrix + _FLOOR * (np.trace(matrix) / dim or 1.0) * np.eye(dim)
            return matrix if self.covariance_type == "full" else np.diag(matrix)
        shape = (dim, dim) if self.covariance_type == "full" else (dim,)
        if np.shape(given) != shape:
            raise ValueError(f"covariance_prior must have shape {shape}, not {np.shape(given)}.")
        check_positive_definite("covariance_prior", np.asarray(given) if len(shape) == 2 else np.diag(given))
        return np.asarray(given)

    def _responsibilities(self, values, generator):
        shape = (len(values), self.n_components)
        if self.responsibilities_init is not None:
            given = np.asarray(self.responsibilities_init)
            if given.shape != shape or (given < 0).any() or not np.allclose(given.sum(axis=1), 1):
                raise ValueError(
                    f"responsibilities_init must have shape {shape}, no negative entry, and rows of sum 1."
                )
            return given
        if self.init_params == "random":
            given = generator.uniform(size=shape)
            return given / given.sum(axis=1, keepdims=True)
        if self.init_params != "kmeans":
            raise ValueError(f"init_params must be 'kmeans' or 'random', not {self.init_params!r}.")
        from sklearn.cluster import KMeans

        starts: Any = 1
        labels = KMeans(self.n_components, n_init=starts, random_state=generator).fit(values).labels_
        return np.eye(self.n_components)[labels]

    def _keep(self, model, natural):
        """Store the natural parameter and the usual ones."""
        self._model, self._natural = model, jax.tree.map(np.asarray, natural)
        if not all(np.isfinite(leaf).all() for leaf in self._natural):
            raise ValueError("The fit is not finite: rescale X, or give a larger covariance_prior.")
        parts = jax.tree.map(np.asarray, updates.usual_parameters(self._natural))
        self.weight_concentration_, self.mean_precision_, _, self.degrees_of_freedom_, _ = self._natural
        self.weights_ = self.weight_concentration_ / self.weight_concentration_.sum()
        self.means_ = parts.means + self._centre
        degrees = self.degrees_of_freedom_.reshape((-1,) + (1,) * (parts.inverse_scales.ndim - 1))
        self.covariances_ = parts.inverse_scales / degrees
        return self
