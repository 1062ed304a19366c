"""What the targets of all front-ends share: a model of another package, in that package's own free coordinates.

Beside the class here are the two readings that every front-end does: the vector of free coordinates as parts by name
(`Unravel`, `coordinate_names`), and values of the parameters that a user gives (`read_values`).
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from provi.core.arguments import as_array, check_count, device_array, double_precision
from provi.core.types import Draws, Vector
from provi.targets.assumptions import Assumptions, proven_bounds, proven_or
from provi.targets.base import AbstractTarget, Constants, points_around, read_points
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.parameters import element_names


class AbstractModelTarget(AbstractTarget):
    """The posterior density of a model's parameters, in the unconstrained coordinates of its own package.

    A front-end says what the model's quantities are at rows of free coordinates (`_values`, `_log_likelihoods`,
    `_replicates`), and how to come back (`unconstrain`).
    """

    start: eqx.AbstractVar[Vector]
    assumptions: eqx.AbstractVar[Assumptions]
    recognised: eqx.AbstractVar[AbstractLinearModel | None]
    nested: eqx.AbstractVar[AbstractLatentGaussian | None]

    @abc.abstractmethod
    def _values(self, points: Draws) -> Mapping[str, Any]:
        """The parameters in the model's own space and what it computes of them, by name, the points in front."""

    @abc.abstractmethod
    def _log_likelihoods(self, points: Draws) -> Mapping[str, Any]:
        """log p(y | z) of each datum, by name, the points in front."""

    @abc.abstractmethod
    def _replicates(self, points: Draws, seed: int) -> Mapping[str, Any]:
        """Data drawn from p(y | z), by name, one replicate for each of the points."""

    @property
    def dim(self) -> int:
        """The number of free coordinates."""
        return self.start.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the parameters."""
        return self.start.dtype

    @property
    def default_location(self) -> np.ndarray:
        """The package's own first point, or the `start` that was given."""
        return np.asarray(self.start, np.float64)

    def search_points(self, count: int, seed: int) -> np.ndarray:
        """The first point, then the initial distribution of Stan and NumPyro, uniform in (-2, 2), and farther ones.

        Of a model that solves equations, in a loop without a known end or outside of JAX, these are four times as wide
        and no more: it may take for ever farther out.
        """
        program = jax.make_jaxpr(self.potential)(jax.ShapeDtypeStruct((self.dim,), self.dtype))
        far = (8.0,) if _may_not_end(program.jaxpr) else (8.0, 32.0)
        found = points_around(np.zeros(self.dim), count, seed, radius=2.0, far=far)
        return np.concatenate([self.default_location[None], found[1:]])

    @property
    def constants(self) -> Constants:
        """Proven where the model was recognised as a linear one, or by its program; else declared or unknown."""
        return proven_or(self, self.assumptions) if self.recognised is None else self.recognised.constants

    def linear_model(self) -> AbstractLinearModel | None:
        """The same density as a linear model, where it was recognised as one."""
        return self.recognised

    def latent_gaussian(self) -> AbstractLatentGaussian | None:
        """The same density as a latent Gaussian model, where it was recognised as one."""
        return self.nested

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Those of the linear model, where there is one; else those that the program proves, if any."""
        if self.recognised is not None:
            return self.recognised.curvature_bounds()
        return proven_bounds(self, self.assumptions)

    def constrain(self, z: Any) -> dict[str, np.ndarray]:
        """The parameters in the model's own space, and what it computes of them; for draws (n, dim), n of each."""
        return self._at(z, self._values)

    @property
    def constrained_names(self) -> tuple[str, ...]:
        """A name for each number of `constrain`, its variables sorted by name; entries by their labels: `a[Adelie]`."""
        return element_names(self.constrain(self.default_location), axes=self.axis_labels)

    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y | z) of each datum, by name; for draws (n, dim), n of each."""
        return self._at(z, self._log_likelihoods)

    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Data drawn from p(y | z), by name; for draws (n, dim), one replicate for each row."""
        seed = check_count("seed", seed, minimum=0)
        return self._at(z, lambda points: self._replicates(points, seed))

    takes_new_data: ClassVar[bool] = True

    def predict_new(self, z: Any, seed: int, *new: Any) -> dict[str, np.ndarray]:
        """Data drawn from p(y | z) of the model with new arguments or data, by name; what it computes comes along."""
        seed = check_count("seed", seed, minimum=0)
        return self._at(z, lambda points: self._new_replicates(points, seed, new))

    @abc.abstractmethod
    def _new_replicates(self, points: Draws, seed: int, new: tuple[Any, ...]) -> Mapping[str, Any]:
        """The same as `_replicates` with other arguments; a `ValueError` says what is wrong with them."""

    @double_precision
    def _at(self, z: Any, function: Callable[[Draws], Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """What `function` says of rows, for one point or for draws."""
        points = read_points(z, self.dim)
        found = function(device_array(np.atleast_2d(points), self.dtype))
        return {name: np.asarray(leaf if points.ndim == 2 else leaf[0]) for name, leaf in found.items()}


@dataclasses.dataclass(frozen=True)
class Unravel:
    """From the vector of free coordinates to a dictionary by parameter, in the order of the model."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, z: Vector | np.ndarray) -> dict[str, Any]:
        """The parts of z in the parameters' shapes; of an array of NumPy's on the host."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = (np if isinstance(z, np.ndarray) else jnp).split(z, ends[:-1])
        return {name: part.reshape(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(math.prod(shape) for shape in self.shapes)


def coordinate_names(parts: Mapping[str, Any], labels: Iterable[str], axes: Any = None) -> tuple[str, ...]:
    """A name for each element of the parts, in their order; labels, one a part, say what it is: `log(scale)[0]`.

    `axes`: the target's `axis_labels`, where it has some.
    """
    pairs = zip(parts.items(), labels, strict=True)
    return tuple(name for (stem, part), label in pairs for name in element_names({stem: part}, [label], axes))


def read_values(argument: str, values: Any, shapes: Mapping[str, tuple[int, ...]], kind: str) -> dict[str, np.ndarray]:
    """The arrays that a user gave for the parameters; a `ValueError` names `argument` and the parameter.

    **Arguments:**

    - `argument`: what errors call `values`.
    - `values`: a dictionary by name; entries that are no parameters do not count.
    - `shapes`: of the parameters.
    - `kind`: what the package calls a parameter, such as "latent site".
    """
    missing = ", ".join(sorted(set(shapes) - set(values))) if isinstance(values, dict) else "all of them"
    if missing:
        raise ValueError(f"{argument} must be a dictionary with a value for each {kind}; it lacks: {missing}.")
    given = {name: as_array(f"{argument}[{name!r}]", values[name]) for name in shapes}
    for name, shape in shapes.items():
        if given[name].shape != shape:
            noun = kind.split()[-1]
            raise ValueError(f"{argument}[{name!r}] has shape {given[name].shape}; the {noun}'s is {shape}.")
    return given


def _may_not_end(jaxpr: Any) -> bool:
    """Whether a program loops until something happens, or calls what JAX does not see."""
    return any(
        equation.primitive.name == "while"
        or "callback" in equation.primitive.name
        or any(_may_not_end(part) for part in jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )
