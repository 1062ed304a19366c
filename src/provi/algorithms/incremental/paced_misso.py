r"""PacedMISSO: surrogates built along a fast walk, and the minimiser of their mean as the answer.

MISSO builds each surrogate at the minimiser of the mean of all n, most of which are old: it moves like SAG with the
rate divided by n. Here the points at which surrogates are built follow a *pace*, an optax rule on the fresh gradients,
$$\theta_{k+1} = \theta_k-\gamma\,\mathrm{rule}(g_k) = \arg\min_\theta\ \langle\tilde g_k, \theta-\theta_k\rangle
  +\tfrac12|\theta-\theta_k|^2_{D_k},$$
$g_k$ the gradient of the visited term i, $\tilde g_k$ what the rule makes of it and of earlier ones, $D_k$ its metric
divided by the rate. This is the surrogate of term i, its minimiser $\theta_{k+1}$ is row i of the table, and the answer
is the mean of the rows, which minimises the mean of the surrogates if the metrics are equal (`optax.identity`,
`optax.trace`); Adam's change slowly, and the plain mean is taken all the same.

**Why the mean.** Near a minimum with Hessian h in some direction and noise of variance $s^2$ in the gradients the walk
is $x_{k+1} = \rho x_k-\gamma\xi_k$, $\rho = 1-\gamma h$: stationary with variance
$\sigma^2 = \gamma s^2/(h(2-\gamma h))$ and correlations $\rho^{|j|}$, the *floor* of the last iterate. After a whole
pass, one term a visit, the rows are the last n iterates, and
$$\mathrm{Var}\Big(\frac1n\sum_{j<n}x_{k-j}\Big) = \frac{\sigma^2}{n^2}\Big(n+2\sum_{j=1}^{n-1}(n-j)\rho^j\Big)
  \approx\sigma^2\,\frac{1+\rho}{1-\rho}\,\frac1n\approx\frac{2\tau}n\sigma^2,\qquad \tau = \frac1{\gamma h},$$
for n well above $\tau$. With $\sigma^2$ inserted the middle expression is $s^2/(nh^2)$, whatever the rate: what the
best use of n gradients would give. The price is a delay of half a pass, which matters while the walk still descends.

**Without a table** the mean is geometric, $m_{k+1} = (1-w)m_k+w\theta_{k+1}$, w = 1/n, divided by
$1-(1-w)^{k+1}$: no memory, half the noise, as
$$\mathrm{Var}(m) = \sigma^2\,\frac w{2-w}\,\frac{1+(1-w)\rho}{1-(1-w)\rho}\approx\frac\tau n\sigma^2,$$
and twice the delay.

**What it converges to.** Terms $L_i = \frac12(\theta-c_i)^\top H(\theta-c_i)$ with a common H, rule the identity, fixed
order, exact gradients: the walk comes to a cycle, and the sum of
$\theta_{k+1} = \theta_k-\gamma H(\theta_k-c_{i_k})$ over it is $\sum_kH(\theta_k-c_{i_k}) = 0$: the mean is exactly
$\bar c$, the minimiser, while the walk itself ends up to $O(\gamma n)$ away. In a fresh order each pass the mean's
expectation is $\bar c$ and its distance $|\theta_{end}-\theta_{begin}|\rho/(\gamma hn)$ for the two ends of the pass.
With different Hessians $H_i$ the gradients still have sum zero along the cycle, at different points, which leaves
$|\nabla L(\bar\theta)| = |n^{-1}\sum_iH_i(\bar\theta-\theta_{k(i)})|$: of the order of the rate, zero as it falls.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.algorithms.guarantee import Guarantee
from provi.algorithms.incremental.block_descent import (
    AbstractBlockDescent,
    BlockState,
    Visit,
    as_blocks,
    as_rate,
)
from provi.algorithms.incremental.incremental import as_refresh, latest_elbo
from provi.algorithms.incremental.quadratic_surrogate import AbstractQuadratic
from provi.algorithms.incremental.surrogate_table import (
    as_like,
    check_memory,
    empty_mean,
    empty_table,
    put,
    round_rows,
    summed_again,
    take,
    visit_shapes,
    where_rows,
)
from provi.core.tree import select
from provi.core.types import Count, Indices, RandomKey
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size


class PacedState(eqx.Module):
    """The walk, the rows of all terms (zero before a term's first visit; None without a table), and their mean over n.

    `count` is the number of terms that have a row; without a table, of visits that count. `output` divides by the
    weight that this gives, so the start does not weigh on the answer.
    """

    lead: BlockState
    table: Any
    mean: Any
    count: Count

    @property
    def point(self) -> Any:
        """Where the walk is and the next surrogate will be built; the answer is the mean."""
        return self.lead.point

    @property
    def step(self) -> Any:
        """The number of visits made."""
        return self.lead.step


class PacedMISSO(AbstractBlockDescent):
    r"""MISSO at the pace of an optax rule: the walk of `BlockRule`, the mean of its latest points, one a term.

    Minimises $n^{-1}\sum_iL_i(\theta)$. Visit k of term i, and what is returned:
    $$\theta_{k+1} = \theta_k-\gamma_k\,\mathrm{rule}(\nabla L_i(\theta_k)),\qquad t_i\leftarrow\theta_{k+1},\qquad
      \bar t = \frac1n\sum_it_i,$$
    over the terms visited so far. The noise of the walk, $\sigma^2$, is about $2\tau\sigma^2/n$ in the mean, $\tau$ the
    visits after which the walk forgets: see this module's docstring. Several terms in a visit get the same row.

    **Arguments:**

    - `rule`, `rate`, `sampling`, `num_draws`: as of `BlockRule`. The best rate is usually above that of the rule by
      itself, whose noise grows with it.
    - `table`: keep a row for each term, n times the parameters, in the surrogate's `table_dtype` if it has one. False
      keeps a geometric mean instead, at the cost of the rule alone.
    - `refresh_every`: passes between two sums of the whole table, against rounding; None is never.

    **Requires** an `AbstractQuadratic` surrogate, whose curvature is not used.
    **Guarantee**: none. **Cost per step**: that of `BlockRule` and one row written; no pass before the first visit.
    **Reference**: ours, from Karimi, Wai, Moulines and Li 2022; means of iterates: Polyak and Juditsky 1992.
    """

    rule: Any = eqx.field(static=True)
    rate: Any = eqx.field(converter=as_rate)
    sampling: Any = eqx.field(default=1, converter=as_blocks)
    num_draws: AbstractBatchSize = eqx.field(default=1, converter=as_batch_size)
    table: bool = eqx.field(static=True, default=True)
    refresh_every: Any = eqx.field(default=1, converter=as_refresh)
    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    surrogate: AbstractQuadratic | None = None

    donated_fields: ClassVar[tuple[str, ...]] = ("table",)

    def init(self, point):
        if self.table:
            surrogate, batch = self.resolved(), self.sampling.batch
            _, _, work = visit_shapes(surrogate, point)
            check_memory(surrogate, point, batch, (_row_shapes(surrogate, point), None, work))
        return _begin(self, self.first_state(point))

    def step(self, key, state, target, family, shrink):
        del target, family
        lead, visit, info = self.follow(key, state.lead, shrink)
        if self.table:
            return self._with_rows(jax.random.fold_in(key, state.step), state, lead, visit), info
        weight = self.sampling.batch / self.resolved().num_terms
        mean = jax.tree.map(lambda m, x: m + weight * (x.astype(m.dtype) - m), state.mean, lead.point)
        mean = select(visit.accepted, as_like(state.mean, mean), state.mean)
        return PacedState(lead, None, mean, state.count + visit.accepted), info

    def _with_rows(self, key: RandomKey, state: PacedState, lead: BlockState, visit: Visit) -> PacedState:
        """The visited terms' rows replaced by where the walk now is."""
        surrogate, rows = self.resolved(), visit.rows
        n, written = surrogate.num_terms, visit.places < surrogate.num_terms
        old = take(state.table, rows)
        new = _rounded_rows(key, surrogate, lead.point, rows)
        new = where_rows(written, new, old)
        mean = as_like(state.mean, surrogate.merge(state.mean, old, new))
        table = surrogate.arrange(put(state.table, visit.places, new))  # before it is read again
        before, after = (at * rows.shape[0] // n // self.refresh_every for at in (state.step, lead.step))
        mean = summed_again(surrogate, table, mean, after > before)
        fresh = jnp.sum(written & jnp.isnan(state.lead.values[rows]))
        return self.arranged(PacedState(lead, table, mean, state.count + fresh))

    def arranged(self, state: PacedState) -> PacedState:
        surrogate, lead = self.resolved(), state.lead
        return dataclasses.replace(
            state,
            lead=dataclasses.replace(lead, point=surrogate.arrange_parameters(lead.point)),
            table=None if state.table is None else surrogate.arrange(state.table),
            mean=surrogate.arrange_mean(state.mean),
        )

    def output(self, state):
        """The mean of the rows so far; the start when there are none."""
        return _answer(self, dataclasses.replace(state, table=None))

    def recorded_elbo(self, state):
        """Minus the mean of the terms' latest values, which are of the *walk*: the answer's are usually better."""
        return latest_elbo(state.lead.values)


def _rounded_rows(key: RandomKey, surrogate: AbstractQuadratic, point: Any, rows: Indices) -> Any:
    """The point as each row of a batch, in the type of the table."""
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (rows.shape[0], *x.shape)), point)
    return round_rows(key, repeated, rows, surrogate.table_dtype)


def _row_shapes(surrogate: AbstractQuadratic, point: Any) -> Any:
    """Shapes of the rows of a batch of one."""
    key, one = jax.random.key(0), jnp.zeros(1, jnp.int32)
    return jax.eval_shape(lambda point: _rounded_rows(key, surrogate, point, one), point)


@eqx.filter_jit
def _begin(algorithm: PacedMISSO, lead: BlockState) -> PacedState:
    surrogate = algorithm.resolved()
    row = _row_shapes(surrogate, lead.point)
    table = empty_table(surrogate.num_terms, row) if algorithm.table else None
    # Copies: arrays of one state that are another's too would be lost to it when the loop takes them over.
    return algorithm.arranged(PacedState(jax.tree.map(jnp.copy, lead), table, empty_mean(row), jnp.zeros((), int)))


@eqx.filter_jit
def _answer(algorithm: PacedMISSO, state: PacedState) -> Any:
    n, count = algorithm.resolved().num_terms, state.count.astype(float)
    share = algorithm.sampling.batch / n
    weight = count / n if algorithm.table else 1 - (1 - share) ** count
    mean = jax.tree.map(lambda m: m / weight.astype(m.dtype), state.mean)
    return select(count > 0, as_like(state.point, mean), state.point)
