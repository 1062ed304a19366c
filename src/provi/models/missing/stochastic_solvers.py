r"""MISSO, Monte-Carlo EM and SAEM for logistic regression with missing covariates, stopped by Monte-Carlo error.

All three minimise the mean of the surrogates of `surrogate`, made of draws of the missing entries:

- **MISSO** (paper 001) keeps the statistics of every row and refreshes those of a batch before each minimisation.
- **MCEM** refreshes all rows each time and keeps none: MISSO with a batch of n.
- **SAEM** averages, $S_k = S_{k-1} + \gamma_k(\hat S_k - S_{k-1})$, $\gamma_k = 1$ for `burn_in` steps, then $1/k$.

A *check* is a sweep over all rows at a fixed theta with fresh draws (`monte_carlo_error`), which also refreshes the
table and makes a step. It is made when the last pass moved the parameters little, or no longer less than the one
before; a small step never stops a solver, only a check does, when remaining + noise is at most half of `tol` nats.
With `num_draws="auto"` the draws grow when the noise of a check hides what remains, and not before.

The passes are a loop of the host, each one compiled call (visits of `MISSO`, or a sweep), not of `runtime`: which of
the two comes next, with how many draws, is decided between passes from the last check's Monte-Carlo error.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.incremental.misso import MISSO, MISSOState
from provi.core.arguments import check_count, device_array, double_precision
from provi.core.compilation import quick_jit, sized_jit
from provi.core.tree import all_finite
from provi.models.missing.chains import Chains, start_chains
from provi.models.missing.conditional import Parameters, Rows
from provi.models.missing.monte_carlo_error import DrawCount, Watch, assess, complete_distance, ending, is_dense, sweep
from provi.models.missing.surrogate import CURVATURES, SAMPLERS, MissingSurrogate, Statistics
from provi.schedules.sampling import ReshuffledSampling, UniformSampling

_BLOCK = 8
"""Draws a row in one compiled block, with num_draws="auto"."""


@dataclasses.dataclass(frozen=True)
class StochasticOptions:
    """What all three solvers are told.

    - `surrogate`: the curvature, "newton", "jaakkola" or "boehning". - `sampler`: "metropolis" or "exact".
    - `controls`: control variates are taken off the draws' means (`control_variates`); False is plain averages.
    - `num_draws`: draws a row and visit: "auto", a whole number, or a schedule of `provi.schedules` in the *pass* k.
    - `penalty`: (p + 1,), half its sum with the squared coefficients is added to minus the log-likelihood.
    - `tol`: the estimated gap in nats at which to stop; 0 makes no checks, so that the iterates are the method's alone.
    - `max_passes` over the rows at most. - `seed`: of the draws and of the order of the rows.
    - `covariance_step`: turns the second moment about the mean into the covariance; None: it is the covariance.
    - `record(passes, parameters)` is called after each pass.
    """

    surrogate: str = "newton"
    sampler: str = "metropolis"
    controls: bool = True
    num_draws: Any = "auto"
    penalty: Any = None
    tol: float = 0.01
    max_passes: int = 200
    seed: int = 0
    covariance_step: Callable | None = None
    record: Callable[[int, Parameters], None] | None = None


_DEFAULTS = StochasticOptions()


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


@double_precision
def solve_misso(
    rows: Rows,
    start: Parameters,
    options: StochasticOptions = _DEFAULTS,
    *,
    share: float = 0.1,
    batch: int | None = None,
    order: str = "permutation",
) -> StochasticSolution:
    """MISSO: the statistics of a batch of rows are drawn anew before each minimisation, those of the others kept.

    **Arguments:**

    - `share` of the rows in a step, or, if given, `batch`, their number (1: the paper's MISSO).
    - `order`: "permutation", a fresh random order each pass, or "uniform", with replacement as in the paper.
    """
    terms = _make_surrogate(rows, options)
    n = terms.num_terms
    if batch is None and not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], not {share}; batch= gives a number of rows.")
    size = max(1, round(share * n)) if batch is None else check_count("batch", batch)
    if size > n:
        raise ValueError(f"batch={batch} is more than the {n} rows. Use at most {n}.")
    if order not in ("permutation", "uniform"):
        raise ValueError(f'order must be "permutation" or "uniform", not {order!r}.')
    sampling = ReshuffledSampling(size) if order == "permutation" else UniformSampling(size)
    algorithm = None if size == n and order == "permutation" else MISSO(sampling=sampling)
    return _run(terms, start, options, algorithm=algorithm)


@double_precision
def solve_mcem(rows: Rows, start: Parameters, options: StochasticOptions = _DEFAULTS) -> StochasticSolution:
    """Monte-Carlo EM: all rows are drawn anew before each minimisation."""
    return _run(_make_surrogate(rows, options), start, options)


@double_precision
def solve_saem(
    rows: Rows, start: Parameters, options: StochasticOptions = _DEFAULTS, *, burn_in: int = 0
) -> StochasticSolution:
    """Stochastic approximation EM: the mean statistics are averaged over the passes, with steps 1 for `burn_in` passes
    and 1/k for the k-th after them. `burn_in=0` is the paper's."""
    check_count("burn_in", burn_in, minimum=0)

    def gain(k: int) -> float:
        return 1.0 if k <= burn_in else 1 / (k - burn_in)

    return _run(_make_surrogate(rows, options), start, options, gain=gain)


def _make_surrogate(rows: Rows, options: StochasticOptions) -> MissingSurrogate:
    """The surrogate, with as many draws in a compiled block as divide the number that is asked for."""
    choices = (("surrogate", options.surrogate, CURVATURES), ("sampler", options.sampler, SAMPLERS))
    for name, value, known in choices:
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}.")
    block, num_draws = 1, options.num_draws
    if isinstance(num_draws, str):
        if num_draws != "auto":
            raise ValueError(f'num_draws must be "auto", a whole number or a schedule, not {num_draws!r}.')
        block = _BLOCK
    elif isinstance(num_draws, int | float | np.number):
        # The Monte-Carlo error compares two halves of the draws.
        draws = check_count("num_draws", num_draws, minimum=2 if options.tol > 0 else 1)
        block = max(b for b in (8, 4, 2, 1) if b == 1 or (draws % b == 0 and draws >= 2 * b))
    dtype, q, penalty = rows.values.dtype, rows.values.shape[1] + 1, options.penalty
    weights = np.zeros(q) if penalty is None else np.broadcast_to(np.asarray(penalty, np.float64), (q,))
    return MissingSurrogate(
        rows,
        jnp.asarray(weights, dtype),
        options.surrogate,
        options.sampler,
        block,
        options.covariance_step,
        options.controls,
    )


