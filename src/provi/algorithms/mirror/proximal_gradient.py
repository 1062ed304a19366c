r"""The proximal-gradient iteration of papers 000 and 002, of which the other methods are special cases.

$-ELBO = f + h$ is minimised over the members of an exponential family by

$$w_{k+1} = \arg\min_w\;\langle w, \hat g_k\rangle + h(w) + D(w, w_k)/\beta_k.$$

**The random index** (`draw_index`). The theorem of papers 000 and 002 is about $E|G_R|^2$ with
$P(R = k) \propto \alpha_*\beta_k-L\beta_k^2/2$, $k = 0, \dots, t-1$, not about the last iterate. R does not depend on
the run: **draw it first and run R steps**, which costs less than t and stores nothing. $w_R$ is the iterate before
step R. For constant steps R is uniform.

**Two phases** (`two_phase`): S independent runs, a fresh gradient at each $w_R$, the one with the smallest measured
$|G|^2$ is kept. Markov's inequality makes all S fail with probability $\kappa^{-S}$ only (`theory.pgsvi`, with
the constants).
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.mirror.split import AbstractSplit
from provi.algorithms.mirror.step import StepAnswer, has_step, proximal_step
from provi.core.arguments import as_array, device_array
from provi.core.tree import squared_norm, subtract, zeros_like
from provi.core.types import Count, RandomKey, Scalar
from provi.geometry.divergences import AbstractDivergence


class ProximalTrace(eqx.Module):
    r"""What each step of the proximal-gradient iteration did; NaN (and not solved) for a step that was not made.

    - `path`: all iterates, one a row, the start first, or None. - `objective`: f + h at all iterates; NaN where f is
      not given.
    - `step_sizes`: beta_k. - `step_lengths`: $|G_k|$, $G_k = (w_k - w_{k+1})/\beta_k$.
    - `measured_alpha`: $(w_{k+1} - w_k)'\nabla_1D(w_{k+1}, w_k)/|w_{k+1} - w_k|^2$; NaN where nothing moved.
    - `measured_smoothness`: $|\nabla f(w_{k+1}) - \nabla f(w_k)|/|w_{k+1} - w_k|$, if the gradients are exact.
    - `solved`: whether the step's problem was solved; where not, the iterate stayed, and its `step_lengths` are NaN.
    - `gap_bounds`: how far above the minimum of its problem each step can have ended; infinite: not known.
    """

    path: Float[Array, "points size"] | None
    objective: Float[Array, " points"]
    step_sizes: Float[Array, " steps"]
    step_lengths: Float[Array, " steps"]
    measured_alpha: Float[Array, " steps"]
    measured_smoothness: Float[Array, " steps"]
    solved: Bool[Array, " steps"]
    gap_bounds: Float[Array, " steps"]


class ProximalAnswer(eqx.Module):
    """The last iterate, and the trace of the steps to it where one was kept."""

    point: Any
    trace: ProximalTrace | None


class _ProximalState(eqx.Module):
    """The point, f's gradient and the ELBO there (its error zero once it is known), and what the last step gained."""

    point: Any
    slope: Any
    elbo: Scalar
    elbo_error: Scalar
    gain: Scalar
    trace: ProximalTrace | None
    step: Count


def _step_size(value: Any) -> Any:
    if callable(value) or not isinstance(value, int | float | list | tuple | np.ndarray | np.generic):
        return value
    if np.ndim(value) == 0 and np.asarray(value) == np.inf:
        return np.asarray(value)
    sizes = as_array("step_size", value).astype(np.float64)
    if sizes.ndim > 1 or not (sizes > 0).all():
        raise ValueError("step_size must be a positive number, one positive number a step, or a function of the step.")
    return sizes


