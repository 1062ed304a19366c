r"""How noisy the gradient estimators are at a point, measured and as the theory bounds it.

An estimator $\hat g$ of $g = \nabla l$ (energy) or $\nabla f$ (the others) from one draw has the variance
$E|\hat g - g|^2$ and the second moment $E|\hat g|^2 = E|\hat g - g|^2 + |g|^2 \le a|w - w^\star|^2 + b$, in the
Euclidean norm of the free entries of $(m, C)$. Energy and entropy differ by a constant: their variances are equal.

The theory's bounds on the noise of the gradient estimators at one point, where its constants are known.
"""

import dataclasses
import io
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from provi.core.arguments import check_count, double_precision
from provi.core.compilation import program_jit
from provi.core.tree import add_scaled, squared_norm, subtract, zeros_like
from provi.core.types import RandomKey
from provi.estimators.base import AbstractEstimator
from provi.estimators.gradients import Energy, Entropy, StickingTheLanding
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.families.scales import Diagonal
from provi.targets.base import AbstractTarget
from provi.targets.gaussian import Gaussian
from provi.targets.regressions import LinearRegression
from provi.theory import noise
from provi.theory.solution_region import mode_distance_bound, reference_distance_squared_bound, smallest_scale


def noise_bounds(
    target: AbstractTarget, family: LocationScale, point: Point, optimum: Point | None
) -> tuple[dict[str, float], list[str]]:
    r"""$a|w - w^\star|^2 + b$ for each estimator, by its name, and why a bound is missing.

    $a$ and $b$ are those of `provi.theory.noise`. The distance of $w^\star$ from $\bar w = (\bar z, 0)$, $\bar z$ the
    mode, which $b$ needs, is at most $(|\nabla\phi(m^\star)|/\mu)^2 + |C^\star|^2$, and at most $d/\mu$.
    """
    constants = target.constants
    if optimum is None:
        return {}, ["The theory's bounds are in the distance from the optimum: pass optimum= to see them."]
    if family.scale == "low_rank":
        return {}, ["No theorem covers scale='low_rank'."]
    if not (constants.smoothness.known and constants.strong_convexity.known and constants.strong_convexity.value):
        return {}, [
            "The theory's bounds need the target's smoothness and strong convexity; declare them on the target."
        ]
    try:
        kurtosis = float(family.base.kurtosis(family.dim))
    except ValueError as error:
        return {}, [str(error)]
    smoothness, strong_convexity = float(constants.smoothness.value), float(constants.strong_convexity.value)  # pyright: ignore
    known: dict[str, Any] = {
        "dim": family.dim,
        "smoothness": smoothness,
        "reference_distance_squared": _reference_distance_squared(target, optimum, strong_convexity),
        "kurtosis": kurtosis,
    }
    found, notes = {"energy": noise.energy_noise(**known)}, []
    if "estimated" in (constants.smoothness.status, constants.strong_convexity.status):
        notes.append("The bounds rest on estimated constants of the target and may be too small.")
    if _smallest_singular_value(point) < smallest_scale(smoothness) * (1 - 1e-6):
        notes.append("The bounds of entropy and sticking the landing hold for singular values of C >= 1/sqrt(M) only.")
    else:
        found["entropy"] = noise.entropy_noise(**known)
        if isinstance(family.base, Normal):
            residual = _residual_smoothness(target, family, smoothness)
            found["sticking the landing"] = noise.stl_noise(**known, residual_smoothness=residual)
        else:
            notes.append("The bound of sticking the landing is for the normal base only.")
    distance = float(squared_norm(subtract(point, optimum)))
    return {name: float(bound.slope * distance + bound.floor) for name, bound in found.items()}, notes


def _smallest_singular_value(point: Point) -> float:
    if isinstance(point.scale, Diagonal):
        return float(jnp.min(jnp.abs(point.scale.diagonal)))
    return max(float(np.linalg.eigvalsh(np.asarray(point.scale.covariance(), np.float64))[0]), 0.0) ** 0.5


def _reference_distance_squared(target: AbstractTarget, optimum: Point, strong_convexity: float) -> float:
    gradient_norm = float(jnp.linalg.norm(jax.grad(target.potential)(optimum.loc)))
    to_mode = mode_distance_bound(gradient_norm, strong_convexity)
    measured = to_mode**2 + float(squared_norm(optimum.scale))
    return min(measured, reference_distance_squared_bound(target.dim, strong_convexity))


def _residual_smoothness(target: AbstractTarget, family: LocationScale, smoothness: float) -> float:
    """K of log p - log q*: zero for a Gaussian posterior in the family; both Hessians lie in [0, M] if convex."""
    if isinstance(target, Gaussian | LinearRegression) and family.scale != "diagonal":
        return 0.0
    return smoothness if target.constants.log_concave.value is True else 2 * smoothness


_STREAM = 2**31 - 3  # a stream of the seed that no step of a run and no other diagnostic uses


@dataclasses.dataclass(frozen=True)
class EstimatorNoise:
    """One estimator at the point, for one draw: variance and second moment with standard errors, and the bound.

    `bound` is the theory's upper bound on the second moment, None where none applies.
    """

    estimator: str
    variance: float
    variance_standard_error: float
    second_moment: float
    second_moment_standard_error: float
    bound: float | None


