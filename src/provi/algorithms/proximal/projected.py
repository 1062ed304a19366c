r"""Minibatch projected SGD on a general F and Theta: paper 004, section 4 and appendix B, for your own problem.

$\theta_{k+1} = P_\Theta(\theta_k-\gamma_k\Lambda g_k)$, $g_k$ the mean of $N_k$ independent unbiased draws of
$\nabla F(\theta_k)$, $\Lambda$ a number in (0, 1] a block. `provi.runtime.minimise_projected` runs it; the bounds are
those of `provi.theory.mpsgd`, in the corrected forms that also hold where the minimiser is on the boundary.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.guarantee import Guarantee
from provi.core.arguments import check_positive, double_precision
from provi.core.tree import add_scaled, select, squared_norm, subtract, zeros_like
from provi.core.types import Count, RandomKey, Scalar
from provi.estimators.base import CHUNKS, minibatch_gradient
from provi.estimators.gradients import Entropy
from provi.families.location_scale import LocationScale, Point
from provi.geometry.constraints import spread
from provi.geometry.operators import project_nondegenerate_ball
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.step_sizes import AbstractStepSize, as_step_size
from provi.targets.base import AbstractTarget
from provi.theory import mpsgd, noise
from provi.theory.noise import NoiseBound
from provi.theory.solution_region import smallest_scale

_DRAWS, _CHOICE = 0, 1  # separate random streams for gradients and for the choice of an iterate


def _leaf(value: Any) -> Any:
    return np.asarray(value, np.float64) if isinstance(value, int | float | np.generic) else value


class Projected(eqx.Module):
    r"""$\min_\Theta F$ as MPSGD sees it.

    **Arguments:**

    - `gradient`: `gradient(key, theta)`, one unbiased draw of $\nabla F$, a pytree like `theta`.
    - `project`: `project(theta)`, the nearest point of the closed convex set $\Theta$ in the norm of $\Lambda^{-1}$.
      For $\Lambda = I$, or $\Theta$ a product over the blocks (Assumption 5), that is the Euclidean projection.
    - `factors`: $\Lambda$: a number, or a pytree of numbers that begins like `theta`, each in (0, 1].
    - `exact_gradient`: `exact_gradient(theta)` where it is known: the gradient mapping is then exact.

    Data belong into leaves of an `eqx.Module` with `__call__` (or `eqx.Partial`): a function that closes over arrays is
    compiled anew for each closure.
    """

    gradient: Callable[[Any, Any], Any]
    project: Callable[[Any], Any]
    factors: Any = eqx.field(converter=lambda tree: jax.tree.map(_leaf, tree), default=1.0)
    exact_gradient: Callable[[Any], Any] | None = None

    def __check_init__(self):
        for factor in jax.tree.leaves(self.factors):
            if isinstance(factor, int | float | np.ndarray) and not np.all((np.asarray(factor) > 0) & (factor <= 1)):
                raise ValueError(f"factors must lie in (0, 1], not {factor}. Put what is larger into the step size.")

    def mean_gradient(self, key: RandomKey, theta: Any, num_draws: Count) -> Any:
        """The mean of `num_draws` draws, a run-time number, in chunks of fixed sizes."""
        total, remaining = zeros_like(theta), num_draws
        for size in CHUNKS:
            size_key = jax.random.fold_in(key, size)

            def add_chunk(index, total, size=size, size_key=size_key):
                keys = jax.random.split(jax.random.fold_in(size_key, index), size)
                draws = jax.vmap(lambda k: self.gradient(k, theta))(keys)
                return jax.tree.map(lambda t, d: t + jnp.sum(d, axis=0) / num_draws.astype(t.dtype), total, draws)

            total = jax.lax.fori_loop(0, remaining // size, add_chunk, total)
            remaining = remaining % size
        return total

    def move(self, theta: Any, gradient: Any, step_size: Scalar) -> Any:
        """P(theta - step_size Lambda gradient)."""
        factors = spread(self.factors, theta)
        return self.project(jax.tree.map(lambda x, g, f: x - step_size * f * g, theta, gradient, factors))

    def mapping_squared(self, theta: Any, gradient: Any, step_size: Scalar) -> Scalar:
        r"""$|G_\gamma(\theta)|_\Lambda^2 = |\theta-P(\theta-\gamma\Lambda g)|_{\Lambda^{-1}}^2/\gamma^2$."""
        moved = subtract(theta, self.move(theta, gradient, step_size))
        scaled = jax.tree.map(lambda x, f: x / jnp.sqrt(f), moved, spread(self.factors, theta))
        return squared_norm(scaled) / step_size**2


class ProjectedState(eqx.Module):
    """The iterate; the weighted mean of the iterates after the steps; one iterate drawn at random, with its step."""

    point: Any
    step: Count
    mean: Any
    mean_weight: Scalar
    discount: Scalar
    chosen: Any
    chosen_weight: Scalar
    chosen_step_size: Scalar
    mapping_sum: Scalar


class ProjectedSGD(AbstractAlgorithm):
    r"""MPSGD on a `Projected` problem: all points that a theorem of 004 speaks of, in one run.

    - the mean of $\theta_1, \dots, \theta_K$ with weights $\gamma_k\alpha_{k+1}$,
      $\alpha_{k+1} = \alpha_k/(1+a\gamma_k^2/N_k)$, $a$ the `noise_slope` (Theorems 6 and 7, corrected: $2a$);
    - one of $\theta_0, \dots, \theta_{K-1}$ drawn with weights $\gamma_k(1-\gamma_kL)$, kept by reservoir sampling
      (Theorem 8), and with an exact gradient the mean of $|G_{\gamma_k}(\theta_k)|_\Lambda^2$ with these weights.

    **Requires** steps below $1/L$, $L$ the `smoothness` of F on the set. **Cost per step:** $N_k$ gradients and one
    projection. Reference: Labarriere, Molinari, Villa and Rosasco (2026), equation MPSGD.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    noise_slope: Any = eqx.field(converter=_leaf, default=0.0)
    smoothness: Any = eqx.field(converter=_leaf, default=0.0)
    guarantee: Guarantee | None = None

    quantities = ("the gradient", "", "the new parameters")

    def resolve(self, target, family):
        del family
        if not isinstance(target, Projected):
            raise ValueError("ProjectedSGD minimises a provi.algorithms.Projected; for a target use MPSGD or ProjSGD.")
        return self

    def init(self, point):
        zero = jnp.zeros((), jax.tree.leaves(point)[0].dtype)
        return ProjectedState(point, jnp.zeros((), int), point, zero, zero + 1, point, zero, zero, zero)

    def step(self, key, state, target, family, shrink):
        del family
        theta, dtype = state.point, state.discount.dtype
        gamma = (self.step_size(state.step) * shrink).astype(dtype)
        draws = self.num_draws(state.step)
        stream = jax.random.fold_in(jax.random.fold_in(key, _DRAWS), state.step)
        gradient = target.mean_gradient(stream, theta, draws)
        moved = target.move(theta, gradient, gamma)
        noisy = jnp.asarray(self.noise_slope, dtype) * gamma**2 / draws.astype(dtype)
        discount = state.discount / (1 + noisy)
        weight = state.mean_weight + gamma * discount
        mean = add_scaled(state.mean, gamma * discount / weight, subtract(moved, state.mean))
        # Reservoir sampling: the newcomer is kept with the share of its weight in the total so far.
        own = gamma * (1 - gamma * jnp.asarray(self.smoothness, dtype))
        total = state.chosen_weight + own
        uniform = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, _CHOICE), state.step), (), dtype)
        take = uniform * total < own
        mapping = state.mapping_sum
        if target.exact_gradient is not None:
            mapping = mapping + own * target.mapping_squared(theta, target.exact_gradient(theta), gamma)
        info = StepInfo(gamma, draws, (jnp.sqrt(squared_norm(gradient)), 0 * gamma, jnp.sqrt(squared_norm(moved))))
        chosen, size = select(take, theta, state.chosen), jnp.where(take, gamma, state.chosen_step_size)
        return ProjectedState(moved, state.step + 1, mean, weight, discount, chosen, total, size, mapping), info

    def cost_at(self, step):
        return self.num_draws(step)

    def recorded_elbo(self, state):
        # F itself is never computed, so that the history of such a run stays empty.
        del state
        return np.nan, np.nan

    def output(self, state):
        # All of it: what the caller wants of a run are several of its points.
        return state


