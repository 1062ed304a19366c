"""The one compiled loop. A non-finite step is located, rejected and retried with a smaller step size.

What of a state is too large for a copy the loop takes over (donates). An algorithm names such fields in
`donated_fields`: for MISSO the table, 21 GB for a ResNet-18. Their old
arrays are gone after a call of the loop, which is why a driver keeps states without them, and why an interrupt waits
until the new ones have a name.
"""

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.core.arguments import device_array
from provi.core.compilation import program_jit, quick_jit
from provi.core.devices import over_draws
from provi.core.interpreter import instant_jit, weighed_jit
from provi.core.tree import select
from provi.core.types import Count, Flag, RandomKey, Scalar
from provi.families.base import AbstractFamily, AnyParameters
from provi.targets.base import AbstractTarget, traced_potential


def _is_large(leaf: Any) -> bool:
    # One number a term is not: such columns stay, for what a state says of itself without its table.
    return eqx.is_array(leaf) and leaf.ndim > 1


def split(algorithm: AbstractAlgorithm, state: Any) -> tuple[Any, dict[str, Any]]:
    """The state with None for the large arrays of the donated fields, and these. Nothing is copied."""
    large, small = {}, {}
    for name in algorithm.donated_fields:
        large[name], small[name] = eqx.partition(getattr(state, name), _is_large)
    return (dataclasses.replace(state, **small) if small else state), large


def join(state: Any, large: dict[str, Any]) -> Any:
    """The inverse of `split`."""
    whole = {name: eqx.combine(part, getattr(state, name)) for name, part in large.items()}
    return dataclasses.replace(state, **whole)


def is_lost(state: Any) -> bool:
    """Whether the loop has taken arrays of this state and was stopped before it gave them back."""
    return any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))


