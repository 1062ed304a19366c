"""The hyperparameters of a kernel as one unconstrained vector: their logarithms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.kernels.base import AbstractKernel


def log_parameters(kernel: AbstractKernel) -> np.ndarray:
    """The logarithms of all hyperparameters, in the order of `parameter_names`."""
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(kernel) if eqx.is_inexact_array(leaf)]
    values = np.concatenate(leaves) if leaves else np.zeros(0)
    if not (values > 0).all():
        name = parameter_names(kernel)[int(np.argmin(values > 0))]
        raise ValueError(f"the hyperparameter {name} is not positive and has no logarithm; make it positive.")
    return np.log(values)


def with_log_parameters(kernel: AbstractKernel, vector: Float[Array, " parameters"]) -> AbstractKernel:
    """The kernel whose hyperparameters have the given logarithms; can be traced and differentiated in `vector`."""
    values, structure = jax.tree.flatten(kernel)
    size = sum(leaf.size for leaf in values if eqx.is_inexact_array(leaf))
    if vector.shape != (size,):
        raise ValueError(f"vector has shape {vector.shape}, but the kernel has {size} hyperparameters.")
    start = 0
    for index, leaf in enumerate(values):
        if eqx.is_inexact_array(leaf):
            values[index] = jnp.exp(vector[start : start + leaf.size]).reshape(leaf.shape)
            start += leaf.size
    return jax.tree.unflatten(structure, values)


def parameter_names(kernel: AbstractKernel) -> tuple[str, ...]:
    """A name for each entry of `log_parameters`, such as `length_scale[2]` or `terms[0].amplitude`."""
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(kernel)[0]:
        if eqx.is_inexact_array(leaf):
            name = jax.tree_util.keystr(path).lstrip(".")
            names += [name] if leaf.ndim == 0 else [f"{name}[{index}]" for index in range(leaf.size)]
    return tuple(names)
