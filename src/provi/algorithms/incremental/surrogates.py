r"""Majorisers of the terms of a sum: what MISO and MISSO (paper 001) keep in their table.

The objective is $n^{-1}\sum_i L_i(\theta)$. A surrogate $\hat L_i(\theta;\bar\theta) \ge L_i(\theta)$ with equality at
$\theta = \bar\theta$ is kept as its *statistics*, a pytree of arrays, so that the mean of the surrogates is known from
the mean of their statistics. A surrogate that is an expectation, as in EM, is built from a *summary*, the mean over
draws of something that is cheap to keep. Every method works on a batch: `rows` are the indices (b,) of its terms, and
arrays that belong to them have a leading axis b.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar

from provi.core.arguments import check_count
from provi.core.types import Indices, RandomKey


class AbstractSurrogate(eqx.Module):
    """n majorisers. `build` and `minimise` are always needed, `expect` by MISO, `draw` by MISSO."""

    num_terms: AbstractVar[int]
    """n, a size: static."""

    def prepare(self, parameters: Any, rows: Indices) -> Any:
        """What a visit needs once, whatever the number of draws."""
        del parameters, rows

    def start_chains(self, key: RandomKey, parameters: Any, rows: Indices, prepared: Any) -> Any:
        """The states of the rows' Markov chains at the start, leading axis b; None where draws are independent."""
        del key, parameters, rows, prepared

    def draw(self, key: RandomKey, parameters: Any, rows: Indices, prepared: Any, chains: Any) -> tuple[Any, Any]:
        """One draw a row: (summary, chains). The mean of the summaries over the draws goes to `build`."""
        raise ValueError(f"{type(self).__name__} has no draws: use MISO.")

    def expect(self, parameters: Any, rows: Indices, prepared: Any) -> Any:
        """The exact mean of the summaries."""
        raise ValueError(f"{type(self).__name__} has no exact expectations: use MISSO.")

    def build(self, parameters: Any, rows: Indices, prepared: Any, summary: Any) -> Any:
        """The statistics, leading axis b, of the surrogates built at `parameters` from the mean `summary`."""
        raise ValueError(f"{type(self).__name__} must say how its statistics are built.")

    def rounded(self, key: RandomKey, rows: Indices, new: Any) -> Any:
        """What `build` returned as the table keeps it, in fewer digits perhaps (`surrogate_table.round_rows`)."""
        del key, rows
        return new

    def merge(self, mean: Any, old: Any, new: Any) -> Any:
        r"""$\bar s + n^{-1}\sum_b(s_b^{new} - s_b^{old})$: the mean over all n when the batch's statistics change.

        With zeros for `old` it adds terms to a mean that began at zero; so a table is summed up again.
        """
        return jax.tree.map(
            lambda m, x, y: m + jnp.sum(y.astype(m.dtype) - x.astype(m.dtype), axis=0) / self.num_terms, mean, old, new
        )

    def minimise(self, mean: Any, parameters: Any, constraint: Any) -> Any:
        """The minimiser over the set `constraint` (None: everything) of the surrogate with these mean statistics.

        A method that is iterative begins at `parameters`, the present ones.
        """
        raise ValueError(f"{type(self).__name__} must say how its mean is minimised.")

    def value(self, mean: Any, parameters: Any) -> Any:
        """The mean surrogate at `parameters`; None where the statistics do not tell."""
        del mean, parameters

    def latest_values(self, table: Any) -> Any:
        """Each term's value when last visited, (n,), where a table keeps it and the mean surrogate says too little."""
        del table

    def arrange(self, table: Any) -> Any:
        """The table, told by `jax.lax.with_sharding_constraint` how its rows (n, ...) lie on several devices.

        Called where the table is made and after each change of it, inside compiled code. The row of a term should be
        divided, not the terms: then a visit moves nothing but the parameters.
        """
        return table

    def arrange_mean(self, mean: Any) -> Any:
        """The same for the mean, which has no axis of terms. What is divided here is gathered by `minimise`."""
        return mean

    def arrange_parameters(self, parameters: Any) -> Any:
        """The same for the parameters: whole on each device, as a rule, when the table is divided."""
        return parameters


