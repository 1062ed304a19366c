"""From values of a PyMC model's free variables to its unconstrained coordinates."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from provi.core.checks import as_array
from provi.frontends.pymc_graphs import in_jax
from provi.frontends.pymc_program import PyMCProgram


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
