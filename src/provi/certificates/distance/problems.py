"""q in its own coordinates, for linear models and any density: the potential there, and its mean under q."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.natural_gradient import line_arguments
from provi.certificates.comparison import mean_likelihood
from provi.certificates.distance.conjugate import (
    AbstractProblem,
    DensityProblem,
    RowProblem,
    RowSums,
    with_prior,
)
from provi.certificates.distance.dual_bound import Energy
from provi.certificates.linear.bounds import rounded_down, row_rounding
from provi.core.devices import on_host
from provi.core.interpreter import instant_jit
from provi.families.location_scale import LocationScale, Point, square_root
from provi.targets.base import AbstractTarget, outer_spectrum
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import whitened_prior
from provi.targets.row_sums import Rows, sum_over_rows

EPS = float(np.finfo(float).eps)


def linear_problem(
    target: AbstractLinearModel, family: LocationScale, point: Point
) -> tuple[RowProblem, Energy] | None:
    """A Gaussian q and a linear model, in float64; None where a mean under q is not finite."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    double, energy = _energy(target, family, root, loc)
    prior = whitened_prior(target.prior, root, loc)
    if energy is None:
        return None
    divided = double.division is not None
    # Rows on several devices stay there; those that fill up count zero times.
    design = double.design.astype(np.float64) if divided else np.asarray(double.design, np.float64)
    row_error, centre_error = (on_host(x) for x in _row_rounding(design, loc, root))
    centre, response = on_host(design @ loc), np.asarray(double.response, np.float64)
    centre_error = centre_error + np.asarray(double.likelihood.shift_error(centre, response))
    problem = RowProblem(
        design=design,
        root=root,
        centre=centre,
        response=response,
        likelihood=double.likelihood,
        prior_curvature=prior.curvature,
        prior_gradient=prior.gradient,
        curvature_error=prior.curvature_error,
        gradient_error=prior.gradient_error,
        row_error=row_error,
        centre_error=centre_error,
        largest_weight=float(target.curvature[1]),
        quadratic=target.curvature[0] == target.curvature[1] or target.self_concordance == 0,
        multiples=(np.arange(len(centre)) < target.num_terms).astype(np.float64) if divided else None,
    )
    return problem, energy


def _energy(target: AbstractLinearModel, family: LocationScale, root: Any, loc: Any) -> tuple[Any, Energy | None]:
    """The model in float64, and the mean of its potential under q; None for one that is not finite."""
    double, rule = line_arguments(target, family)
    prior = whitened_prior(target.prior, root, loc)
    mean, error = (float(x) for x in mean_likelihood(double, loc, root, rule))
    here, size = (float(x) for x in _likelihood_at(double, loc))
    error += target.num_terms * EPS * size + 4 * EPS * (abs(mean) + abs(here))
    value = mean - here + 0.5 * float(np.sum(prior.scale**2))
    error += 0.5 * prior.curvature_error * math.sqrt(len(loc)) + 4 * len(loc) * EPS * abs(value)
    return double, Energy(value, error) if math.isfinite(value) and math.isfinite(error) else None


_NUMBERS_AT_ONCE = 2**21
"""Predictors of rows of a tile, for some of the points."""


