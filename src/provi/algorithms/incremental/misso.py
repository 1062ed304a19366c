"""MISSO (paper 001, algorithm 2): minimisation by incremental stochastic surrogates.

MISO (Mairal 2015; paper 001, algorithm 1) is the same with exact expectations.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.algorithms.guarantee import Guarantee
from provi.algorithms.incremental.incremental import AbstractIncremental, MISSOState, as_refresh, as_sampling
from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.core.types import Count, Indices, RandomKey
from provi.schedules.batch_sizes import AbstractBatchSize, OffsetPolynomialBatch, as_batch_size

__all__ = ["MISSO", "MISSOState", "average_draws"]


def average_draws(
    surrogate: AbstractSurrogate,
    key: RandomKey,
    parameters: Any,
    rows: Indices,
    prepared: Any,
    chains: Any,
    num_draws: Any,
) -> tuple[Any, Any, Any]:
    r"""The mean of `num_draws` summaries, its Monte-Carlo error, and the chains afterwards.

    The error is $\frac{\sqrt{m_1m_2}}{M}(\bar s_1 - \bar s_2)$ with the means over the first $m_1 = \lfloor M/2\rfloor$
    draws and the other $m_2$: its square has the variance of the mean as its expectation when draws are independent,
    and nearly so when half the draws are many more than a chain remembers. NaN for a single draw.
    `num_draws` is a run-time number: it does not recompile.
    """
    num_draws = jnp.asarray(num_draws)
    half = num_draws // 2

    def one(i: Count, chains: Any) -> tuple[Any, Any]:
        return surrogate.draw(jax.random.fold_in(key, i), parameters, rows, prepared, chains)

    shapes, _ = jax.eval_shape(one, jnp.zeros((), jnp.int32), chains)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.result_type(x.dtype, float)), shapes)

    def more(i: Count, carry: Any) -> Any:
        total, first, chains = carry
        summary, chains = one(i, chains)
        total = jax.tree.map(jnp.add, total, summary)
        return total, jax.tree.map(lambda t, f: jnp.where(i < half, t, f), total, first), chains

    total, first, chains = jax.lax.fori_loop(jnp.zeros_like(num_draws), num_draws, more, (zero, zero, chains))

    def error(total: Any, first: Any) -> Any:
        one, two = half.astype(total.dtype), (num_draws - half).astype(total.dtype)
        return jnp.sqrt(one * two) / (one + two) * (first / one - (total - first) / two)

    mean = jax.tree.map(lambda x: x / num_draws.astype(x.dtype), total)
    return mean, jax.tree.map(error, total, first), chains


class MISSO(AbstractIncremental):
    r"""Incremental majorisation with surrogates that are averages over Monte-Carlo draws.

    Minimises $n^{-1}\sum_iL_i(\theta)$ over a convex set. Each visit builds the surrogates of a few terms anew at the
    present parameters, with $M_k$ draws each, and minimises the mean of all n:

    $$\theta_{k+1} = \arg\min_{\theta\in\Theta}\frac1n\sum_i\hat L_i(\theta;\theta_{\tau_i}),\qquad
      \hat L_i(\theta;\bar\theta) \approx \frac1{M_k}\sum_{m\le M_k}r_i(\theta;\bar\theta,z_{i,m}).$$

    **Arguments:**

    - `sampling`: `ReshuffledSampling(b)` or `UniformSampling(b)`, or b for the former; default a tenth of the terms.
      b = n visits all, as Monte-Carlo EM does.
    - `num_draws`: the schedule $M_k$, where k is the *pass*, not the visit: with one term a visit, $10 + k^2$ draws at
      visit k would be $10^{11}$ in the first pass over 6000 terms. Default $10 + k^2$, the paper's. A whole number is
      constant: then noise remains.
    - `constraint`: None, or a set for the surrogate's `minimise`.
    - `refresh_every`: passes between two sums of the whole table, against rounding; None is never.
    - `curvature`: of the surrogate of a target (see `elbo_surrogate`); not for surrogates of your own.

    **Requires** an `AbstractSurrogate` with draws, independent or from Markov chains, which are kept between visits.
    **Guarantee**: none in a single run; in expectation Theorem 1 as corrected, and convergence almost surely
    (Theorem 2) if $\sum_kM_k^{-1/2} < \infty$, both for uniform sampling; $10 + k^2$ does not satisfy it, $k^{2.1}$
    does (`provi.theory.misso.summable` tells).
    **Cost per step** b $M_k$ draws and one minimisation, whatever n is; memory n rows of statistics.
    **Reference**: Karimi, Wai, Moulines and Li, Minimization by incremental stochastic surrogate optimization for large
    scale nonconvex problems, 2022.
    """

    sampling: Any = eqx.field(default=None, converter=as_sampling)
    num_draws: AbstractBatchSize = eqx.field(
        default_factory=lambda: OffsetPolynomialBatch(10, 2), converter=as_batch_size
    )
    constraint: Any = None
    refresh_every: Any = eqx.field(default=1, converter=as_refresh)
    curvature: Any = None
    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    surrogate: AbstractSurrogate | None = None
    for_target: bool = eqx.field(static=True, default=False)

    def draws(self, epoch):
        return self.num_draws(epoch)

    def first_chains(self, key, surrogate, parameters, rows, prepared):
        return surrogate.start_chains(key, parameters, rows, prepared)

    def summarise(self, key, surrogate, parameters, rows, prepared, chains, num_draws):
        mean, _, chains = average_draws(surrogate, key, parameters, rows, prepared, chains, num_draws)
        return mean, chains


class MISO(AbstractIncremental):
    r"""Incremental majorisation: `MISSO` with infinitely many draws.

    Minimises $n^{-1}\sum_iL_i(\theta)$ over a convex set; the update is that of `MISSO` with the surrogates themselves.
    With b = n it is majorisation-minimisation (EM), with b = 1 Neal and Hinton's incremental EM.

    **Arguments:** as of `MISSO`, but for `num_draws`: there are no draws.

    **Requires** an `AbstractSurrogate` with `expect`, or one whose `build` needs no summary.
    **Guarantee**: the mean surrogate, which is above the objective, falls at each visit; Theorem 1 without its noise
    for uniform sampling (`provi.theory.misso`). **Cost per step** b surrogates and one minimisation, whatever n is.
    **Reference**: Mairal, Incremental majorization-minimization optimization, SIAM J. Optim. 25, 2015.
    """

    sampling: Any = eqx.field(default=None, converter=as_sampling)
    constraint: Any = None
    refresh_every: Any = eqx.field(default=1, converter=as_refresh)
    curvature: Any = None
    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    surrogate: AbstractSurrogate | None = None
    for_target: bool = eqx.field(static=True, default=False)

    def draws(self, epoch):
        del epoch
        return jnp.ones((), jnp.int32)

    def first_chains(self, key, surrogate, parameters, rows, prepared):
        return None

    def summarise(self, key, surrogate, parameters, rows, prepared, chains, num_draws):
        return surrogate.expect(parameters, rows, prepared), chains
