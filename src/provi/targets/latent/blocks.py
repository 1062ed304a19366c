r"""What a block of latent effects is, and the commonest: independent levels with intercepts and slopes.

Every block is kept in standardised coordinates v whose precision R knows no scale: $u = T(\theta)v$, $v \sim N(0,
R(\theta)^{-1})$, on a subspace where there is a constraint. Where a scale goes to zero nothing becomes singular: the
rows of the design do.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import as_array, check_length
from provi.targets.latent.priors import LKJ, AbstractHyperprior, HalfNormal, correlation_factor


class SparseRows(eqx.Module):
    """Rows with few entries: row i is `values[i, j]` at the columns `index[i, j]`."""

    index: Any
    values: Any


def stacked_rows(parts: list[SparseRows]) -> SparseRows:
    """Rows under rows, with zeros where some have fewer entries than others."""
    widest = max(part.index.shape[1] for part in parts)

    def padded(part: SparseRows) -> SparseRows:
        extra = widest - part.index.shape[1]
        return SparseRows(jnp.pad(part.index, ((0, 0), (0, extra))), jnp.pad(part.values, ((0, 0), (0, extra))))

    wide = [padded(part) for part in parts]
    return SparseRows(jnp.concatenate([p.index for p in wide]), jnp.concatenate([p.values for p in wide]))


class Pattern(eqx.Module):
    """Where a symmetric matrix has entries: pairs with row >= column, the diagonal among them."""

    rows: Any
    columns: Any


class AbstractBlock(eqx.Module):
    r"""Effects $u = T(\theta)v$ given hyperparameters, and how the data see v.

    `theta` below are the block's hyperparameters in their own space (scales, correlations), in the order of `priors`.
    """

    name: eqx.AbstractVar[str]
    turns: ClassVar[bool] = False
    """Whether hyperparameters turn v, and not only stretch it."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The length of v."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """Of the data."""

    @property
    @abc.abstractmethod
    def priors(self) -> dict[str, AbstractHyperprior]:
        """The hyperparameters by name."""

    @abc.abstractmethod
    def rows(self, theta: Any) -> SparseRows:
        """What each datum adds to its predictor: rows over v."""

    @abc.abstractmethod
    def effect_rows(self, theta: Any) -> SparseRows:
        """T: the effects, raveled, as rows over v."""

    @property
    @abc.abstractmethod
    def effect_shape(self) -> tuple[int, ...]:
        """The shape of the effects u."""

    @property
    def pattern(self) -> Pattern | None:
        """Of R; None where R is the identity."""
        return None

    def precision(self, theta: Any) -> Any:
        """The entries of R at `pattern`: ones, unless it has one."""
        del theta
        return jnp.ones(self.size)

    def log_det(self, theta: Any) -> Any:
        """log det R, on the subspace that the constraint leaves."""
        del theta
        return jnp.asarray(0.0)

    @property
    def constraint(self) -> Any:
        """Orthonormal columns N with N'v = 0; None where v is free."""
        return None

    @property
    def tail(self) -> int:
        """The number of last coordinates of v that every datum sees: the last columns of `rows`, never eliminated."""
        return 0

    def reported(self, theta: Any) -> dict[str, Any]:
        """The numbers that people want to see, by name: the hyperparameters themselves unless said otherwise."""
        return {name: theta[i] for i, name in enumerate(self.priors)}

    @property
    def levels(self) -> tuple[str, ...]:
        """A label for each of the first axis of the effects."""
        return tuple(map(str, range(self.effect_shape[0])))

    @property
    def coefficients(self) -> tuple[str, ...]:
        """A label for each of the second axis, if there is one."""
        return ()