class StreamedProblem(AbstractProblem):
    """A `RowProblem` whose rows are read in tiles: each call of it is a pass, for all points at once.

    Sums of N numbers are sums over tiles of sums within them, and so are their roundings. The rows are multiplied by R
    first: what is added up are the products x_n'R, whose rounding is `row_rounding`.
    """

    target: Any
    loc: Any
    root: Any
    prior_curvature: Any
    prior_gradient: Any
    curvature_error: Any
    gradient_error: Any
    points: int = eqx.field(static=True)
    largest_weight: float = eqx.field(static=True)
    quadratic: ClassVar[bool] = False

    @property
    def dim(self) -> int:
        """The number of columns of R."""
        return self.root.shape[1]

    @property
    def chunk(self) -> int:
        """All: another call would be another pass."""
        return self.points

    def transformed(self, matrix: np.ndarray) -> "StreamedProblem":
        """Not wanted of few draws."""
        raise NotImplementedError

    def curvature(self) -> np.ndarray:
        """H less its error."""
        return rounded_down(np.asarray(self.prior_curvature), float(self.curvature_error))

    def slopes(self, w: Any) -> Any:
        """One pass."""

        def sums(block: Rows, real: Any) -> Any:
            rows, centre = block.design @ self.root, block.design @ self.loc
            return self._in_parts(
                w, rows, lambda w: jnp.where(real[None, :], self._terms(block, centre, rows, w)[1], 0) @ rows
            )

        found = sum_over_rows(self.target, sums, dtype=jnp.float64)
        return w @ self.prior_curvature + self.prior_gradient[None, :] + found

    def evaluate(self, w: Any) -> tuple[Any, Any, Any, Any]:
        """One pass; the errors are those of `RowProblem.evaluate`."""
        stream, unit = self.target.stream, 16 * self.dim * EPS
        count = stream.tile_rows + stream.num_tiles
        products = (count + 8 * self.dim) * EPS

        def sums(block: Rows, real: Any) -> RowSums:
            rows, centre = block.design @ self.root, block.design @ self.loc
            norms = jnp.where(real, jnp.linalg.norm(rows, axis=1), 0)
            row_error, always = row_rounding(block.design, self.loc, self.root)
            always = always + self.target.likelihood.shift_error(centre, block.response) + unit * jnp.abs(centre)
            along = row_error + unit * norms
            first = self.target.link_potential(centre, block.response)

            def part(w: Any) -> RowSums:
                values, slopes = self._terms(block, centre, rows, w)
                values, slopes = (jnp.where(real[None, :], x, 0) for x in (values, slopes))
                start, length = jnp.where(real, first, 0), jnp.linalg.norm(w, axis=1)
                sizes = jnp.abs(slopes)
                if math.isfinite(self.largest_weight):
                    bent = self.largest_weight * (length * (norms @ along) + norms @ always)
                else:
                    bends = jnp.abs(self._bends(block, centre, rows, w))
                    bent = length * (bends @ (norms * along)) + bends @ (norms * always)
                return RowSums(
                    jnp.sum(values - start[None, :], axis=1),
                    slopes @ rows,
                    jnp.sum(jnp.abs(values), axis=1) + jnp.sum(jnp.abs(start)),
                    length * (sizes @ along) + sizes @ always,
                    sizes @ (products * norms + row_error) + bent,
                )

            return self._in_parts(w, rows, part)

        found = sum_over_rows(self.target, sums, dtype=jnp.float64)
        return with_prior(self, w, found, unit + count * EPS, products)

    def _in_parts(self, w: Any, rows: Any, function: Any) -> Any:
        """`function` of some points at a time."""
        size = 2 ** int(math.log2(max(_NUMBERS_AT_ONCE // rows.shape[0], 1)))
        size = math.gcd(min(size, w.shape[0]), w.shape[0])
        found = jax.lax.map(function, w.reshape(-1, size, w.shape[1]))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    def _potentials(self, block: Rows) -> Any:
        return jax.vmap(lambda eta: self.target.link_potential(eta, block.response))

    def _terms(self, block: Rows, centre: Any, rows: Any, w: Any) -> tuple[Any, Any]:
        eta = centre[None, :] + w @ rows.T
        values, pull = jax.vjp(self._potentials(block), eta)
        return values, pull(jnp.ones_like(values))[0]

    def _bends(self, block: Rows, centre: Any, rows: Any, w: Any) -> Any:
        def slope(eta: Any) -> Any:
            values, pull = jax.vjp(self._potentials(block), eta)
            return pull(jnp.ones_like(values))[0]

        eta = centre[None, :] + w @ rows.T
        return jax.jvp(slope, (eta,), (jnp.ones_like(eta),))[1]


def streamed_problem(
    target: AbstractLinearModel, family: LocationScale, point: Point, points: int
) -> tuple[StreamedProblem, Energy] | None:
    """`linear_problem` of rows that are read in tiles, for so many points at once."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    double, energy = _energy(target, family, root, loc)
    if energy is None:
        return None
    prior = whitened_prior(target.prior, root, loc)
    problem = StreamedProblem(
        target=double,
        loc=loc,
        root=root,
        prior_curvature=prior.curvature,
        prior_gradient=prior.gradient,
        curvature_error=prior.curvature_error,
        gradient_error=prior.gradient_error,
        points=points,
        largest_weight=float(target.curvature[1]),
    )
    return problem, energy


_row_rounding = instant_jit(row_rounding)


@instant_jit
def _likelihood_at(target: AbstractLinearModel, loc: Any) -> tuple[Any, Any]:
    """The likelihood part of the potential, and the sum of the magnitudes of its terms."""

    def sums(block: Rows, real: Any) -> tuple[Any, Any]:
        values = jnp.where(real, target.link_potential(block.design @ loc, block.response), 0)
        return jnp.sum(values), jnp.sum(jnp.abs(values))

    return sum_over_rows(target, sums, dtype=jnp.float64)


def density_problem(target: AbstractTarget, point: Point, curvature: np.ndarray) -> tuple[DensityProblem, Energy]:
    """A Gaussian q and any density whose Hessian is at least `curvature`; its mean under q is left to draws."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    bounds, smooth = target.curvature_bounds(), target.constants.smoothness
    upper = None
    if bounds is not None and bounds[1] is not None:
        upper = root.T @ bounds[1] @ root
    elif smooth.status in ("proven", "declared") and smooth.value is not None:
        upper = float(smooth.value) * (root.T @ root)
    if upper is not None:
        upper = (upper + upper.T) / 2 + 1e-12 * float(np.trace(upper)) * np.eye(len(loc))
    return DensityProblem(target, loc, root, curvature), Energy(None, 0.0, upper)


def curvature_lower_bound(target: AbstractTarget) -> np.ndarray | None:
    """H, proven or declared and positive definite, as a matrix; None where there is none."""
    bound = target.curvature_lower_bound()
    if bound is not None and outer_spectrum(bound)[0] > 0:
        return bound
    constant = target.constants.strong_convexity
    if constant.status not in ("proven", "declared") or not (constant.value and constant.value > 0):
        return None
    return float(constant.value) * np.eye(target.dim)
