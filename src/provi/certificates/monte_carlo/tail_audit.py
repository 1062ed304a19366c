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
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.certificate import Assumption
from provi.certificates.monte_carlo.whitened_frame import scale_factor
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget, Constants

REACH, LARGEST_SHARE = 4.0, 0.1
NODES, RANGE = 49, 12.0
_NUM_BASES, _POWER_STEPS, _RANDOM_LINES = 4, 6, 12
LARGEST_STEEPNESS = 10.0
"""Smoothness times the largest variance of q, up to which no audit of the tails is needed."""

_LARGEST_SPECTRUM = 500
_STRETCHES, _PAIRS = (1.0, 2.0, 4.0, 8.0), 6


def unseen_share(target: AbstractTarget, family: LocationScale, point: Point, *, seed: int) -> float:
    """The largest share found over lines along the steepest directions and random ones; 1 where it is not finite.

    Directions of large curvature are found by power iteration on the Hessian at draws of q and far beyond them.

    **Arguments:**

    - `family`, `point`: q. - `seed`: of the draws.
    """
    del family  # tails of the normal are the lightest that can hide something: a heavier base sees more
    rng = np.random.default_rng(seed)
    bases = rng.standard_normal((_NUM_BASES, target.dim))
    bases[0] = 0.0
    half = rng.standard_normal((_PAIRS, target.dim))
    # Both signs: a wall stands on one side only.
    places = np.concatenate([stretch * sign * half for stretch in _STRETCHES for sign in (1, -1)])
    directions = rng.standard_normal(places.shape)
    factor, loc = jnp.asarray(scale_factor(point), target.dtype), jnp.asarray(point.loc, target.dtype)
    arrays = (jnp.asarray(x, target.dtype) for x in (bases, places, directions))
    largest = float(np.max(np.asarray(_shares(target, loc, factor, *arrays))))
    return largest if np.isfinite(largest) else 1.0


@eqx.filter_jit
def _shares(target: AbstractTarget, loc: Any, factor: Any, bases: Any, places: Any, directions: Any) -> Any:
    def place(u):
        return loc + (factor * u if factor.ndim == 1 else factor @ u)

    gradient = jax.grad(lambda u: target.potential(place(u)))

    def steepest(direction, at):
        def improve(x, _):
            new = jax.jvp(gradient, (at,), (x,))[1]
            # Scaled before the norm is taken: far out the squares overflow.
            new = new / jnp.max(jnp.abs(new))
            norm = jnp.linalg.norm(new)
            return jnp.where(jnp.isfinite(norm) & (norm > 0), new / norm, x), None

        start = direction / jnp.linalg.norm(direction)
        return jax.lax.scan(improve, start, None, length=_POWER_STEPS)[0], start

    nodes = jnp.asarray(np.linspace(-RANGE, RANGE, NODES), loc.dtype)
    density = jnp.exp(-0.5 * nodes**2)

    def share(direction, base):
        rest = base - jnp.dot(base, direction) * direction

        def moment(t):
            slope = jnp.dot(gradient(rest + t * direction), direction)
            return (t * slope) ** 2

        values = jax.lax.map(moment, nodes) * density / jnp.sum(density)
        outside = jnp.sum(jnp.where(jnp.abs(nodes) > REACH, values, 0))
        return outside / jnp.maximum(jnp.sum(values), 1)

    found, random = jax.lax.map(lambda pair: steepest(*pair), (directions, places))
    lines = jnp.concatenate([found, random[:_RANDOM_LINES]])
    through = bases[jnp.arange(lines.shape[0]) % bases.shape[0]]
    return jax.lax.map(lambda pair: share(*pair), (lines, through))


def audit_tails(
    target: AbstractTarget, family: LocationScale, point: Any, constants: Constants, seed: int
) -> Assumption:
    """Whether draws of q can see what the expectations are made of: by smoothness, else by `tail_audit`."""
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
    share = unseen_share(target, family, point, seed=seed)
    if share > LARGEST_SHARE:
        reason = (
            f"{share:.0%} of the gradient's variance along a line lies beyond {REACH:g} standard deviations of q, "
            f"where draws do not come: no confidence level can be given"
        )
        return Assumption(statement, share, "violated", reason)
    return Assumption(statement, share, "estimated", f"share beyond {REACH:g} standard deviations, along lines tried")


def _largest_variance(point: Point) -> float:
    """Of q in any direction, not only along the axes: |C|^2; in many dimensions its bound by the sum of squares."""
    factor = np.asarray(scale_factor(point), np.float64)
    if factor.ndim == 1:
        return float(np.max(factor**2))
    return float(np.linalg.norm(factor, 2 if len(factor) <= _LARGEST_SPECTRUM else "fro")) ** 2