def _check_rows(data: Any) -> int:
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(data)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"data must be arrays with one entry a term along their first axis, not {sorted(lengths)}.")
    return lengths.pop()


class Surrogate(AbstractSurrogate):
    r"""n majorisers given by functions of *one* term, each of which may take and return any pytree of arrays.

    **Arguments:**

    - `data`: arrays with one entry a term along their first axis, or the number of terms. A function's argument
      `row` is the term's part of it, or its number.
    - `build(parameters, row, summary)`: the statistics of the surrogate at `parameters`. `summary` is the mean over
      draws, the exact mean, or None when there is neither `draw` nor `expect`.
    - `minimise(mean, parameters, constraint)`: see `AbstractSurrogate`.
    - `draw(key, parameters, row, chain)`: `(summary, chain)`, one draw. `chain` is None unless there is a
      `start_chain(key, parameters, row)`, the first state of the term's Markov chain.
    - `expect(parameters, row)`: the exact mean of the summaries.
    - `merge(mean, old, new)`: only where the mean is not a plain one. - `value(mean, parameters)`: the mean surrogate.

    Functions are compared by identity: define them once, and let what varies come in by `data`.
    """

    data: Any
    num_terms: int = eqx.field(static=True)
    build_one: Callable = eqx.field(static=True)
    minimise_mean: Callable = eqx.field(static=True)
    draw_one: Callable | None = eqx.field(static=True)
    start_chain: Callable | None = eqx.field(static=True)
    expect_one: Callable | None = eqx.field(static=True)
    merge_rows: Callable | None = eqx.field(static=True)
    value_of_mean: Callable | None = eqx.field(static=True)

    def __init__(
        self,
        data: Any,
        *,
        build: Callable,
        minimise: Callable,
        draw: Callable | None = None,
        start_chain: Callable | None = None,
        expect: Callable | None = None,
        merge: Callable | None = None,
        value: Callable | None = None,
    ) -> None:
        counted = isinstance(data, int | np.integer)
        if start_chain is not None and draw is None:
            raise ValueError("start_chain needs draw, the function that moves the chain.")
        self.data = None if counted else jax.tree.map(jnp.asarray, data)
        self.num_terms = check_count("data", data) if counted else _check_rows(self.data)
        self.build_one, self.minimise_mean = build, minimise
        self.draw_one, self.start_chain, self.expect_one = draw, start_chain, expect
        self.merge_rows, self.value_of_mean = merge, value

    def _take(self, rows: Indices) -> Any:
        return rows if self.data is None else jax.tree.map(lambda x: x[rows], self.data)

    def prepare(self, parameters, rows):
        return self._take(rows)

    def start_chains(self, key, parameters, rows, prepared):
        start = self.start_chain
        if start is None:
            return None
        keys = jax.random.split(key, rows.shape[0])
        return jax.vmap(lambda key, row: start(key, parameters, row))(keys, prepared)

    def draw(self, key, parameters, rows, prepared, chains):
        draw = self.draw_one
        if draw is None:
            raise ValueError("This surrogate has no draws: use MISO, or give it draw=.")
        keys = jax.random.split(key, rows.shape[0])
        return jax.vmap(lambda key, row, chain: draw(key, parameters, row, chain))(keys, prepared, chains)

    def expect(self, parameters, rows, prepared):
        expect = self.expect_one
        if expect is not None:
            return jax.vmap(lambda row: expect(parameters, row))(prepared)
        if self.draw_one is not None:
            raise ValueError("This surrogate has no exact expectations: use MISSO, or give it expect=.")
        return None

    def build(self, parameters, rows, prepared, summary):
        return jax.vmap(lambda row, summary: self.build_one(parameters, row, summary))(prepared, summary)

    def merge(self, mean, old, new):
        return super().merge(mean, old, new) if self.merge_rows is None else self.merge_rows(mean, old, new)

    def minimise(self, mean, parameters, constraint):
        return self.minimise_mean(mean, parameters, constraint)

    def value(self, mean, parameters):
        return None if self.value_of_mean is None else self.value_of_mean(mean, parameters)
