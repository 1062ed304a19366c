"""Which weights of a network one example uses once, in one product with a vector: read off the traced program."""

from typing import Any

import jax
from jax.extend.core import Var
from jaxtyping import Array

from provi.nets.flat_network import FlatNetwork


def used_once(network: FlatNetwork, example: Array, dtype: Any) -> list[bool]:
    """For each tensor of a module, whether the module does nothing with it but one product with one vector.

    False for a layer that is called twice, mapped over the parts of an example, called in a loop, or whose weights
    are read otherwise: its outputs then depend on each other in ways that draws of each by itself would miss.
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
