r"""What gradient methods over blocks share: the visited terms' gradient, a rule that makes a step of it, a guard.

The objective is $n^{-1}\sum_iL_i(\theta)$, a term being a block of data, say. Visit k takes the rows $B_k$ and
$$g_k = \frac1{|B_k|}\sum_{i\in B_k}\nabla L_i(\theta_k),\qquad \theta_{k+1} = \theta_k-\gamma_k\,\mathrm{rule}(g_k),$$
with a mean over $M_k$ draws for each gradient that is an expectation. Blocks, keys and draws are those of `MISSO` with
the same seed and settings, so that methods are compared on the same randomness.

Gradient methods over blocks of data with any optax rule: Bayes by Backprop, momentum, Adam, Adagrad.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from equinox import AbstractVar
from jaxtyping import Array, Float

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.incremental.elbo_surrogate import ELBOSurrogate
from provi.algorithms.incremental.incremental import as_sampling, latest_elbo
from provi.algorithms.incremental.misso import average_draws
from provi.algorithms.incremental.quadratic_surrogate import AbstractQuadratic
from provi.algorithms.incremental.surrogate_table import as_like, last_occurrences
from provi.core.arguments import check_positive
from provi.core.tree import all_finite, inner, select, squared_norm
from provi.core.types import Count, Flag, Indices, RandomKey
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import ConstantStep

_LARGEST_COUNT = 2**31 - 1


class BlockState(eqx.Module):
    """The parameters, the rule's own state, each term's value when last visited (NaN before), the visits made."""

    point: Any
    rule_state: Any
    values: Float[Array, " terms"]
    step: Count


class Visit(eqx.Module):
    """Where a visit was and whether it counts. `places` are its rows, each once, or n for what is to be left out."""

    rows: Indices
    places: Indices
    accepted: Flag


class AbstractBlockDescent(AbstractAlgorithm):
    """A walk along the gradients of the visited terms. A subclass says what is kept of it and what is returned."""

    rule: AbstractVar[Any]
    rate: AbstractVar[Any]
    sampling: AbstractVar[Any]
    num_draws: AbstractVar[AbstractBatchSize]
    surrogate: AbstractVar[AbstractQuadratic | None]

    guards_itself: ClassVar[bool] = True
    quantities: ClassVar[tuple[str, str, str]] = ("a block's value or gradient", "", "the new parameters")

    def __check_init__(self):
        if not isinstance(self.rule, optax.GradientTransformation):
            raise ValueError(f"rule must be an optax transformation, such as optax.scale_by_adam(), not {self.rule!r}.")

    def resolve(self, target, family):
        del family
        surrogate = check_terms(type(self).__name__, target, self.sampling)
        return dataclasses.replace(self, surrogate=surrogate)

    def first_state(self, parameters: Any) -> BlockState:
        """The state at the start, with copies of its own, or a `ValueError` for a rule that climbs."""
        state, slope = _begin(self, parameters)
        if not float(slope) > 0:
            raise ValueError(
                "rule must keep the gradient's sign: the step is minus rate times what it returns. Use "
                "optax.scale_by_adam() with rate=1e-3, not optax.adam(1e-3)."
            )
        return state

    def follow(self, key: RandomKey, state: BlockState, shrink: Any) -> tuple[BlockState, Visit, StepInfo]:
        """One visit. If something is not finite the state stays, but for the number of visits."""
        surrogate, old = self.resolved(), state.point
        _, order, draws = jax.random.split(key, 3)
        rows = self.sampling.indices(order, state.step, surrogate.num_terms)
        epoch = self.epoch(state.step)
        draws = jax.random.split(jax.random.fold_in(draws, state.step))[1]
        prepared = surrogate.prepare(old, rows)
        mean, _, _ = average_draws(surrogate, draws, old, rows, prepared, None, self.num_draws(epoch))
        gradient = as_like(old, jax.tree.map(lambda g: jnp.mean(g, axis=0), mean.gradient))
        updates, rule_state = self.rule.update(gradient, state.rule_state, old)
        rate = jnp.asarray(self.rate(epoch), float) * shrink
        new = as_like(old, jax.tree.map(lambda x, u: x - rate.astype(x.dtype) * u, old, updates))
        # Sums of squares overflow before any square in a rule's state does: a finite norm keeps that state finite.
        slope = jnp.where(all_finite(mean.value), jnp.sqrt(squared_norm(gradient)), jnp.nan)
        size = jnp.sqrt(squared_norm(new))
        accepted = jnp.isfinite(slope) & jnp.isfinite(size)
        places = jnp.where(last_occurrences(rows) & accepted, rows, surrogate.num_terms)
        kept = BlockState(
            surrogate.arrange_parameters(select(accepted, new, old)),
            select(accepted, as_like(state.rule_state, rule_state), state.rule_state),
            state.values.at[places].set(mean.value.astype(state.values.dtype), mode="drop"),
            state.step + 1,
        )
        dtype = shrink.dtype
        size = jnp.where(jnp.isfinite(slope), size, 0).astype(dtype)
        norms = (slope.astype(dtype), jnp.zeros((), dtype), size)
        info = StepInfo(rate.astype(dtype), self.cost_at(state.step), norms)
        return kept, Visit(rows, places, accepted), info

    def epoch(self, step: Count) -> Count:
        """The number of whole passes over the terms before visit number `step`."""
        return step * self.sampling.batch // self.resolved().num_terms

    def cost_at(self, step):
        visit = self.num_draws(self.epoch(step)).astype(int) * self.sampling.batch
        return jnp.minimum(visit, _LARGEST_COUNT).astype(jnp.int32)

    def resolved(self) -> AbstractQuadratic:
        """The surrogate that the gradients come from."""
        if self.surrogate is None:
            raise ValueError(f"{type(self).__name__} has no surrogate yet: call resolve(surrogate, family) first.")
        return self.surrogate


@eqx.filter_jit
def _begin(algorithm: AbstractBlockDescent, parameters: Any) -> tuple[BlockState, Any]:
    """The first state, and the inner product of what the rule makes of a gradient of ones with it."""
    rule = algorithm.rule
    point = algorithm.resolved().arrange_parameters(jax.tree.map(jnp.copy, parameters))
    rule_state = rule.init(point)
    ones = jax.tree.map(jnp.ones_like, point)
    updates, _ = rule.update(ones, rule_state, point)
    values = jnp.full(algorithm.resolved().num_terms, jnp.nan, jax.tree.leaves(point)[0].dtype)
    state = BlockState(point, jax.tree.map(jnp.copy, rule_state), values, jnp.zeros((), int))
    return state, inner(ones, updates)


def check_terms(name: str, target: Any, sampling: Any) -> AbstractQuadratic:
    """The surrogate whose draws are whole gradients of the terms, or a `ValueError` that says what is needed."""
    # The surrogate of a target keeps the entropy out of its gradients: it is added in `minimise` only.
    if not isinstance(target, AbstractQuadratic) or isinstance(target, ELBOSurrogate):
        raise ValueError(
            f"{name} needs the gradients of a sum's terms, which {type(target).__name__} does not give. Make a "
            f"provi.algorithms.QuadraticSurrogate, or take provi.algorithms.MISSO, which needs no gradients."
        )
    batch, n = sampling.batch, target.num_terms
    if batch > n:
        raise ValueError(f"sampling takes {batch} terms at once, but there are {n}. Use at most {n}.")
    return target


def as_blocks(value: Any) -> AbstractSampling:
    """A rule, or the number of terms in a visit, in reshuffled order; None is one."""
    sampling = as_sampling(1 if value is None else value)
    assert sampling is not None
    return sampling


def as_number(value: Any) -> Any:
    """A positive rate as an array, so that another one does not recompile; traced ones pass."""
    if isinstance(value, int | float | np.ndarray | np.generic):
        return np.asarray(check_positive("rate", value))
    return value


def as_rate(value: Any) -> Any:
    """A positive number, or a schedule: a function of the pass."""
    return value if callable(value) else ConstantStep(as_number(value))


# Rules are compared by identity: made once, so that two of the same kind share one compiled loop.
_PLAIN, _ADAM = optax.identity(), optax.scale_by_adam()
_ADAGRAD = optax.scale_by_rss(initial_accumulator_value=0.0)


@functools.cache
def _momentum(decay: float) -> optax.GradientTransformation:
    return optax.trace(decay)


class BlockRule(AbstractBlockDescent):
    r"""Stochastic gradient descent over blocks, the gradients transformed by an optax rule.

    Minimises $n^{-1}\sum_iL_i(\theta)$ with the gradients of the visited terms alone,
    $$\theta_{k+1} = \theta_k-\gamma_k\,\mathrm{rule}(g_k),\qquad
      g_k = \frac1{|B_k|}\sum_{i\in B_k}\nabla L_i(\theta_k).$$

    **Arguments:**

    - `rule`: an optax transformation without rate and with the gradient's sign, such as `optax.scale_by_adam()`,
      `optax.identity()`, `optax.trace(0.9)`, `optax.scale_by_rss()`. Rules are compared by identity: make yours once.
    - `rate`: $\gamma$, a number, another of which does not recompile; or a schedule of `provi.schedules`, a function of
      the *pass*.
    - `sampling`: as of `MISSO`; default one term a visit, in reshuffled order.
    - `num_draws`: the schedule $M_k$, where k is the pass.

    **Requires** an `AbstractQuadratic` surrogate, whose curvature is not used.
    **Guarantee**: none. With a constant rate the last iterate keeps a noise of the order of the rate.
    **Cost per step**: one gradient of the visited terms for each draw, and the rule. No table.
    **Reference**: Blundell, Cornebise, Kavukcuoglu and Wierstra, Weight uncertainty in neural networks, 2015.
    """

    rule: Any = eqx.field(static=True)
    rate: Any = eqx.field(converter=as_rate)
    sampling: Any = eqx.field(default=1, converter=as_blocks)
    num_draws: AbstractBatchSize = eqx.field(default=1, converter=as_batch_size)
    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    surrogate: AbstractQuadratic | None = None

    def init(self, point):
        return self.first_state(point)

    def step(self, key, state, target, family, shrink):
        del target, family
        new, _, info = self.follow(key, state, shrink)
        return new, info

    def output(self, state):
        return state.point

    def recorded_elbo(self, state):
        """Minus the mean of the terms' latest values; `latest_elbo` says what its error counts."""
        return latest_elbo(state.values)


