r"""Multinomial logistic regression: several classes, each with its own coefficients.

$P(y_n = k) \propto e^{\eta_{nk}}$, $\eta_{nk} = x_n'B_k$ for the classes k = 1, ..., K - 1 and $\eta_{n0} = 0$ for the
first, the reference; $z = (B_1, \dots, B_{K-1})$, each with the same Gaussian prior N(m, S). With the probabilities p
of the other classes the Hessian of a term is $(\mathrm{diag}\,p - pp') \otimes xx'$, a covariance, so positive
semi-definite, and at most $\tfrac12(I - 11'/K) \otimes xx'$ (Boehning 1992): log-concave, strongly convex by its prior,
smooth. A row sees K - 1 numbers and not one: it is no `AbstractLinearModel`, and its certificate is one from draws.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import as_array, check_count, device_array, double_precision
from provi.core.types import Indices, Scalar, Vector
from provi.targets.base import AbstractFiniteSum, Constants, outer_spectrum, proven, read_points
from provi.targets.data import default_names, read_design, read_grades
from provi.targets.likelihoods.rows import read_weights
from provi.targets.priors import GaussianPrior, gaussian_prior
from provi.targets.regressions import by_name

_STREAM = 2**31 - 3  # of the seed: not the one that drew the parameters


class MultinomialLogistic(AbstractFiniteSum):
    """y_n ~ softmax(0, x_n' B_1, ..., x_n' B_{K-1}) with B_k ~ N(m, S): strongly convex by its prior, and smooth."""

    variable: ClassVar[str] = "coefficients"
    design: Float[Array, "terms columns"]
    response: Any
    weights: Float[Array, " terms"] | None
    class_prior: GaussianPrior
    """Of one class."""
    names: tuple[str, ...] | None = eqx.field(static=True)
    classes: tuple[str, ...] = eqx.field(static=True)

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        weights: Any = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame. - `y`: (N,) classes 0, 1, ..., K - 1.
        - `prior_scale`, `prior_covariance`, `prior_mean`, `intercept`, `names`, `weights`: as for `LogisticRegression`;
            the prior is that of each class but the first.
        - `classes`: K names; "0", "1", ... if not given.
        """
        self.design, self.names = read_design(X, names, intercept)
        values = as_array("y", y, ndim=1)
        count = len(classes) if classes is not None else int(np.max(values, initial=0)) + 1
        if count < 2:
            raise ValueError("y must hold two classes at least, 0, 1, ...: give classes= where some were not seen.")
        self.response = device_array(np.asarray(read_grades(y, self.design.shape[0], count), np.int32))
        self.classes = tuple(map(str, range(count))) if classes is None else tuple(map(str, classes))
        if len(set(self.classes)) < count:
            raise ValueError(f"classes must be {count} different names.")
        table = None if weights is None else read_weights(weights, self.design.shape[0])
        self.weights = None if table is None else device_array(np.asarray(table, self.design.dtype))
        columns = self.column_names
        scale = by_name("prior_scale", prior_scale, columns, 1.0)
        mean = by_name("prior_mean", prior_mean, columns, 0.0)
        self.class_prior = gaussian_prior(self.design.shape[1], scale, prior_covariance, mean, self.design.dtype)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of the design."""
        return default_names("coefficient", self.design.shape[1]) if self.names is None else self.names

    @property
    def dim(self) -> int:
        """(K - 1) times the columns."""
        return (len(self.classes) - 1) * self.design.shape[1]

    @property
    def dtype(self) -> Any:
        """The floating type of the design matrix."""
        return self.design.dtype

    @property
    def num_terms(self) -> int:
        """The number of rows."""
        return self.design.shape[0]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """`class: column`, class by class."""
        return tuple(f"{label}: {column}" for label in self.classes[1:] for column in self.column_names)

    def coefficients(self, z: Any) -> Any:
        """B, (K - 1, columns), of a vector z; of draws (n, dim), n in front."""
        return z.reshape(*z.shape[:-1], len(self.classes) - 1, self.design.shape[1])

    def prior_potential(self, z: Vector) -> Scalar:
        """-log N(B_k; m, S), summed over the classes."""
        return jnp.sum(jax.vmap(self.class_prior.potential)(self.coefficients(z)))

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        """-w_n log p(y_n | z) for n in `indices`."""
        terms = -self._log_probabilities(z, self.design[indices], self.response[indices])
        return terms if self.weights is None else self.weights[indices] * terms

    def _log_probabilities(self, z: Vector, rows: Any, classes: Any) -> Any:
        eta = self.linear_predictors(z, rows)
        chosen = jnp.take_along_axis(eta, classes[:, None], axis=1)[:, 0]
        return chosen - jax.nn.logsumexp(eta, axis=1)

    def linear_predictors(self, z: Vector, rows: Any) -> Any:
        """(n, K), zero for the reference."""
        eta = rows @ self.coefficients(z).T
        return jnp.concatenate([jnp.zeros((rows.shape[0], 1), eta.dtype), eta], axis=1)

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        r"""(I x S^-1, that + (I - 11'/K)/2 x X'WX), moved apart by the rounding of their computation."""
        others, columns = len(self.classes) - 1, self.design.shape[1]
        precision, rounding = self.class_prior.precision_matrix(), self.class_prior.precision_rounding()
        identity = np.eye(self.dim)
        prior = np.kron(np.eye(others), precision)
        design = np.asarray(self.design, np.float64)
        weights = np.ones(len(design)) if self.weights is None else np.asarray(self.weights, np.float64)
        gram = design.T @ (weights[:, None] * design)
        gram = gram + 4 * self.num_terms * np.finfo(float).eps * np.trace(gram) * np.eye(columns)
        bend = 0.5 * (np.eye(others) - np.ones((others, others)) / len(self.classes))
        return prior - rounding * identity, prior + rounding * identity + np.kron(bend, gram)

    @property
    def constants(self) -> Constants:
        """A log-concave likelihood under a Gaussian prior."""
        high = self.curvature_bounds()[1]
        return Constants(
            log_concave=proven(True, "Gaussian prior and softmax likelihood: the Hessian of a term is a covariance"),
            strong_convexity=proven(self.class_prior.strong_convexity(), "lambda_min(S^-1), rounded down"),
            smoothness=proven(outer_spectrum(high)[1], "lambda_max(S^-1 + (I - 11'/K)/2 x X'X), rounded up"),
        )

    @property
    def observed_data(self) -> dict[str, np.ndarray]:
        """The classes 0, 1, ..., as "y"."""
        return {"y": np.asarray(self.response)}

    @double_precision
    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y_n | z) of each row, times its weight; for draws (n, dim), n in front."""
        points = read_points(z, self.dim)
        found = -np.asarray(_terms(self, np.atleast_2d(points).astype(self.dtype)))
        return {"y": found if points.ndim == 2 else found[0]}

    @double_precision
    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Classes drawn from p(y | z), one replicate of all rows for each row of z; none for weighted data."""
        if self.weights is not None:
            return {}
        points = np.atleast_2d(read_points(z, self.dim)).astype(self.dtype)
        key = jax.random.fold_in(jax.random.key(check_count("seed", seed, minimum=0)), _STREAM)
        return {"y": np.asarray(_draws(self, points, jax.random.split(key, len(points))))}


@eqx.filter_jit
def _terms(target: MultinomialLogistic, points: Any) -> Any:
    return jax.lax.map(lambda z: target.term_potentials(z, slice(None)), jnp.asarray(points))


@eqx.filter_jit
def _draws(target: MultinomialLogistic, points: Any, keys: Any) -> Any:
    def one(pair: Any) -> Any:
        return jax.random.categorical(pair[1], target.linear_predictors(pair[0], target.design), axis=1)

    return jax.lax.map(one, (jnp.asarray(points), keys))
