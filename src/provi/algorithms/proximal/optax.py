"""Any optax rule as a baseline: Adam, RMSprop, momentum, ... on the same gradients."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax

from provi.algorithms.base import AbstractAlgorithm, check_parts
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.proximal.stochastic_proximal import optional_positive, step_gradient, step_info
from provi.core.tree import add_scaled
from provi.core.types import Count
from provi.estimators.base import AbstractEstimator
from provi.estimators.gradients import StickingTheLanding
from provi.families.location_scale import Point
from provi.families.scales import Diagonal, LowRank, Symmetric, Triangular
from provi.geometry.operators import project_nondegenerate
from provi.schedules.averaging import AbstractAveraging, LastIterate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling


class OptaxState(eqx.Module):
    """The iterate, the rule's own state, the running average and the step number."""

    point: Point
    rule_state: Any
    average: Any
    step: Count


class Optax(AbstractAlgorithm):
    r"""Minimises f(w) with an optax rule: w_{t+1} = keep(w_t + update(g_t)), g_t an estimate of grad f.

    `keep` holds C inside the positive definite scales: singular values (symmetric) or diagonal entries (all others)
    are raised to `smallest_scale`.

    **Requires** an estimator of grad f; any scale. **Guarantee**: none.
    A rule is a pair of functions, so another learning rate compiles anew (optax.inject_hyperparams does not help here).
    **Cost per step** on top of the gradient: the rule's, and O(dim^3) for symmetric scales.
    """

    rule: optax.GradientTransformation = eqx.field(static=True)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=10)
    estimator: AbstractEstimator = StickingTheLanding()
    averaging: AbstractAveraging = LastIterate()
    smallest_scale: Any = eqx.field(converter=optional_positive("smallest_scale"), default=1e-8)
    data_sampling: AbstractSampling | None = None
    guarantee: Guarantee | None = None

    def resolve(self, target, family):
        check_parts(target, family, self.data_sampling)
        if not self.estimator.includes_entropy:
            raise ValueError(
                f"Optax needs the gradient of the whole objective, but the estimator '{self.estimator.name}' leaves "
                f"the entropy out. Use estimator=provi.estimators.StickingTheLanding() or Entropy()."
            )
        self.estimator.check(family)
        return self

    def init(self, point):
        return OptaxState(
            point,
            self.rule.init(eqx.filter(point, eqx.is_array)),
            self.averaging.init(point),
            jnp.zeros((), int),
        )

    def step(self, key, state, target, family, shrink):
        draws = self.num_draws(state.step)
        gradient = step_gradient(key, state, target, family, self.estimator, draws, self.data_sampling)
        # optax's types name plain containers only; its functions take any pytree.
        rule: Any = self.rule
        updates, rule_state = rule.update(gradient, state.rule_state, state.point)
        moved = add_scaled(state.point, shrink, updates)
        moved = Point(moved.loc, _keep_positive(moved.scale, jnp.asarray(self.smallest_scale, moved.loc.dtype)))
        average = self.averaging.update(state.average, state.point, moved, shrink, draws.astype(shrink.dtype))
        info = step_info(shrink, draws, gradient, moved)
        return OptaxState(moved, rule_state, average, state.step + 1), info

    def cost_at(self, step):
        return self.num_draws(step)

    def output(self, state):
        return self.averaging.value(state.average, state.point)


def _keep_positive(scale: Any, smallest: Any) -> Any:
    """A safe scale: positive diagonal (triangular, diagonal, low rank) or positive eigenvalues (symmetric)."""
    match scale:
        case Triangular(matrix=matrix):
            diagonal = jnp.diagonal(matrix)
            index = jnp.arange(diagonal.shape[0])
            return Triangular(matrix.at[index, index].set(jnp.maximum(diagonal, smallest)))
        case Symmetric() | Diagonal() | LowRank():
            return project_nondegenerate(scale, smallest)
        case _:
            raise TypeError(f"No safe set for {type(scale).__name__}.")
