r"""Do draws of q see all that matters? A check of the tails, by quadrature along chosen lines.

A confidence level from draws presumes that batch means are nearly Gaussian. Convexity bounds a potential from below
only: with $\phi(z) = e^z$ and $q = N(m, 6^2)$ all of $E\phi$ comes from six standard deviations out, where no draw
falls, and a Monte-Carlo bound would be wrong with certainty and without a sign. A smooth potential cannot do that: its
gradient grows at most linearly. Where no smoothness is known, this audit integrates along lines: for a unit direction e
and draws u of q, with $t \sim N(0,1)$ along e, the part of $E[(t\,\partial_e\tilde\phi)^2]$ that lies beyond four
standard deviations, relative to the whole or to 1 if that is larger, $\tilde\phi(u) = \phi(m + Cu)$. (A part of 0.1
beyond four deviations moves $E[t\,\partial_e\tilde\phi]$ by at most $\sqrt{0.1\,P(|t| > 4)} < 0.003$, and a bound by
its square.) It is a diagnostic and no proof: other directions remain.

What the draws of q do not see, the curvature at the draws does not show either: the directions come from points
k u, k = 1, 2, 4, 8. The part of k u along any fixed direction is N(0, k^2), whatever the dimension, so a steep wall
within 8 deviations in a single direction of many is met by about half of 24 points, and dominates the Hessian there.

**What draws may miss is charged.** With n draws, fewer than ten are expected beyond $r_n$, $P(|t| > r_n) = 10/n$. Along
each line the audit integrates, on a grid of step 0.1 up to 6.5 deviations, what lies there of the first two Hermite
coefficients, $E[|\partial_e\tilde\phi - t|; |t| > r_n]$ and $E[|t||\partial_e\tilde\phi - t|; |t| > r_n]$; the largest
over the lines are added to the radii of g and G (`Tails.hidden`). In one dimension the line is all there is.

**Values and slopes must agree.** A convex function lies above its tangents, so neighbours on a line satisfy
$s_j\Delta \le \tilde\phi_{j+1} - \tilde\phi_j \le s_{j+1}\Delta$: a finite jump, which no gradient shows, is refuted.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from provi.certificates.certificate import Assumption, Counterexample
from provi.certificates.monte_carlo.batch_sums import batch_of, displacement
from provi.certificates.monte_carlo.whitened_frame import scale_factor
from provi.core.arguments import double_precision
from provi.core.interpreter import weighed_jit
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget, Constants, autodiff

REACH, LARGEST_SHARE = 4.0, 0.1
NODES, RANGE = 49, 12.0
"""Of the audit along the rows of a linear model (`linear.unseen_share_of_rows`)."""

_FINE, _STEP, _COARSE_STEP = 6.5, 0.1, 0.5
_NUM_BASES, _POWER_STEPS, _RANDOM_LINES = 4, 6, 12
LARGEST_STEEPNESS = 10.0
"""Smoothness times the largest variance of q, up to which no audit of the tails is needed."""

_LARGEST_SPECTRUM = 500
_STRETCHES, _PAIRS = (1.0, 2.0, 4.0, 8.0), 6
SEEN = 10.0
"""Draws that must be expected in a part of a line for the part to count as seen."""


def _grid() -> np.ndarray:
    fine = np.linspace(-_FINE, _FINE, round(2 * _FINE / _STEP) + 1)
    beyond = np.arange(_FINE + _COARSE_STEP, RANGE + 1e-9, _COARSE_STEP)
    return np.concatenate([-beyond[::-1], fine, beyond])


@dataclasses.dataclass(frozen=True)
class Tails:
    """What the lines show.

    - `share`: the largest part of the gradient's variance along a line that lies beyond `REACH` deviations.
    - `radii`, `location`, `covariance`: for each radius the most that any line holds beyond it, of g and of G.
    - `counterexample`: a segment on which a value lies below a tangent, if there is one.
    """

    share: float
    radii: np.ndarray
    location: np.ndarray
    covariance: np.ndarray
    counterexample: Counterexample | None

    def hidden(self, num_draws: int) -> tuple[float, float]:
        """What `num_draws` draws may miss of g and of G, in q's coordinates: infinite where it is not a number."""
        reach = -float(special.ndtri(min(SEEN / 2 / num_draws, 0.25)))
        index = max(int(np.searchsorted(self.radii, reach, side="right")) - 1, 0)
        found = float(self.location[index]), float(self.covariance[index])
        return found if all(map(math.isfinite, found)) else (math.inf, math.inf)


