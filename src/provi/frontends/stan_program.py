"""A Stan model with its data and its variables: which number of Stan's output is which element of which."""

import re
from typing import Any

import numpy as np
from scipy.special import logit

from provi.frontends.stan_engine import AbstractEngine

_ELEMENT = re.compile(r"([^.:]+)((?:\.\d+)*)")
_LINKS = {
    "": lambda x: x,
    "log": lambda x: np.log(np.where(x > 0, x, np.nan)),
    "logit": lambda x: np.where((x > 0) & (x < 1), logit(x), np.nan),
}


class StanProgram:
    """A Stan model, its data, and where its variables are. Equal to itself only, so that a target holds it as static.

    - `parameters`, `variables`: for each variable, without and with the transformed parameters and the generated
      quantities, the columns of the engine's output that hold its elements, in the variable's shape.
    - `free_names`: a name for each free coordinate.
    """

    def __init__(self, engine: AbstractEngine, data: dict[str, Any], seed: int):
        """**Arguments:**

        - `engine`: the model.
        - `data`: what it was given.
        - `seed`: of random numbers in the generated quantities.
        """
        self.engine, self.seed = engine, seed
        self.data = {name: np.asarray(value) for name, value in data.items()}
        self.parameters, self.variables = read_columns(engine.names(0)), read_columns(engine.names(2))
        self.free_names = _name_coordinates(engine, self.parameters)

    def values(self, points: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Every variable at each point, in its own shape, the points in front."""
        found = self.engine.constrain(points, 2, seed)
        return {name: found[:, columns] for name, columns in self.variables.items()}


def read_columns(names: tuple[str, ...]) -> dict[str, np.ndarray]:
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