@dataclasses.dataclass(frozen=True)
class ProjectedConstants:
    r"""What the theorems need of F, Theta and the draws; leave out what is not known.

    - `smoothness`: $L$ of F on $\Theta$ (Euclidean). - `variance`: of one draw,
      $E|g-\nabla F|_\Lambda^2 \le a|\theta-\theta^\star|_{\Lambda^{-1}}^2+b$ (a bound of the second moment will do;
      `theory.noise.block_noise` makes it from the blocks).
    - `initial_distance_squared`: $|\theta_0-\theta^\star|_{\Lambda^{-1}}^2$, for convex F.
    - `initial_gap`: $F(\theta_0)-\inf_\Theta F$, and `uniform_variance`: $\bar b$, the largest variance of one draw on
      $\Theta$, without convexity.
    """

    smoothness: float
    variance: NoiseBound | None = None
    initial_distance_squared: float | None = None
    initial_gap: float | None = None
    uniform_variance: float | None = None

    def convex(self) -> tuple[float, NoiseBound] | None:
        """What Theorems 6 and 7 need, with the noise doubled for a boundary, or None; F convex is your word."""
        if self.variance is None or self.initial_distance_squared is None:
            return None
        return self.initial_distance_squared, mpsgd.constrained(self.variance)

    def nonconvex(self) -> tuple[float, float, float] | None:
        """What Theorem 8 needs, or None."""
        if self.initial_gap is None or self.uniform_variance is None:
            return None
        return self.initial_gap, self.smoothness, self.uniform_variance

    def plan(self, budget: int) -> mpsgd.Plan:
        """Remark 5's plan at the step 1/L for convex F, else `nonconvex_plan`."""
        convex, nonconvex = self.convex(), self.nonconvex()
        if convex is not None:
            return mpsgd.optimal_plan(budget, *convex, 1 / self.smoothness)
        if nonconvex is not None:
            return mpsgd.nonconvex_plan(budget, *nonconvex)
        raise ValueError(
            "A plan needs variance= and initial_distance_squared= (convex F), or initial_gap= and uniform_variance=. "
            "Without them pass step_size=, num_draws= and num_steps=."
        )

    def bounds(self, step_sizes: np.ndarray, num_draws: np.ndarray) -> tuple[float | None, float | None]:
        """Of E F(mean) - F* and of E|G|^2 at the random iterate, after these steps; None where unknown."""
        convex, nonconvex, longest = self.convex(), self.nonconvex(), float(np.max(step_sizes)) * self.smoothness
        gap = mapping = None
        if convex is not None and longest <= 1 + 1e-12:
            gap = float(mpsgd.dynamic_bound(step_sizes, num_draws, *convex)[-1])
        if nonconvex is not None and longest < 1:
            mapping = float(mpsgd.nonconvex_bound(step_sizes, num_draws, *nonconvex)[-1])
        return gap, mapping