class ProximalGradient(AbstractAlgorithm):
    r"""$w_{k+1} = \arg\min\langle w, \hat g_k\rangle + h(w) + D(w, w_k)/\beta_k$ over an exponential family.

    Minimises -ELBO = f + h, given by a `Split`, in coordinates of a family: `provi.runtime.minimise_split` runs it.
    The first step of the loop measures f + h and its slope at the start; each later one moves and measures.

    **Arguments:**

    - `divergence` D. - `step_size` beta: a number, one a step, or a function of the step number, such as those of
      `provi.schedules`. Infinite, with a prior in h: the minimiser of f's linear model plus h (coordinate ascent in
      conditionally conjugate models).
    - `trace_length`: how many steps' measurements the state keeps, in a `ProximalTrace`. - `keep_path`: the iterates,
      too.

    **Requires** h convex in the coordinates and $\alpha$ with $(w - w')'\nabla_1D(w, w') \ge \alpha|w - w'|^2$ on the
    iterates, f with an L-Lipschitz gradient. **Guarantee**: for exact gradients and $\beta \le 2\alpha/L$,
    $\min_k|G_k|^2 \le C_0/\sum_k(\alpha\beta_k - L\beta_k^2/2)$ (paper 002, Propositions 1 to 3). **Cost per step** a
    gradient, and a closed form or a Newton solve (`proximal_step`). **Reference**: papers 000 and 002.
    """

    divergence: AbstractDivergence
    step_size: Any = eqx.field(converter=_step_size)
    trace_length: int = eqx.field(static=True, default=0)
    keep_path: bool = eqx.field(static=True, default=False)
    guarantee: Guarantee | None = eqx.field(static=True, default=None)

    quantities: ClassVar[tuple[str, str, str]] = ("the gradient", "the objective", "the new parameters")

    def resolve(self, target, family):
        if not isinstance(target, AbstractSplit):
            raise ValueError(
                f"ProximalGradient minimises a Split, f + h; {type(target).__name__} is none: call "
                f"provi.runtime.minimise_split(provi.algorithms.Split(...), ...), or fit with another algorithm."
            )
        if not has_step(family, self.divergence, target.exact_part()):
            raise ValueError(
                f"{type(self.divergence).__name__} has no step in a pytree of natural parameters: use KL, with "
                f"KLToPrior as the penalty, or Coordinates of a family."
            )
        return self

    def init(self, point):
        dtype = jax.tree.leaves(point)[0].dtype
        never, nothing = (device_array(np.asarray(x, dtype)) for x in (-np.inf, np.nan))
        trace, count = None, self.trace_length
        if count:
            empty = device_array(np.full(count, np.nan, dtype))
            path = device_array(np.full((count + 1, point.size), np.nan, dtype)) if self.keep_path else None
            objective, unsolved = device_array(np.full(count + 1, np.nan, dtype)), device_array(np.zeros(count, bool))
            trace = ProximalTrace(path, objective, empty, empty, empty, empty, unsolved, empty)
        return _ProximalState(point, zeros_like(point), never, nothing, never, trace, device_array(np.asarray(0)))

    def step(self, key, state, target, family, shrink):
        size = self._size(state.step, shrink)

        def stay():
            return StepAnswer(state.point, jnp.full_like(size, jnp.inf), jnp.zeros((), bool))

        def move():
            return proximal_step(family, self.divergence, target.exact_part(), state.point, state.slope, size)

        answer = jax.lax.cond(state.step == 0, stay, move)
        objective, slope = target.measure(family, answer.w, jax.random.fold_in(key, state.step))
        slope = jax.tree.map(lambda new, old: new.astype(old.dtype), slope, state.slope)
        elbo = -objective.astype(size.dtype)
        error = jnp.where(jnp.isfinite(elbo), 0, jnp.nan).astype(size.dtype)
        trace = state.trace
        if trace is not None:
            trace = self._traced(trace, family, state, answer, objective, slope, size)
        new = _ProximalState(answer.w, slope, elbo, error, elbo - state.elbo, trace, state.step + 1)
        # Zero, or NaN where the objective should be finite and is not: the loop then rejects the step.
        sound = elbo - elbo if target.knows_objective else jnp.zeros_like(elbo)
        norms = (jnp.sqrt(squared_norm(slope)), sound, jnp.sqrt(squared_norm(answer.w)))
        return new, StepInfo(size, jnp.asarray(1, jnp.int32), norms)

    def cost_at(self, step):
        """One: a look at the objective."""
        return jnp.ones_like(step)

    def output(self, state):
        return ProximalAnswer(state.point, state.trace)

    def recorded_elbo(self, state):
        return state.elbo, state.elbo_error

    def _size(self, step, shrink):
        number = jnp.maximum(step - 1, 0)
        size: Any = self.step_size(number) if callable(self.step_size) else jnp.asarray(self.step_size)
        size = jnp.asarray(size[number] if jnp.ndim(size) else size, shrink.dtype)
        # An infinite step is the rate one, which shrinks to the rate `shrink`.
        return jnp.where(jnp.isinf(size), shrink / (1 - shrink), size * shrink)

    def _traced(self, trace, family, state, answer, objective, slope, size):
        change = answer.w - state.point
        length = jnp.linalg.norm(change)
        alpha = change @ self.divergence.gradient(family, answer.w, state.point) / length**2
        now = {
            "step_sizes": size,
            "step_lengths": jnp.where(answer.solved, length / size, jnp.nan),
            "measured_alpha": jnp.where(length > 0, alpha, jnp.nan),
            "measured_smoothness": jnp.linalg.norm(subtract(slope, state.slope)) / length,
            "solved": answer.solved,
            "gap_bounds": answer.gap_bound,
        }
        # The look at the start is no step: beyond the end, where nothing is written.
        place = jnp.where(state.step == 0, self.trace_length, state.step - 1)
        arrays = {name: getattr(trace, name).at[place].set(value, mode="drop") for name, value in now.items()}
        path = None if trace.path is None else trace.path.at[state.step].set(answer.w, mode="drop")
        return ProximalTrace(path, trace.objective.at[state.step].set(objective, mode="drop"), **arrays)


