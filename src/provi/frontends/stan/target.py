"""The posterior of a Stan program as a target.

`StanProgram` is the model with its data: which number of Stan's output is which element of which variable.
`StanTarget` is its density, which JAX calls on the host.

A compiled program of JAX's holds no model: it passes the number of one on to the host, as an argument like any other,
and there the model is looked up. So all Stan models of the same dimension share their compiled programs, and only the
first fit of a process waits for the compiler.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logit

from provi.core.host_object import HostObject, host_object
from provi.core.types import Draws, Scalar, Vector, Words
from provi.frontends.stan.engine import AbstractEngine, hessian_products
from provi.frontends.target import AbstractModelTarget, read_values
from provi.targets.assumptions import Assumptions

_LIKELIHOOD, _REPLICATE = "log_lik", "_rep"  # the generated quantities that have a meaning by convention
_ELEMENT = re.compile(r"([^.:]+)((?:\.\d+)*)")
_LINKS = {
    "": lambda x: x,
    "log": lambda x: np.log(np.where(x > 0, x, np.nan)),
    "logit": lambda x: np.where((x > 0) & (x < 1), logit(x), np.nan),
}


class StanProgram:
    """A Stan model, its data, and where its variables are.

    - `identity`: a text that says which model with which data it is, the same in every process.

    - `parameters`, `variables`: for each variable, without and with the transformed parameters and the generated
      quantities, the columns of the engine's output that hold its elements, in the variable's shape.
    - `free_names`: a name for each free coordinate.
    """

    def __init__(
        self,
        engine: AbstractEngine,
        data: dict[str, Any],
        seed: int,
        rebuild: Callable[[dict[str, Any]], AbstractEngine] | None = None,
        source: str = "",
    ):
        """**Arguments:**

        - `engine`: the model.
        - `data`: what it was given.
        - `seed`: of random numbers in the generated quantities.
        - `rebuild`: makes the model with other data; None where the code is not known.
        - `source`: the code and the data as texts, as far as they are known.
        """
        self.engine, self.seed, self.rebuild = engine, seed, rebuild
        self.data = {name: np.asarray(value) for name, value in data.items()}
        self.parameters, self.variables = _read_columns(engine.names(0)), _read_columns(engine.names(2))
        self.free_names = _name_coordinates(engine, self.parameters)
        self.identity = _digest(engine, seed, source)

    def values(self, points: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Every variable at each point, in its own shape, the points in front."""
        found = self.engine.constrain(points, 2, seed)
        return {name: found[:, columns] for name, columns in self.variables.items()}


def _digest(engine: AbstractEngine, seed: int, source: str) -> str:
    """A hash of what the model is made of and of what it answers at three points, as a built one has no code."""
    digest = hashlib.sha256(f"{type(engine).__name__} {seed} {engine.names(2)} {source}".encode())
    points = np.random.default_rng(1).uniform(-1.0, 1.0, (3, len(engine.free_names)))
    for array in engine.gradient(points):
        digest.update(np.ascontiguousarray(array).tobytes())
    try:
        digest.update(np.ascontiguousarray(engine.constrain(points, 2, seed)).tobytes())
    except ValueError as error:  # generated quantities that fail at all three
        digest.update(str(error).encode())
    return digest.hexdigest()


