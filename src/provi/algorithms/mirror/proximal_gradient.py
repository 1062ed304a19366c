r"""The proximal-gradient iteration of papers 000 and 002, of which the other methods are special cases.

$-ELBO = f + h$ is minimised over the members of an exponential family by

$$w_{k+1} = \arg\min_w\;\langle w, \hat g_k\rangle + h(w) + D(w, w_k)/\beta_k.$$
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from provi.algorithms.mirror.split import Split
from provi.algorithms.mirror.step import proximal_step
from provi.core.checks import as_array, check_count
from provi.core.precision import double_precision, floating_dtype
from provi.core.types import RandomKey, Vector
from provi.families.exponential import AbstractExponentialFamily, Coordinates
from provi.geometry.divergences import AbstractDivergence


class ProximalRun(eqx.Module):
    r"""What a run of the proximal-gradient iteration did.

    - `last`: the last iterate. - `path`: all iterates, one a row, the start first, or None.
    - `objective`: f + h at all iterates; None where f is not given.
    - `step_sizes`: beta_k. - `step_lengths`: $|G_k|$, $G_k = (w_k - w_{k+1})/\beta_k$.
    - `measured_alpha`: $(w_{k+1} - w_k)'\nabla_1D(w_{k+1}, w_k)/|w_{k+1} - w_k|^2$; NaN where nothing moved.
    - `measured_smoothness`: $|\nabla f(w_{k+1}) - \nabla f(w_k)|/|w_{k+1} - w_k|$, exact gradients only, else None.
    - `solved`: whether the step's problem was solved; where not, the iterate stayed, and its `step_lengths` are NaN.
    - `gap_bounds`: how far above the minimum of its problem each step can have ended; infinite: not known.
    """

    last: Vector
    path: Float[Array, "points size"] | None
    objective: Float[Array, " points"] | None
    step_sizes: Float[Array, " steps"]
    step_lengths: Float[Array, " steps"]
    measured_alpha: Float[Array, " steps"]
    measured_smoothness: Float[Array, " steps"] | None
    solved: Bool[Array, " steps"]
    gap_bounds: Float[Array, " steps"]


def _step_size(value: Any) -> Any:
    if callable(value) or not isinstance(value, int | float | list | tuple | np.ndarray | np.generic):
        return value
    sizes = as_array("step_size", value).astype(np.float64)
    if sizes.ndim > 1 or not (sizes > 0).all():
        raise ValueError("step_size must be a positive number, one positive number a step, or a function of the step.")
    return sizes


class ProximalGradient(eqx.Module):
    r"""$w_{k+1} = \arg\min\langle w, \hat g_k\rangle + h(w) + D(w, w_k)/\beta_k$ over the members of `family`.

    **Arguments:** `family`; `divergence` D; `split` into f and h; `step_size` beta (a number, one a step, or a function
    of the step number, such as those of `provi.schedules`); `coordinates` of w: "natural", "mean" or, for Gaussians,
    "moments".

    Requires: h convex in the coordinates and $\alpha$ with $(w - w')'\nabla_1D(w, w') \ge \alpha|w - w'|^2$ on the
    iterates, f with an L-Lipschitz gradient. Guarantee: for exact gradients and $\beta \le 2\alpha/L$,
    $\min_k|G_k|^2 \le C_0/\sum_k(\alpha\beta_k - L\beta_k^2/2)$ (paper 002, Propositions 1 to 3). Cost of a step: a
    gradient, and a closed form or a Newton solve (`proximal_step`). References: papers 000 and 002.
    """

    family: AbstractExponentialFamily
    divergence: AbstractDivergence
    split: Split
    step_size: Any = eqx.field(converter=_step_size)
    coordinates: str = eqx.field(static=True, default="mean")

    def __check_init__(self):
        Coordinates(self.family, self.coordinates)

    @double_precision
    def run(self, w0: Any, num_steps: int, key: RandomKey | None = None, keep_path: bool = False) -> ProximalRun:
        """`num_steps` steps from `w0`, compiled; `key` is needed where the split has its own `gradient`."""
        num_steps = check_count("num_steps", num_steps)
        start = jnp.asarray(as_array("w0", w0, ndim=1), floating_dtype(w0))
        if start.size != self.family.size:
            raise ValueError(f"w0 has {start.size} entries; {self.family} has {self.family.size} parameters.")
        if isinstance(self.step_size, np.ndarray) and self.step_size.shape not in ((), (num_steps,)):
            raise ValueError(f"step_size has {self.step_size.size} entries: give one, or num_steps = {num_steps}.")
        if key is None:
            if self.split.gradient is not None:
                raise ValueError("key is missing: this split has a stochastic gradient. Pass jax.random.key(seed).")
            key = jax.random.key(0)  # never used: the gradient is exact
        if not bool(_valid(self, start)):
            raise ValueError(f"w0 is not a member of {self.family} in {self.coordinates} coordinates.")
        return _run(self, start, key, num_steps, keep_path)


@eqx.filter_jit
def _valid(method: ProximalGradient, w: Vector):
    return Coordinates(method.family, method.coordinates).valid(w)


@eqx.filter_jit
def _run(method: ProximalGradient, start: Vector, key: RandomKey, num_steps: int, keep_path: bool) -> ProximalRun:
    # The start decides the precision: prior, data and step sizes follow it.
    method = jax.tree.map(lambda x: x.astype(start.dtype) if eqx.is_inexact_array(x) else x, method)
    coordinates, split = Coordinates(method.family, method.coordinates), method.split
    exact, has_objective = split.gradient is None, split.knows_objective
    sizes = _sizes(method.step_size, num_steps, start.dtype)

    def step(carry, inputs):
        w, slope = carry
        number, size = inputs
        answer = proximal_step(coordinates, method.divergence, split.penalty, w, slope, size)
        new_slope = split.slope(answer.w, jax.random.fold_in(key, number + 1)).astype(w.dtype)
        change = answer.w - w
        length = jnp.linalg.norm(change)
        alpha = change @ method.divergence.gradient(coordinates, answer.w, w) / length**2
        record = {
            "step_lengths": jnp.where(answer.solved, length / size, jnp.nan),
            "measured_alpha": jnp.where(length > 0, alpha, jnp.nan),
            "measured_smoothness": jnp.linalg.norm(new_slope - slope) / length if exact else None,
            "objective": split.objective(coordinates, answer.w) if has_objective else None,
            "path": answer.w if keep_path else None,
            "solved": answer.solved,
            "gap_bounds": answer.gap_bound,
        }
        return (answer.w, new_slope), record

    carry = (start, split.slope(start, jax.random.fold_in(key, 0)).astype(start.dtype))
    (last, _), record = jax.lax.scan(step, carry, (jnp.arange(num_steps), sizes))
    if has_objective:
        first = split.objective(coordinates, start)
        record["objective"] = jnp.append(first, record["objective"])
    if keep_path:
        record["path"] = jnp.concatenate([start[None, :], record["path"]])
    return ProximalRun(last=last, step_sizes=sizes, **record)


def _sizes(step_size: Any, num_steps: int, dtype: Any) -> Float[Array, " steps"]:
    if callable(step_size):
        return jnp.asarray(jax.vmap(step_size)(jnp.arange(num_steps)), dtype)
    return jnp.broadcast_to(jnp.asarray(step_size, dtype), (num_steps,))
