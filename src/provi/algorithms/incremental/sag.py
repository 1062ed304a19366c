"""SAG: the stochastic average gradient, a step along the mean of the terms' latest gradients."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.guarantee import Guarantee
from provi.algorithms.incremental.block_descent import as_blocks, as_number, check_terms
from provi.algorithms.incremental.incremental import AbstractIncremental, as_refresh, latest_elbo
from provi.algorithms.incremental.misso import average_draws
from provi.algorithms.incremental.quadratic_surrogate import AbstractQuadratic, Expansion
from provi.algorithms.incremental.surrogate_table import as_like, round_rows
from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size


class GradientTable(AbstractSurrogate):
    """SAG in the terms of incremental methods: a row is a term's value and gradient, `minimise` a step along the mean.

    No majoriser: only the table of `AbstractIncremental`, with its guard and its running mean, is made use of.
    """

    terms: AbstractQuadratic
    rate: Any
    num_terms: int = eqx.field(static=True)

    def prepare(self, parameters, rows):
        return self.terms.prepare(parameters, rows)

    def draw(self, key, parameters, rows, prepared, chains):
        return self.terms.draw(key, parameters, rows, prepared, chains)

    def build(self, parameters, rows, prepared, summary):
        del rows, prepared
        return Expansion(summary.value, as_like(parameters, summary.gradient))

    def rounded(self, key, rows, new):
        return Expansion(new.value, round_rows(key, new.gradient, rows, self.terms.table_dtype))

    def minimise(self, mean, parameters, constraint):
        if constraint is not None:
            raise ValueError("SAG has no constraint: use provi.algorithms.MISSO.")
        rate = jnp.asarray(self.rate)
        return jax.tree.map(lambda x, g: x - rate.astype(x.dtype) * g.astype(x.dtype), parameters, mean.gradient)

    def value(self, mean, parameters):
        del parameters
        return mean.value

    def arrange(self, table):
        return self.terms.arrange(table)

    def arrange_mean(self, mean):
        return self.terms.arrange_mean(mean)

    def arrange_parameters(self, parameters):
        return self.terms.arrange_parameters(parameters)


class SAG(AbstractIncremental):
    r"""The stochastic average gradient method.

    Minimises $n^{-1}\sum_iL_i(\theta)$. A visit replaces the gradients of a few terms, and the step goes along the mean
    of all n, most of them of earlier parameters:

    $$\theta_{k+1} = \theta_k-\frac\gamma n\sum_ig_i^k,\qquad
      g_i^k = \nabla L_i(\theta_k)\ (i\in B_k),\quad g_i^k = g_i^{k-1}\ (i\notin B_k).$$

    The first visit also fills the table at $\theta_0$. `MISSO` with quadratic surrogates of curvature D takes the mean
    of the old *points* too, $n^{-1}\sum_i(\theta_{\tau_i}-g_i/D)$, and so moves like SAG with $\gamma$ near $1/(nD)$.

    **Arguments:**

    - `rate`: $\gamma$, a number, another of which does not recompile.
    - `sampling`: as of `MISSO`; default one term a visit, in reshuffled order.
    - `num_draws`: the schedule $M_k$, where k is the pass.
    - `refresh_every`: passes between two sums of the whole table, against rounding; None is never.

    **Requires** an `AbstractQuadratic` surrogate, whose curvature is not used.
    **Guarantee**: none here; for exact gradients of l-smooth convex terms and uniform sampling of one term the paper
    proves $\gamma = 1/(16l)$. **Cost per step**: as of `MISSO`; memory n gradients.
    **Reference**: Schmidt, Le Roux and Bach, Minimizing finite sums with the stochastic average gradient, 2017.
    """

    rate: Any = eqx.field(converter=as_number)
    sampling: Any = eqx.field(default=1, converter=as_blocks)
    num_draws: AbstractBatchSize = eqx.field(default=1, converter=as_batch_size)
    refresh_every: Any = eqx.field(default=1, converter=as_refresh)
    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    surrogate: AbstractSurrogate | None = None
    constraint: None = eqx.field(static=True, default=None)
    curvature: None = eqx.field(static=True, default=None)
    for_target: bool = eqx.field(static=True, default=False)

    def draws(self, epoch):
        return self.num_draws(epoch)

    def first_chains(self, key, surrogate, parameters, rows, prepared):
        return None

    def summarise(self, key, surrogate, parameters, rows, prepared, chains, num_draws):
        mean, _, chains = average_draws(surrogate, key, parameters, rows, prepared, chains, num_draws)
        return mean, chains

    def resolve(self, target, family):
        del family
        terms = check_terms("SAG", target, self.sampling)
        return dataclasses.replace(
            self, surrogate=GradientTable(terms=terms, rate=self.rate, num_terms=terms.num_terms)
        )

    def recorded_elbo(self, state):
        """Minus the mean of the terms' latest values; `latest_elbo` says what its error counts."""
        return (np.nan, np.nan) if int(state.step) == 0 else latest_elbo(state.table.value)
