"""Minimising what is no target, in one call: a plain sum, a split f + h over a family, an F on a set."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.algorithms.mirror.proximal_gradient import ProximalGradient
from provi.algorithms.mirror.split import Split
from provi.algorithms.proximal.projected import Projected, ProjectedConstants, ProjectedSGD
from provi.core.arguments import as_array, check_count, device_array, double_precision, floating_dtype
from provi.families.base import AnyParameters
from provi.families.exponential import Coordinates
from provi.geometry.constraints import spread
from provi.runtime.record import History, Outcome
from provi.runtime.run import Run, run


@double_precision
def minimise_sum(
    surrogate: AbstractSurrogate,
    start: Any,
    algorithm: AbstractAlgorithm,
    *,
    seed: int,
    num_steps: int,
    **options: Any,
) -> Run:
    r"""Minimise $n^{-1}\sum_iL_i(\theta)$ from `start`, any pytree of floating arrays.

    `algorithm` is `MISO`, `MISSO`, `PacedMISSO`, `SAG` or a `BlockRule`.

    `num_steps` visits of a batch each; the first also builds all n surrogates. `options` are those of
    `provi.runtime.run`: `budget`, `progress`, `checkpoint`, `resume`, `stop`, ...

    **Returns:** a `Run`: `point` are the parameters, `history["elbo"]` is minus the mean surrogate where it is known.

    ```python
    run = provi.runtime.minimise_sum(surrogate, theta, MISSO(128, num_draws=10), seed=0, num_steps=1000)
    ```
    """
    start = jax.tree.map(lambda x: device_array(np.asarray(x), floating_dtype(x)), start)
    return run(algorithm, surrogate, AnyParameters(), start, seed=seed, num_steps=num_steps, **options)


@dataclasses.dataclass(frozen=True)
class ProximalRun:
    r"""What a run of the proximal-gradient iteration did: the fields of `ProximalTrace`, and how it ended.

    - `last`: the last iterate. - `path`: all iterates, one a row, the start first, or None.
    - `objective`: f + h at all iterates; None where f is not given.
    - `step_sizes`, `step_lengths` $|G_k|$, `measured_alpha`, `solved`, `gap_bounds`: one a step.
    - `measured_smoothness`: exact gradients only, else None.
    - `history`, `outcome`, `message`: as of every run.
    """

    last: Array
    path: Array | None
    objective: Array | None
    step_sizes: Array
    step_lengths: Array
    measured_alpha: Array
    measured_smoothness: Array | None
    solved: Array
    gap_bounds: Array
    history: History
    outcome: Outcome
    message: str


@double_precision
def minimise_split(
    split: Split,
    coordinates: Coordinates,
    start: Any,
    algorithm: ProximalGradient,
    *,
    num_steps: int,
    seed: int | None = None,
    keep_path: bool = False,
    **options: Any,
) -> ProximalRun:
    r"""Minimise f + h from the vector `start`, by `num_steps` steps of `ProximalGradient`.

    **Arguments:**

    - `split`: f and h. - `coordinates`: the family and the coordinates in which `start` and both parts are given.
    - `seed`: needed where the split has its own `gradient`. - `keep_path`: return all iterates.
    - `options`: those of `provi.runtime.run`: `budget`, `progress`, `checkpoint`, `resume`, ... A run is resumed with
      the `num_steps` that it began with.

    ```python
    method = ProximalGradient(KL(), step_size=0.1)
    run = provi.runtime.minimise_split(Split(energy), Coordinates(Gamma()), mean, method, num_steps=100)
    ```
    """
    num_steps = check_count("num_steps", num_steps)
    point = jnp.asarray(as_array("w0", start, ndim=1), floating_dtype(start))
    sizes = algorithm.step_size
    if isinstance(sizes, np.ndarray) and sizes.shape not in ((), (num_steps,)):
        raise ValueError(f"step_size has {sizes.size} entries: give one, or num_steps = {num_steps}.")
    if seed is None and split.gradient is not None:
        raise ValueError("seed is missing: this split has a stochastic gradient. Pass seed=0, say.")
    algorithm = dataclasses.replace(algorithm, trace_length=num_steps, keep_path=keep_path)
    # The start decides the precision: prior, data and step sizes follow it.
    algorithm, split = jax.tree.map(lambda x: _cast(x, point.dtype), (algorithm, split))
    options = {"progress": False, **options}
    # One step more than asked for: the first measures the start.
    result = run(algorithm, split, coordinates, point, seed=seed or 0, num_steps=num_steps + 1, **options)
    trace = result.point.trace
    fields = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)}
    fields["objective"] = trace.objective if split.knows_objective else None
    fields["measured_smoothness"] = trace.measured_smoothness if split.gradient is None else None
    return ProximalRun(
        last=result.point.point,
        history=result.history,
        outcome=result.outcome,
        message=result.message,
        **fields,
    )


@dataclasses.dataclass(frozen=True)
class ProjectedRun:
    r"""What a run of `ProjectedSGD` found, each point beside the bound that holds for it.

    - `average`: for convex F, $E F(\text{average})-\min_\Theta F \le$ `gap_bound` (004, Theorem 7, corrected for a
      minimiser on the boundary).
    - `chosen`: one iterate drawn with weights $\gamma_k(1-\gamma_kL)$: $E|G_\gamma(\text{chosen})|_\Lambda^2 \le$
      `mapping_bound` (Theorem 8), $\gamma$ = `chosen_step_size`.
    - `mapping`: $|G_\gamma(\text{chosen})|_\Lambda$; `mapping_error`: what $|\hat G-G|$ is in root mean square, 0 with
      an exact gradient, else estimated from fresh draws. A diagnostic: the bound is of the mean over runs.
    - `mean_mapping_squared`: the mean of $|G_{\gamma_k}(\theta_k)|_\Lambda^2$ over this run with the weights above;
      None without an exact gradient.
    - A bound is None where its constants are missing, or a step is too long for it, or the run was not carried out as
      planned (steps rejected, stopped early).
    """

    average: Any
    chosen: Any
    last: Any
    chosen_step_size: float
    mapping: float
    mapping_error: float
    mean_mapping_squared: float | None
    gap_bound: float | None
    mapping_bound: float | None
    step_sizes: np.ndarray
    num_draws: np.ndarray
    outcome: Outcome
    message: str


@double_precision
def minimise_projected(
    problem: Projected,
    start: Any,
    constants: ProjectedConstants,
    *,
    seed: int,
    budget: int | None = None,
    num_steps: int | None = None,
    step_size: Any = None,
    num_draws: Any = 1,
    mapping_draws: int = 1024,
    **options: Any,
) -> ProjectedRun:
    r"""Minimise $F$ over $\Theta$ by minibatch projected SGD from `start`, any pytree of floating arrays.

    **Arguments:**

    - `problem`: stochastic gradient, projection, blocks. - `constants`: what is known of them, at least $L$.
    - `budget`: gradient draws to spend by the theorem's own plan (`constants.plan`); or `num_steps`, `step_size`
      (default $1/(2L)$) and `num_draws`, numbers or schedules.
    - `mapping_draws`: fresh draws for the gradient mapping where no exact gradient is given.
    - `options`: those of `provi.runtime.run` except `budget`.

    ```python
    problem = Projected(gradient, project, factors={"loc": 1.0, "scale": 0.1})
    constants = ProjectedConstants(smoothness=4.0, variance=block_noise(slopes, floors, [1.0, 0.1]),
                                   initial_distance_squared=2.0)
    run = provi.runtime.minimise_projected(problem, start, constants, seed=0, budget=10_000)
    run.average, run.gap_bound
    ```
    """
    if (budget is None) == (num_steps is None):
        raise ValueError("Pass exactly one of budget= (gradient draws, planned) and num_steps=.")
    if budget is not None:
        plan = constants.plan(check_count("budget", budget))
        num_steps, step_size, num_draws = plan.num_steps, plan.step_size, plan.num_draws
    num_steps = check_count("num_steps", num_steps)
    slope = 2 * constants.variance.slope if constants.variance is not None else 0.0
    step_size = 0.5 / constants.smoothness if step_size is None else step_size
    algorithm = ProjectedSGD(step_size, num_draws, float(slope), float(constants.smoothness))
    start = jax.tree.map(lambda x: device_array(np.asarray(x), floating_dtype(x)), start)
    start = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), problem.project(start), start)
    options = {"progress": False, **options}
    result = run(algorithm, problem, AnyParameters(), start, seed=seed, num_steps=num_steps, **options)
    state = result.point
    finfo = np.finfo(state.chosen_weight.dtype)
    counter: Any = np.arange(num_steps)
    sizes = np.broadcast_to(np.asarray(algorithm.step_size(counter), float), (num_steps,))
    draws = np.broadcast_to(np.asarray(algorithm.num_draws(counter)), (num_steps,))
    # A step that was rejected is repeated with a smaller size, and leaves another sum of weights than the plan's.
    weights = float(np.sum(sizes * (1 - sizes * constants.smoothness)))
    same = math.isclose(weights, float(state.chosen_weight), rel_tol=1e-4 / num_steps + 1e3 * finfo.eps)
    as_planned = same and int(state.step) == num_steps and result.outcome == Outcome.COMPLETED
    gap, mapping = constants.bounds(sizes, draws) if as_planned else (None, None)
    own, error = _mapping(problem, state.chosen, state.chosen_step_size, jax.random.key(seed), mapping_draws)
    known = problem.exact_gradient is not None
    return ProjectedRun(
        average=state.mean,
        chosen=state.chosen,
        last=state.point,
        chosen_step_size=float(state.chosen_step_size),
        mapping=float(own) ** 0.5,
        mapping_error=float(error),
        mean_mapping_squared=float(state.mapping_sum / state.chosen_weight) if known else None,
        gap_bound=gap,
        mapping_bound=mapping,
        step_sizes=sizes,
        num_draws=draws,
        outcome=result.outcome,
        message=result.message,
    )


@eqx.filter_jit
def _mapping(problem: Projected, theta: Any, step_size: Any, key: Any, num_draws: int) -> tuple[Any, Any]:
    """|G|^2 at theta, and the error of |G| in root mean square."""
    if problem.exact_gradient is not None:
        return problem.mapping_squared(theta, problem.exact_gradient(theta), step_size), jnp.zeros(())
    keys = jax.random.split(jax.random.fold_in(key, 2**31 - 1), num_draws)
    draws = jax.vmap(lambda k: problem.gradient(k, theta))(keys)
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), draws)
    factors = spread(problem.factors, theta)
    squares = jax.tree.map(lambda x, m, f: jnp.sum(f[None] * (x - m[None]) ** 2), draws, mean, factors)
    variance = sum(jax.tree.leaves(squares)) / (num_draws - 1)
    return problem.mapping_squared(theta, mean, step_size), jnp.sqrt(variance / num_draws)


def _cast(leaf, dtype):
    inexact = eqx.is_inexact_array(leaf) or (isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.inexact))
    return leaf.astype(dtype) if inexact else leaf
