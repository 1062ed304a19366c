r"""What MISO and MISSO share: a table of surrogates, a few of them built anew at each visit, their mean minimised.

$$\hat L_i^{k+1} = \hat L_i(\cdot\,;\theta_k)\ (i \in B_k), \quad \hat L_i^{k+1} = \hat L_i^k\ (i \notin B_k), \qquad
  \theta_{k+1} = \arg\min_{\theta\in\Theta} \frac1n\sum_{i=1}^n\hat L_i^{k+1}(\theta).$$

The mean changes by what the batch changes, so a visit costs the same whatever n is.

The state of MISO and MISSO, the arguments they have in common, and what a visit reports.
"""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.incremental.elbo_surrogate import elbo_surrogate
from provi.algorithms.incremental.surrogate_table import (
    add_rows,
    as_like,
    block_size,
    check_memory,
    empty_mean,
    empty_table,
    fold_blocks,
    last_occurrences,
    put,
    summed_again,
    take,
    where_rows,
)
from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.core.arguments import check_count
from provi.core.tree import all_finite, select
from provi.core.types import Count, Flag, Indices, RandomKey, Scalar
from provi.schedules.sampling import AbstractSampling, ReshuffledSampling

_NEVER = 2**30


class MISSOState(eqx.Module):
    """The parameters, the statistics of all n surrogates, their mean, the Markov chains, the number of visits made.

    A visit with something non-finite in it leaves all this as it was: `rejected` counts such visits,
    `rejected_in_a_row` those since the last good one, and `first_rejected` is the number of the first, or -1.
    """

    parameters: Any
    table: Any
    mean: Any
    chains: Any
    step: Count
    rejected: Count
    rejected_in_a_row: Count
    first_rejected: Count

    @property
    def point(self) -> Any:
        """The parameters, under the name that the loop uses."""
        return self.parameters


def as_sampling(value: Any) -> AbstractSampling | None:
    """A rule, or a whole number taken as the size of batches in reshuffled order."""
    return value if value is None or isinstance(value, AbstractSampling) else ReshuffledSampling(value)


def as_refresh(value: Any) -> Any:
    """The number of passes between two sums of the table; None is never."""
    if value is None or isinstance(value, int | float):
        return np.asarray(_NEVER if value is None else check_count("refresh_every", value))
    return value


def _largest(tree: Any) -> Scalar:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0).astype(float) for leaf in jax.tree.leaves(tree)]))


def step_info(old: Any, new: Any, built: Flag, accepted: Flag, cost: Count) -> StepInfo:
    """What a visit tells: how far the parameters moved and how large they are, NaN for what was not finite.

    Both in the largest entry, which is finite when all entries are.
    """
    dtype = jax.tree.leaves(old)[0].dtype
    one = jnp.ones((), dtype)
    moved = _largest(jax.tree.map(jnp.subtract, new, old)).astype(dtype)
    size = _largest(new).astype(dtype)
    moved = jnp.where(built, jnp.where(accepted, moved, 0), jnp.nan)
    return StepInfo(one, cost.astype(jnp.int32), (moved, 0 * one, jnp.where(accepted | ~built, size, jnp.nan)))


def check_minimiser(shapes: Any, parameters: Any) -> None:
    """`ValueError` unless what `minimise` returns has the structure and the shapes of the parameters."""

    def described(tree: Any) -> tuple[Any, list[Any]]:
        return jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]

    if described(shapes) != described(parameters):
        raise ValueError(
            f"minimise must return parameters like those it is given: {parameters!r}; it returns {shapes!r}."
        )


def latest_elbo(values: Any) -> tuple[float, float]:
    r"""Minus the mean of the terms' latest values, and a standard error of it; NaN until all were visited.

    The error is $s/\sqrt n$, with $s^2$ the values' sample variance. Independent noise of variances $v_i$ in the values
    makes $E s^2 = \bar v$ plus the variance of the terms' means, so it is at least that of the mean on average. It does
    not count that the values belong to parameters of up to a pass ago. Infinite for a single term.
    """
    values = np.asarray(values, dtype=np.float64)
    if np.isnan(values).any():
        return np.nan, np.nan
    error = float(values.std(ddof=1)) / values.size**0.5 if values.size > 1 else np.inf
    return -float(values.mean()), error


_LARGEST_COUNT = 2**31 - 1


