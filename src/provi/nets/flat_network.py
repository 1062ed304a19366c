"""A network as a function of one vector of weights, and which of them an example uses once."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var
from jaxtyping import Array, Float

from provi.core.types import Vector


class FlatNetwork(eqx.Module):
    """The weights of a network, laid end to end: `z[offsets[k] : offsets[k + 1]]` is tensor k.

    Weights are the floating arrays of an Equinox module, or of the parameters of a function `apply(params, x)`; all
    else (activations, counters) stays as it is. A module is called on one example, a function on a whole batch: the
    habits of Equinox on one side, of Flax and Haiku on the other.
    """

    fixed: Any
    apply: Callable | None = eqx.field(static=True)
    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of weights of each tensor."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        """The number of weights."""
        return sum(self.sizes)

    def unravel(self, z: Vector) -> Any:
        """The module (or the parameters) with the weights z."""
        ends = np.cumsum(self.sizes)
        pieces = [z[end - size : end] for end, size in zip(ends.tolist(), self.sizes, strict=True)]
        return self.assembled([piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)])

    def assembled(self, leaves: Any) -> Any:
        """The module (or the parameters) with these tensors, or with whatever is to stand for them."""
        return eqx.combine(jax.tree.unflatten(self.structure, leaves), self.fixed)

    def outputs(self, z: Vector, inputs: Array) -> Float[Array, "batch outputs"]:
        """The network with the weights z on a batch, in the type of z: a constant in it may be of a wider one."""
        return jnp.asarray(self.call(self.unravel(z), inputs), z.dtype)

    def call(self, network: Any, inputs: Array) -> Float[Array, "batch outputs"]:
        """A module or parameters made by `unravel`, on a batch."""
        return jax.vmap(network)(inputs) if self.apply is None else self.apply(network, inputs)

    def spread(self, values: Float[Array, " tensors"]) -> Vector:
        """One number for each tensor, repeated for its weights.

        Broadcasts, not a gather: the transpose is a sum over each tensor, not a scatter over millions of weights.
        """
        return jnp.concatenate([jnp.broadcast_to(values[k], (size,)) for k, size in enumerate(self.sizes)])


def flatten_network(network: Any, params: Any = None) -> tuple[FlatNetwork, np.ndarray]:
    """The network as a `FlatNetwork`, and its present weights (dim,), on the host.

    **Arguments:**

    - `network`: an Equinox module, called on one example; or, with `params`, a function `apply(params, x)` of a batch.
    - `params`: the initial parameters of such a function, a pytree of floating arrays.
    """
    if params is None and not (isinstance(network, eqx.Module) and callable(network)):
        raise ValueError(
            "network must be an Equinox module that can be called on one example, or a function apply(params, x) "
            f"together with params=, its initial parameters; not {type(network).__name__}."
        )
    if params is not None and not callable(network):
        raise ValueError(f"network must be a function apply(params, x) when params is given, not {network!r}.")
    weights, fixed = eqx.partition(network if params is None else params, eqx.is_inexact_array)
    paths, structure = jax.tree_util.tree_flatten_with_path(weights)
    if not paths:
        raise ValueError("network has no floating arrays: there is nothing to learn. Pass one with weights.")
    leaves = [np.asarray(leaf) for _, leaf in paths]
    flat = FlatNetwork(
        fixed=fixed,
        apply=None if params is None else network,
        structure=structure,
        shapes=tuple(leaf.shape for leaf in leaves),
        names=tuple(jax.tree_util.keystr(path).lstrip(".") for path, _ in paths),
    )
    values = np.concatenate([leaf.reshape(-1) for leaf in leaves])
    if np.iscomplexobj(values):
        raise ValueError("network has complex weights: keep real and imaginary parts in arrays of their own.")
    if not np.isfinite(values).all():
        raise ValueError(f"network has {int((~np.isfinite(values)).sum())} weights that are NaN or infinite.")
    return flat, values


def used_once(network: FlatNetwork, example: Array, dtype: Any) -> list[bool]:
    """For each tensor of a module, whether the module does nothing with it but one product with one vector.

    Read off the traced program. False for a layer that is called twice, mapped over the parts of an example, called in
    a loop, or whose weights are read otherwise: its outputs then depend on each other in ways that draws of each by
    itself would miss.
    """
    weights = [jax.ShapeDtypeStruct(shape, dtype) for shape in network.shapes]

    def one(weights: list[Array], x: Array) -> Array:
        return network.assembled(weights)(x)

    program = jax.make_jaxpr(one)(weights, example).jaxpr
    return [_products(program, leaf) == 1 for leaf in program.invars[: len(weights)]]


def _products(program: Any, leaf: Any) -> int:
    """The number of products of the matrix `leaf` with a vector; two, which is too many, for any other use."""
    count = 2 * sum(out is leaf for out in program.outvars)
    for equation in program.eqns:
        for place, operand in enumerate(equation.invars):
            if not isinstance(operand, Var) or operand is not leaf:
                continue
            if equation.primitive.name in ("jit", "pjit"):
                inner = equation.params["jaxpr"].jaxpr
                count += _products(inner, inner.invars[place])
            elif equation.primitive.name == "dot_general":
                count += 1 if equation.invars[1 - place].aval.ndim == 1 else 2
            else:
                count += 2
    return count
