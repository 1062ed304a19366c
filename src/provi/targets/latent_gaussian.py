r"""Latent Gaussian models: log-concave in many effects given a few hyperparameters.

$$y_i \sim p(y_i | \eta_i, \theta), \quad \eta = X\beta + \sum_kZ_ku_k + o, \quad \beta \sim N(0, \mathrm{diag}\,s^2),
\quad u_k | \theta \sim N(0, Q_k(\theta)^{-1}), \quad \theta \sim p(\theta).$$

Mixed models, walks, disease maps, Gaussian processes with unknown kernels. Given theta the posterior of the effects is
log-concave, and `provi.fit` integrates theta numerically (structures/nested).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import as_array, check_length, device_array, double_precision
from provi.core.bordered import Bordered
from provi.core.frames import repeated_names
from provi.core.interpreter import instant_jit
from provi.core.types import Vector
from provi.targets.base import read_points
from provi.targets.latent.blocks import AbstractBlock, SparseRows, stacked_rows
from provi.targets.latent.layout import Layout, choose_layout
from provi.targets.latent.likelihood_numbers import LikelihoodNumbers, read_likelihood
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.latent.priors import AbstractHyperprior
from provi.targets.likelihoods.base import AbstractLikelihood

_STREAM = 2**31 - 5


class Conditional(eqx.Module):
    """The model given its hyperparameters, in the coordinates of its `Layout`: parts (n, b) in T, (p,) in the border.

    - `index`, `values`: the entries of each datum's row in T, r a row. - `border`: the rest of the row.
    - `prior`: the precision; `log_det`: its logarithmic determinant, on what the constraint leaves.
    - `null`: the constraint, as parts (n, b, k) and (p, k), or None.
    """

    index: Any
    values: Any
    border: Any
    prior: Bordered
    log_det: Any
    null: tuple[Any, Any] | None
    likelihood: AbstractLikelihood
    response: Any
    offset: Any
    weights: Any
    constant: Any

    def predictor(self, inner: Any, outer: Any) -> Any:
        """eta at the effects with these parts."""
        eta = self.offset + self.border @ outer
        if self.index.shape[1]:
            eta = eta + jnp.sum(self.values * inner.reshape(-1)[self.index], axis=1)
        return eta

    def collect(self, slopes: Any) -> tuple[Any, Any]:
        """A' times one number a datum."""
        count, width = self.prior.diagonal.shape[:2]
        inner = jnp.zeros(count * width)
        if self.index.shape[1]:
            inner = inner.at[self.index].add(self.values * slopes[:, None])
        return inner.reshape(count, width), slopes @ self.border

    def precision(self, sites: Any) -> Bordered:
        """Q + A' diag(sites) A."""
        count, width = self.prior.diagonal.shape[:2]
        prior, below = self.prior, self.prior.below
        corner = prior.corner + (self.border * sites[:, None]).T @ self.border
        if not self.index.shape[1]:
            return Bordered(prior.diagonal, below, prior.border, corner)
        scaled = self.values * sites[:, None]
        block, place = self.index // width, self.index % width
        diagonal, border = prior.diagonal.reshape(-1), prior.border.reshape(count * width, -1)
        flat_below = None if below is None else below.reshape(-1)
        for i in range(self.index.shape[1]):
            border = border.at[self.index[:, i]].add(scaled[:, i, None] * self.border)
            for j in range(self.index.shape[1]):
                product = scaled[:, i] * self.values[:, j]
                here = (block[:, i] * width + place[:, i]) * width + place[:, j]
                if flat_below is None:
                    diagonal = diagonal.at[here].add(product)
                    continue
                same, under = block[:, i] == block[:, j], block[:, i] == block[:, j] + 1
                diagonal = diagonal.at[here].add(jnp.where(same, product, 0.0))
                there = (block[:, j] * width + place[:, i]) * width + place[:, j]
                flat_below = flat_below.at[jnp.where(under, there, 0)].add(jnp.where(under, product, 0.0))
        return Bordered(
            diagonal.reshape(count, width, width),
            None if flat_below is None else flat_below.reshape(count - 1, width, width),
            border.reshape(count, width, -1),
            corner,
        )


