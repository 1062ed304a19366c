r"""Do draws of q see all that matters? A check of the tails, by quadrature along chosen lines.

A confidence level from draws presumes that batch means are nearly Gaussian. Convexity bounds a potential from below
only: with $\phi(z) = e^z$ and $q = N(m, 6^2)$ all of $E\phi$ comes from six standard deviations out, where no draw
falls, and a Monte-Carlo bound would be wrong with certainty and without a sign. A smooth potential cannot do that: its
gradient grows at most linearly. Where no smoothness is known, this audit integrates along lines: for a unit direction e
and draws u of q, with $t \sim N(0,1)$ along e, the share of $E[(t\,\partial_e\tilde\phi)^2]$ that lies beyond four
standard deviations, $\tilde\phi(u) = \phi(m + Cu)$. It is a diagnostic and no proof: other directions remain.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.whitened_frame import scale_factor
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget

REACH, LARGEST_SHARE = 4.0, 0.1
_NODES, _RANGE, _NUM_BASES, _NUM_DIRECTIONS, _POWER_STEPS = 49, 12.0, 4, 12, 6


def unseen_share(target: AbstractTarget, family: LocationScale, point: Point, *, seed: int) -> float:
    """The largest share found over lines along the steepest directions and random ones; 1 where it is not finite.

    Directions of large curvature are found by power iteration on the Hessian at draws of q.

    **Arguments:**

    - `family`, `point`: q. - `seed`: of the draws.
    """
    del family  # tails of the normal are the lightest that can hide something: a heavier base sees more
    rng = np.random.default_rng(seed)
    bases = rng.standard_normal((_NUM_BASES, target.dim))
    bases[0] = 0.0
    directions = rng.standard_normal((_NUM_DIRECTIONS, target.dim))
    factor = jnp.asarray(scale_factor(point), target.dtype)
    loc = jnp.asarray(point.loc, target.dtype)
    shares = _shares(target, loc, factor, jnp.asarray(bases, target.dtype), jnp.asarray(directions, target.dtype))
    largest = float(np.max(np.asarray(shares)))
    return largest if np.isfinite(largest) else 1.0


@eqx.filter_jit
def _shares(target: AbstractTarget, loc: Any, factor: Any, bases: Any, directions: Any) -> Any:
    def place(u):
        return loc + (factor * u if factor.ndim == 1 else factor @ u)

    gradient = jax.grad(lambda u: target.potential(place(u)))

    def steepest(direction, base):
        def product(x):
            return jax.jvp(gradient, (base,), (x,))[1]

        def improve(x, _):
            new = product(x)
            norm = jnp.linalg.norm(new)
            return jnp.where(jnp.isfinite(norm) & (norm > 0), new / norm, x), None

        start = direction / jnp.linalg.norm(direction)
        return jax.lax.scan(improve, start, None, length=_POWER_STEPS)[0], start

    nodes = jnp.asarray(np.linspace(-_RANGE, _RANGE, _NODES), loc.dtype)
    density = jnp.exp(-0.5 * nodes**2)

    def share(direction, base):
        rest = base - jnp.dot(base, direction) * direction

        def moment(t):
            slope = jnp.dot(gradient(rest + t * direction), direction)
            return (t * slope) ** 2

        values = jax.lax.map(moment, nodes) * density
        total = jnp.sum(values)
        outside = jnp.sum(jnp.where(jnp.abs(nodes) > REACH, values, 0))
        return jnp.where(total > 0, outside / jnp.where(total > 0, total, 1), 0)

    def line(pair):
        direction, base = pair
        found, start = steepest(direction, base)
        return jnp.maximum(share(found, base), share(start, base))

    count = directions.shape[0]
    return jax.lax.map(line, (directions, bases[jnp.arange(count) % bases.shape[0]]))