def _read_columns(names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The columns of each variable's elements, from Stan's names `a.1`, `a.2`, ...; indices there start at 1.

    Reading the names leaves the order of Stan's output to Stan. Parts of complex numbers and of tuples, such as
    `c.real` and `t:1`, are variables of their own, element by element.
    """
    found: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for column, text in enumerate(names):
        match = _ELEMENT.fullmatch(text)
        name, index = (text, ()) if match is None else (match[1], tuple(int(i) - 1 for i in match[2].split(".")[1:]))
        found.setdefault(name, []).append((index, column))
    columns = {}
    for name, elements in found.items():
        shape = tuple(np.max([index for index, _ in elements], axis=0) + 1) if elements[0][0] else ()
        columns[name] = np.zeros(shape, int)
        for index, column in elements:
            columns[name][index] = column
    return columns


def _name_coordinates(engine: AbstractEngine, parameters: dict[str, np.ndarray]) -> tuple[str, ...]:
    """`mu`, `log(tau)[0]`, or `free(p)[0]`: what the values of a parameter at one point show its coordinates to be.

    Stan's own names of coordinates cannot be used within arrays of vectors, where their order is not that of z.
    """
    free = engine.free_names
    # Random numbers, so that equality of a coordinate and an element's image is no accident.
    z = np.random.default_rng(0).uniform(-1.0, 1.0, len(free))
    values = engine.constrain(z[None], 0, 0)[0]
    stems = [re.split(r"[.:]", name)[0] for name in free]
    names: list[str] = []
    for stem in dict.fromkeys(stems):
        own = z[[number for number, other in enumerate(stems) if other == stem]]
        columns = parameters.get(stem)
        names += _recognise(stem, own, None if columns is None else np.asarray(values[columns]))
    return tuple(names)


def _recognise(stem: str, z: np.ndarray, values: np.ndarray | None) -> list[str]:
    if values is not None and values.size == z.size:
        for label, link in _LINKS.items():
            images, name = link(values), f"{label}({stem})" if label else stem
            order, rank = np.argsort(z), np.argsort(images, axis=None)
            if np.allclose(z[order], images.ravel()[rank], rtol=0, atol=1e-9):
                places = np.empty(z.size, int)
                places[order] = rank
                indices = [np.unravel_index(place, values.shape) for place in places]
                return [name + (f"[{','.join(map(str, index))}]" if index else "") for index in indices]
    return [f"free({stem})" + (f"[{i}]" if z.size > 1 or values is None or values.ndim else "") for i in range(z.size)]


class StanTarget(AbstractModelTarget):
    """The posterior density of a Stan program's parameters, in Stan's own unconstrained coordinates.

    The log density is Stan's with its Jacobian and all constants, also those that `~` drops when Stan samples. JAX
    calls it on the host, a batch of points at a time; gradients are Stan's, second derivatives central differences of
    them (`provi.frontends.stan.engine.hessian_products`). Where Stan raises, the density is zero, its gradient NaN.

    - `constrain`: parameters, transformed parameters and generated quantities, without those that `log_likelihood` and
      `predict` return; NaN where Stan raises at a draw.
    - `log_likelihood`: the generated quantity `log_lik`, by Stan's convention log p of each datum; {} in a program
      without.
    - `predict`: the generated quantities whose names end in `_rep`, drawn with `seed`, under the name of the data where
      there are such: `y_rep` becomes `y`; {} in a program without.

    Indices of names are from 0.
    """

    recognised: ClassVar[None] = None  # nothing is known of a program's shape
    nested: ClassVar[None] = None
    start: Vector
    assumptions: Assumptions
    model: HostObject[StanProgram]

    def __init__(self, start: Vector, assumptions: Assumptions, program: StanProgram):
        """**Arguments:**

        - `start`: where a run begins.
        - `assumptions`: what the user declared.
        - `program`: the model with its data.
        """
        self.start, self.assumptions, self.model = start, assumptions, HostObject(program)

    @property
    def program(self) -> StanProgram:
        """The model with its data."""
        return self.model.value

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters' names; `log(tau)`, `free(p)[0]` for what is not the parameter itself."""
        return self.program.free_names

    @property
    def parameter_variables(self) -> tuple[str, ...]:
        """The parameters; the rest are transformed parameters and generated quantities."""
        return tuple(self.program.parameters)

    def potential(self, z: Vector) -> Scalar:
        """Minus Stan's log density."""
        return -_log_density(self.model.number, z)

    @property
    def observed_data(self) -> dict[str, np.ndarray]:
        """All data that the program was given: Stan does not say which of them are modelled."""
        return dict(self.program.data)

    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector z of values of the parameters, a dictionary by name; other entries do not count."""
        return free_coordinates("values", self.program, values)

    def _values(self, points: Draws) -> dict[str, np.ndarray]:
        return self._quantities(
            points, self.program.seed, lambda name: name != _LIKELIHOOD and not name.endswith(_REPLICATE)
        )

    def _log_likelihoods(self, points: Draws) -> dict[str, np.ndarray]:
        return self._quantities(points, self.program.seed, lambda name: name == _LIKELIHOOD)

    def _replicates(self, points: Draws, seed: int) -> dict[str, np.ndarray]:
        found = self._quantities(points, seed, lambda name: name.endswith(_REPLICATE))
        stems = {name: name.removesuffix(_REPLICATE) for name in found}
        return {stems[name] if stems[name] in self.program.data else name: value for name, value in found.items()}

    def _new_replicates(self, points: Draws, seed: int, new: tuple[Any, ...]) -> dict[str, np.ndarray]:
        program, data = self.program, new[0] if len(new) == 1 else None
        if not isinstance(data, dict):
            raise ValueError("posterior_predictive takes a dictionary of new data of the Stan program by name.")
        if program.rebuild is None:
            raise ValueError(
                "new data need the Stan program's code, which a built model does not give: provi.from_stan(code, data)."
            )
        unknown = sorted(set(data) - set(program.data))
        if unknown:
            raise ValueError(
                f"the Stan program has no data {unknown[0]!r}; it has {', '.join(map(repr, program.data))}."
            )
        whole = {**program.data, **data}
        fresh = StanProgram(program.rebuild(whole), whole, program.seed)
        shapes, own = ({n: c.shape for n, c in p.parameters.items()} for p in (fresh, program))
        if shapes != own:
            name = next(name for name in own if shapes.get(name) != own[name])
            raise ValueError(f"parameter {name!r} has the shape {own[name]} in the fit, but {shapes.get(name)} now.")
        return StanTarget(self.start, self.assumptions, fresh)._replicates(points, seed)

    def _quantities(self, points: Draws, seed: int, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
        """The wanted variables; Stan is not run where there are none."""
        if not any(map(wanted, self.program.variables)):
            return {}
        found = self.program.values(np.asarray(points, np.float64), seed)
        return {name: value for name, value in found.items() if wanted(name)}


def free_coordinates(argument: str, program: StanProgram, values: Any) -> np.ndarray:
    """The free coordinates of values of all parameters; a `ValueError` names `argument` and the parameter."""
    shapes = {name: columns.shape for name, columns in program.parameters.items()}
    given = read_values(argument, values, shapes, "parameter")
    try:
        return program.engine.unconstrain(given)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None


def _on_host(function: Callable[..., Any], shapes: Any, number: Words, *arguments: Vector) -> Any:
    """`function` of the model's number and of rows, on the host; under `jax.vmap` one call for the batch.

    Numbers cross the border as pairs of 32-bit words: JAX's callback runs in a thread of its own, where the 64-bit
    switch of `double_precision` is off, and would silently round float64 to float32.
    """

    def rowwise(numbers: Any, *batches: Any) -> Any:
        arrays = [np.ascontiguousarray(batch).view(np.float64)[..., 0] for batch in batches]
        # `vmap` repeats the number for each row.
        found = function(
            np.asarray(numbers).reshape(-1, 2)[0], *(array.reshape(-1, array.shape[-1]) for array in arrays)
        )
        return jax.tree.map(lambda leaf: _words(leaf.reshape(arrays[0].shape[:-1] + leaf.shape[1:])), found)

    results = jax.tree.map(lambda shape: jax.ShapeDtypeStruct((*shape, 2), jnp.uint32), shapes, is_leaf=_is_shape)
    sent = [jax.lax.bitcast_convert_type(argument, jnp.uint32) for argument in arguments]
    received = jax.pure_callback(rowwise, results, number, *sent, vmap_method="broadcast_all")
    return jax.tree.map(lambda words: jax.lax.bitcast_convert_type(words, jnp.float64), received)


def _words(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64, order="C")[..., None].view(np.uint32)


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(size, int) for size in node)


def _densities(number: np.ndarray, points: np.ndarray) -> np.ndarray:
    return _engine(number).density(points)


def _gradients(number: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _engine(number).gradient(points)


def _products(number: np.ndarray, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
    return hessian_products(_engine(number), points, directions)


def _engine(number: np.ndarray) -> AbstractEngine:
    return host_object(number).engine


@jax.custom_jvp
def _log_density(number: Words, z: Vector) -> Scalar:
    return _on_host(_densities, (), number, z)


@_log_density.defjvp
def _log_density_jvp(primals: Any, tangents: Any) -> tuple[Scalar, Scalar]:
    value, gradient = _value_and_gradient(*primals)
    return value, jnp.vdot(gradient, tangents[1])


@jax.custom_jvp
def _value_and_gradient(number: Words, z: Vector) -> tuple[Scalar, Vector]:
    return _on_host(_gradients, ((), z.shape), number, z)


@_value_and_gradient.defjvp
def _value_and_gradient_jvp(primals: Any, tangents: Any) -> Any:
    (number, z), direction = primals, tangents[1]
    value, gradient = _value_and_gradient(number, z)
    product = _on_host(_products, z.shape, number, z, direction)
    return (value, gradient), (jnp.vdot(gradient, direction), product)
