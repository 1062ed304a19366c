"""Bases of the user's own: a spherical law from its profile, its constants (which the theorems need) by quadrature."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import check_count, double_precision
from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.families.bases import AbstractBase, directions, log_sphere_area, safe_sqrt

_WIDEST, _NEGLIGIBLE, _LARGEST_ERROR = 80.0, 36.0, 1e-8  # e^-36 is the precision of a double


class _AbstractRadial(AbstractBase):
    """What `radial_base` returns; made there only."""

    profile: Callable[[Any], Any]
    dim: int = eqx.field(static=True)
    moments: "RadialMoments" = eqx.field(static=True)
    levels: Array
    log_radii: Array

    def _check(self, dim: int) -> None:
        if dim != self.dim:
            raise ValueError(
                f"This base was made for dimension {self.dim}, not {dim}: call radial_base(profile, {dim})."
            )

    def sample(self, key: RandomKey, num: int, dim: int, dtype: Any) -> Draws:
        self._check(dim)
        direction_key, radius_key = jax.random.split(key)
        uniform = jax.random.uniform(radius_key, (num, 1), dtype)
        radius = jnp.exp(jnp.interp(uniform, self.levels.astype(dtype), self.log_radii.astype(dtype)))
        return radius * directions(direction_key, num, dim, dtype)

    def log_density(self, u: Vector) -> Scalar:
        self._check(u.shape[0])
        return self.moments.log_normaliser + self.profile(safe_sqrt(jnp.sum(u**2)) / self.moments.stretch)

    def radial_weight(self, squared_radius: Float[Array, "..."], dim: int) -> Float[Array, "..."]:
        """-(log phi)'(r/s)/(s r); zero at the origin."""
        self._check(dim)
        radius = jnp.sqrt(jnp.where(squared_radius > 0, squared_radius, 1))
        slope = jnp.vectorize(jax.grad(self.profile))(radius / self.moments.stretch)
        return jnp.where(squared_radius > 0, -slope / (self.moments.stretch * radius), 0)

    def kurtosis(self, dim: int) -> float:
        self._check(dim)
        if not math.isfinite(self.moments.kurtosis):
            raise ValueError("The kurtosis of this base is not shown to be finite: its tail is too heavy.")
        return self.moments.kurtosis

    def entropy(self, dim: int) -> float:
        self._check(dim)
        return self.moments.entropy


class Radial(_AbstractRadial):
    """What `radial_base` makes; not claimed to be log-concave."""

    name: ClassVar[str] = "radial"
    log_concave: ClassVar[bool] = False
    has_score: ClassVar[bool] = True


class LogConcaveRadial(_AbstractRadial):
    """What `radial_base` makes; declared log-concave."""

    name: ClassVar[str] = "log_concave_radial"
    log_concave: ClassVar[bool] = True
    has_score: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class RadialMoments:
    r"""The constants of an elliptic base $s(u) \propto \varphi(|u|/\text{stretch})$ by quadrature.

    - `stretch`: $\sqrt{dI_{d-1}/I_{d+1}}$, $I_k = \int_0^\infty r^k\varphi(r)dr$: 1 where $\varphi$ is standardised
      (004, Proposition 1).
    - `log_normaliser`: $\log C_{norm}$ of the stretched density. - `kurtosis`: $3dI_{d+3}I_{d-1}/((d+2)I_{d+1}^2)$
      (Remark 1), infinite where the tail does not show it to be finite. - `entropy`: $-E\log s$.
    - `error`: relative error of the integrals, estimated by halving the step and by what is beyond the ends.
    - `sampling_error`: of $E|u|^2$ under the law that is drawn (the inverse distribution function, linear in
      $\log r$ between the nodes), against $d$, exact for that law.
    """

    stretch: float
    log_normaliser: float
    kurtosis: float
    entropy: float
    error: float
    sampling_error: float

    @property
    def standardised(self) -> bool:
        """Whether Proposition 1's condition holds for the profile as given, up to the error."""
        return abs(self.stretch - 1) <= max(self.error, 1e-12)


