"""What PyMC writes into the graph of a parameter, read back: logits behind probabilities, means behind shares."""

from typing import Any


def logit_of(probability: Any) -> Any:
    """The graph whose sigmoid the probability is, by itself or after PyTensor's simplifications; else `None`."""
    from pytensor.graph.rewriting.utils import rewrite_graph
    from pytensor.scalar.math import Sigmoid

    def inside(graph: Any) -> Any:
        found = _inputs(graph, Sigmoid)
        return None if found is None else found[0]

    found = inside(probability)
    if found is not None:
        return found
    # They turn 1 / (1 + exp(-x)) into sigmoid(x), and take away the copy that a Deterministic is.
    return inside(rewrite_graph(probability, include=("canonicalize", "stabilize", "specialize")))


def mean_of_counts(shape: Any, probability: Any) -> Any:
    """m, where the probability of a negative binomial law is shape / (m + shape), as PyMC writes it; else `None`."""
    from pytensor.graph.basic import equal_computations
    from pytensor.scalar.basic import Add, TrueDiv

    quotient = _inputs(probability, TrueDiv)
    total = None if quotient is None else _inputs(quotient[1], Add)
    if quotient is None or total is None or len(total) != 2:
        return None

    def is_shape(graph: Any) -> bool:
        return equal_computations([_without_axes(graph)], [_without_axes(shape)])

    mean, other = (total[1], total[0]) if is_shape(total[0]) else (total[0], total[1])
    return mean if is_shape(quotient[0]) and is_shape(other) else None


def _inputs(graph: Any, operation: type) -> list[Any] | None:
    """The operands, where the graph is this operation entry by entry."""
    from pytensor.tensor.elemwise import Elemwise

    node = graph.owner
    if node is None or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, operation):
        return None
    return node.inputs


def _without_axes(graph: Any) -> Any:
    """The graph without axes of length one that were added for broadcasting."""
    from pytensor.tensor.elemwise import DimShuffle

    node = graph.owner
    while node is not None and isinstance(node.op, DimShuffle) and node.op.is_expand_dims:
        graph, node = node.inputs[0], node.inputs[0].owner
    return graph
