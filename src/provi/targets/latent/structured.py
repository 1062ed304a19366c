r"""Blocks whose effects depend on their neighbours: walks, autoregressions, graphs, seasons.

An *intrinsic* block has a precision R that leaves some directions free (the level of a walk, a linear trend). There
the effects are $u = \sigma v + Bc$: v is orthogonal to all of these directions, so that the intercept of the model
keeps its meaning, and those of them that people want in the block (B: the trend of a second-order walk, the pattern of
a season) have coefficients $c \sim N(0, s^2)$. R is scaled so that the geometric mean of the variances of v is one
(Sorbye and Rue 2014): a scale means the same on every graph. A ridge of $10^{-8}$ of the mean of its diagonal is part
of the model.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from provi.core.arguments import as_array, check_positive, check_positive_definite, device_array
from provi.targets.latent.blocks import AbstractBlock, Pattern, SparseRows, read_index, read_levels
from provi.targets.latent.graphs import constrained_log_det, constrained_variances, graph_laplacian, read_edges
from provi.targets.latent.priors import AbstractHyperprior, Beta, HalfNormal, Uniform

_RIDGE = 1e-8


class _Field(AbstractBlock):
    """One effect a level, u = sigma v + B c, and the entries of R."""

    name: str = eqx.field(static=True)
    index: Any
    scale: AbstractHyperprior
    num_levels: int = eqx.field(static=True)
    level_names: tuple[str, ...] | None = eqx.field(static=True)
    entries: Pattern
    matrix: Any
    log_determinant: Any
    null: Any
    free: Any

    def _read(self, name: str, index: Any, size: int | None, scale: Any, levels: Any) -> None:
        self.name = str(name)
        self.index, self.num_levels = read_index(f"index of {name!r}", index, size)
        self.scale = HalfNormal(2.5) if scale is None else scale
        self.level_names = read_levels(name, levels, self.num_levels)

    @property
    def extra(self) -> int:
        """The number of coefficients of B."""
        return self.free.shape[1]

    @property
    def tail(self) -> int:
        """The coefficients of B."""
        return self.extra

    @property
    def size(self) -> int:
        """Levels, and the coefficients of B."""
        return self.num_levels + self.extra

    @property
    def num_rows(self) -> int:
        """Of the data."""
        return len(self.index)

    @property
    def priors(self) -> dict[str, AbstractHyperprior]:
        """The standard deviation."""
        return {f"sd({self.name})": self.scale}

    def rows(self, theta: Any) -> SparseRows:
        """The effect of the datum's level."""
        effects = self.effect_rows(theta)
        index = jnp.asarray(self.index)
        return SparseRows(effects.index[index], effects.values[index])

    def effect_rows(self, theta: Any) -> SparseRows:
        """sigma, and the row of B."""
        levels, extra = self.num_levels, self.extra
        index = np.concatenate(
            [np.arange(levels)[:, None], np.broadcast_to(levels + np.arange(extra), (levels, extra))], axis=1
        )
        values = jnp.concatenate([jnp.full((levels, 1), 1.0) * theta[0], jnp.asarray(self.free)], axis=1)
        return SparseRows(jnp.asarray(index), values)

    @property
    def effect_shape(self) -> tuple[int, ...]:
        """One a level."""
        return (self.num_levels,)

    @property
    def pattern(self) -> Pattern:
        """That of R, and the diagonal for c."""
        places = self.num_levels + np.arange(self.extra)
        return Pattern(
            jnp.concatenate([jnp.asarray(self.entries.rows), places]),
            jnp.concatenate([jnp.asarray(self.entries.columns), places]),
        )

    def precision(self, theta: Any) -> Any:
        """R, and ones: B holds the scale of c."""
        del theta
        return jnp.concatenate([jnp.asarray(self.matrix), jnp.ones(self.extra)])

    def log_det(self, theta: Any) -> Any:
        """Computed when the block was made."""
        del theta
        return jnp.asarray(self.log_determinant)

    @property
    def constraint(self) -> Any:
        """v has nothing of the directions that R leaves free."""
        if not self.null.shape[1]:
            return None
        return jnp.concatenate([jnp.asarray(self.null), jnp.zeros((self.extra, self.null.shape[1]))])

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the levels."""
        return super().levels if self.level_names is None else self.level_names

    def _set_intrinsic(self, matrix: Any, null: np.ndarray, free: np.ndarray) -> None:
        """Scale R, add the ridge and keep its lower entries."""
        matrix = sparse.csc_matrix(matrix)
        ridged = matrix + _RIDGE * matrix.diagonal().mean() * sparse.eye(self.num_levels)
        factor = 1.0
        if null.shape[1]:
            factor = float(np.exp(np.mean(np.log(np.maximum(constrained_variances(ridged, null), 1e-12)))))
        self._set_matrix(ridged * factor, null, free)

    def _set_matrix(self, matrix: Any, null: np.ndarray, free: np.ndarray) -> None:
        lower = sparse.tril(sparse.csc_matrix(matrix)).tocoo()
        self.entries = Pattern(lower.row.astype(np.int32), lower.col.astype(np.int32))
        self.matrix, self.null, self.free = lower.data, null, free
        self.log_determinant = np.asarray(constrained_log_det(sparse.csc_matrix(matrix), null))


class RandomWalk(_Field):
    r"""Differences of neighbouring levels are independent and normal, first ones (`order` 1) or second ones (2).

    Their size is scaled: $\sigma$ is about the standard deviation of the effects themselves, not that of a step.

    Orthogonal to constants: the level is the model's intercept. A walk of order 2 has a linear trend, with the
    coefficient $N(0, \texttt{trend\_scale}^2)$ of the standardised time.
    """

    def __init__(
        self,
        index: Any,
        order: int = 1,
        *,
        size: int | None = None,
        scale: AbstractHyperprior | None = None,
        trend_scale: float = 2.5,
        name: str = "walk",
        levels: Any = None,
    ):
        """`index`: (N,) the place of each datum in the walk, 0, 1, ...; other arguments as for `Independent`."""
        self._read(name, index, size, scale, levels)
        length = self.num_levels
        if order not in (1, 2):
            raise ValueError(f"order of {name!r} must be 1 or 2, not {order}.")
        if length < order + 2:
            raise ValueError(f"A walk of order {order} needs {order + 2} levels at least; {name!r} has {length}.")
        difference: Any = sparse.eye(length, format="csr")
        for _ in range(order):
            difference = difference[1:] - difference[:-1]
        level, time = np.full((length, 1), length**-0.5), np.arange(length) - (length - 1) / 2
        trend = (time / np.linalg.norm(time))[:, None]
        null = level if order == 1 else np.concatenate([level, trend], axis=1)
        free = (
            np.zeros((length, 0))
            if order == 1
            else trend * np.sqrt(length) * check_positive("trend_scale", trend_scale)
        )
        self._set_intrinsic(difference.T @ difference, null, free)


class Besag(_Field):
    r"""An intrinsic conditional autoregression on a graph: $u_i - u_j \sim N(0, \sigma^2)$ for neighbours i, j.

    Sums to zero in every connected part; a level without neighbours has an effect of its own, $N(0, \sigma^2)$.
    """

    def __init__(
        self,
        index: Any,
        edges: Any,
        *,
        size: int | None = None,
        scale: AbstractHyperprior | None = None,
        name: str = "space",
        levels: Any = None,
    ):
        """`edges`: (E, 2) pairs of neighbouring levels, or a symmetric adjacency matrix."""
        pairs = read_edges(name, edges)
        largest = max(int(np.max(np.asarray(index))), int(pairs.max(initial=0))) + 1
        self._read(name, index, largest if size is None else size, scale, levels)
        matrix, null = graph_laplacian(pairs, self.num_levels)
        self._set_intrinsic(matrix, null, np.zeros((self.num_levels, 0)))


class Seasonal(_Field):
    r"""Sums over `period` neighbouring levels are $N(0, \sigma^2)$; the pattern of the first period is $N(0, s^2)$."""

    def __init__(
        self,
        index: Any,
        period: int,
        *,
        size: int | None = None,
        scale: AbstractHyperprior | None = None,
        pattern_scale: float = 2.5,
        name: str = "season",
        levels: Any = None,
    ):
        """`period`: of the season, in levels. `pattern_scale`: s above."""
        self._read(name, index, size, scale, levels)
        length = self.num_levels
        if not 2 <= period < length:
            raise ValueError(f"period of {name!r} must be at least 2 and below the number of levels, {length}.")
        window = sum(sparse.eye(length - period + 1, length, k=k) for k in range(period))
        patterns = (
            np.eye(period)[np.arange(length) % period][:, :-1] - np.eye(period)[np.arange(length) % period][:, -1:]
        )
        null = np.linalg.qr(patterns)[0]
        free = null * np.sqrt(length) * check_positive("pattern_scale", pattern_scale) / np.sqrt(period - 1)
        self._set_intrinsic(sparse.csr_matrix(window).T @ sparse.csr_matrix(window), null, free)


class Custom(_Field):
    r"""$u \sim N(0, \sigma^2P^{-1})$ with your own precision matrix P, dense or sparse, positive definite."""

    def __init__(
        self,
        index: Any,
        precision: Any,
        *,
        scale: AbstractHyperprior | None = None,
        name: str = "custom",
        levels: Any = None,
    ):
        """`precision`: (size, size), symmetric positive definite."""
        matrix = precision if sparse.issparse(precision) else as_array(f"precision of {name!r}", precision, ndim=2)
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"precision of {name!r} must be square; its shape is {matrix.shape}.")
        if not sparse.issparse(matrix):
            check_positive_definite(f"precision of {name!r}", np.asarray(matrix))
        self._read(name, index, matrix.shape[0], scale, levels)
        none = np.zeros((self.num_levels, 0))
        self._set_matrix(matrix, none, none)


class AR1(_Field):
    r"""$u_t = \rho u_{t-1} + \epsilon_t$, stationary with the standard deviation $\sigma$."""

    correlation: AbstractHyperprior

    def __init__(
        self,
        index: Any,
        *,
        size: int | None = None,
        scale: AbstractHyperprior | None = None,
        correlation: AbstractHyperprior | None = None,
        name: str = "ar1",
        levels: Any = None,
    ):
        """`correlation`: the prior of rho on (-1, 1); default flat."""
        self._read(name, index, size, scale, levels)
        self.correlation = Uniform(-1.0, 1.0) if correlation is None else correlation
        places = np.arange(self.num_levels, dtype=np.int32)
        self.entries = Pattern(np.concatenate([places, places[1:]]), np.concatenate([places, places[:-1]]))
        none = np.zeros((self.num_levels, 0))
        self.matrix, self.log_determinant, self.null, self.free = np.zeros(0), np.zeros(()), none, none

    @property
    def priors(self) -> dict[str, AbstractHyperprior]:
        """sigma and rho."""
        return {f"sd({self.name})": self.scale, f"rho({self.name})": self.correlation}

    def precision(self, theta: Any) -> Any:
        """(1, 1 + rho^2, ..., 1 + rho^2, 1) and -rho, over 1 - rho^2."""
        length, rho = self.num_levels, theta[1]
        inner = np.ones(length)
        inner[[0, -1]] = 0.0
        diagonal = 1 + jnp.asarray(inner) * rho**2 if length > 1 else 1 - jnp.ones(1) * rho**2
        return jnp.concatenate([diagonal, jnp.full(length - 1, -1.0) * rho]) / (1 - rho**2)

    def log_det(self, theta: Any) -> Any:
        """-(n - 1) log(1 - rho^2)."""
        return -(self.num_levels - 1) * jnp.log1p(-(theta[1] ** 2))


class BYM2(_Field):
    r"""$u = \sigma(\sqrt\phi\,s + \sqrt{1 - \phi}\,e)$: a scaled Besag field s, independent effects e (Riebler 2016).

    $\phi$ is the share of the variance that is spatial.
    """

    mixing: AbstractHyperprior

    def __init__(
        self,
        index: Any,
        edges: Any,
        *,
        size: int | None = None,
        scale: AbstractHyperprior | None = None,
        mixing: AbstractHyperprior | None = None,
        name: str = "space",
        levels: Any = None,
    ):
        """`mixing`: the prior of phi; default `Beta(0.5, 0.5)`, as in Stan's case study."""
        field = Besag(index, edges, size=size, scale=scale, name=name, levels=levels)
        for key in ("name", "index", "scale", "num_levels", "level_names", "entries", "matrix", "null"):
            setattr(self, key, getattr(field, key))
        self.log_determinant = field.log_determinant
        self.mixing = Beta(0.5, 0.5) if mixing is None else mixing
        self.free = np.zeros((self.num_levels, 0))

    @property
    def extra(self) -> int:
        """The independent effects take the place of the coefficients c."""
        return self.num_levels

    @property
    def tail(self) -> int:
        """None: a datum sees one of the independent effects."""
        return 0

    @property
    def priors(self) -> dict[str, AbstractHyperprior]:
        """sigma and phi."""
        return {f"sd({self.name})": self.scale, f"mixing({self.name})": self.mixing}

    def effect_rows(self, theta: Any) -> SparseRows:
        """The two parts."""
        places, count = np.arange(self.num_levels), self.num_levels
        ones = jnp.ones(count) * theta[0]
        values = jnp.stack([ones * jnp.sqrt(theta[1]), ones * jnp.sqrt(1 - theta[1])], axis=1)
        return SparseRows(device_array(np.stack([places, places + count], axis=1)), values)