class AbstractIncremental(AbstractAlgorithm):
    """The table, the visits and the guard. A subclass says where a surrogate's summary comes from."""

    sampling: AbstractVar[Any]
    constraint: AbstractVar[Any]
    refresh_every: AbstractVar[Any]
    curvature: AbstractVar[Any]
    surrogate: AbstractVar[AbstractSurrogate | None]
    for_target: AbstractVar[bool]

    guards_itself: ClassVar[bool] = True
    donated_fields: ClassVar[tuple[str, ...]] = ("table", "chains")
    quantities: ClassVar[tuple[str, str, str]] = (
        "a surrogate's statistics",
        "",
        "the minimiser of the surrogates",
    )

    @abstractmethod
    def draws(self, epoch: Count) -> Count:
        """Draws a surrogate in pass number `epoch`; 1 where expectations are exact."""

    @abstractmethod
    def first_chains(
        self, key: RandomKey, surrogate: AbstractSurrogate, parameters: Any, rows: Indices, prepared: Any
    ) -> Any:
        """The chains of `rows` at the start, or None."""

    @abstractmethod
    def summarise(
        self,
        key: RandomKey,
        surrogate: AbstractSurrogate,
        parameters: Any,
        rows: Indices,
        prepared: Any,
        chains: Any,
        num_draws: Count,
    ) -> tuple[Any, Any]:
        """The mean summary of each row, and the chains afterwards."""

    @eqx.filter_jit
    def begin(self, key: RandomKey, surrogate: AbstractSurrogate, parameters: Any) -> MISSOState:
        r"""All n surrogates built at $\theta_0$ = `parameters`, which stay, with $M_0$ draws each."""
        return self._built(key, surrogate, self._empty(surrogate, parameters), True)

    @eqx.filter_jit
    def visit(
        self, key: RandomKey, surrogate: AbstractSurrogate, state: MISSOState, rows: Indices, num_draws: Any
    ) -> MISSOState:
        """The surrogates of `rows` built anew at the present parameters, and their mean minimised.

        `num_draws` is a run-time number. Inside the compiled loop the table is changed in place; here it is copied.
        """
        return self._visited(key, surrogate, state, rows, jnp.asarray(num_draws))[0]

    def _new_rows(self, key, surrogate, parameters, rows, num_draws, chains=None, first=False):
        prepared = surrogate.prepare(parameters, rows)
        start, draws = jax.random.split(key)
        if first:
            chains = self.first_chains(start, surrogate, parameters, rows, prepared)
        summary, chains = self.summarise(draws, surrogate, parameters, rows, prepared, chains, num_draws)
        new = surrogate.build(parameters, rows, prepared, summary)
        return surrogate.rounded(jax.random.fold_in(key, 2), rows, new), chains, (prepared, summary)

    def _row_shapes(self, surrogate, parameters):
        """Shapes of the statistics, the chains and the rest of a batch of one."""
        return jax.eval_shape(
            lambda key, parameters, rows: self._new_rows(
                key, surrogate, parameters, rows, jnp.asarray(1, jnp.int32), first=True
            ),
            jax.random.key(0),
            parameters,
            jnp.zeros(1, jnp.int32),
        )

    def _empty(self, surrogate: AbstractSurrogate, parameters: Any) -> MISSOState:
        row, chain, _ = self._row_shapes(surrogate, parameters)
        mean = empty_mean(row)
        check_minimiser(
            jax.eval_shape(lambda m, p: surrogate.minimise(m, p, self.constraint), mean, parameters), parameters
        )
        zero, n = jnp.zeros((), int), surrogate.num_terms
        parameters = jax.tree.map(jnp.asarray, parameters)
        table, chains = empty_table(n, row), empty_table(n, chain)
        return _arranged(surrogate, MISSOState(parameters, table, mean, chains, zero, zero, zero, zero - 1))

    def _built(self, key: RandomKey, surrogate: AbstractSurrogate, state: MISSOState, wanted: Any) -> MISSOState:
        """The state with a table built from nothing, if the flag `wanted` holds."""
        n, parameters = surrogate.num_terms, state.parameters
        num_draws = self.draws(jnp.zeros((), int))

        def build(k, rows, real, carry):
            table, mean, chains = carry
            new, started, _ = self._new_rows(
                jax.random.fold_in(key, k), surrogate, parameters, rows, num_draws, first=True
            )
            places = jnp.where(real, rows, n)
            table, chains = surrogate.arrange(put(table, places, new)), put(chains, places, started)
            return table, surrogate.arrange_mean(add_rows(surrogate, mean, new, real)), chains

        batch = 1 if self.sampling is None else self.sampling.batch
        block = block_size(n, self._row_shapes(surrogate, parameters), batch)
        carry = (state.table, state.mean, state.chains)
        table, mean, chains = fold_blocks(n, block, wanted, build, carry)
        return dataclasses.replace(state, table=table, mean=mean, chains=chains)

    def _visited(self, key, surrogate, state, rows, num_draws) -> tuple[MISSOState, StepInfo]:
        n, parameters = surrogate.num_terms, state.parameters
        old = take(state.table, rows)
        new, chains, _ = self._new_rows(key, surrogate, parameters, rows, num_draws, take(state.chains, rows))
        built, kept = all_finite(new) & all_finite(state.mean), last_occurrences(rows)
        mean = as_like(state.mean, surrogate.merge(state.mean, old, where_rows(kept & built, new, old)))
        minimiser = as_like(parameters, surrogate.minimise(mean, parameters, self.constraint))
        accepted = built & all_finite((mean, minimiser))
        places = jnp.where(kept & accepted, rows, n)  # beyond the end: left out
        table = surrogate.arrange(put(state.table, places, new))
        step = state.step + 1
        before, after = (at * rows.shape[0] // n // self.refresh_every for at in (state.step, step))
        mean = select(accepted, mean, state.mean)
        mean = summed_again(surrogate, table, mean, after > before)
        first = ~accepted & (state.rejected == 0)
        visited = MISSOState(
            select(accepted, minimiser, parameters),
            table,
            mean,
            put(state.chains, places, chains),
            step,
            state.rejected + ~accepted,
            jnp.where(accepted, 0, state.rejected_in_a_row + 1),
            jnp.where(first, state.step, state.first_rejected),
        )
        visited = _arranged(surrogate, visited)
        return visited, step_info(parameters, minimiser, built, accepted, num_draws * rows.shape[0])

    def resolve(self, target, family):
        if isinstance(target, AbstractSurrogate):
            surrogate, for_target = target, False
        else:
            surrogate, for_target = elbo_surrogate(target, family, self.curvature), True
        n = surrogate.num_terms
        sampling = self.sampling or ReshuffledSampling(max(1, n // 10))
        if sampling.batch > n:
            raise ValueError(f"sampling takes {sampling.batch} terms at once, but there are {n}. Use at most {n}.")
        return dataclasses.replace(self, surrogate=surrogate, for_target=for_target, sampling=sampling)

    def init(self, point):
        """An empty table: the first step builds it."""
        surrogate = self._resolved()
        batch = 1 if self.sampling is None else self.sampling.batch
        check_memory(surrogate, point, batch, self._row_shapes(surrogate, point))
        return _compiled_empty(self, surrogate, point)

    def step(self, key, state, target, family, shrink):
        del target, family, shrink
        surrogate = self._resolved()
        start, order, draws = jax.random.split(key, 3)
        state = self._built(start, surrogate, state, state.step == 0)
        rows = self.sampling.indices(order, state.step, surrogate.num_terms)
        num_draws = self.draws(self.epoch(state.step))
        new, info = self._visited(jax.random.fold_in(draws, state.step), surrogate, state, rows, num_draws)
        return new, eqx.tree_at(lambda info: info.cost, info, self.cost_at(state.step))

    def epoch(self, step: Count) -> Count:
        """The number of whole passes over the terms before visit number `step`."""
        return step * self.sampling.batch // self._resolved().num_terms

    def cost_at(self, step):
        visit = self.draws(self.epoch(step)).astype(int) * self.sampling.batch
        start = self.draws(jnp.zeros_like(step)).astype(int) * self._resolved().num_terms
        return jnp.minimum(visit + jnp.where(step == 0, start, 0), _LARGEST_COUNT).astype(jnp.int32)

    def output(self, state):
        return state.parameters

    def arranged(self, state: MISSOState) -> MISSOState:
        return _arranged(self._resolved(), state)

    def recorded_elbo(self, state):
        """Minus the mean surrogate, or the mean of latest values; for a target the loop estimates the ELBO."""
        if self.for_target:
            return None
        latest = self._resolved().latest_values(state.table)
        if latest is not None:
            return latest_elbo(latest) if int(state.step) > 0 else (np.nan, np.nan)
        value = _value(self._resolved(), state.mean, state.parameters)
        return (np.nan, np.nan) if value is None or int(state.step) == 0 else (-float(value), 0.0)

    def _resolved(self) -> AbstractSurrogate:
        if self.surrogate is None:
            raise ValueError(f"{type(self).__name__} has no surrogate yet: call resolve(surrogate, family) first.")
        return self.surrogate


def _arranged(surrogate: AbstractSurrogate, state: MISSOState) -> MISSOState:
    return dataclasses.replace(
        state,
        parameters=surrogate.arrange_parameters(state.parameters),
        table=surrogate.arrange(state.table),
        mean=surrogate.arrange_mean(state.mean),
    )


_value = eqx.filter_jit(lambda surrogate, mean, parameters: surrogate.value(mean, parameters))
_compiled_empty = eqx.filter_jit(lambda algorithm, surrogate, parameters: algorithm._empty(surrogate, parameters))
