"""Models in which each data term sees the parameters through one inner product."""

import abc
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.types import Indices, Scalar, Vector
from provi.targets.base import AbstractFiniteSum
from provi.targets.constants import Constants, outer_spectrum, proven, unknown
from provi.targets.data import default_names
from provi.targets.link_moments import LinkMoments, MomentErrors, quadrature_errors, quadrature_moments
from provi.targets.priors import GaussianPrior

Batch: TypeAlias = Float[Array, " batch"]
"""One number for each row of a mini-batch."""


class AbstractLinearModel(AbstractFiniteSum):
    """A Gaussian prior N(m, S) and terms t(x_n' z, y_n) with second derivative in [t0, t1], t0 >= 0.

    The Hessian of the potential is S^-1 + X' diag(t'') X, so it lies between S^-1 + t0 X'X and
    S^-1 + t1 X'X (Theorem 24 of paper 003): the extreme eigenvalues of these two are the strong
    convexity and the smoothness.
    """

    design: eqx.AbstractVar[Float[Array, "terms dim"]]
    response: eqx.AbstractVar[Float[Array, " terms"]]
    prior: eqx.AbstractVar[GaussianPrior]
    names: eqx.AbstractVar[tuple[str, ...] | None]
    second_derivative: eqx.AbstractClassVar[str]
    """The formula of t'' in `eta`, for people."""

    @abc.abstractmethod
    def link_potential(self, eta: Batch, y: Batch) -> Batch:
        """-log p(y | eta), entry by entry, normalised over y."""

    @property
    @abc.abstractmethod
    def curvature(self) -> tuple[float, float]:
        """(t0, t1): the range of the second derivative of `link_potential` in `eta`; t1 may be infinite."""

    @property
    def self_concordance(self) -> float | None:
        """M such that the derivative of t'' is at most M t'' in absolute value; None where there is no such M."""
        return None

    @property
    def value_error(self) -> float:
        """A bound on the error of one term's mean, as `gaussian_moments` computes it."""
        return 1e-10

    def gaussian_moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E t, E t' and E t'' for eta ~ N(mean, variance), one a data term: by quadrature, or in closed form."""
        return quadrature_moments(lambda eta: self.link_potential(eta, y), mean, jnp.sqrt(variance))

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Bounds on the errors of `gaussian_moments`."""
        return quadrature_errors(lambda eta: self.link_potential(eta, y), mean, jnp.sqrt(variance))

    def curvature_moments(self, mean: Batch, deviation: Batch) -> tuple[Batch, Batch, Batch, float]:
        """E[u^j t''(mean + deviation u)] for j = 0, 1, 2 and u ~ N(0, 1), and a bound on their errors.

        Only for self-concordant links; there t'' must not depend on y.
        """
        raise ValueError(f"{type(self).__name__} is not self-concordant: its curvature has no such moments.")

    @property
    def dim(self) -> int:
        """The number of coefficients, the intercept included."""
        return self.design.shape[1]

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
        """The columns' names, or `coefficient[0]`, `coefficient[1]`, ..."""
        return default_names("coefficient", self.dim) if self.names is None else self.names

    def prior_potential(self, z: Vector) -> Scalar:
        """-log N(z; m, S)."""
        return self.prior.potential(z)

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Batch:
        """-log p(y_n | x_n' z) for n in `indices`."""
        return self.link_potential(self.design[indices] @ z, self.response[indices])

    def linear_model(self) -> "AbstractLinearModel":
        """Itself."""
        return self

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None]:
        """(S^-1 + t0 X'X, S^-1 + t1 X'X), moved apart by the rounding of their computation."""
        lower, upper = self.curvature
        precision, identity = self.prior.precision_matrix(), np.eye(self.dim)
        rounding = self.prior.precision_rounding()
        low, high = precision - rounding * identity, precision + rounding * identity
        if upper == 0.0:
            return low, high
        design = np.asarray(self.design, dtype=np.float64)
        gram = design.T @ design
        # An inner product of length N is off by at most N eps |x||y|; |X|_F^2 bounds the matrix of these.
        error = 2 * self.num_terms * np.finfo(np.float64).eps * np.trace(gram) * identity
        low = low + lower * (gram - error) if lower > 0 else low
        return low, (high + upper * (gram + error) if np.isfinite(upper) else None)

    def curvature_lower_bound(self) -> np.ndarray:
        """Without a pass over the data where the terms promise no curvature."""
        if self.curvature[0] > 0:
            return self.curvature_bounds()[0]
        return self.prior.precision_matrix() - self.prior.precision_rounding() * np.eye(self.dim)

    @property
    def constants(self) -> Constants:
        """Proven: a log-concave likelihood under a Gaussian prior."""
        low, high = self.curvature_bounds()
        strong_convexity = max(outer_spectrum(low)[0], self.prior.strong_convexity())
        smoothness = (
            unknown(f"not smooth: the second derivative {self.second_derivative} is unbounded")
            if high is None
            else proven(outer_spectrum(high)[1], "lambda_max(S^-1 + t1 X'X), rounded up")
        )
        return Constants(
            log_concave=proven(True, "Gaussian prior and log-concave likelihood"),
            strong_convexity=proven(strong_convexity, "lambda_min(S^-1 + t0 X'X), rounded down"),
            smoothness=smoothness,
        )