class _ElboDraw(eqx.Module):
    target: AbstractTarget
    family: LocationScale

    def __call__(self, key: RandomKey, point: Point) -> Point:
        one = jnp.ones((), int)
        return minibatch_gradient(key, Entropy(), self.target.potential, self.family, point, one)


class _BallOfScales(eqx.Module):
    smallest: Any
    centre: Any
    radius: Any
    scale_factor: Any

    def __call__(self, point: Point) -> Point:
        return project_nondegenerate_ball(
            point, self.smallest, self.centre, self.radius, scale_factor=self.scale_factor
        )


@double_precision
def bounded_elbo(
    target: AbstractTarget,
    family: LocationScale,
    *,
    centre: Any,
    radius: float,
    initial_gap: float,
    preconditioned: bool = False,
) -> tuple[Projected, ProjectedConstants]:
    r"""-ELBO on $W_M \cap \{|m-c|^2+|C|_F^2/\lambda_C \le R^2\}$, with its constants: Theorem 8 for any target.

    The potential must be $M$-smooth, not convex: $L = 2M$ on $W_M$, and $\bar b$ is `theory.noise.bounded_variance`.
    The set may exclude the best approximation; the promise is about stationary points of the set.

    **Arguments:** `centre`: $c$; `radius`: $R$; `initial_gap`: $f(w_0)-\inf f$ or more, your word; `preconditioned`:
    $\lambda_C = 1/(2\rho)$ instead of 1.
    """
    if family.scale not in ("symmetric", "diagonal"):
        raise ValueError(f"The set needs scale='symmetric' or 'diagonal', not {family.scale!r}.")
    if not target.constants.smoothness.known:
        raise ValueError("The theorem needs the target's smoothness; declare smoothness= on the target.")
    smoothness = float(target.constants.smoothness.value)  # pyright: ignore[reportArgumentType]
    kurtosis = float(family.base.kurtosis(family.dim))
    factor = noise.scale_preconditioner(family.dim, kurtosis) if preconditioned else 1.0
    least = smallest_scale(smoothness)
    if check_positive("radius", radius) ** 2 * factor < family.dim * least**2:
        raise ValueError(f"radius must be at least {least * math.sqrt(family.dim / factor):.6g}, or the set is empty.")
    centre = np.asarray(centre, np.float64)
    slope = float(jnp.linalg.norm(jax.grad(target.potential)(jnp.asarray(centre, target.dtype))))
    moment = noise.bounded_variance(
        dim=family.dim,
        smoothness=smoothness,
        radius=radius,
        kurtosis=kurtosis,
        centre_gradient_norm=slope,
        scale_factor=factor,
    )
    ball = _BallOfScales(np.asarray(least), centre, np.asarray(radius, float), np.asarray(factor, float))
    like = family.point(centre, 1.0, target.dtype)
    factors = Point(jnp.ones_like(like.loc), jax.tree.map(lambda x: jnp.full_like(x, factor), like.scale))
    problem = Projected(_ElboDraw(target, family), ball, factors)
    return problem, ProjectedConstants(2 * smoothness, initial_gap=initial_gap, uniform_variance=moment)
