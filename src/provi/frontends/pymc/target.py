"""The posterior of a PyMC model as a target."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.checks import as_array, check_count
from provi.core.precision import double_precision
from provi.core.types import Draws, Scalar, Vector
from provi.frontends.pymc.program import PyMCProgram, Traced, in_jax, in_python
from provi.targets.assumptions import Assumptions
from provi.targets.base import AbstractTarget, Constants, read_points
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.parameters import element_names

# From values of a PyMC model's free variables to its unconstrained coordinates.


def free_coordinates(argument: str, program: PyMCProgram, values: Any) -> np.ndarray:
    """The vector z of values of the free variables; a `ValueError` names `argument` and the variable.

    **Arguments:**

    - `argument`: what errors call `values`.
    - `program`: the model.
    - `values`: a dictionary by name; entries that are no free variables do not count.
    """
    names = program.unravel.names
    missing = ", ".join(sorted(set(names) - set(values))) if isinstance(values, dict) else "all of them"
    if missing:
        raise ValueError(f"{argument} must be a dictionary with a value for each free variable; it lacks: {missing}.")
    shapes = jax.eval_shape(program.values, program.example)
    given = {name: as_array(f"{argument}[{name!r}]", values[name]).astype(shapes[name].dtype) for name in names}
    for name, value in given.items():
        if value.shape != shapes[name].shape:
            raise ValueError(f"{argument}[{name!r}] has shape {value.shape}; the variable's is {shapes[name].shape}.")
    free = _transform(program, given)
    vector = np.concatenate([np.ravel(part) for part in free.values()]).astype(program.example.dtype)
    tolerance = 1e-6 if vector.dtype == np.float64 else 1e-3
    back = eqx.filter_jit(program.values)(vector)
    for name, value in given.items():
        # A point outside of the support, such as shares that do not add up to one, does not come back.
        close = np.allclose(back[name], value, rtol=tolerance, atol=tolerance / 1000)
        if not (np.isfinite(free[name]).all() and close):
            raise ValueError(f"{argument}[{name!r}] must lie inside the support of the variable; it is {value}.")
    return vector


def _transform(program: PyMCProgram, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """PyMC's transforms of the values. Bounds may depend on other variables, whose values are then those given."""
    from pytensor.tensor.type import tensor

    inputs = [tensor(name, dtype=str(value.dtype), shape=value.shape) for name, value in given.items()]
    pairs = zip(program.free, program.transforms, inputs, strict=True)
    outputs = [
        value if transform is None else transform.forward(value, *rv.owner.inputs) for rv, transform, value in pairs
    ]
    known = dict(zip(program.free, inputs, strict=True)) | dict(zip(program.observed, program.data, strict=True))
    with jax.numpy_rank_promotion("allow"):
        found = jax.jit(in_jax(inputs, program.fixed(outputs, known)))(*given.values())
    return {name: np.asarray(part) for name, part in zip(given, found, strict=True)}


# Data drawn from a PyMC model at given values of its free variables.


def replicate(program: PyMCProgram, values: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """New data for each draw of the free variables, by observed variable: what `sample_posterior_predictive` draws.

    **Arguments:**

    - `program`: the model.
    - `values`: draws of each free variable in its own space, n of each; other entries do not count.
    - `seed`: the same draws and seed give the same data.

    Written here rather than called, because PyMC draws anew each variable that depends on a `pm.Data` or on a
    dimension, even one whose values it is given, unless it can see that those have not changed.
    """
    from pymc.pytensorf import replace_rng_nodes
    from pytensor.tensor.type import tensor

    if not program.observed:
        return {}
    draws = [np.asarray(values[rv.name], rv.dtype) for rv in program.free]
    pairs = zip(program.free, draws, strict=True)
    inputs = [tensor(rv.name, dtype=rv.dtype, shape=draw.shape[1:]) for rv, draw in pairs]
    # New generators, for those of the user's model must not be seeded.
    outputs = replace_rng_nodes(program.fixed(program.observed, dict(zip(program.free, inputs, strict=True))))
    draw = in_python(inputs, outputs, seed)
    rows = [draw(*(part[row] for part in draws)) for row in range(len(draws[0]))]
    return {rv.name: np.stack(column) for rv, column in zip(program.observed, zip(*rows, strict=True), strict=True)}


class PyMCTarget(AbstractTarget):
    """The posterior density of a model's free variables, in PyMC's own unconstrained coordinates.

    The vector z holds the value variables in the order of `model.value_vars`, as `model.initial_point()` does.
    """

    log_density: Traced
    start: Vector
    assumptions: Assumptions
    recognised: AbstractLinearModel | None
    program: PyMCProgram = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def dim(self) -> int:
        """The number of free coordinates."""
        return self.start.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the parameters."""
        return self.start.dtype

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The variables' names with indices; `log(sigma)` for a coordinate that is not the variable itself."""
        return self.names

    @property
    def default_location(self) -> np.ndarray:
        """PyMC's initial point, or the `start` that was given."""
        return np.asarray(self.start, np.float64)

    @property
    def constants(self) -> Constants:
        """Proven where the model was recognised as a linear one; else declared or unknown."""
        return self.assumptions.constants if self.recognised is None else self.recognised.constants

    def linear_model(self) -> AbstractLinearModel | None:
        """The same density as a linear model, where it was recognised as one."""
        return self.recognised

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Those of the linear model, where there is one."""
        return None if self.recognised is None else self.recognised.curvature_bounds()

    def potential(self, z: Vector) -> Scalar:
        """Minus PyMC's log density, with the Jacobian."""
        return -self.log_density(jnp.asarray(z, self.dtype))

    @double_precision
    def constrain(self, z: Any) -> dict[str, np.ndarray]:
        """The free variables in the model's own space, and its Deterministics; for draws (n, dim), n of each."""
        return self._at(z, lambda points: _over_draws(self.program.values, points))

    @property
    def constrained_names(self) -> tuple[str, ...]:
        """A name for each number of `constrain`, its variables sorted by name."""
        return element_names(self.constrain(self.default_location))

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[Any]]]:
        """The coordinates of the variables that were given dimensions by name."""
        return self.program.axis_labels

    @double_precision
    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector z of values of the free variables, a dictionary by name; other entries do not count."""
        return free_coordinates("values", self.program, values)

    @property
    @double_precision
    def observed_data(self) -> dict[str, np.ndarray]:
        """The data, by observed variable; where some are missing, the others only, as `y_observed`."""
        return self.program.observed_data

    @double_precision
    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y | z) of each datum, by observed variable; for draws (n, dim), n of each."""
        return self._at(z, lambda points: _over_draws(self.program.log_likelihoods, points))

    @double_precision
    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Data drawn from p(y | z), by observed variable; for draws (n, dim), one of each for each row."""
        check_count("seed", seed, minimum=0)
        return self._at(z, lambda points: replicate(self.program, _over_draws(self.program.values, points), seed))

    def _at(self, z: Any, function: Callable[[Draws], dict[str, Any]]) -> dict[str, np.ndarray]:
        points = read_points(z, self.dim)
        found = function(jnp.asarray(np.atleast_2d(points), self.dtype))
        return {name: np.asarray(leaf if points.ndim == 2 else leaf[0]) for name, leaf in found.items()}


@eqx.filter_jit
def _over_draws(function: Traced, points: Draws) -> dict[str, Any]:
    return jax.vmap(function)(points)
