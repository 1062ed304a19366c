"""The passes of the stochastic solvers, compiled, and the loop over them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.misso import MISSO, MISSOState
from provi.core.checks import check_count
from provi.core.compilation import quick_jit, sized_jit
from provi.core.tree import all_finite
from provi.models.missing.chains import Chains, start_chains
from provi.models.missing.conditional import Parameters
from provi.models.missing.monte_carlo_error import assess, complete_distance, is_dense, sweep
from provi.models.missing.run_decisions import DrawCount, Watch, ending
from provi.models.missing.surrogate import MissingSurrogate, Statistics


@dataclasses.dataclass(frozen=True)
class StochasticSolution:
    """Where a stochastic solver ended.

    `gap_estimate`: nats to the maximum at the last check, Monte-Carlo error included; NaN if there was none.
    `monte_carlo_error`: for each coefficient, its estimated distance from the maximum, of what remains and of noise.
    `acceptance`: share of proposals accepted; 1 for the exact sampler, NaN without missing entries. `passes` over the
    rows, checks included. `trace`: one entry a pass, with its draws a row, the step in nats in the metric of the
    complete information and, for checks, `remaining` and `noise`.
    """

    parameters: Parameters
    passes: int
    converged: bool
    message: str
    gap_estimate: float
    monte_carlo_error: np.ndarray
    acceptance: float
    trace: list[dict[str, Any]]


def run(
    surrogate: MissingSurrogate,
    start: Parameters,
    algorithm: MISSO | None,
    gain: Callable[[int], float] | None,
    num_draws: Any,
    tol: float,
    max_passes: int,
    seed: int,
    record: Callable | None,
) -> StochasticSolution:
    """Passes until a check says so. With an `algorithm` they are MISSO's between checks, else each is a sweep."""
    key, n, incremental = jax.random.key(seed), surrogate.num_terms, algorithm is not None
    draws, watch, trace = DrawCount(num_draws, surrogate.block), Watch(tol, is_dense(surrogate), incremental), []
    parameters, converged, failed = start, False, False
    carried = Carried(None, zero_mean(start), first_chains(surrogate, key), jnp.asarray(np.zeros((), int)))
    for k in range(check_count("max_passes", max_passes)):
        last = tol > 0 and 0 < k == max_passes - 1  # a check, so that the gap at the end is known
        calls, due, before = draws.calls(k), watch.due() or last, parameters
        given = (key, np.asarray(k), surrogate, np.asarray(calls), parameters)
        entry: dict[str, Any] = {"num_draws": calls * surrogate.block}
        if algorithm is None or k == 0 or due:
            weight = np.asarray(1.0 if gain is None else gain(k + 1))
            without = dataclasses.replace(carried, table=None)
            parameters, carried, fresh, report = sweep_pass(*given, without, weight, incremental)
            if due:
                converged = watch.checked(assess(surrogate, before, *fresh))
                entry |= {"remaining": watch.remaining, "noise": watch.noise}
                draws.grow(watch.remaining, watch.noise, tol)
                parameters = before if converged else parameters  # the check was made there
        else:
            parameters, carried, report = misso_pass((*given, algorithm, -(-n // algorithm.sampling.batch)), carried)
        step, finite = (float(x) for x in np.asarray(report))
        failed = not finite
        watch.passed(step)
        if failed:
            parameters = before
        trace.append(entry | {"step": step})
        if record is not None:
            record(k + 1, parameters)
        if converged or failed:
            break
    message = ending(watch, converged, failed, len(trace), draws.present)
    acceptance = carried.chains.acceptance if isinstance(carried.chains, Chains) else 1.0
    errors = np.full(start.coefficients.shape, np.nan) if watch.errors is None else watch.errors
    return StochasticSolution(parameters, len(trace), converged, message, watch.gap, errors, acceptance, trace)


class Carried(eqx.Module):
    """What goes from pass to pass beside the parameters: the table (MISSO's), the mean statistics, chains, visits."""

    table: Statistics | None
    mean: Statistics
    chains: Any
    step: Any


def zero_mean(like: Parameters) -> Statistics:
    """Zeros, in which the first sweep has the weight 1."""
    q, p, dtype = len(like.coefficients), len(like.mean), like.mean.dtype
    return Statistics(*(jnp.asarray(np.zeros(shape, dtype)) for shape in (p, (p, p), (q, q), q)))


@quick_jit
def first_chains(surrogate: MissingSurrogate, key: Any) -> Any:
    """The chains of all rows; None for the exact sampler."""
    return start_chains(key, surrogate.data.labels) if surrogate.sampler == "metropolis" else None


@sized_jit
def sweep_pass(
    key: Any,
    k: Any,
    surrogate: MissingSurrogate,
    calls: Any,
    parameters: Parameters,
    carried: Carried,
    weight: Any,
    keep_table: bool,
) -> tuple:
    """A sweep at `parameters`, its share `weight` taken into the mean statistics, and the minimiser.

    `carried` comes without a table: that is made anew if `keep_table`.
    """
    found = sweep(jax.random.fold_in(key, k), surrogate, parameters, carried.chains, calls, keep_table)
    mean = jax.tree.map(lambda old, new: old + weight.astype(old.dtype) * (new - old), carried.mean, found.mean)
    new = surrogate.minimise(mean, parameters, None)
    carried = Carried(found.table, mean, found.chains, carried.step)
    report = _report(surrogate, mean, parameters, new)
    return new, carried, (found.mean, found.spread), report


@partial(sized_jit, donate="all-except-first")
def misso_pass(given: tuple, carried: Carried) -> tuple:
    """Visits to all rows, a batch at a time. The memory of `carried`, with its large table, goes to the result."""
    key, k, surrogate, calls, parameters, algorithm, num_steps = given
    order, draws = jax.random.split(key)
    draws = jax.random.fold_in(draws, k)
    zero = jnp.zeros((), int)
    state = MISSOState(parameters, carried.table, carried.mean, carried.chains, carried.step, zero, zero, zero - 1)

    def visit(state: MISSOState, i: Any) -> tuple[MISSOState, None]:
        rows = algorithm.sampling.indices(order, state.step, surrogate.num_terms)
        return algorithm.visit(jax.random.fold_in(draws, i), surrogate, state, rows, calls), None

    state, _ = jax.lax.scan(visit, state, jnp.arange(num_steps))
    report = _report(surrogate, state.mean, parameters, state.parameters)
    report = report.at[1].multiply(state.rejected_in_a_row == 0)
    return state.parameters, Carried(state.table, state.mean, state.chains, state.step), report


def _report(surrogate: MissingSurrogate, mean: Statistics, old: Parameters, new: Parameters) -> Any:
    """The step in nats, and 1 if all is finite, else 0."""
    step = complete_distance(surrogate, mean, old, new)
    return jnp.stack([step, (jnp.isfinite(step) & all_finite(new)).astype(step.dtype)])
