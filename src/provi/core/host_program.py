"""A traced program as steps on NumPy arrays: what `core.interpreter` runs in place of a compiled one.

Equations become steps on numbered registers, functions that are called are written out, what nobody reads is left out.
Arrays are freed, written over or kept for the next call as soon as nobody reads them: fresh memory costs more than
arithmetic. A function may say itself how NumPy carries it out (`by_hand`).
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jax_core

from provi.core.host_loops import CALLS, Program, closed_program, scan, while_loop
from provi.core.host_primitives import PRIMITIVES

_LARGE, _LIGHT, _MOST_KEPT = 4096, 256, 2**25
"""Numbers from which an array is worth keeping, and up to which it is not worth freeing; bytes of them that a program
keeps for its next call."""

_CONSTANT = {"broadcast_in_dim", "convert_element_type", "iota", "reshape"}

_BY_HAND: dict[str, tuple[Callable, Callable, tuple[int, ...]]] = {}


def by_hand(host: Callable, *ranks: int) -> Callable[[Callable], Callable]:
    """A function of arrays that is a program of its own wherever it is traced, which NumPy carries out by `host`.

    `host` takes host arrays of these `ranks` and returns a list of them; or an array, which it fills where it is one
    that `fills`. Arrays of other ranks, as of a batch, are left to the equations of the function.
    """

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def named(*arrays: Any) -> Any:
            return function(*arrays)

        named.__name__ = named.__qualname__ = f"{function.__module__}.{function.__name__}"
        _BY_HAND[named.__name__] = named, host, ranks
        return jax.jit(named)

    return decorate


def is_by_hand(equation: Any) -> bool:
    """Whether an equation calls a function that NumPy carries out by hand."""
    return equation.params.get("name", "") in _BY_HAND and equation.primitive.name in ("jit", "pjit")


def _hand(equation: Any) -> Callable | None:
    """The function by which NumPy carries out the program that an equation calls; None for other equations.

    What is a derivative or a batch of the function bears its name, too, and is told apart by its equations. `host` sees
    numbers of one floating type, single or double: what JAX would promote or widen is left to its equations.
    """
    if not is_by_hand(equation):
        return None
    floating = {np.dtype(x.aval.dtype) for x in equation.invars if x.aval.dtype != bool}
    if floating not in ({np.dtype(np.float32)}, {np.dtype(np.float64)}):
        return None
    function, host, ranks = _BY_HAND[equation.params["name"]]
    if tuple(x.aval.ndim for x in equation.invars) != ranks:
        return None
    try:
        found = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars))
    except (IndexError, TypeError, ValueError):  # not even of these shapes
        return None
    called = closed_program(equation.params["jaxpr"])
    return host if str(called.jaxpr) == str(found.jaxpr) else None


def interpreted(closed: Any) -> Program:
    """The program of a closed jaxpr: host arrays in, a list of host arrays out."""
    assembler, variables = _Assembler(), {}
    given = assembler.bind(closed, variables)
    assembler.emit(closed.jaxpr, variables)
    results = [assembler.read(atom, variables) for atom in closed.jaxpr.outvars]
    return functools.partial(_run, assembler.start, given, assembler.with_ends(results), results, _Spare())


class _Spare:
    """Arrays that a program is done with, for its next steps and calls: fresh memory costs more than arithmetic.

    The system clears every page before it hands it out, and takes large arrays back as soon as they are freed.
    """

    def __init__(self) -> None:
        self.arrays: dict[Any, list[np.ndarray]] = {}
        self.size, self.lock = 0, threading.Lock()

    def take(self, kind: tuple[Any, Any]) -> np.ndarray:
        """An array of this shape and type that nobody else has."""
        with self.lock:
            found = self.arrays[kind].pop() if self.arrays.get(kind) else None
            self.size -= 0 if found is None else found.nbytes
        return np.empty(*kind) if found is None else found

    def give(self, array: np.ndarray) -> None:
        """Keep an array that nobody will look into any more."""
        with self.lock:
            if self.size + array.nbytes <= _MOST_KEPT:
                self.size += array.nbytes
                self.arrays.setdefault((array.shape, array.dtype), []).append(array)


class _Assembler:
    """A jaxpr as steps on numbered registers; `start` holds the constants."""

    def __init__(self) -> None:
        self.start: list[Any] = []
        self.steps: list[tuple[Any, list[int], list[int], bool]] = []
        self.ones: set[int] = set()
        self.known: set[int] = set()  # the numbers that stand in the program, and what follows from them alone
        self.light: set[int] = set()  # those that hold little memory, or what the caller holds anyway
        self.large: dict[int, Any] = {}  # registers that a step fills, with many numbers, and their type
        self.squares: dict[int, int] = {}  # registers of squares, and what they are squares of
        self.shared: set[int] = set()  # those that something else may look into

    def new(self, value: Any = None) -> int:
        """The number of a fresh register."""
        self.start.append(value)
        return len(self.start) - 1

    def read(self, atom: Any, variables: dict[Any, int]) -> int:
        """The register of a variable or a constant."""
        if isinstance(atom, jax_core.Literal):
            aval: Any = atom.aval
            place = self.new(np.asarray(atom.val, aval.dtype))
            self.known.add(place)
            self.light.add(place)
            # Derivatives by whole numbers are of a type of their own, which compares with nothing.
            if aval.dtype != jax.dtypes.float0 and np.size(atom.val) == 1 and atom.val == 1:
                self.ones.add(place)
            return place
        return variables[atom]

    def bind(self, closed: Any, variables: dict[Any, int], operands: Sequence[int] | None = None) -> list[int]:
        """Registers for the arguments of a program, and for its constants."""
        given = [self.new() for _ in closed.jaxpr.invars] if operands is None else list(operands)
        variables.update(zip(closed.jaxpr.invars, given, strict=True))
        for atom, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            variables[atom] = self.new(host_array(value))
            self.light.add(variables[atom])
        self.light.update(given if operands is None else ())
        return given

    def emit(self, jaxpr: Any, variables: dict[Any, int]) -> None:
        """The equations in order; functions that are called are written out."""
        for equation in jaxpr.eqns:
            if not equation.outvars:  # nothing comes of it: programs with effects are not interpreted
                continue
            operands = [self.read(atom, variables) for atom in equation.invars]
            host = _hand(equation)
            called, same = None if host else _called(equation), self.unchanged(equation, operands)
            if same is not None:
                results = [same]
            elif called is not None:
                own: dict[Any, int] = {}
                self.bind(called, own, operands)
                self.emit(called.jaxpr, own)
                results = [self.read(atom, own) for atom in called.jaxpr.outvars]
            else:
                results = [self.new() for _ in equation.outvars]
                function, operands = (host, operands) if host else self.function(equation, operands)
                several = equation.primitive.multiple_results and not (host and len(results) == 1)
                self._note(function, equation, operands, results)
                if self._follows(function, equation, operands):
                    with np.errstate(all="ignore"):
                        self.start[results[0]] = function(*(self.start[k] for k in operands))
                    self.known.add(results[0])
                else:
                    self.steps.append((function, operands, results, several))
                if equation.primitive.name in ("broadcast_in_dim", "reshape") and operands[0] in self.ones:
                    self.ones.add(results[0])
                if function is np.square:
                    self.squares[results[0]] = operands[0]
            variables.update(zip(equation.outvars, results, strict=True))

    def function(self, equation: Any, operands: list[int]) -> tuple[Any, list[int]]:
        """What carries an equation out, and of which registers: the sum of each row's squares is its product with
        itself, in a third of the time and without a table of squares."""
        if equation.primitive.name == "reduce_sum" and operands[0] in self.squares:
            aval = equation.invars[0].aval
            if equation.params["axes"] == (aval.ndim - 1,) and aval.dtype in (np.float32, np.float64):
                return np.vecdot, 2 * [self.squares[operands[0]]]
        return _function(equation), operands

    def _note(self, function: Any, equation: Any, operands: list[int], results: list[int]) -> None:
        """Which registers `with_ends` may let be written over, and which need not be freed."""
        name, aval = equation.primitive.name, equation.outvars[0].aval
        own = _fills(function) or name.startswith("reduce_") or self.light.issuperset(operands)
        if own and all(math.prod(out.aval.shape) <= _LIGHT for out in equation.outvars):
            self.light.update(results)
        if _fills(function):
            if math.prod(aval.shape) >= _LARGE:
                self.large[results[0]] = tuple(aval.shape), np.dtype(aval.dtype)
        elif not name.startswith("reduce_"):
            self.shared.update(operands)

    def _follows(self, function: Any, equation: Any, operands: list[int]) -> bool:
        """Whether the result is the same in every call: small tables of numbers that stand in the program."""
        simple = isinstance(function, np.ufunc) or equation.primitive.name in _CONSTANT
        small = math.prod(equation.outvars[0].aval.shape) <= _LIGHT
        return simple and small and len(equation.outvars) == 1 and self.known.issuperset(operands)

    def unchanged(self, equation: Any, operands: list[int]) -> int | None:
        """The register that a result merely repeats: a product with ones, of which derivatives are full."""
        name, result = equation.primitive.name, equation.outvars[0].aval
        if name not in ("mul", "convert_element_type"):
            return None
        others = [k for k in range(len(operands)) if operands[k] not in self.ones]
        if len(others) != 1:
            return None
        aval = equation.invars[others[0]].aval
        return operands[others[0]] if (aval.shape, aval.dtype) == (result.shape, result.dtype) else None

    def with_ends(self, results: Sequence[int]) -> list[tuple[Any, ...]]:
        """The steps that anything depends on, each with the registers that nobody reads after it.

        Large arrays are freed at once, or written over by the step that reads them last: fresh memory costs more than
        arithmetic. And tracing leaves much that nobody reads, such as values beside derivatives.
        """
        constants = {k for k, value in enumerate(self.start) if value is not None}
        needed, ended = set(results), []
        own = {k for k in self.large if k not in self.shared and k not in needed}  # that no view and no caller sees
        for function, operands, outputs, several in reversed(self.steps):
            if needed.isdisjoint(outputs):
                continue
            dead = [k for k in {*operands, *outputs} if k not in needed and k not in constants]
            kind = self.large.get(outputs[0])
            free = {k for k in dead if kind is not None and self.large.get(k) == kind and k not in self.shared}
            place = next((j for j, k in enumerate(operands) if k in free), None) if _in_place(function) else None
            taken = None if place is None else operands[place]
            spare = [k for k in dead if k in own and k != taken]
            fill = kind if place is None and outputs[0] in own else None
            needed.update(operands)
            dead = [k for k in dead if k not in self.light]
            ended.append(_step(function, operands, outputs, several, dead, place, fill, spare))
        return ended[::-1]


def _step(function: Any, operands: list[int], outputs: list[int], *more: Any) -> tuple[Any, ...]:
    """How many operands, the function, one or two of them, one result, and where there is more to it, zero and all.

    Most steps are of small arrays, and take less time than it takes to look whether there is more to do.
    """
    if len(operands) in (1, 2) and all(x is None or x is False or x == [] for x in more):
        return len(operands), function, operands[0], operands[-1], outputs[0], None
    return 0, function, None, None, None, (operands, outputs, *more)


def _in_place(function: Any) -> bool:
    return isinstance(function, np.ufunc)


def _fills(function: Any) -> bool:
    """Whether the result is an array of its own, which may be given as `out`."""
    return isinstance(function, np.ufunc) or getattr(function, "fills", False)


def _run(
    start: list[Any], given: list[int], steps: list[Any], results: list[int], spare: _Spare, *arrays: Any
) -> list[Any]:
    registers = list(start)
    for k, x in zip(given, arrays, strict=True):
        registers[k] = x
    for arity, function, left, right, result, more in steps:
        if arity == 2:
            registers[result] = function(registers[left], registers[right])
            continue
        if arity == 1:
            registers[result] = function(registers[left])
            continue
        operands, outputs, several, dead, place, fill, done = more
        values = [registers[k] for k in operands]
        if fill is not None:
            found = function(*values, out=spare.take(fill))
        else:
            found = function(*values) if place is None else function(*values, out=values[place])
        if several:
            for k, x in zip(outputs, found, strict=True):
                registers[k] = x
        else:
            registers[outputs[0]] = found
        for k in done:
            spare.give(registers[k])
        for k in dead:
            registers[k] = None
    return [registers[k] for k in results]


def _called(equation: Any) -> Any:
    """The program that an equation does nothing but call; None for another equation."""
    params = equation.params
    if equation.primitive.name not in CALLS:
        return None
    return closed_program(next(params[key] for key in ("call_jaxpr", "jaxpr", "fun_jaxpr") if key in params))


def _function(equation: Any) -> Callable[..., Any]:
    """What carries an equation out."""
    name, params = equation.primitive.name, equation.params
    match name:
        case "while":
            return while_loop(params, interpreted)
        case "scan":
            return scan(params, interpreted)
        case "cond":
            branches = [interpreted(branch) for branch in params["branches"]]
            last = len(branches) - 1
            return lambda which, *operands: branches[min(max(int(which), 0), last)](*operands)
        case "custom_linear_solve":
            lengths, solve = params["const_lengths"], interpreted(params["jaxprs"].solve)
            before, own = lengths.matvec + lengths.vecmat, lengths.solve
            after = before + own + lengths.transpose_solve
            return lambda *operands: solve(*operands[before : before + own], *operands[after:])
    if name == "div" and not np.issubdtype(equation.invars[0].aval.dtype, np.integer):
        return np.true_divide
    if name in PRIMITIVES:
        return PRIMITIVES[name](params)
    return _left_to_jax(equation)


def _left_to_jax(equation: Any) -> Callable[..., Any]:
    """A primitive that NumPy has not: JAX compiles it by itself."""
    primitive = equation.primitive
    params = primitive.get_bind_params(equation.params)
    compiled = jax.jit(lambda *operands: primitive.bind(*operands, **params))

    def call(*operands: Any) -> Any:
        found = compiled(*operands)
        return [np.asarray(x) for x in found] if primitive.multiple_results else np.asarray(found)

    return call


def host_array(x: Any) -> Any:
    """On this machine; of keys their words."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        with jax.ensure_compile_time_eval():  # whoever is being traced has only asked for a number
            return np.asarray(jax.random.key_data(x))
    return np.asarray(x)
