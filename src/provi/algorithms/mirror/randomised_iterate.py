r"""The random index R of PG-SVI's Theorem 1, and the best of several runs chosen on fresh samples (two phases).

The theorem is about $E|G_R|^2$ with $P(R = k) \propto \alpha_*\beta_k-L\beta_k^2/2$, $k = 0, \dots, t-1$, not about
the last iterate. R does not depend on the run: **draw it first and run R steps**, which costs less than t and stores
nothing. $w_R$ is the iterate before step R. For constant steps R is uniform.

Two phases: S independent runs, a fresh gradient at each $w_R$, the one with the smallest measured $|G|^2$ is kept.
Markov's inequality makes all S fail with probability $\kappa^{-S}$ only (`theory.pgsvi`, with the constants).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import Count, RandomKey


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