def bayes_by_backprop(rate: Any, **options: Any) -> BlockRule:
    r"""Plain SGD on the reparameterised gradient: $\theta_{k+1} = \theta_k-\gamma g_k$ (Blundell et al. 2015).

    `options` of this and the next ones are `sampling` and `num_draws` of `BlockRule`.
    """
    return BlockRule(rule=_PLAIN, rate=rate, **options)


def momentum(rate: Any, decay: float = 0.9, **options: Any) -> BlockRule:
    r"""The heavy ball: $v_k = \beta v_{k-1}+g_k$, $\theta_{k+1} = \theta_k-\gamma v_k$, with $\beta$ = `decay` < 1."""
    if not check_positive("decay", decay) < 1:
        raise ValueError(f"decay must be below 1, not {decay}: the sum of the gradients would grow without end.")
    return BlockRule(rule=_momentum(float(decay)), rate=rate, **options)


def adam(rate: Any, **options: Any) -> BlockRule:
    """Adam with the decays 0.9 and 0.999 (Kingma and Ba 2015)."""
    return BlockRule(rule=_ADAM, rate=rate, **options)


def adagrad(rate: Any, **options: Any) -> BlockRule:
    r"""Adagrad (Duchi, Hazan and Singer 2011): $\theta_{k+1} = \theta_k-\gamma g_k/\sqrt{\sum_{j\le k}g_j^2}$.

    The sum begins at zero. optax would begin at 0.1, which gradients per datum take long to reach.
    """
    return BlockRule(rule=_ADAGRAD, rate=rate, **options)