def index_weights(step_sizes: Float[Array, " steps"], alpha: Any, smoothness: Any) -> Float[Array, " steps"]:
    r"""$\beta_k(\alpha-L\beta_k/2)$, traced; `alpha` is $\alpha_*$ for stochastic gradients.

    Fails at run time where a step is above $2\alpha/L$ (no probability then) or where all are equal to it.
    """
    alpha = jnp.asarray(alpha, step_sizes.dtype)
    room = alpha - jnp.asarray(smoothness, step_sizes.dtype) * step_sizes / 2
    # Rounding in 2 alpha/L itself must not be called an error.
    forgiven = 8 * jnp.finfo(step_sizes.dtype).eps * alpha
    weights = step_sizes * jnp.where(room <= forgiven, 0, room)
    bad = jnp.any(room < -forgiven) | jnp.any(step_sizes <= 0) | ~(jnp.sum(weights) > 0)
    return eqx.error_if(
        weights, bad, "step_sizes must be positive, at most 2 alpha/smoothness, and one of them smaller. Shrink them."
    )


def draw_index(key: RandomKey, step_sizes: Float[Array, " steps"], alpha: Any, smoothness: Any) -> Count:
    """R: how many steps to take before stopping (0, ..., t - 1)."""
    return jax.random.categorical(key, jnp.log(index_weights(step_sizes, alpha, smoothness)))


class TwoPhase(eqx.Module):
    """The candidate kept, its number, and the squared step lengths measured for all (infinite where not finite)."""

    best: Any
    index: Count
    squared_lengths: Float[Array, " runs"]


@eqx.filter_jit
def two_phase(
    key: RandomKey,
    run: Callable[[RandomKey, Any], Any],
    squared_length: Callable[[RandomKey, Any, Any], Any],
    args: Any,
    num_runs: int,
) -> TwoPhase:
    r"""`num_runs` independent runs side by side; the one with the smallest $|G|^2$ on fresh samples.

    **Arguments:**

    - `run(key, args)`: one run, returns $w_R$ (any pytree; draw R inside with `draw_index`).
    - `squared_length(key, w, args)`: $|\tilde G|^2$ of the step from w with a gradient of T fresh draws.
    - `args`: whatever both need (data, step sizes): arrays, so that new values do not recompile.

    `theory.pgsvi.two_phase_plan` gives the numbers of runs and draws for a failure probability.
    """
    run_keys, fresh_keys = jax.random.split(key, (2, num_runs))
    candidates = jax.vmap(lambda k: run(k, args))(run_keys)
    measured = jax.vmap(lambda k, w: squared_length(k, w, args))(fresh_keys, candidates)
    measured = jnp.where(jnp.isfinite(measured), measured, jnp.inf)
    index = jnp.argmin(measured)
    return TwoPhase(jax.tree.map(lambda leaf: leaf[index], candidates), index, measured)