@contextmanager
def interrupts_wait(wanted: bool = True) -> Iterator[None]:
    """Ctrl-C and SIGTERM take effect when the block has ended; a second one at once. Nothing changes unless `wanted`.

    For a call that takes arrays over: an exception between its end and the assignment of its result would lose both.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    waiting: list[Any] = []

    def postpone(number: int, frame: Any) -> None:
        if waiting:
            handlers[number](number, frame)
        waiting.append((number, frame))

    for number in handlers:
        signal.signal(number, postpone)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if waiting:
        number, frame = waiting[0]
        handlers[number](number, frame)


@contextmanager
def termination_interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, SIGTERM is a `KeyboardInterrupt`, as Ctrl-C is: machines that are taken away are told so by it.

    A handler of the user's own stays, and outside of the main thread nothing changes.

    **Returns:** a function that says whether there was an interruption. Python forgets an exception that a handler
    raises within a callback, and JAX has one for every collection of garbage: one signal in twenty ended there.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {
        n: found for n, found in handlers.items() if callable(found) or (n, found) == (signal.SIGTERM, signal.SIG_DFL)
    }

    def interrupt(number: int, frame: Any) -> None:
        try:
            if not callable(handlers[number]):
                raise KeyboardInterrupt
            handlers[number](number, frame)
        except KeyboardInterrupt:
            seen.append(number)
            raise

    for number in handlers:
        signal.signal(number, interrupt)
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def places_of(arrays: Any) -> Any:
    """Where each array lies, so that the arrays themselves may be freed."""
    return jax.tree.map(lambda x: getattr(x, "sharding", False), arrays)


def put_back(arrays: Any, places: Any) -> Any:
    """Arrays from a file, those that lay on several devices divided among them again."""

    def one(place: Any, x: Any) -> Any:
        return jax.device_put(x, place) if place and len(place.device_set) > 1 else x

    return jax.tree.map(one, places, arrays)


if TYPE_CHECKING:
    from provi.algorithms.incremental.surrogates import AbstractSurrogate
    from provi.algorithms.mirror.split import AbstractSplit
    from provi.algorithms.proximal.projected import Projected
    from provi.families.exponential import Coordinates

    Objective: TypeAlias = AbstractTarget | AbstractSurrogate | AbstractSplit | Projected
    """What is minimised: KL(q || target) over a family, a plain sum through its surrogates, f + h, or F on a set."""

    Space: TypeAlias = AbstractFamily | AnyParameters | Coordinates
    """Where the parameters live."""
else:  # a fit of a linear model does without surrogates and splits
    Objective = Space = Any

LARGEST_REJECTIONS = 30
"""Consecutive rejections after which the run stops: the step size has then shrunk by 2^30."""

RECOVERY = 1.1
"""Growth of a shrunk step size per accepted step, up to its planned value: one rejection in eight steps balances it."""


class Health(eqx.Module):
    """Counters of rejected steps and the place of the first one."""

    shrink: Scalar
    consecutive: Count
    rejected: Count
    first_step: Count
    first_quantity: Count
    gradient_evaluations: Count


class Carry(eqx.Module):
    """All that a run needs to go on: the algorithm's state, its health and the last step's information."""

    state: Any
    health: Health
    info: StepInfo


def initial_carry(algorithm: AbstractAlgorithm, point: Any) -> Carry:
    """The carry before the first step."""
    # Made on the host: outside a compiled function every operation of JAX is compiled by itself.
    dtype = jax.tree.leaves(point)[0].dtype
    zero, one = device_array(np.zeros((), dtype)), device_array(np.ones((), dtype))
    count, never = device_array(np.asarray(0)), device_array(np.asarray(-1))
    health = Health(one, count, count, never, never, count)
    info = StepInfo(zero, device_array(np.zeros((), np.int32)), (zero, zero, zero))
    state = algorithm.init(point)
    places = getattr(state.step, "sharding", None)
    if places is not None and len(places.device_set) > 1:
        # Where the loop will leave them: arrays that came from elsewhere would compile it a second time.
        health, info = jax.device_put((health, info), places)
    return Carry(state, health, info)


def guarded_step(key: RandomKey, algorithm: AbstractAlgorithm, target: Objective, family: Space, carry: Carry) -> Carry:
    """One step; if it is not finite, the old state with the step number advanced and the step size halved.

    Advancing the number gives the retry fresh random draws.
    """
    old, health = carry.state, carry.health
    new, info = algorithm.step(key, old, target, family, health.shrink)
    finite = jnp.isfinite(jnp.stack(info.norms))
    accepted = jnp.all(finite)
    reverted = eqx.tree_at(lambda state: state.step, old, old.step + 1)
    first = jnp.logical_and(~accepted, health.rejected == 0)
    if algorithm.guards_itself:
        kept = new
    elif algorithm.compile_quickly(family):
        # Selections compile to a program for each leaf; a conditional to none, at the price of one more branch.
        kept = jax.lax.cond(accepted, lambda: new, lambda: reverted)
    else:
        kept = select(accepted, new, reverted)
    return Carry(
        kept,
        Health(
            shrink=jnp.where(accepted, jnp.minimum(RECOVERY * health.shrink, 1), health.shrink / 2),
            consecutive=jnp.where(accepted, 0, health.consecutive + 1),
            rejected=health.rejected + ~accepted,
            first_step=jnp.where(first, old.step, health.first_step),
            first_quantity=jnp.where(first, jnp.argmin(finite), health.first_quantity),
            gradient_evaluations=health.gradient_evaluations + info.cost,
        ),
        info,
    )


def describe_rejections(health: Health, quantities: tuple[str, ...]) -> str:
    """How many steps were not finite and where the first was, in words to follow the outcome; "" for none."""
    rejected = int(health.rejected)
    if rejected == 0:
        return ""
    return (
        f"; {rejected} non-finite step(s) rejected, the first at iteration {int(health.first_step)}, "
        f"where {quantities[int(health.first_quantity)]} was not finite"
    )


def affordable(algorithm: AbstractAlgorithm, carry: Carry, gradient_budget: Count) -> Flag:
    """Whether the budget of gradient evaluations pays for the next step."""
    return carry.health.gradient_evaluations + algorithm.cost_at(carry.state.step) <= gradient_budget


def _advance(
    key: RandomKey,
    algorithm: AbstractAlgorithm,
    target: Objective,
    family: Space,
    carry: Carry,
    last_step: Count,
    gradient_budget: Count,
) -> Carry:
    """Steps until the step number reaches `last_step`, the budget allows no other or too many steps were rejected.

    Step numbers, budgets, schedules and data are run-time values: none of them recompiles.
    """

    def unfinished(carry):
        return (
            (carry.state.step < last_step)
            & affordable(algorithm, carry, gradient_budget)
            & (carry.health.consecutive < LARGEST_REJECTIONS)
        )

    return jax.lax.while_loop(unfinished, lambda carry: guarded_step(key, algorithm, target, family, carry), carry)


def _advance_in_place(kept: tuple[Any, ...], large: dict[str, Any]) -> Carry:
    """`_advance` with the large arrays of the state apart, so that they, and nothing else, can be donated."""
    key, algorithm, target, family, carry, last_step, gradient_budget = kept
    carry = Carry(algorithm.arranged(join(carry.state, large)), carry.health, carry.info)
    carry = _advance(key, algorithm, target, family, carry, last_step, gradient_budget)
    return Carry(algorithm.arranged(carry.state), carry.health, carry.info)


_advance.__name__ = _advance.__qualname__ = "advance"
optimised_loop, quick_loop = program_jit(_advance), quick_jit(_advance)
# One step a call: the rule that stops the run looks at each.
instant_loop, instant_quick_loop = instant_jit(_advance, trips=1), instant_jit(_advance, quick_jit, trips=1)
# Of a hard density a fit takes a thousand steps: interpreted, eight schools took 29 s, compiled like this 3.5.
weighed_loop = weighed_jit(_advance, trips=2, calls=1000)
# Of a log-concave one ten are often enough, and interpreted as quick as the program is compiled.
_FIRST_STEPS = 40
first_loop = weighed_jit(_advance, trips=2, calls=_FIRST_STEPS, loops=2, later=weighed_loop)
donating_loop = program_jit(_advance_in_place, donate="all-except-first")
quick_donating_loop = quick_jit(_advance_in_place, donate="all-except-first")


def advance(
    key: RandomKey,
    algorithm: AbstractAlgorithm,
    target: Objective,
    family: Space,
    carry: Carry,
    last_step: Count,
    gradient_budget: Count,
) -> Carry:
    """The compiled loop, `_advance`.

    The fields of the state that the algorithm calls `donated_fields`, its table, are taken over: those of the carry
    that is passed in are gone afterwards, and its table is never there twice. All else of it stays.
    """
    quick = algorithm.compile_quickly(family)
    if not algorithm.donated_fields:
        if algorithm.few_steps:
            loop = instant_quick_loop if quick else instant_loop
        elif algorithm.some_steps:
            # By the step alone, as a run that is resumed ends with the same bits.
            if int(carry.state.step) < _FIRST_STEPS and _needs_few(target):
                enough = int(last_step) <= _FIRST_STEPS
                part = last_step if enough else device_array(_FIRST_STEPS)
                carry = first_loop(key, algorithm, target, family, carry, part, gradient_budget)
                if enough:
                    return carry
            loop = weighed_loop
        else:
            loop = quick_loop if quick else optimised_loop
        return loop(key, algorithm, target, family, carry, last_step, gradient_budget)
    state, large = split(algorithm, carry.state)
    kept = (key, algorithm, target, family, Carry(state, carry.health, carry.info), last_step, gradient_budget)
    return (quick_donating_loop if quick else donating_loop)(kept, large)


def _needs_few(target: Objective) -> bool:
    """Whether a start at the mode is near the best member: a second round of steps is for those where it is not."""
    return isinstance(target, AbstractTarget) and target.constants.log_concave.known


LARGEST_ARRAY = 2**28
"""Bytes that one array of an ELBO's estimate may have, over all draws: 256 MiB."""


