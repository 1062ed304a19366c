"""The posterior of a PyMC model as a target."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import double_precision
from provi.core.host_object import HostObject
from provi.core.types import Draws, Scalar, Vector
from provi.frontends.pymc.program import PyMCProgram, Traced, in_jax, in_python
from provi.frontends.target import AbstractModelTarget, read_values
from provi.targets.assumptions import Assumptions
from provi.targets.base import points_around
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.linear_model import AbstractLinearModel


class PyMCTarget(AbstractModelTarget):
    """The posterior density of a model's free variables, in PyMC's own unconstrained coordinates.

    The vector z holds the value variables in the order of `model.value_vars`, as `model.initial_point()` does, where
    it starts. `constrain` has the Deterministics too.
    """

    log_density: Traced
    start: Vector
    assumptions: Assumptions
    recognised: AbstractLinearModel | None
    nested: AbstractLatentGaussian | None
    model: HostObject[PyMCProgram]
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def program(self) -> PyMCProgram:
        """The model, its variables and their graphs."""
        return self.model.value

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The variables' names with indices; `log(sigma)` for a coordinate that is not the variable itself."""
        return self.names

    def search_points(self, count: int, seed: int) -> np.ndarray:
        """PyMC's first point, then its `jitter`, uniform within 1 of that, and farther ones."""
        return points_around(self.default_location, count, seed, radius=1.0, far=(8.0,))

    def potential(self, z: Vector) -> Scalar:
        """Minus PyMC's log density, with the Jacobian."""
        return -self.log_density(jnp.asarray(z, self.dtype))

    @property
    def parameter_variables(self) -> tuple[str, ...]:
        """The free variables."""
        return self.program.unravel.names

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

    def _values(self, points: Draws) -> dict[str, Any]:
        return _over_draws(self.program.values, points)

    def _log_likelihoods(self, points: Draws) -> dict[str, Any]:
        return _over_draws(self.program.log_likelihoods, points)

    def _replicates(self, points: Draws, seed: int) -> dict[str, np.ndarray]:
        return _replicate(self.program, self._values(points), seed)

    def _new_replicates(self, points: Draws, seed: int, new: tuple[Any, ...]) -> dict[str, np.ndarray]:
        data = new[0] if len(new) == 1 else None
        if not isinstance(data, dict):
            raise ValueError("posterior_predictive takes a dictionary of new values of the model's pm.Data by name.")
        return _replicate(self.program, self._values(points), seed, self.program.renewed(data))


@eqx.filter_jit
def _over_draws(function: Traced, points: Draws) -> dict[str, Any]:
    return jax.vmap(function)(points)


def free_coordinates(argument: str, program: PyMCProgram, values: Any) -> np.ndarray:
    """The vector z of values of the free variables; a `ValueError` names `argument` and the variable.

    **Arguments:**

    - `argument`: what errors call `values`.
    - `program`: the model.
    - `values`: a dictionary by name; entries that are no free variables do not count.
    """
    known = jax.eval_shape(program.values, program.example)
    shapes = {name: known[name].shape for name in program.unravel.names}
    arrays = read_values(argument, values, shapes, "free variable")
    given = {name: value.astype(known[name].dtype) for name, value in arrays.items()}
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


def _replicate(
    program: PyMCProgram, values: dict[str, Any], seed: int, held: dict[Any, Any] | None = None
) -> dict[str, np.ndarray]:
    """New data for each draw of the free variables, by observed variable: what `sample_posterior_predictive` draws.

    **Arguments:**

    - `program`: the model.
    - `values`: draws of each free variable in its own space, n of each; other entries do not count.
    - `seed`: the same draws and seed give the same data.
    - `held`: of `PyMCProgram.renewed`, for new data; then the Deterministics come along.

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
    wanted = program.observed if held is None else (*program.observed, *program.deterministics)
    try:
        # New generators, for those of the user's model must not be seeded.
        outputs = replace_rng_nodes(program.fixed(wanted, dict(zip(program.free, inputs, strict=True)), held))
        draw = in_python(inputs, outputs, seed)
        rows = [draw(*(part[row] for part in draws)) for row in range(len(draws[0]))]
    except Exception as error:
        if held is None:
            raise
        raise ValueError(
            f"the model cannot be run with the new data: {str(error).splitlines()[0]}. Give new values of all of its "
            f"pm.Data that have a row for each datum, of the observed ones too (any numbers of that length)."
        ) from error
    return {rv.name: np.stack(column) for rv, column in zip(wanted, zip(*rows, strict=True), strict=True)}
