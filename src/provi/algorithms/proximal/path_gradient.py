r"""Adam on the path gradient of the ELBO, for families of which draws are smooth functions of the parameters."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.guarantee import Guarantee
from provi.core.devices import over_draws
from provi.core.tree import add_scaled
from provi.core.types import Count

LEARNING_RATE = 0.01
_DECAY, _CLIP = (0.9, 0.99), 10.0


class PathState(eqx.Module):
    """The iterate, the rule's own state and the step number."""

    point: Any
    rule_state: Any
    step: Count


class PathGradient(AbstractAlgorithm):
    r"""Minimises $E_q[\log q - \log p]$ by Adam with a learning rate that falls to zero as a cosine over `num_steps`.

    The gradient is that of $\sum_n w_n\,(\log q_{\bar\theta} - \log p)(z_n(\theta))$ with $\bar\theta$ held constant:
    the score has mean zero and is left out ("sticking the landing", Roeder et al. 2017), so that the noise vanishes
    where q is the posterior. z is in the frame of a Gaussian fit, in which all coordinates are of size one, so that
    one learning rate serves all targets. Gradients longer than 10 sqrt(dim) are cut.

    **Requires** a family with `stratified`. **Guarantee**: none. **Cost per step**: `num_draws` gradients.
    """

    num_steps: Any = eqx.field(converter=lambda x: jnp.asarray(x, float))
    learning_rate: Any = eqx.field(converter=lambda x: jnp.asarray(x, float), default=LEARNING_RATE)
    num_draws: int = eqx.field(static=True, default=64)
    guarantee: Guarantee | None = None

    def resolve(self, target: Any, family: Any) -> "PathGradient":
        if family.dim != target.dim:
            raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
        return self

    def init(self, point: Any) -> PathState:
        return PathState(point, _rule().init(eqx.filter(point, eqx.is_array)), jnp.zeros((), int))

    def step(self, key: Any, state: PathState, target: Any, family: Any, shrink: Any) -> tuple[PathState, StepInfo]:
        key = jax.random.fold_in(key, state.step)

        def loss(point: Any) -> Any:
            z, weights = family.stratified(key, point, self.num_draws)
            fixed = jax.lax.stop_gradient(point)
            log_q = jax.vmap(lambda row: family.log_prob(fixed, row))(z)
            return jnp.sum(weights * (log_q + over_draws(target.division, target.potential, z)))

        value, gradient = jax.value_and_grad(loss)(state.point)
        norm = _norm(gradient)
        cut = jnp.minimum(1.0, _CLIP * math.sqrt(family.dim) / jnp.maximum(norm, 1e-30))
        updates, rule_state = _rule().update(jax.tree.map(lambda g: cut * g, gradient), state.rule_state)
        share = jnp.clip(state.step / self.num_steps, 0, 1)
        size = (self.learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * share))).astype(norm.dtype)
        moved = add_scaled(state.point, -size * shrink, updates)
        info = StepInfo(size * shrink, jnp.asarray(self.num_draws, jnp.int32), (norm, value, _norm(moved)))
        return PathState(moved, rule_state, state.step + 1), info

    def output(self, state: PathState) -> Any:
        return state.point

    def cost_at(self, step: Count) -> Any:
        del step
        return jnp.asarray(self.num_draws, jnp.int32)


def _rule() -> Any:
    return optax.scale_by_adam(*_DECAY)


def _norm(tree: Any) -> Any:
    """optax's has another name in every version."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