def largest_array(function: Any, argument: Any) -> int:
    """Bytes of the largest array that `function(argument)` makes on its way, by its program."""

    def largest(jaxpr: Any) -> int:
        sizes = [0]
        for equation in jaxpr.eqns:
            sizes += [out.aval.size * out.aval.dtype.itemsize for out in equation.outvars if hasattr(out.aval, "size")]
            sizes += [largest(inner) for inner in jaxprs_in_params(equation.params)]
        return max(sizes)

    return largest(jax.make_jaxpr(function)(argument).jaxpr)


@partial(weighed_jit, calls=10)
def estimate_elbo(
    key: RandomKey, target: AbstractTarget, family: AbstractFamily, point: Any, num_draws: int
) -> tuple[Scalar, Scalar]:
    """A Monte-Carlo estimate of the ELBO, E_q[log p(z) - log q(z)], and its standard error.

    With log q inside the average instead of the exact entropy the estimate's variance vanishes as q nears p.
    """
    draws, log_q = family.sample_and_log_prob(key, point, num_draws)
    # At once where that takes little memory: a potential of many data has arrays as long as they are, for each draw.
    potential = partial(traced_potential, target)
    at_once = LARGEST_ARRAY // max(largest_array(potential, draws[0]), 1)
    if at_once >= num_draws:
        values = -over_draws(target.division, potential, draws) - log_q
    else:
        values = -jax.lax.map(potential, draws, batch_size=max(at_once, 1)) - log_q
    return values.mean(), values.std(ddof=1) / num_draws**0.5
