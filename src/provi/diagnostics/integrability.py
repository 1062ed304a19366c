r"""Is there a posterior at all? Draws of q at which the log density is not finite, and rays on which it does not fall.

By Fubini's theorem an integrable density p is integrable on almost every line: along $z + tx$, $t p(z + tx)$ cannot
stay away from 0. So a ray through a draw z of q on which $\log p + \log t$ never falls, from 10 to $10^{12}$ standard
deviations of q, refutes integrability, as far as a computation can: flat and rising densities, those that fall like
$1/t$ and slower. Student's t falls by $\nu\log 10$ a decade, whatever its degrees of freedom $\nu > 0$, and a q that
has not arrived yet, or sits in a small mode, sees the density fall before the last decade. Two draws must say the same:
single lines may be special. None is no proof: only the axes of q and of the parameters are tried.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.monte_carlo.whitened_frame import scale_factor
from provi.core.arguments import double_precision
from provi.core.interpreter import weighed_jit
from provi.families.base import AbstractFamily, moment_of
from provi.targets.base import AbstractTarget, traced_potential

REACH = np.arange(1.0, 13.0)
"""Powers of ten of the standard deviations of q at which the density is looked at along a ray."""

_FEWEST = 6
"""Decades that must be computable: below 10^6 deviations a wrong start may look like an improper density."""

_CHUNK, _MOST_AXES, _LARGEST_SPECTRUM = 32, 32, 500
_RUN_AWAY, _FAR = 1e30, np.arange(1.0, 37.0, 3.0)
_NAMED, _STREAM = 3, 2**31 - 5


@double_precision
def describe_nonfinite(target: AbstractTarget, family: AbstractFamily, key: Any, point: Any, num_draws: int) -> str:
    """Where the log density is not finite among the draws of q that `estimate_elbo` makes of this key, in words."""
    draws = np.asarray(family.sample_and_log_prob(key, point, num_draws)[0], np.float64)
    if not np.isfinite(draws).all():
        return "draws of q are not finite: its location or its scale is beyond floating point"
    values = -_potentials(target, draws)
    finite = np.isfinite(values)
    if finite.all():
        return f"the log density is finite at {num_draws} draws of q, but its mean is not: its values overflow"
    place = int(np.argmin(finite))
    first, good = draws[place], draws[finite] if finite.sum() > 1 else draws
    # The coordinates that stand out most are the likeliest to have left the set where the density is defined.
    away = np.abs(first - good.mean(axis=0)) / np.maximum(good.std(axis=0), 1e-300)
    shown = ", ".join(f"{target.parameter_names[k]} = {first[k]:.4g}" for k in np.argsort(-away)[:_NAMED])
    more = ", ..." if target.dim > _NAMED else ""
    bad = int((~finite).sum())
    return f"the log density is {values[place]} at {bad} of {num_draws} draws of q, the first at {shown}{more}"


@double_precision
def refute_integrability(target: AbstractTarget, family: AbstractFamily, point: Any, *, seed: int) -> str | None:
    """The direction along which the density does not seem to be integrable, in words; None where it falls on all.

    **Arguments:** `point`: the member q of `family`, a location and a scale. `seed`: of two draws, on the rays.
    """
    loc = np.asarray(point.loc, np.float64)
    if family.scale == "low_rank" or target.dim > _LARGEST_SPECTRUM:
        factor = np.asarray(moment_of(family, point, "marginal_standard_deviation"), np.float64)
    else:
        factor = scale_factor(point)
    if not (np.isfinite(factor).all() and np.isfinite(loc).all()):
        factor, loc = np.full(target.dim, np.inf), np.asarray(target.default_location, np.float64)
    noise = np.random.default_rng((seed, _STREAM)).standard_normal((2, target.dim))
    with np.errstate(over="ignore", invalid="ignore"):
        if max(float(np.abs(factor).max()), float(np.abs(loc).max())) > _RUN_AWAY:
            # q itself has left for infinity, where nothing can be computed: from the start, in units of the parameters.
            begin = np.asarray(target.default_location, np.float64)
            drift = loc - begin
            axes = np.eye(target.dim)[:_MOST_AXES]
            size = float(np.abs(drift).max())
            axes = np.concatenate([axes, drift[None] / size]) if np.isfinite(size) and size > 0 else axes
            found = _search(_Rays(target, begin + noise, axes, _FAR))
            unit = f"{10.0 ** _FAR[-1]:.0e} from the start, and q runs away to infinity"
        else:
            through = loc + (factor * noise if factor.ndim == 1 else noise @ factor.T)
            found = _search(_Rays(target, through, _axes(factor), REACH))
            unit = f"{10.0 ** REACH[-1]:.0e} standard deviations of q"
    if found is None:
        return None
    return f"{_direction(found, target.parameter_names)} it does not fall faster than 1/distance, as far as {unit}"


@dataclasses.dataclass(frozen=True)
class _Rays:
    """Rays through each of the points `through`, (2, d), along the rows of `axes` and against them."""

    target: AbstractTarget
    through: np.ndarray
    axes: np.ndarray
    decades: np.ndarray

    def values(self, which: np.ndarray, draw: int, decades: np.ndarray) -> np.ndarray:
        """log p + log t at t = 10^decades on the rays `which` (signed axes), (rays, decades)."""
        lines = np.concatenate([self.axes, -self.axes])[which]
        points = self.through[draw] + 10.0 ** decades[None, :, None] * lines[:, None, :]
        found = -_potentials(self.target, points.reshape(-1, points.shape[-1])).reshape(points.shape[:2])
        return found + np.log(10.0) * decades


def _search(rays: _Rays) -> np.ndarray | None:
    """The first direction in which neither draw sees the density fall."""
    ends = rays.decades[[0, -1]]
    near, far = rays.values(np.arange(2 * len(rays.axes)), 0, ends).T
    suspects = np.flatnonzero(~(far < near))  # not a number is no answer yet
    for suspect in suspects[:_MOST_AXES]:
        if all(_never_falls(rays.values(suspect[None], draw, rays.decades)[0], rays) for draw in (0, 1)):
            return np.concatenate([rays.axes, -rays.axes])[suspect]
    return None


def _never_falls(values: np.ndarray, rays: _Rays) -> bool:
    """Up to where it can be computed, which must be far; infinite density is no fall."""
    known = int(np.argmax(np.isnan(values))) if np.isnan(values).any() else len(values)
    values = values[:known]
    if known < min(_FEWEST, len(rays.decades)) or np.isneginf(values).any():
        return False
    top = np.finfo(np.float64).max
    values = np.minimum(values, top)
    rounding = 8 * float(jnp.finfo(rays.target.dtype).eps) * (1 + np.abs(values[:-1]))
    return bool((values[1:] >= values[:-1] - np.minimum(rounding, 1e-3)).all())


def _axes(factor: np.ndarray) -> np.ndarray:
    """The widest axes of q and the parameters in which it is widest, each one deviation long."""
    if factor.ndim == 1:
        widest = np.argsort(-np.abs(factor))[:_MOST_AXES]
        return np.eye(len(factor))[widest] * np.abs(factor)[widest, None]
    deviations = np.linalg.norm(factor, axis=1)
    widest = np.argsort(-deviations)[:_MOST_AXES]
    own = np.eye(len(factor))[widest] * deviations[widest, None]
    vectors, sizes, _ = np.linalg.svd(factor)
    return np.concatenate([own, (vectors * sizes).T[:_MOST_AXES]])


def _direction(axis: np.ndarray, names: tuple[str, ...]) -> str:
    size = np.abs(axis) / np.abs(axis).max()
    large = [int(k) for k in np.argsort(-size)[:_NAMED] if size[k] > 0.05]
    if len(large) == 1:
        return f"along {names[large[0]]}, {'upwards' if axis[large[0]] > 0 else 'downwards'},"
    terms = [f"{'-' if axis[k] < 0 else '+'} {size[k]:.2g} {names[k]}" for k in sorted(large)]
    more = " ..." if (size > 0.05).sum() > _NAMED else ""
    return f"in the direction {' '.join(terms).removeprefix('+ ')}{more}"


def _potentials(target: AbstractTarget, points: np.ndarray) -> np.ndarray:
    """At any number of points by one program, on the host and in float64."""
    short = -len(points) % _CHUNK
    padded = np.concatenate([points, np.repeat(points[-1:], short, axis=0)]) if short else points
    parts = [
        np.asarray(_chunk(target, jnp.asarray(padded[k : k + _CHUNK], target.dtype)), np.float64)
        for k in range(0, len(padded), _CHUNK)
    ]
    return np.concatenate(parts)[: len(points)]


@partial(weighed_jit, calls=10)
def _chunk(target: AbstractTarget, points: Any) -> Any:
    return jax.vmap(partial(traced_potential, target))(points)
