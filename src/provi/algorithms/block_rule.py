"""Gradient methods over blocks of data with any optax rule: Bayes by Backprop, momentum, Adam, Adagrad."""

import functools
from typing import Any

import equinox as eqx
import optax

from provi.algorithms.block_descent import AbstractBlockDescent, as_blocks, as_rate
from provi.algorithms.incremental_state import latest_elbo
from provi.algorithms.quadratic_surrogate import AbstractQuadratic
from provi.certificates.guarantee import Guarantee
from provi.core.checks import check_positive
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size

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
    return BlockRule(_PLAIN, rate, **options)


def momentum(rate: Any, decay: float = 0.9, **options: Any) -> BlockRule:
    r"""The heavy ball: $v_k = \beta v_{k-1}+g_k$, $\theta_{k+1} = \theta_k-\gamma v_k$, with $\beta$ = `decay` < 1."""
    if not check_positive("decay", decay) < 1:
        raise ValueError(f"decay must be below 1, not {decay}: the sum of the gradients would grow without end.")
    return BlockRule(_momentum(float(decay)), rate, **options)


def adam(rate: Any, **options: Any) -> BlockRule:
    """Adam with the decays 0.9 and 0.999 (Kingma and Ba 2015)."""
    return BlockRule(_ADAM, rate, **options)


def adagrad(rate: Any, **options: Any) -> BlockRule:
    r"""Adagrad (Duchi, Hazan and Singer 2011): $\theta_{k+1} = \theta_k-\gamma g_k/\sqrt{\sum_{j\le k}g_j^2}$.

    The sum begins at zero. optax would begin at 0.1, which gradients per datum take long to reach.
    """
    return BlockRule(_ADAGRAD, rate, **options)