@double_precision
def radial_base(profile: Callable[[Any], Any], dim: int, *, log_concave: bool = False) -> Radial | LogConcaveRadial:
    r"""A spherical base $s(u) \propto \varphi(|u|)$ of your own, standardised, with its constants (004, section 2).

    The integrals $I_k = \int r^k\varphi\,dr$ are sums over equidistant points in $x = \log r$: the integrand
    $e^{(k+1)x}\varphi(e^x)$ is smooth and falls at both ends, so that the trapezoidal rule converges exponentially.
    What is not standardised (Proposition 1: $I_{d+1} = dI_{d-1}$) is stretched until it is; `base.moments` has the
    numbers and their errors.

    **Arguments:**

    - `profile`: $\log\varphi(r)$ for $r > 0$ up to a constant, in `jax.numpy`, smooth; a density that jumps is refused.
    - `dim`: the base is for this dimension alone. - `log_concave`: your word that $\log\varphi$ is concave and does not
      rise; refused where the nodes contradict it.
    """
    dim = check_count("dim", dim)
    log_phi = jax.jit(jax.vmap(profile))
    coarse = np.linspace(-_WIDEST, _WIDEST, 16001)
    logs = _log_profile(log_phi, coarse) + dim * coarse
    live = coarse[logs > logs.max() - _NEGLIGIBLE]
    fourth = logs + 4 * coarse
    # Where the fourth moment's integrand has died, or the second's if it does not.
    heavy = bool(fourth[-1] > fourth.max() - 40)
    last = logs + (2 if heavy else 4) * coarse
    upper = coarse[last > last.max() - _NEGLIGIBLE][-1]
    if (logs + 2 * coarse)[-1] > (logs + 2 * coarse).max() - 40 or live[0] <= -_WIDEST:
        raise ValueError("profile has no finite second moment that can be shown: a base needs one.")
    x = np.linspace(live[0] - 0.1, upper + 0.1, 2**15 + 1)
    values = _log_profile(log_phi, x)
    moments, cells = _radial_moments(x, values, dim, heavy)
    if not moments.error <= _LARGEST_ERROR:
        raise ValueError(f"The integrals of profile have an error of {moments.error:.1g}: it must be smooth for r > 0.")
    if log_concave:
        slopes = np.diff(values) / np.diff(np.exp(x))
        size = 1e-6 * np.abs(slopes) + 1e-9 * (1 + np.abs(values[1:])) / np.diff(np.exp(x))
        if np.any(slopes > size) or np.any(np.diff(slopes) > size[1:] + size[:-1]):
            raise ValueError("profile is declared log-concave, but it rises or is not concave at the nodes.")
    kind = LogConcaveRadial if log_concave else Radial
    keep = np.concatenate([[True], np.diff(cells) > 0])
    radii = x + math.log(moments.stretch)
    return kind(profile, dim, moments, jnp.asarray(cells[keep]), jnp.asarray(radii[keep]))


def _log_profile(log_phi: Callable, x: np.ndarray) -> np.ndarray:
    values = np.asarray(log_phi(jnp.asarray(np.exp(x))), np.float64)
    if np.isnan(values).any() or (values == np.inf).any():
        raise ValueError("profile is NaN or infinite at some r > 0: it must be the logarithm of a density.")
    return values


def _radial_moments(x: np.ndarray, values: np.ndarray, dim: int, heavy: bool) -> tuple[RadialMoments, np.ndarray]:
    """The moments, and the distribution function of log r at the nodes."""
    step, errors, totals = x[1] - x[0], [], []
    for power in (0, 2, 4):
        top = float((values + (dim + power) * x).max())
        terms = np.exp(values + (dim + power) * x - top)
        total, halved = terms.sum() * step, terms[::2].sum() * 2 * step
        # Beyond the ends the integrand falls at least as fast as it does there, or the check of the ends has failed.
        errors.append(max(abs(total - halved) / total, (terms[0] + terms[-1]) * 10 / total))
        totals.append(math.log(total) + top)
    if heavy:
        errors[2], totals[2] = 0.0, math.inf
    stretch = math.exp((math.log(dim) + totals[0] - totals[1]) / 2)
    mass = np.exp(values + dim * x - totals[0]) * step
    log_normaliser = -(log_sphere_area(dim) + totals[0] + dim * math.log(stretch))
    entropy = -log_normaliser - float(np.sum(np.where(mass > 0, mass * np.where(mass > 0, values, 0), 0)))
    kurtosis = 3 * dim / (dim + 2) * math.exp(totals[2] + totals[0] - 2 * totals[1])
    cells = np.concatenate([[0.0], np.cumsum((mass[1:] + mass[:-1]) / 2)])
    cells /= cells[-1]
    square = np.exp(2 * (x + math.log(stretch)))
    drawn = float(np.sum(np.diff(cells) * np.diff(square)) / (2 * step))
    found = RadialMoments(stretch, log_normaliser, kurtosis, entropy, float(max(errors)) * 4, abs(drawn / dim - 1))
    return found, cells