class Pass(eqx.Module):
    """What a pass is given: the key, its number, the surrogates, how often they draw, and where it begins."""

    key: Any
    number: Any
    surrogate: MissingSurrogate
    calls: Any
    parameters: Parameters


class Carried(eqx.Module):
    """What goes from pass to pass beside the parameters: the table (MISSO's), the mean statistics, chains, visits."""

    table: Statistics | None
    mean: Statistics
    chains: Any
    step: Any


def _run(
    surrogate: MissingSurrogate,
    start: Parameters,
    options: StochasticOptions,
    *,
    algorithm: MISSO | None = None,
    gain: Callable[[int], float] | None = None,
) -> StochasticSolution:
    """Passes until a check says so. With an `algorithm` they are MISSO's between checks, else each is a sweep."""
    tol, max_passes = options.tol, options.max_passes
    key, n, incremental = jax.random.key(options.seed), surrogate.num_terms, algorithm is not None
    draws, watch = DrawCount(options.num_draws, surrogate.block), Watch(tol, is_dense(surrogate), incremental)
    parameters, converged, failed, trace = start, False, False, []
    carried = Carried(None, zero_mean(start), _first_chains(surrogate, key), device_array(np.zeros((), int)))
    for k in range(check_count("max_passes", max_passes)):
        last = tol > 0 and 0 < k == max_passes - 1  # a check, so that the gap at the end is known
        calls, due, before = draws.calls(k), watch.due() or last, parameters
        given = Pass(key, np.asarray(k), surrogate, np.asarray(calls), parameters)
        entry: dict[str, Any] = {"num_draws": calls * surrogate.block}
        if algorithm is None or k == 0 or due:
            weight = np.asarray(1.0 if gain is None else gain(k + 1))
            without = dataclasses.replace(carried, table=None)
            parameters, carried, fresh, report = sweep_pass(given, without, weight, incremental)
            if due:
                converged = watch.checked(assess(surrogate, before, *fresh))
                entry |= {"remaining": watch.remaining, "noise": watch.noise}
                draws.grow(watch.remaining, watch.noise, tol)
                parameters = before if converged else parameters  # the check was made there
        else:
            parameters, carried, report = _misso_pass((given, algorithm, -(-n // algorithm.sampling.batch)), carried)
        step, finite = (float(x) for x in np.asarray(report))
        failed = not finite
        watch.passed(step)
        if failed:
            parameters = before
        trace.append(entry | {"step": step})
        if options.record is not None:
            options.record(k + 1, parameters)
        if converged or failed:
            break
    message = ending(watch, converged, failed, len(trace), draws.present)
    acceptance = carried.chains.acceptance if isinstance(carried.chains, Chains) else 1.0
    errors = np.full(start.coefficients.shape, np.nan) if watch.errors is None else watch.errors
    return StochasticSolution(parameters, len(trace), converged, message, watch.gap, errors, acceptance, trace)


def zero_mean(like: Parameters) -> Statistics:
    """Zeros, in which the first sweep has the weight 1."""
    q, p, dtype = len(like.coefficients), len(like.mean), like.mean.dtype
    return Statistics(*(device_array(np.zeros(shape, dtype)) for shape in (p, (p, p), (q, q), q)))


@quick_jit
def _first_chains(surrogate: MissingSurrogate, key: Any) -> Any:
    """The chains of all rows; None for the exact sampler."""
    return start_chains(key, surrogate.data.labels) if surrogate.sampler == "metropolis" else None


@sized_jit
def sweep_pass(given: Pass, carried: Carried, weight: Any, keep_table: bool) -> tuple:
    """A sweep at the parameters, its share `weight` taken into the mean statistics, and the minimiser.

    `carried` comes without a table: that is made anew if `keep_table`.
    """
    surrogate, parameters = given.surrogate, given.parameters
    key = jax.random.fold_in(given.key, given.number)
    found = sweep(key, surrogate, parameters, carried.chains, given.calls, keep_table)
    mean = jax.tree.map(lambda old, new: old + weight.astype(old.dtype) * (new - old), carried.mean, found.mean)
    new = surrogate.minimise(mean, parameters, None)
    carried = Carried(found.table, mean, found.chains, carried.step)
    report = _report(surrogate, mean, parameters, new)
    return new, carried, (found.mean, found.spread), report


@partial(sized_jit, donate="all-except-first")
def _misso_pass(held: tuple, carried: Carried) -> tuple:
    """Visits to all rows, a batch at a time. The memory of `carried`, with its large table, goes to the result."""
    given, algorithm, num_steps = held
    surrogate, parameters = given.surrogate, given.parameters
    order, draws = jax.random.split(given.key)
    draws = jax.random.fold_in(draws, given.number)
    zero = jnp.zeros((), int)
    state = MISSOState(parameters, carried.table, carried.mean, carried.chains, carried.step, zero, zero, zero - 1)

    def visit(state: MISSOState, i: Any) -> tuple[MISSOState, None]:
        rows = algorithm.sampling.indices(order, state.step, surrogate.num_terms)
        return algorithm.visit(jax.random.fold_in(draws, i), surrogate, state, rows, given.calls), None

    state, _ = jax.lax.scan(visit, state, jnp.arange(num_steps))
    report = _report(surrogate, state.mean, parameters, state.parameters)
    report = report.at[1].multiply(state.rejected_in_a_row == 0)
    return state.parameters, Carried(state.table, state.mean, state.chains, state.step), report


def _report(surrogate: MissingSurrogate, mean: Statistics, old: Parameters, new: Parameters) -> Any:
    """The step in nats, and 1 if all is finite, else 0."""
    step = complete_distance(surrogate, mean, old, new)
    return jnp.stack([step, (jnp.isfinite(step) & all_finite(new)).astype(step.dtype)])
