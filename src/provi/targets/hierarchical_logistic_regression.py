"""Hierarchical logistic regression: coefficients for each group, drawn around common ones."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from scipy.linalg import solve_triangular as host_solve_triangular

from provi.core.arguments import as_array, check_positive, check_scale, device_array, double_precision
from provi.core.types import Indices, Scalar, Vector
from provi.targets.base import Constants, outer_spectrum, proven, read_points
from provi.targets.data import read_binary, read_design, read_groups
from provi.targets.likelihoods import BernoulliLogit
from provi.targets.likelihoods.bernoulli import softplus
from provi.targets.linear_model import AbstractRowModel
from provi.targets.priors import GaussianPrior, gaussian_prior
from provi.targets.regressions import LogisticRegression
from provi.targets.row_sums import Rows


class HierarchicalLogisticRegression(AbstractRowModel):
    r"""theta ~ N(0, S), z_g ~ N(theta, T), y_n ~ Bernoulli(sigmoid(x_n' z_g(n))), with S = s^2 I and T = t^2 I or any.

    The parameter vector is (theta, z_1, ..., z_G), of length p (1 + G).

    Convex and smooth (Corollary 28 of paper 003), with explicit constants, also where S and T are no multiples of I.
    The Hessian is that of the prior plus blockdiag(0, X_g' D_g X_g) with 0 <= D_g <= 1/4. The prior's is an arrow of
    blocks: corner S^-1 + G T^-1, arms -T^-1, diagonal T^-1. Vectors (0, v_1, ..., v_G) with sum v_g = 0 it maps to T^-1
    of each part; on those left over, (theta, u, ..., u) with u scaled by sqrt(G), it is the 2p x 2p matrix $P =
    \begin{pmatrix}S^{-1} + GT^{-1} & -\sqrt GT^{-1}\\ \cdot & T^{-1}\end{pmatrix}$, of which T^-1 is a part, so that
    its eigenvalues enclose those of T^-1. Its inverse is $K = \begin{pmatrix}S & \sqrt GS\\ \cdot & GS +
    T\end{pmatrix}$. Hence mu = lambda_min(P) = 1/lambda_max(K), and M <= lambda_max(P) + max_g lambda_max(X_g'X_g)/4.
    For multiples of I, P is a 2 x 2 matrix, and both eigenvalues are in closed form.
    """

    likelihood: ClassVar[BernoulliLogit] = BernoulliLogit()
    design: Float[Array, "terms width"]
    response: Float[Array, " terms"]
    membership: Int[Array, " terms"]
    prior_scale: Scalar | Float[Array, " width"] | Float[Array, "width width"]
    """s; or a standard deviation a column, or the lower triangular factor of S."""
    group_scale: Scalar | Float[Array, " width"] | Float[Array, "width width"]
    """t, likewise."""
    names: tuple[str, ...] | None = eqx.field(static=True)
    groups: tuple[str, ...] = eqx.field(static=True)

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        groups: Any,
        prior_scale: Any = 1.0,
        group_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        group_covariance: Any = None,
    ):
        """**Arguments:**

        - `X`: (N, p) covariates, an array or a data frame.
        - `y`: (N,) labels 0 and 1, or booleans.
        - `groups`: (N,) the group of each row: numbers or strings.
        - `prior_scale`: s, the standard deviation of the common coefficients, or one for each column.
        - `group_scale`: t, the standard deviation of a group around them, or one for each column.
        - `prior_covariance`, `group_covariance`: instead of a scale, (p,) variances or a (p, p) matrix S, T.
        """
        self.design, self.names = read_design(X, None, intercept=False)
        self.response = jnp.asarray(read_binary(y, self.design.shape[0]), self.design.dtype)
        membership, self.groups = read_groups(groups, self.design.shape[0])
        self.membership = jnp.asarray(membership, jnp.int32)
        shape = self.design.shape[1], self.design.dtype
        self.prior_scale = _read_scale("prior", prior_scale, prior_covariance, *shape)
        self.group_scale = _read_scale("group", group_scale, group_covariance, *shape)

    @property
    def num_groups(self) -> int:
        """G."""
        return len(self.groups)

    @property
    def dim(self) -> int:
        """p (1 + G)."""
        return self.design.shape[1] * (1 + self.num_groups)

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
        """`theta[j]`, then `z[g,j]`; columns of a data frame stand in for j."""
        columns = self.names or tuple(str(index) for index in range(self.design.shape[1]))
        common = tuple(f"theta[{column}]" for column in columns)
        return common + tuple(f"z[{group},{column}]" for group in self.groups for column in columns)

    def prior_potential(self, z: Vector) -> Scalar:
        """-log p(theta) - sum_g log p(z_g | theta), normalised."""
        common, local = self._split(z)
        outer = _white(self.prior_scale, common[None, :])
        inner = _white(self.group_scale, local - common[None, :])
        width = common.size
        log_scales = _log_det(self.prior_scale, width) + self.num_groups * _log_det(self.group_scale, width)
        return 0.5 * (jnp.sum(outer**2) + jnp.sum(inner**2)) + log_scales + 0.5 * self.dim * math.log(2 * math.pi)

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        """-log p(y_n | z_g(n)) for n in `indices`."""
        local = self._split(z)[1][self.membership[indices]]
        eta = jnp.sum(self.design[indices] * local, axis=1)
        return softplus((1 - 2 * self.response[indices]) * eta)

    def row_data(self) -> tuple[Any, Any]:
        """Covariates and group of each row, and its label."""
        return (self.design, self.membership), self.response

    def predictor(self, rows: Rows, z: Vector) -> Float[Array, " batch"]:
        """eta_n = x_n' z_g(n) of these rows."""
        covariates, membership = rows.design
        return jnp.sum(covariates * self._split(z)[1][membership], axis=1)

    def constrain(self, z: Any) -> dict[str, np.ndarray]:
        """The common coefficients `theta` (p,) and those of the groups, `z` (G, p); for draws (n, dim), n in front."""
        points, width = read_points(z, self.dim), self.design.shape[1]
        local = points[..., width:].reshape(*points.shape[:-1], self.num_groups, width)
        return {"theta": points[..., :width], "z": local}

    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector (theta, z_1, ..., z_G) of a dictionary as `constrain` returns it."""
        parts = [np.ravel(as_array(f"values[{name!r}]", values[name])) for name in ("theta", "z")]
        return read_points(np.concatenate(parts), self.dim)

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[str]]]:
        """Columns and groups."""
        columns = self.names or tuple(str(index) for index in range(self.design.shape[1]))
        return {"theta": {"column": columns}, "z": {"group": self.groups, "column": columns}}

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(H, H + blockdiag(0, X_g'X_g)/4), H the prior's Hessian less and more its rounding; dense."""
        width, arrow = self.design.shape[1], np.diag(np.ones(1 + self.num_groups))
        arrow[0, 1:] = arrow[1:, 0] = -1
        arrow[0, 0] = self.num_groups
        (outer, first), (inner, second) = (_precision(scale, width) for scale in (self.prior_scale, self.group_scale))
        low = np.kron(arrow, inner)
        low[:width, :width] += outer
        high = low.copy()
        # An arrow of errors of blocks has a norm of at most 2 + 2 G of them.
        error = first + 2 * (1 + self.num_groups) * second
        low[np.diag_indices_from(low)] -= error
        high[np.diag_indices_from(high)] += error
        for group, (gram, rounding) in enumerate(self._grams()):
            block = slice((1 + group) * width, (2 + group) * width)
            high[block, block] += (gram + rounding * np.eye(width)) / 4
        return low, high

    @double_precision
    def linear_model(self) -> LogisticRegression:
        """The same posterior as one logistic regression on (theta, z_1, ..., z_G), with the same parameter names.

        Row n of its design holds x_n in the columns of z_g(n) and zeros elsewhere. The prior covariance is
        Cov(theta) = Cov(theta, z_g) = S, Cov(z_g, z_h) = S + 1[g = h] T. Its Cholesky factor is written down, not
        computed: theta = S^(1/2) a, z_g = S^(1/2) a + T^(1/2) b_g with a, b_g standard normal, so that nothing is lost
        when S and T are far apart.

        The design takes N p (1 + G) numbers, the factor (p (1 + G))^2: for moderate G.
        """
        rows, width = self.design.shape
        membership = np.asarray(self.membership)
        design = np.zeros((rows, 1 + self.num_groups, width), self.dtype)
        design[np.arange(rows), 1 + membership] = np.asarray(self.design)
        first = np.zeros((1 + self.num_groups, 1 + self.num_groups))
        first[:, 0] = 1
        own = np.diag(np.r_[0.0, np.ones(self.num_groups)])
        outer, inner = (scale_factor(scale, width) for scale in (self.prior_scale, self.group_scale))
        factor = device_array(np.kron(first, outer) + np.kron(own, inner), self.dtype)
        prior = GaussianPrior(jnp.zeros(self.dim, self.dtype), factor)
        model = LogisticRegression(design.reshape(rows, self.dim), self.response, names=self.parameter_names)
        return eqx.tree_at(lambda m: m.prior, model, prior)

    @property
    def constants(self) -> Constants:
        """Proven, from the eigenvalues of the prior's Hessian and of each group's Gram matrix."""
        smallest, largest = self._prior_spectrum()
        data = max(outer_spectrum(gram, rounding)[1] for gram, rounding in self._grams())
        margin = 32 * np.finfo(np.float64).eps
        return Constants(
            log_concave=proven(True, "Gaussian priors and log-concave likelihood"),
            strong_convexity=proven(
                float(smallest * (1 - margin)), "lambda_min of the joint prior precision, rounded down"
            ),
            smoothness=proven(
                float((largest + data / 4) * (1 + margin)),
                "lambda_max of the joint prior precision + max_g lambda_max(X_g'X_g)/4, rounded up",
            ),
        )

    def _prior_spectrum(self) -> tuple[float, float]:
        """The ends of the spectrum of the prior's Hessian: of multiples of I near to it, else below and above it."""
        groups, width = self.num_groups, self.design.shape[1]
        if self.prior_scale.ndim == self.group_scale.ndim == 0:
            outer, inner = float(self.prior_scale) ** -2.0, float(self.group_scale) ** -2.0
            trace = outer + (1 + groups) * inner
            largest = 0.5 * (trace + np.sqrt(trace**2 - 4 * outer * inner))
            # The product of the two eigenvalues is 1/(s t)^2: no cancellation in the smaller one.
            return outer * inner / largest, largest
        factors = (scale_factor(scale, width) for scale in (self.prior_scale, self.group_scale))
        first, second = (factor @ factor.T for factor in factors)
        mixed = np.sqrt(groups) * first
        covariance = np.block([[first, mixed], [mixed, groups * first + second]])
        rounding = (2 * width + 8) * np.finfo(np.float64).eps * float(np.trace(covariance))
        (outer, one), (inner, two) = (_precision(scale, width) for scale in (self.prior_scale, self.group_scale))
        mixed = -np.sqrt(groups) * inner
        precision = np.block([[outer + groups * inner, mixed], [mixed, inner]])
        error = one + 2 * (1 + groups) * two
        return 1 / outer_spectrum(covariance, rounding)[1], outer_spectrum(precision, error)[1]

    def _split(self, z: Vector) -> tuple[Float[Array, " width"], Float[Array, "groups width"]]:
        width = self.design.shape[1]
        return z[:width], z[width:].reshape(self.num_groups, width)

    def _grams(self) -> list[tuple[np.ndarray, float]]:
        """X_g'X_g and a bound on its rounding, for each group."""
        design, membership = np.asarray(self.design, np.float64), np.asarray(self.membership)
        parts = (design[membership == group] for group in range(self.num_groups))
        epsilon = np.finfo(np.float64).eps
        return [(part.T @ part, 2 * len(part) * epsilon * float(np.sum(part**2))) for part in parts]


def _read_scale(which: str, scale: Any, covariance: Any, width: int, dtype: Any) -> Any:
    """A number, a vector or a lower triangular matrix; errors name the argument, of which `which` is the beginning."""
    name = f"{which}_scale"
    if covariance is None and np.ndim(scale) == 0:
        return jnp.asarray(check_scale(name, check_positive(name, scale), dtype), dtype)
    try:
        return gaussian_prior(width, scale, covariance, dtype=dtype).factor
    except ValueError as error:
        raise ValueError(str(error).replace("prior_", f"{which}_")) from None


def _white(scale: Any, rows: Any) -> Any:
    """L^-1 x of each row."""
    if scale.ndim == 2:
        return solve_triangular(scale, rows.T, lower=True).T
    return rows / (scale if scale.ndim == 0 else scale[None, :])


def _log_det(scale: Any, width: int) -> Any:
    diagonal = jnp.diagonal(scale) if scale.ndim == 2 else jnp.broadcast_to(scale, (width,))
    return jnp.sum(jnp.log(diagonal))


def scale_factor(scale: Any, width: int) -> np.ndarray:
    """L as a (width, width) matrix in float64: a standard deviation, one a column, or L itself."""
    found = np.asarray(scale, np.float64)
    return found if found.ndim == 2 else np.diag(np.broadcast_to(found, (width,)))


def _precision(scale: Any, width: int) -> tuple[np.ndarray, float]:
    """(L L')^-1, and a bound on the norm of its rounding; none to speak of where L is diagonal."""
    factor = scale_factor(scale, width)
    if np.count_nonzero(factor) == np.count_nonzero(np.diagonal(factor)):
        return np.diag(np.diagonal(factor) ** -2.0), 0.0
    inverse = host_solve_triangular(factor, np.eye(width), lower=True)
    found, size = inverse.T @ inverse, float(np.linalg.norm(inverse))
    # A triangular inverse is off by at most p eps |L^-1||L||L^-1|, entry by entry (Higham 2002, section 14.2).
    epsilon = 4 * width * np.finfo(np.float64).eps
    return found, epsilon * size**2 * (1 + 2 * size * float(np.linalg.norm(factor)))