class LatentGaussian(AbstractLatentGaussian):
    """A latent Gaussian model; its free coordinates are the hyperparameters' and then the standardised effects."""

    variable: ClassVar[str] = "effects"
    response: Any
    likelihood: AbstractLikelihood
    numbers: LikelihoodNumbers
    fixed: Any
    fixed_scale: Any
    fixed_names: tuple[str, ...] = eqx.field(static=True)
    blocks: tuple[AbstractBlock, ...]
    offset: Any
    weights: Any
    constant: Any
    layout: Layout

    @double_precision
    def __init__(
        self,
        y: Any,
        likelihood: AbstractLikelihood | str,
        *,
        fixed: Any = None,
        fixed_names: Any = None,
        fixed_scale: Any = 2.5,
        blocks: Any = (),
        offset: Any = None,
        weights: Any = None,
        trials: Any = None,
        likelihood_priors: Mapping[str, Any] | None = None,
    ):
        """**Arguments:**

        - `y`: (N,) responses, as the likelihood wants them.
        - `likelihood`: of `provi.targets.likelihoods`, or "bernoulli", "binomial", "poisson", "negative-binomial",
          "gaussian", "ordinal", "weibull", "exponential", "log-normal", with default priors of its unknown numbers.
        - `fixed`: (N, p) columns of fixed effects, that of ones among them. - `fixed_scale`: their prior deviations.
        - `blocks`: of `provi.targets.latent`. - `offset`: (N,) added to the predictor.
        - `weights`: (N,) each multiplies the log-likelihood of its datum. - `trials`: (N,) of a binomial response.
        - `likelihood_priors`: by name, of unknown numbers of the likelihood, such as `{"scale": HalfNormal()}`.
        """
        blocks = (blocks,) if isinstance(blocks, AbstractBlock) else tuple(blocks)
        found = read_likelihood(y, likelihood, trials, likelihood_priors)
        self.likelihood, self.response, self.numbers = found.likelihood, found.response, found.numbers
        length = len(self.response)
        for block in blocks:
            if not isinstance(block, AbstractBlock):
                raise TypeError(f"blocks must be of provi.targets.latent, not {type(block).__name__}.")
            if block.num_rows != length:
                raise ValueError(f"block {block.name!r} has {block.num_rows} rows, but y has {length}.")
        names = [block.name for block in blocks]
        repeated = repeated_names(names)
        if repeated:
            raise ValueError(f"two blocks are called {sorted(repeated)[0]!r}: give each a name of its own.")
        table = np.zeros((length, 0)) if fixed is None else as_array("fixed", fixed, ndim=2).astype(np.float64)
        check_length("fixed", table, length, "as y has")
        if not table.shape[1] and not blocks:
            raise ValueError("The model has no effects: give fixed= or blocks=.")
        self.fixed, columns = table, table.shape[1]
        scale = as_array("fixed_scale", fixed_scale).astype(np.float64)
        if scale.ndim > 1 or (scale.ndim == 1 and len(scale) != columns) or not (scale > 0).all():
            raise ValueError(f"fixed_scale must be a positive number or {columns} of them.")
        self.fixed_scale = np.broadcast_to(scale, (columns,)).copy()
        self.fixed_names = (
            tuple(f"b[{j}]" for j in range(columns)) if fixed_names is None else tuple(map(str, fixed_names))
        )
        if len(self.fixed_names) != columns or len(set(self.fixed_names)) != columns:
            raise ValueError(f"fixed_names must be {columns} different names, one a column of fixed.")
        self.blocks = blocks
        self.offset = np.zeros(length) if offset is None else as_array("offset", offset, ndim=1).astype(np.float64)
        check_length("offset", self.offset, length, "as y has")
        self.weights, self.constant = _read_weights(weights, length, found.weights), np.asarray(found.constant)
        self.layout = choose_layout(columns, blocks, length)

    @property
    def num_hyperparameters(self) -> int:
        """D."""
        return len(self.hyperpriors)

    @property
    def hyperpriors(self) -> dict[str, AbstractHyperprior]:
        """All hyperparameters by name: those of the blocks in turn, then those of the likelihood."""
        found: dict[str, AbstractHyperprior] = {}
        for block in self.blocks:
            found |= block.priors
        return found | self.numbers.priors

    @property
    def num_effects(self) -> int:
        """The number of standardised latent coordinates."""
        return self.fixed.shape[1] + sum(block.size for block in self.blocks)

    @property
    def num_rows(self) -> int:
        """Of the data."""
        return len(self.response)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Hyperparameters, fixed effects, and the standardised effects of each block."""
        inner = [f"{block.name}[{j}]" for block in self.blocks for j in range(block.size)]
        return (*self.hyperpriors, *self.fixed_names, *inner)

    def hyperparameters(self, theta: Vector) -> list[Any]:
        """The hyperparameters in their own space, at the free coordinates theta."""
        return [prior.constrain(theta[i]) for i, prior in enumerate(self.hyperpriors.values())]

    def log_hyperprior(self, theta: Any) -> Any:
        """The log density of the free coordinates, summed over the last axis of theta."""
        parts = [prior.log_density_free(theta[..., i]) for i, prior in enumerate(self.hyperpriors.values())]
        return sum(parts, jnp.zeros(jnp.shape(theta)[:-1]))

    def reported(self, theta: Vector) -> dict[str, Any]:
        """The numbers that people want to see of the hyperparameters, by name."""
        values, found, start = self.hyperparameters(theta), {}, 0
        for block in self.blocks:
            count = len(block.priors)
            found |= block.reported(values[start : start + count])
            start += count
        return found | self.numbers.reported(values[start:])

    def effect_rows(self, theta: Any) -> SparseRows:
        """The identity, and T of each block."""
        values, start, first = self.hyperparameters(theta), self.fixed.shape[1], 0
        parts = [SparseRows(jnp.arange(start)[:, None], jnp.ones((start, 1)))]
        for block in self.blocks:
            own = values[first : first + len(block.priors)]
            rows = block.effect_rows(own)
            parts.append(SparseRows(start + rows.index, rows.values))
            start, first = start + block.size, first + len(block.priors)
        return stacked_rows(parts)

    def conditional(self, theta: Vector) -> Conditional:
        """The model given the free coordinates theta of the hyperparameters."""
        values, layout = self.hyperparameters(theta), self.layout
        count, width, outer = layout.count, layout.width, layout.border
        place, slot = jnp.asarray(layout.place), jnp.asarray(layout.slot)
        start, first, columns = self.fixed.shape[1], 0, self.fixed.shape[1]
        slabs, index, entries = [jnp.asarray(self.fixed)], [], []
        diagonal = jnp.where(jnp.asarray(layout.source) < 0, 1.0, 0.0)
        diagonal = (diagonal[:, None] * jnp.tile(jnp.eye(width), (count, 1))).reshape(-1) if count else jnp.zeros(0)
        below = jnp.zeros((count - 1) * width * width) if layout.chained else None
        corner = jnp.zeros((outer, outer)).at[jnp.arange(columns), jnp.arange(columns)].set(self.fixed_scale**-2.0)
        log_det = -2 * jnp.sum(jnp.log(jnp.asarray(self.fixed_scale)))
        for block, inside in zip(self.blocks, layout.inside, strict=True):
            own = values[first : first + len(block.priors)]
            rows, pattern = block.rows(own), block.pattern
            matrix = block.precision(own)
            left = right = np.arange(block.size)
            if pattern is not None:
                left, right = pattern.rows, pattern.columns
            left, right = start + jnp.asarray(left), start + jnp.asarray(right)
            if inside:
                # The tail comes last in rows and pattern alike.
                held, kept = rows.values.shape[1] - block.tail, len(matrix) - block.tail
                index.append(place[start + rows.index[:, :held]])
                entries.append(rows.values[:, :held])
                low, high = place[left[:kept]], place[right[:kept]]
                diagonal, below = _add_prior(diagonal, below, low, high, matrix[:kept], width)
                if block.tail:
                    slabs.append(rows.values[:, held:])
                    places = slot[left[kept:]]
                    corner = corner.at[places, places].set(matrix[kept:])
            else:
                slabs.append(_slab(rows.index, rows.values, block.size))
                low, high = slot[left], slot[right]
                corner = corner.at[low, high].set(matrix).at[high, low].set(matrix)
            log_det = log_det + block.log_det(own)
            start, first = start + block.size, first + len(block.priors)
        length = self.num_rows
        return Conditional(
            index=jnp.concatenate(index, axis=1) if index else jnp.zeros((length, 0), jnp.int32),
            values=jnp.concatenate(entries, axis=1) if entries else jnp.zeros((length, 0)),
            border=jnp.concatenate(slabs, axis=1),
            prior=Bordered(
                diagonal.reshape(count, width, width),
                None if below is None else below.reshape(count - 1, width, width),
                jnp.zeros((count, width, outer)),
                corner,
            ),
            log_det=log_det,
            null=self._null(),
            likelihood=self.numbers.assign(self.likelihood, values[first:]),
            response=jnp.asarray(self.response),
            offset=jnp.asarray(self.offset),
            weights=None if self.weights is None else jnp.asarray(self.weights),
            constant=jnp.asarray(self.constant),
        )

    def _null(self) -> tuple[Any, Any] | None:
        """The constraints of all blocks, in the parts of the layout."""
        start, found = self.fixed.shape[1], []
        for block in self.blocks:
            if block.constraint is not None:
                found.append((start, block))
            start += block.size
        if not found:
            return None
        columns = sum(block.constraint.shape[1] for _, block in found)
        table, done = jnp.zeros((self.num_effects, columns)), 0
        for first, block in found:
            part = block.constraint
            table = table.at[first : first + block.size, done : done + part.shape[1]].set(part)
            done += part.shape[1]
        return self.split(table)

    @property
    def default_location(self) -> np.ndarray:
        """Typical hyperparameters, no effects."""
        typical = [prior.unconstrain(prior.typical) for prior in self.hyperpriors.values()]
        return np.concatenate([typical, np.zeros(self.num_effects)])

    @double_precision
    def constrain(self, z: Any) -> dict[str, np.ndarray]:
        """Hyperparameters, fixed effects and effects of each block by name, in their own space."""
        points = read_points(z, self.dim)
        single = points.ndim == 1
        found = _in_own_space(self, device_array(np.atleast_2d(points)))
        return {name: np.asarray(value[0] if single else value) for name, value in found.items()}

    def _own_space(self, z: Vector) -> dict[str, Any]:
        theta, effects = z[: self.num_hyperparameters], z[self.num_hyperparameters :]
        found: dict[str, Any] = {name: effects[j] for j, name in enumerate(self.fixed_names)} | self.reported(theta)
        values, start, first = self.hyperparameters(theta), self.fixed.shape[1], 0
        for block in self.blocks:
            own, part = values[first : first + len(block.priors)], effects[start : start + block.size]
            if block.constraint is not None:
                part = part - block.constraint @ (block.constraint.T @ part)
            rows = block.effect_rows(own)
            found[block.name] = jnp.sum(rows.values * part[rows.index], axis=1).reshape(block.effect_shape)
            start, first = start + block.size, first + len(block.priors)
        return found

    @property
    def constrained_names(self) -> tuple[str, ...]:
        """In the order of the leaves of `constrain`: by name of the variable; effects with their levels."""
        names: dict[str, list[str]] = {name: [name] for name in (*self.fixed_names, *self.reported_names)}
        for block in self.blocks:
            levels, labels = block.levels, block.coefficients
            own = [f"{level}, {label}" for level in levels for label in labels] if labels else levels
            names[block.name] = [f"{block.name}[{label}]" for label in own]
        return tuple(name for variable in sorted(names) for name in names[variable])

    @property
    def reported_names(self) -> tuple[str, ...]:
        """Of `reported`, in its order."""
        middle = [prior.typical for prior in self.hyperpriors.values()]
        found, start = [], 0
        for block in self.blocks:
            count = len(block.priors)
            found += block.reported(middle[start : start + count])
            start += count
        return (*found, *self.numbers.reported(middle[start:]))

    @property
    def axis_labels(self) -> dict[str, dict[str, Any]]:
        """Levels, and coefficients where a level has several."""
        found = {}
        for block in self.blocks:
            labels = {f"{block.name}_level": list(block.levels)}
            if block.coefficients:
                labels[f"{block.name}_coefficient"] = list(block.coefficients)
            found[block.name] = labels
        return found

    @property
    def observed_data(self) -> dict[str, np.ndarray]:
        """The responses, as "y"."""
        return {"y": np.asarray(self.response)}

    @double_precision
    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y_n | z) of each datum; for draws (n, dim), n in front."""
        points = read_points(z, self.dim)
        found = jax.lax.map(self._log_likelihood, device_array(np.atleast_2d(points)))
        return {"y": np.asarray(found[0] if points.ndim == 1 else found)}

    def _log_likelihood(self, z: Vector) -> Any:
        given, eta = self._predictor(z)
        terms = -given.likelihood.potential(eta, given.response)
        return terms if given.weights is None else terms * given.weights

    def _predictor(self, z: Vector) -> tuple[Conditional, Any]:
        given = self.conditional(z[: self.num_hyperparameters])
        inner, outer = self.split(z[self.num_hyperparameters :])
        return given, given.predictor(inner, outer)

    @double_precision
    def response_law(self, z: Any) -> tuple[AbstractLikelihood, np.ndarray] | None:
        """The likelihood with its numbers and the predictor at one point; None for draws."""
        if np.ndim(z) != 1:
            return None
        given, eta = _predictor_at(self, jnp.asarray(read_points(z, self.dim)))
        return given, np.asarray(eta)

    @double_precision
    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Responses drawn from p(y | z), one replicate of all rows for each row of z; none for weighted data."""
        points = np.atleast_2d(read_points(z, self.dim))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _STREAM), len(points))

        def one(pair: Any) -> Any:
            given, eta = self._predictor(pair[0])
            return given.likelihood.draw(pair[1], eta)

        if self.weights is not None or one((jnp.asarray(points[0]), keys[0])) is None:
            return {}
        return {"y": np.asarray(jax.lax.map(one, (jnp.asarray(points), keys)))}


@eqx.filter_jit
def _predictor_at(model: LatentGaussian, z: Vector) -> tuple[AbstractLikelihood, Any]:
    given, eta = model._predictor(z)
    return given.likelihood, eta


def _add_prior(diagonal: Any, below: Any, low: Any, high: Any, matrix: Any, width: int) -> tuple[Any, Any]:
    """The entries (low, high) of a symmetric matrix into the blocks on and below the diagonal."""
    upper, under = low // width, high // width
    same = upper == under
    first = (upper * width + low % width) * width + high % width
    second = (upper * width + high % width) * width + low % width
    off = jnp.where(low == high, 0.0, matrix)
    diagonal = diagonal.at[first].add(jnp.where(same, matrix, 0.0)).at[second].add(jnp.where(same, off, 0.0))
    if below is None:
        return diagonal, below
    top, bottom = jnp.minimum(low, high), jnp.maximum(low, high)
    there = (top // width * width + bottom % width) * width + top % width
    return diagonal, below.at[jnp.where(same, 0, there)].add(jnp.where(same, 0.0, matrix))


def _slab(index: Any, values: Any, size: int) -> Any:
    """Sparse rows as dense ones."""
    if values.shape[1] == size:
        return values  # a kernel: rows are full, and in order
    return jnp.zeros((values.shape[0], size)).at[jnp.arange(values.shape[0])[:, None], index].add(values)


def _read_weights(weights: Any, length: int, own: np.ndarray | None) -> np.ndarray | None:
    if weights is None:
        return own
    values = as_array("weights", weights, ndim=1).astype(np.float64)
    check_length("weights", values, length, "as y has")
    if (values < 0).any() or not values.any():
        raise ValueError("weights must not be negative, nor all zero.")
    return values if own is None else values * own


@instant_jit
def _in_own_space(target: LatentGaussian, points: Any) -> dict[str, Any]:
    return jax.vmap(target._own_space)(points)