@double_precision
def audit_lines(target: AbstractTarget, point: Point, *, seed: int) -> Tails:
    """Integrate along lines through draws of q, in the steepest directions and in random ones.

    Directions of large curvature are found by power iteration on the Hessian at draws of q and far beyond them. The
    law along a line is taken to be normal, whose tails are the lightest that can hide something.

    **Arguments:** `point`: q. `seed`: of the draws.
    """
    rng = np.random.default_rng(seed)
    bases = rng.standard_normal((_NUM_BASES, target.dim))
    bases[0] = 0.0
    half = rng.standard_normal((_PAIRS, target.dim))
    # Both signs: a wall stands on one side only.
    places = np.concatenate([stretch * sign * half for stretch in _STRETCHES for sign in (1, -1)])
    directions = rng.standard_normal(places.shape)
    dtype = target.dtype
    factor, loc = jnp.asarray(scale_factor(point), dtype), jnp.asarray(point.loc, dtype)
    start, at, towards, nodes = (jnp.asarray(x, dtype) for x in (bases, places, directions, _grid()))
    found = _lines(target, loc, factor, start, at, towards, nodes)
    lines, through, values, slopes = (np.asarray(x, np.float64) for x in found)
    loc, factor = np.asarray(loc), np.asarray(factor)
    granted = 4 * math.sqrt(float(jnp.finfo(dtype).eps)) + 40 * float(displacement(loc, factor)) / _STEP
    with np.errstate(invalid="ignore", over="ignore"):
        return _read(lines, through, values, slopes, loc, factor, granted)


def _read(
    lines: np.ndarray,
    through: np.ndarray,
    values: np.ndarray,
    slopes: np.ndarray,
    loc: np.ndarray,
    factor: np.ndarray,
    granted: float,
) -> Tails:
    """From values and slopes at the nodes of each line to what they mean."""
    nodes = _grid()
    weight = np.gradient(nodes) * np.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi)
    square = (nodes * slopes) ** 2 * weight
    share = square[:, np.abs(nodes) > REACH].sum(axis=1) / np.maximum(square.sum(axis=1), 1)
    largest = float(share.max()) if np.isfinite(share).all() else 1.0
    radii = nodes[nodes >= 0]
    outside = np.abs(nodes)[None, :] >= radii[:, None] - 1e-9
    residual = np.abs(slopes - nodes) * weight
    location, covariance = ((outside * part[:, None, :]).sum(axis=2).max(axis=0) for part in _moments(residual, nodes))
    return Tails(
        largest, radii, location, covariance, _below_tangent(lines, through, values, slopes, loc, factor, granted)
    )