@dataclasses.dataclass(frozen=True)
class NoiseAudit:
    """The noise of each estimator at a point.

    - `rows`: one an estimator. - `best`: the names of those with the least variance; `factor`: how many times less
      than the worst, which is by how many times fewer draws give the same accuracy.
    - `notes`: why an estimator or a bound is missing.
    """

    num_draws: int
    rows: tuple[EstimatorNoise, ...]
    best: tuple[str, ...]
    factor: float
    notes: tuple[str, ...]

    def table(self) -> Table:
        """The rows as a rich table."""
        table = Table(title="Gradient noise of one draw", title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("estimator")
        for column in ("E|g^ - g|^2", "s.e.", "E|g^|^2", "s.e.", "theory's bound", "bound / measured"):
            table.add_column(column, justify="right")
        for row in self.rows:
            moments = (row.variance, row.variance_standard_error, row.second_moment, row.second_moment_standard_error)
            bound = ("", "")
            if row.bound is not None:
                ratio = row.bound / row.second_moment if row.second_moment > 0 else math.inf
                bound = (f"{row.bound:.4g}", f"{ratio:.3g}")
            table.add_row(row.estimator, *(f"{value:.4g}" for value in moments), *bound)
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the table, the best estimator and the notes."""
        console = console or Console()
        console.print(self.table())
        console.print(f"least variance here: {', '.join(self.best)}; {self.factor:.3g} times less than the worst")
        for note in self.notes:
            console.print(f"- {note}", style="dim", markup=False)

    def __str__(self) -> str:
        console = Console(width=110, file=io.StringIO())
        self.print(console)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@double_precision
def audit_gradient_noise(
    target: AbstractTarget,
    family: LocationScale,
    point: Point,
    *,
    num_draws: int = 1000,
    seed: int = 0,
    optimum: Point | None = None,
) -> NoiseAudit:
    """Measure the noise of the estimators Energy, Entropy and StickingTheLanding at a point, from the same draws.

    Each costs 2 `num_draws` gradients: a first pass for the mean, a second for the distances from it, so that no
    digits cancel where the gradient is much larger than its noise (entropy, at a narrow q).

    **Arguments:**

    - `optimum`: the minimiser w* (`linear_model_optimum(target, family).point`). The theory's bounds are in the
      distance from it; without it only the measurements are reported.
    """
    if family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
    num_draws = check_count("num_draws", num_draws, minimum=2)
    key = jax.random.fold_in(jax.random.key(check_count("seed", seed, minimum=0)), _STREAM)
    bounds, notes = noise_bounds(target, family, point, optimum)
    rows = []
    for estimator in (Energy(), Entropy(), StickingTheLanding()):
        try:
            estimator.check(family)
        except ValueError as error:
            notes.append(str(error))
            continue
        rows.append(_measure(key, estimator, target, family, point, num_draws, bounds.get(estimator.name)))
    least, most = min(row.variance for row in rows), max(row.variance for row in rows)
    # Energy and entropy are equal up to rounding.
    best = tuple(row.estimator for row in rows if row.variance <= least * (1 + 1e-6))
    factor = most / least if least > 0 else math.inf if most > 0 else 1.0
    return NoiseAudit(num_draws, tuple(rows), best, factor, tuple(notes))


def _measure(
    key: RandomKey,
    estimator: AbstractEstimator,
    target: AbstractTarget,
    family: LocationScale,
    point: Point,
    num_draws: int,
    bound: float | None,
) -> EstimatorNoise:
    size = sum(leaf.size for leaf in jax.tree.leaves(point))
    chunk = int(np.clip(2**20 // size, 1, 64))
    arguments = (key, estimator, target, family, point)
    mean, norms = _mean_and_distances(*arguments, zeros_like(point), num_draws, chunk)
    _, away = _mean_and_distances(*arguments, mean, num_draws, chunk)
    away, norms = np.asarray(away, np.float64), np.asarray(norms, np.float64)
    broken = int((~np.isfinite(norms)).sum())
    if broken:
        raise ValueError(
            f"target has a gradient that is not finite at {broken} of {num_draws} draws of q. Make the log density "
            f"differentiable there, or choose a narrower q."
        )
    root = num_draws**0.5
    return EstimatorNoise(
        estimator=estimator.name,
        # The distances are from the sample mean, so one draw is used up.
        variance=float(away.sum() / (num_draws - 1)),
        variance_standard_error=float(away.std(ddof=1) / root),
        second_moment=float(norms.mean()),
        second_moment_standard_error=float(norms.std(ddof=1) / root),
        bound=bound,
    )


@program_jit
def _mean_and_distances(
    key: RandomKey,
    estimator: AbstractEstimator,
    target: AbstractTarget,
    family: LocationScale,
    point: Point,
    centre: Point,
    num_draws: int,
    chunk: int,
) -> tuple[Point, Float[Array, " draws"]]:
    """The mean of the gradients g_i of single draws, and |g_i - centre|^2 for each."""
    prepared, constant = estimator.prepare(family, point), estimator.constant_part(point)

    def gradient(index: Array) -> Point:
        draw_key = jax.random.fold_in(key, index)
        value = estimator.mean_over_draws(draw_key, target.potential, family, point, prepared, 1)
        return value if constant is None else add_scaled(value, 1, constant)

    def one_chunk(total: Point, indices: Array) -> tuple[Point, Array]:
        values = jax.vmap(gradient)(indices)
        inside = (indices < num_draws).astype(point.loc.dtype)
        sums = jax.tree.map(lambda leaf: jnp.tensordot(inside, leaf, axes=1), values)
        distances = jax.vmap(lambda value: squared_norm(subtract(value, centre)))(values)
        return add_scaled(total, 1 / num_draws, sums), distances

    # The last chunk is filled with draws that are not used.
    indices = jnp.arange(-(-num_draws // chunk) * chunk).reshape(-1, chunk)
    mean, distances = jax.lax.scan(one_chunk, zeros_like(point), indices)
    return mean, distances.reshape(-1)[:num_draws]
