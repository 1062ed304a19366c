"""Hierarchical logistic regression: coefficients for each group, drawn around common ones."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from provi.core.arguments import as_array, check_positive, check_scale, device_array, double_precision
from provi.core.types import Indices, Scalar, Vector
from provi.targets.base import Constants, outer_spectrum, proven, read_points
from provi.targets.data import read_binary, read_design, read_groups
from provi.targets.likelihoods import BernoulliLogit
from provi.targets.likelihoods.bernoulli import softplus
from provi.targets.linear_model import AbstractRowModel
from provi.targets.priors import GaussianPrior
from provi.targets.regressions import LogisticRegression
from provi.targets.row_sums import Rows


class HierarchicalLogisticRegression(AbstractRowModel):
    """theta ~ N(0, s^2 I), z_g ~ N(theta, t^2 I), y_n ~ Bernoulli(sigmoid(x_n' z_g(n))).

    The parameter vector is (theta, z_1, ..., z_G), of length p (1 + G).

    Convex and smooth (Corollary 28 of paper 003), with explicit constants. The Hessian is A (x) I_p plus
    blockdiag(0, X_g' D_g X_g) with 0 <= D_g <= 1/4. A is the arrow matrix of the prior: corner
    1/s^2 + G/t^2, arms -1/t^2, diagonal 1/t^2. On vectors (0, v) with v orthogonal to ones it is 1/t^2; on
    the plane left over it is the 2 x 2 matrix [[1/s^2 + G/t^2, -sqrt(G)/t^2], [., 1/t^2]], whose two
    eigenvalues enclose 1/t^2. Hence mu = lambda_min(A), and M <= lambda_max(A) + max_g lambda_max(X_g'X_g)/4.
    """

    likelihood: ClassVar[BernoulliLogit] = BernoulliLogit()
    design: Float[Array, "terms width"]
    response: Float[Array, " terms"]
    membership: Int[Array, " terms"]
    prior_scale: Scalar
    group_scale: Scalar
    names: tuple[str, ...] | None = eqx.field(static=True)
    groups: tuple[str, ...] = eqx.field(static=True)

    @double_precision
    def __init__(self, X: Any, y: Any, groups: Any, prior_scale: Any = 1.0, group_scale: Any = 1.0):
        """**Arguments:**

        - `X`: (N, p) covariates, an array or a data frame.
        - `y`: (N,) labels 0 and 1, or booleans.
        - `groups`: (N,) the group of each row: numbers or strings.
        - `prior_scale`: s, the standard deviation of the common coefficients.
        - `group_scale`: t, the standard deviation of a group around them.
        """
        self.design, self.names = read_design(X, None, intercept=False)
        self.response = jnp.asarray(read_binary(y, self.design.shape[0]), self.design.dtype)
        membership, self.groups = read_groups(groups, self.design.shape[0])
        self.membership = jnp.asarray(membership, jnp.int32)
        dtype, scales = self.design.dtype, {"prior_scale": prior_scale, "group_scale": group_scale}
        self.prior_scale, self.group_scale = (
            jnp.asarray(check_scale(name, check_positive(name, value), dtype), dtype) for name, value in scales.items()
        )

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
        log_scales = common.size * jnp.log(self.prior_scale) + local.size * jnp.log(self.group_scale)
        outer, inner = common / self.prior_scale, (local - common[None, :]) / self.group_scale
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
        """(A (x) I, A (x) I + blockdiag(0, X_g'X_g)/4): dense, so for moderate dimensions."""
        width, inner = self.design.shape[1], float(self.group_scale) ** -2.0
        arrow = np.diag(np.full(1 + self.num_groups, inner))
        arrow[0, 1:] = arrow[1:, 0] = -inner
        arrow[0, 0] = float(self.prior_scale) ** -2.0 + self.num_groups * inner
        low = np.kron(arrow, np.eye(width))
        high = low.copy()
        for group, (gram, rounding) in enumerate(self._grams()):
            block = slice((1 + group) * width, (2 + group) * width)
            high[block, block] += (gram + rounding * np.eye(width)) / 4
        return low, high

    @double_precision
    def linear_model(self) -> LogisticRegression:
        """The same posterior as one logistic regression on (theta, z_1, ..., z_G), with the same parameter names.

        Row n of its design holds x_n in the columns of z_g(n) and zeros elsewhere. The prior covariance is
        Cov(theta) = Cov(theta, z_g) = s^2 I, Cov(z_g, z_h) = s^2 I + 1[g = h] t^2 I. Its Cholesky factor is written
        down, not computed: theta = s a, z_g = s a + t b_g with a, b_g standard normal, so that nothing is lost
        when s and t are far apart.

        The design takes N p (1 + G) numbers, the factor (p (1 + G))^2: for moderate G.
        """
        rows, width = self.design.shape
        membership = np.asarray(self.membership)
        design = np.zeros((rows, 1 + self.num_groups, width), self.dtype)
        design[np.arange(rows), 1 + membership] = np.asarray(self.design)
        scales = np.diag(np.r_[float(self.prior_scale), np.full(self.num_groups, float(self.group_scale))])
        scales[1:, 0] = float(self.prior_scale)
        factor = device_array(np.kron(scales, np.eye(width)), self.dtype)
        prior = GaussianPrior(jnp.zeros(self.dim, self.dtype), factor)
        model = LogisticRegression(design.reshape(rows, self.dim), self.response, names=self.parameter_names)
        return eqx.tree_at(lambda m: m.prior, model, prior)

    @property
    def constants(self) -> Constants:
        """Proven, from the eigenvalues of the arrow matrix and of each group's Gram matrix."""
        outer, inner = float(self.prior_scale) ** -2.0, float(self.group_scale) ** -2.0
        trace = outer + (1 + self.num_groups) * inner
        largest = 0.5 * (trace + np.sqrt(trace**2 - 4 * outer * inner))
        # The product of the two eigenvalues is 1/(s t)^2: no cancellation in the smaller one.
        smallest = outer * inner / largest
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

    def _split(self, z: Vector) -> tuple[Float[Array, " width"], Float[Array, "groups width"]]:
        width = self.design.shape[1]
        return z[:width], z[width:].reshape(self.num_groups, width)

    def _grams(self) -> list[tuple[np.ndarray, float]]:
        """X_g'X_g and a bound on its rounding, for each group."""
        design, membership = np.asarray(self.design, np.float64), np.asarray(self.membership)
        parts = (design[membership == group] for group in range(self.num_groups))
        epsilon = np.finfo(np.float64).eps
        return [(part.T @ part, 2 * len(part) * epsilon * float(np.sum(part**2))) for part in parts]