def _moments(residual: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return residual, residual * np.abs(nodes)


def _below_tangent(
    lines: np.ndarray,
    through: np.ndarray,
    values: np.ndarray,
    slopes: np.ndarray,
    loc: np.ndarray,
    factor: np.ndarray,
    granted: float,
) -> Counterexample | None:
    """The segment between two nodes that refutes convexity most clearly, beyond what rounding may have done."""
    nodes = _grid()
    step = np.diff(nodes)
    rise = np.diff(values, axis=1)
    above = np.minimum(rise - slopes[:, :-1] * step, slopes[:, 1:] * step - rise)
    size = np.abs(values[:, :-1]) + np.abs(values[:, 1:])
    size = size + (np.abs(slopes[:, :-1]) + np.abs(slopes[:, 1:])) * step
    # Not finite is no counter-example: the density may have a boundary.
    above = np.where(np.isfinite(above) & np.isfinite(size), above / np.maximum(size, 1e-300), 0.0)
    line, node = np.unravel_index(int(np.argmin(above)), above.shape)
    if not above[line, node] < -granted:
        return None
    ends = through[line][None, :] + nodes[node : node + 2, None] * lines[line][None, :]
    ends = loc[None, :] + (ends * factor[None, :] if factor.ndim == 1 else ends @ factor.T)
    direction = ends[1] - ends[0]
    curvature = 2 * float(above[line, node] * size[line, node]) / float(direction @ direction)
    return Counterexample(np.asarray(ends[0], np.float64), np.asarray(direction, np.float64), curvature, 0.0)


@weighed_jit
def _lines(target: AbstractTarget, loc: Any, factor: Any, bases: Any, places: Any, directions: Any, nodes: Any) -> Any:
    """Unit directions, points on the lines, and phi and its slope along each at the nodes."""

    def both(u):
        value, slope = autodiff(target, loc + (factor * u if factor.ndim == 1 else factor @ u))
        return value, factor * slope if factor.ndim == 1 else factor.T @ slope

    def gradient(u):
        return both(u)[1]

    def steepest(direction, at):
        def improve(x, _):
            new = jax.jvp(gradient, (at,), (x,))[1]
            # Scaled before the norm is taken: far out the squares overflow.
            new = new / jnp.max(jnp.abs(new))
            norm = jnp.linalg.norm(new)
            return jnp.where(jnp.isfinite(norm) & (norm > 0), new / norm, x), None

        start = direction / jnp.linalg.norm(direction)
        return jax.lax.scan(improve, start, None, length=_POWER_STEPS)[0], start

    def along(line):
        direction, rest = line

        def at(t):
            value, slope = both(rest + t * direction)
            return value, jnp.dot(slope, direction)

        return jax.lax.map(at, nodes, batch_size=batch_of(target, len(nodes)))

    pairs = directions, places
    found, random = jax.lax.map(lambda pair: steepest(*pair), pairs, batch_size=batch_of(target, len(places)))
    lines = jnp.concatenate([found, random[:_RANDOM_LINES]])
    through = bases[jnp.arange(lines.shape[0]) % bases.shape[0]]
    through = through - jnp.sum(through * lines, axis=1, keepdims=True) * lines
    values, slopes = jax.lax.map(along, (lines, through))
    return lines, through, values, slopes


def audit_tails(tails: Tails, family: LocationScale, point: Any, constants: Constants, fewest_draws: int) -> Assumption:
    """Whether draws of q can see what the expectations are made of: by smoothness, and by lines tried."""
    statement = "draws reach what matters (batch means are nearly Gaussian)"
    if not family.base.has_fourth_moment(family.dim):
        # The bounds average products of gradients and draws. Where the potential grows quadratically, as under a
        # Gaussian prior, these have a variance only if the base has a fourth moment.
        reason = f"the base ({family.base.name}) has no fourth moment: no confidence level can be given"
        return Assumption(statement, None, "violated", reason)
    smooth = constants.smoothness
    if smooth.status in ("proven", "declared") and smooth.value is not None:
        # In q's coordinates the gradient is Lipschitz with this constant; a huge one can still hide a wall.
        steepness = float(smooth.value) * _largest_variance(point)
        if steepness <= LARGEST_STEEPNESS:
            reason = "smooth potential: in q's coordinates its gradient grows at most linearly, with this slope"
            return Assumption(statement, steepness, smooth.status, reason)
    share = tails.share
    if share > LARGEST_SHARE:
        reason = (
            f"{share:.0%} of the gradient's variance along a line lies beyond {REACH:g} standard deviations of q, "
            f"where draws do not come: no confidence level can be given"
        )
        return Assumption(statement, share, "violated", reason)
    hidden = tails.hidden(fewest_draws)[1]
    reason = (
        f"share beyond {REACH:g} standard deviations, along lines tried; what {fewest_draws} draws may miss there, "
        f"{hidden:.2g}, is charged to the bounds"
    )
    return Assumption(statement, share, "estimated", reason)


def _largest_variance(point: Point) -> float:
    """Of q in any direction, not only along the axes: |C|^2; in many dimensions its bound by the sum of squares."""
    factor = np.asarray(scale_factor(point), np.float64)
    if factor.ndim == 1:
        return float(np.max(factor**2))
    return float(np.linalg.norm(factor, 2 if len(factor) <= _LARGEST_SPECTRUM else "fro")) ** 2
