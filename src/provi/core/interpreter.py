"""Small programs without a compiler: a traced function run on NumPy, equation by equation.

XLA takes 0.2 to 1 s for a program that a small fit runs ten times in 20 ms. So what is small is traced as ever, which
takes milliseconds, and its equations are carried out by NumPy (`host_program`): one implementation, two engines,
equal to rounding. The choice is by the program's estimated work, which depends on shapes alone: the same call has the
same bits on every run. Large programs are compiled, but for those that spend their time in products of rows, of which
NumPy's BLAS takes half of XLA's processor time; beside an accelerator, which takes longer to compile for and
carries out faster, a program counts as large much sooner. `weighed_jit` compiles with as much optimisation as a
program's work pays for.
"""

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.extend import core as jax_core

from provi.core.compilation import less_work, program_jit, quick_jit
from provi.core.host_loops import Program, closed_program, shares_turns
from provi.core.host_primitives import PRIMITIVES, SLOW, VIEWS
from provi.core.host_program import host_array, interpreted, is_by_hand

SMALL_WORK, SMALL_BESIDE_ACCELERATOR = 4e8, 2e7
"""Nanoseconds, estimated, up to which a call is interpreted. The first logistic regression of 80,000 x 64 took 4.0 s of
processor time where it was compiled and 0.8 s interpreted, later ones 0.33 and 0.38 s; of 20,000 x 256 first 4.1 and
1.1 s, later both 0.7 s."""

_MOST_NUMBERS, _MOST_TO_FETCH = 2**24, 2**18
_OVERHEAD, _COMPILED_OVERHEAD, _TRIPS = 2e3, 20.0, 20
_LARGEST_FOR_ONE, _MOST_FOR_ONE = 500, 2**22
"""The order of matrices, and the numbers of a table, up to which one thread is enough."""

_SHARE = 0.15
"""Of a program's work, from which products of rows that NumPy carries out by hand decide for NumPy."""

_LITTLE, _SOME = 1.5e8, 3e9
"""Nanoseconds, estimated, over all calls of a program, up to which `weighed_jit` interprets it or gives it the least
optimisation, and up to which it gets some. A black box of 10 parameters and 40 data, its six programs: 12 s of
processor time to compile with all of it and 0.7 s to run; with some 5 and 0.95; with the least 3 and 2.4."""

_AN_EQUATION, _MOST_GAIN, _MOST_SLOW = 1.5e6, 0.5, 2.5
"""Nanoseconds that XLA takes for an equation. What compiling would save less of than half of what it takes is
interpreted, if it is no more than some of that: of long vectors NumPy is as fast as code with little optimisation. The
certificates of the black box above, 20 calls: 0.30 s interpreted, 0.31 s compiled, which took 0.6 s."""

_MOST_PROGRAMS = 64
"""That one function keeps; they hold what the user's functions have captured, and memory maps."""

_switch = {"on": True}


def instant_jit(
    function: Callable, compiler: Callable = program_jit, *, trips: int = _TRIPS, on_host: bool = False
) -> Callable[..., Any]:
    """A compiled function that does not wait for the compiler where its work is small.

    **Arguments:**

    - `function`: of pytrees, as for `eqx.filter_jit`. - `compiler`: what compiles it where it is large.
    - `trips`: how often a `while` goes round, for the estimate of the work.
    - `on_host`: interpreted results stay NumPy's, for a caller who would bring them there anyway.
    """

    def engine(traced: Any, results: Any) -> Any:
        closed = traced.jaxpr
        if closed.effects or not (_is_small(closed.jaxpr, trips) or _is_products(closed.jaxpr, trips)):
            return None
        keys, (shape, static) = [_is_key(atom) for atom in closed.jaxpr.outvars], results
        # Large products that no threads of ours share are left to those of BLAS.
        limit = _limit if _is_small(closed.jaxpr, trips) or shares_turns(closed.jaxpr) else nullcontext()
        return _Interpreted(interpreted(closed), keys, shape, static, on_host, limit)

    return _by_engine(function, compiler(function), engine, {}, most=math.inf)