class Independent(AbstractBlock):
    r"""Levels that are alike: $u_g \sim N(0, \Sigma)$ for each level g, $\Sigma = \mathrm{diag}(\sigma) C C'
    \mathrm{diag}(\sigma)$; a datum of level g adds $x'u_g$.

    `(1 + x | g)` of lme4 and brms.
    """

    name: str = eqx.field(static=True)
    index: Any
    covariates: Any
    scales: tuple[AbstractHyperprior, ...]
    correlation: LKJ | None
    num_levels: int = eqx.field(static=True)
    labels: tuple[str, ...] = eqx.field(static=True)
    level_names: tuple[str, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        index: Any,
        *,
        covariates: Any = None,
        size: int | None = None,
        scale: AbstractHyperprior | tuple[AbstractHyperprior, ...] | None = None,
        correlation: LKJ | None = LKJ(2.0),  # noqa: B008 - immutable
        name: str = "group",
        levels: Any = None,
        labels: Any = None,
    ):
        """**Arguments:**

        - `index`: (N,) the level of each datum, 0, 1, ... - `covariates`: (N, b); default a column of ones.
        - `size`: the number of levels; default the largest index plus one.
        - `scale`: the prior of each standard deviation, or one for all; default `HalfNormal(2.5)`.
        - `correlation`: the prior of the correlations of the b effects of a level; None for none.
        - `levels`, `labels`: names of the levels and of the b effects.
        """
        self.name = str(name)
        self.index, self.num_levels = read_index(f"index of {name!r}", index, size)
        table = np.ones((len(self.index), 1)) if covariates is None else as_array(f"covariates of {name!r}", covariates)
        table = table[:, None] if table.ndim == 1 else table
        check_length(f"covariates of {name!r}", table, len(self.index), "as index has")
        self.covariates, width = np.asarray(table, np.float64), table.shape[1]
        prior = HalfNormal(2.5) if scale is None else scale
        self.scales = (prior,) * width if isinstance(prior, AbstractHyperprior) else tuple(prior)
        if len(self.scales) != width:
            raise ValueError(f"scale of {name!r} must be one prior or {width}, one a column of covariates.")
        self.correlation = correlation if width > 1 else None
        usual = ("Intercept",) if width == 1 else tuple(f"x{j}" for j in range(width))
        self.labels = usual if labels is None else tuple(map(str, labels))
        if len(self.labels) != width:
            raise ValueError(f"labels of {name!r} must be {width} names, one a column of covariates.")
        self.level_names = read_levels(name, levels, self.num_levels)

    @property
    def width(self) -> int:
        """b, the number of effects of a level."""
        return len(self.scales)

    @property
    def size(self) -> int:
        """Levels times effects."""
        return self.num_levels * self.width

    @property
    def num_rows(self) -> int:
        """Of the data."""
        return len(self.index)

    @property
    def priors(self) -> dict[str, AbstractHyperprior]:
        """The standard deviations, then the partial correlations."""
        named = {self._scale_name(j): prior for j, prior in enumerate(self.scales)}
        if self.correlation is not None:
            pairs = [(k, j) for k in range(self.width) for j in range(k + 1, self.width)]
            named |= dict(zip(map(self._pair_name, pairs), self.correlation.partial(self.width), strict=True))
        return named

    def _scale_name(self, j: int) -> str:
        return f"sd({self.name})" if self.labels == ("Intercept",) else f"sd({self.name}: {self.labels[j]})"

    def _pair_name(self, pair: tuple[int, int]) -> str:
        return f"cor({self.name}: {self.labels[pair[0]]}, {self.labels[pair[1]]})"

    def _root(self, theta: Any) -> Any:
        """diag(sigma) C."""
        scales = jnp.stack([theta[j] for j in range(self.width)])
        if self.correlation is None:
            return jnp.diag(scales)
        return scales[:, None] * correlation_factor(theta[self.width :], self.width)

    def rows(self, theta: Any) -> SparseRows:
        """x'diag(sigma)C at the level's own places."""
        columns = np.arange(self.width)
        index = jnp.asarray(self.index)[:, None] * self.width + columns[None, :]
        return SparseRows(index, jnp.asarray(self.covariates) @ self._root(theta))

    def effect_rows(self, theta: Any) -> SparseRows:
        """diag(sigma)C, level by level."""
        levels, width = self.num_levels, self.width
        index = np.arange(levels)[:, None, None] * width + np.zeros((1, width, 1), int) + np.arange(width)[None, None]
        values = jnp.broadcast_to(self._root(theta)[None], (levels, width, width))
        return SparseRows(jnp.asarray(index.reshape(-1, width)), values.reshape(-1, width))

    @property
    def effect_shape(self) -> tuple[int, ...]:
        """(levels,), or (levels, b)."""
        return (self.num_levels,) if self.width == 1 else (self.num_levels, self.width)

    def reported(self, theta: Any) -> dict[str, Any]:
        """Standard deviations and correlations; for three effects and more these are not the partial ones."""
        names = list(self.priors)
        found = {name: theta[i] for i, name in enumerate(names[: self.width])}
        if self.correlation is not None:
            factor = correlation_factor(theta[self.width :], self.width)
            matrix = factor @ factor.T
            pairs = [(k, j) for k in range(self.width) for j in range(k + 1, self.width)]
            found |= {self._pair_name((k, j)): matrix[j, k] for k, j in pairs}
        return found

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the levels."""
        return super().levels if self.level_names is None else self.level_names

    @property
    def coefficients(self) -> tuple[str, ...]:
        """Names of the effects of a level, where there are several."""
        return self.labels if self.width > 1 else ()


def read_index(name: str, index: Any, size: int | None) -> tuple[np.ndarray, int]:
    """The levels of the data as integers from 0, and their number; a `ValueError` names them."""
    values = np.asarray(index)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{name} must be a vector with one level a datum; its shape is {values.shape}.")
    if not np.issubdtype(values.dtype, np.integer):
        whole = as_array(name, values)
        if not np.array_equal(whole, np.round(whole)):
            raise ValueError(f"{name} must hold whole numbers 0, 1, ...; encode labels by np.unique(x, True)[1].")
        values = whole.astype(np.int64)
    count = int(values.max()) + 1 if size is None else int(size)
    if values.min() < 0 or values.max() >= count:
        raise ValueError(f"{name} must lie in 0, ..., {count - 1}; it has {values.min()} and {values.max()}.")
    return values.astype(np.int32), count


def read_levels(name: str, levels: Any, count: int) -> tuple[str, ...] | None:
    """Names of levels, checked."""
    if levels is None:
        return None
    named = tuple(map(str, levels))
    if len(named) != count:
        raise ValueError(f"levels of {name!r} must be {count} names, not {len(named)}.")
    return named