def _is_small(jaxpr: Any, trips: int) -> bool:
    if jax.default_backend() != "cpu":
        return work(jaxpr, trips) <= SMALL_BESIDE_ACCELERATOR
    numbers = sum(math.prod(atom.aval.shape) for atom in jaxpr.invars)
    return numbers <= _MOST_NUMBERS and work(jaxpr, trips) <= SMALL_WORK


def _is_products(jaxpr: Any, trips: int) -> bool:
    """Whether a program spends its time in products of rows that NumPy's BLAS carries out, in half of XLA's time."""
    if jax.default_backend() != "cpu":
        return False
    by_hand = work(jaxpr, trips, chosen=is_by_hand)
    return by_hand > 0 and by_hand >= _SHARE * work(jaxpr, trips)


def weighed_jit(
    function: Callable,
    *,
    trips: int = _TRIPS,
    calls: int = 1,
    loops: int = 0,
    later: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A function that is interpreted, or compiled with the optimisation that its work pays for, by its shapes alone.

    For what is small of one user and large of the next: densities that somebody wrote. It is traced once.

    **Arguments:**

    - `trips`: as for `instant_jit`. - `calls`: how often a fit calls it, roughly.
    - `loops`: how deep its own `while` are in each other. How often one goes round that a user's function has, as one
      that solves an equation, nobody knows: what has those is interpreted only where it is little work.
    - `later`: for the first calls of many, of which a fit may need no more: what `weighed_jit` has made of the same
      function for all of them. It takes the place of compiling here, and the trace is its own.
    """

    def engine(traced: Any, results: Any) -> Any:
        closed = traced.jaxpr
        if closed.effects:
            return None
        slow = calls * work(closed.jaxpr, trips)
        expected = calls * work(closed.jaxpr, trips, compiled=True)
        wait, known = _AN_EQUATION * _equations(closed.jaxpr), _loops(closed.jaxpr) <= loops
        pays = known and slow <= _MOST_SLOW * wait and slow - expected <= _MOST_GAIN * wait
        if pays or (slow <= _LITTLE and (known or later is None)):
            keys, (shape, static) = [_is_key(atom) for atom in closed.jaxpr.outvars], results
            return _Interpreted(interpreted(closed), keys, shape, static, False)
        if expected > _SOME or later is not None:
            return None
        return _Compiled(traced.lower().compile(compiler_options=less_work(int(expected > _LITTLE))), *results)

    traces = {} if later is None else later.traces  # pyright: ignore[reportFunctionMemberAccess]
    compiled = program_jit(function) if later is None else later
    weighed = _by_engine(function, compiled, engine, traces, keeps=later is not None)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Beside an accelerator what the user's function has captured lies there.
        return (weighed if _on_first_processor((args, kwargs)) else compiled)(*args, **kwargs)

    call.traces = traces  # pyright: ignore[reportAttributeAccessIssue]
    return call


def _by_engine(
    function: Callable,
    compiled: Callable,
    engine: Callable,
    traces: dict[Any, Any],
    keeps: bool = False,
    most: float | int = _MOST_NUMBERS,
) -> Callable[..., Any]:
    """`function`, traced once for each kind of arguments, by what `engine` makes of it; `compiled` where that is None.

    **Arguments:** `traces`: those that another has left, and where this one leaves its own if it `keeps` them. `most`:
    numbers above which it is `compiled`, whatever it does.
    """
    programs: dict[Any, Any] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | np.generic)]
        arrays = [leaves[k] for k in places]
        if not (_switch["on"] and _on_host(arrays, most)):
            return compiled(*args, **kwargs)
        others = set(range(len(leaves))).difference(places)
        rest = tuple(leaves[k] for k in sorted(others))
        shapes = tuple((x.shape, x.dtype) for x in arrays)
        key = structure, tuple(places), rest, shapes, bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            known = key in programs
        except TypeError:  # a leaf that cannot be hashed: equinox says so better
            return compiled(*args, **kwargs)
        if not known:
            traced = traces.pop(key, None) or _traced(function, structure, places, rest, arrays)
            made = engine(*traced)
            for kept, new in ((programs, made), (traces, traced))[: 1 + keeps]:
                while len(kept) >= _MOST_PROGRAMS:
                    kept.pop(next(iter(kept)), None)
                kept[key] = new
        else:
            made = programs[key]
        return compiled(*args, **kwargs) if made is None else made(arrays)

    return call


@contextmanager
def compiled_only() -> Iterator[None]:
    """Compile everything inside, as if all were large: to compare the two engines."""
    before, _switch["on"] = _switch["on"], False
    try:
        yield
    finally:
        _switch["on"] = before


def instant_quick_jit(function: Callable) -> Callable[..., Any]:
    """`instant_jit` with `quick_jit` where the work is large: for what spends its time in LAPACK."""
    return instant_jit(function, quick_jit)


class _Interpreted:
    """A program of host arrays, and the pytree that its results make."""

    def __init__(
        self, program: Program, keys: Sequence[bool], structure: Any, static: Any, on_host: bool, limit: Any = None
    ) -> None:
        self.program, self.keys, self.structure, self.static, self.on_host = program, keys, structure, static, on_host
        self.limit = _limit if limit is None else limit

    def __call__(self, arrays: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"), self.limit:  # as XLA, which has no warnings
            found = self.program(*map(host_array, arrays))
        if self.on_host:
            return eqx.combine(jax.tree.unflatten(self.structure, found), self.static)
        found = jax.device_put(found)
        found = [jax.random.wrap_key_data(x) if is_key else x for x, is_key in zip(found, self.keys, strict=True)]
        return eqx.combine(jax.tree.unflatten(self.structure, found), self.static)


class _Compiled:
    """A program of XLA's, and the pytree that its results make."""

    def __init__(self, program: Any, structure: Any, static: Any) -> None:
        self.program, self.structure, self.static = program, structure, static

    def __call__(self, arrays: Sequence[Any]) -> Any:
        return eqx.combine(jax.tree.unflatten(self.structure, self.program(*arrays)), self.static)


def one_blas_thread(dim: int, terms: int = 1) -> AbstractContextManager[Any]:
    """Around work on the host with matrices of this order and with so many rows: one thread of BLAS where it is small.

    Threads of BLAS wait for each other in loops: a distance to the posterior, 569 x 31, took three times the processor
    time with two of them, and a Cholesky factor of 200 rows a hundred times as long on a busy machine.
    """
    return _limit if dim <= _LARGEST_FOR_ONE and dim * terms <= _MOST_FOR_ONE else nullcontext()


class _Limit(AbstractContextManager):
    """One thread of BLAS while whoever set it is inside; who sets it restores it, as OpenBLAS heeds no other thread.

    Fits may run side by side: one that begins while another has set it leaves it alone, so that what was comes back.
    """

    def __init__(self) -> None:
        self.lock, self.owner, self.depth, self.before = threading.Lock(), None, 0, None

    def __enter__(self) -> None:
        with self.lock:
            if self.owner is None:
                self.owner, self.before = threading.get_ident(), _blas_switches().limit(limits=1)
            if self.owner == threading.get_ident():
                self.depth += 1

    def __exit__(self, *_: Any) -> None:
        with self.lock:
            if self.owner != threading.get_ident():
                return
            self.depth -= 1
            if self.depth == 0 and self.before is not None:
                self.before.restore_original_limits()
                self.owner = None


_limit = _Limit()


@functools.cache
def _blas_switches() -> Any:
    """Of the BLAS libraries of NumPy and SciPy; looked for once, which takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # what is compiled has no need of it

    return ThreadpoolController().select(user_api="blas")


def _on_host(arrays: Sequence[Any], most: float | int) -> bool:
    """Whether all arrays are numbers on one device, few enough, and nothing is being traced."""
    most = most if jax.default_backend() == "cpu" else _MOST_TO_FETCH
    if sum(math.prod(x.shape) for x in arrays) > most:
        return False
    for x in arrays:
        if isinstance(x, Tracer):
            return False
        if isinstance(x, jax.Array) and len(x.sharding.device_set) > 1:
            return False
    return True


def _on_first_processor(values: Any) -> bool:
    """Whether all arrays lie where a program that is compiled ahead of its call expects them."""
    if jax.default_backend() != "cpu":
        return False
    first = {jax.local_devices()[0]}
    arrays = (x for x in jax.tree.leaves(values) if isinstance(x, jax.Array) and not isinstance(x, Tracer))
    return all(x.sharding.device_set == first for x in arrays)


def _traced(
    function: Callable, structure: Any, places: list[int], rest: tuple, arrays: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """The traced program of these arrays alone; the pytree of its results, and what of that is no array."""
    kept: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        leaves, others = dict(zip(places, given, strict=True)), iter(rest)
        count = len(places) + len(rest)
        args, kwargs = jax.tree.unflatten(structure, [leaves[k] if k in leaves else next(others) for k in range(count)])
        dynamic, static = eqx.partition(function(*args, **kwargs), eqx.is_array)
        found, shape = jax.tree.flatten(dynamic)
        kept[:] = [shape, static]
        return found

    flat.__name__ = flat.__qualname__ = getattr(function, "__name__", "program")
    return jax.jit(flat).trace(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)), kept


def _is_key(atom: Any) -> bool:
    return jax.numpy.issubdtype(atom.aval.dtype, jax.dtypes.prng_key)


def work(jaxpr: Any, trips: int = _TRIPS, compiled: bool = False, chosen: Callable[[Any], bool] | None = None) -> float:
    """Nanoseconds that NumPy takes for a program, or `compiled` XLA, roughly, from its shapes alone.

    `chosen`: which equations count; None for all.
    """
    return sum((_work(equation, trips, compiled, chosen) for equation in jaxpr.eqns), 0.0)


def _work(equation: Any, trips: int, compiled: bool, chosen: Callable[[Any], bool] | None) -> float:
    name, params = equation.primitive.name, equation.params
    overhead = _COMPILED_OVERHEAD if compiled else _OVERHEAD
    of_inner = None if chosen is not None and chosen(equation) else chosen
    inner = [work(closed.jaxpr, trips, compiled, of_inner) for closed in _inner(params)]
    if name == "scan":
        return params["length"] * inner[0]
    if inner:
        return (trips if name == "while" else 1) * sum(inner)
    if chosen is not None and not chosen(equation):
        return 0.0
    size = sum(math.prod(out.aval.shape) for out in equation.outvars)
    if name == "dot_general":
        ((contracted, _), _), shape = params["dimension_numbers"], equation.invars[0].aval.shape
        return overhead + 0.05 * size * math.prod(shape[k] for k in contracted)
    if name in ("cholesky", "triangular_solve", "eigh"):
        order = equation.invars[0].aval.shape[-1]
        return overhead + (3.0 if name == "eigh" else 0.1) * order * max(size, order)
    if name in VIEWS:
        return 0.3 * overhead
    if name == "pure_callback":  # what the function itself takes, nobody knows, and it is the same for both
        return 1e5 if compiled else 2e4
    # A compilation of its own, which knows of keys no more than that they are words.
    if name not in PRIMITIVES and not compiled:
        return math.inf if "callback" in name or any(map(_is_key, equation.invars)) else 30e6
    read = max((math.prod(atom.aval.shape) for atom in equation.invars), default=0)
    return overhead + (10.0 if name in SLOW else 1.0) * max(size, read)


def _equations(jaxpr: Any) -> int:
    return sum(1 + sum(_equations(closed.jaxpr) for closed in _inner(equation.params)) for equation in jaxpr.eqns)


def _loops(jaxpr: Any) -> int:
    """How deep `while` are in each other."""
    inside = (
        max(map(_loops, (closed.jaxpr for closed in _inner(equation.params))), default=0)
        + (equation.primitive.name == "while")
        for equation in jaxpr.eqns
    )
    return max(inside, default=0)


def _inner(params: dict[str, Any]) -> list[Any]:
    found = []
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, jax_core.ClosedJaxpr | jax_core.Jaxpr):
                found.append(closed_program(part))
    return found
