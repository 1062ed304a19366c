"""PyMC models that are linear models: Gaussian priors, a log-concave likelihood, an affine predictor."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.core.types import Vector
from provi.frontends.pymc_graphs import Traced
from provi.frontends.pymc_program import PyMCProgram
from provi.frontends.recognised_glm import linear_model_of
from provi.targets.linear_models import AbstractLinearModel

_FAMILIES = {
    "BernoulliRV": ("bernoulli", "predictor"),
    "BinomialRV": ("binomial", "total_count", "predictor"),
    "PoissonRV": ("poisson", "predictor"),
    "NormalRV": ("normal", "predictor", "scale"),
}
"""Of each recognised distribution of PyTensor: our word for it, and for its parameters in order."""


def recognise(
    program: PyMCProgram, log_density: Callable[[Vector], Any], start: Vector, names: tuple[str, ...]
) -> AbstractLinearModel | None:
    """The model's posterior as a linear model in the same coordinates, or `None` where that is not proven.

    All free variables must be normal and without a transform, all observed ones of one kind, and there must be no
    potential; the rest of the proof is in `provi.frontends.recognised_glm`. PyMC keeps the probability of a
    `Bernoulli(logit_p=...)` only: its logit is read off the graph, where the probability is a sigmoid.
    """
    families = {_family(rv) for rv in program.observed}
    gaussian = all(_family(rv) == "NormalRV" for rv in program.free)
    transformed = any(transform is not None for transform in program.transforms)
    if len(families) != 1 or None in families or not gaussian or transformed or program.potentials:
        return None
    kind, *words = _FAMILIES[str(families.pop())]
    columns = {"prior_loc": [], "prior_scale": [], "data": list(program.data)} | {word: [] for word in words}
    for rvs, targets in ((program.free, ("prior_loc", "prior_scale")), (program.observed, words)):
        for rv in rvs:
            for word, parameter in zip(targets, rv.owner.op.dist_params(rv.owner), strict=True):
                columns[word].append(parameter)
    graphs = {word: program.by_values(column) for word, column in columns.items()}
    if kind in ("bernoulli", "binomial"):
        graphs["predictor"] = [_logit(probability) for probability in graphs["predictor"]]
        if any(predictor is None for predictor in graphs["predictor"]):
            return None
    function = program.of_vector([graph for column in graphs.values() for graph in column])

    def parameters(z: Vector) -> dict[str, Any]:
        outputs = iter(function(z))
        return {word: [next(outputs) for _ in column] for word, column in graphs.items()}

    traced = Traced(lambda z: _flat(parameters(z), program.unravel.shapes), start)
    return linear_model_of(kind, traced, lambda z: -log_density(z), start, names)


def _family(rv: Any) -> str | None:
    """The distribution of a random variable, if it is one of those known here."""
    kind = type(rv.owner.op)
    known = kind.__module__ == "pytensor.tensor.random.basic" and kind.__name__ in _FAMILIES
    return kind.__name__ if known else None


def _logit(probability: Any) -> Any:
    """The graph whose sigmoid the probability is, by itself or after PyTensor's simplifications; else `None`."""
    from pytensor.graph.rewriting.utils import rewrite_graph
    from pytensor.scalar.math import Sigmoid
    from pytensor.tensor.elemwise import Elemwise

    def inside(graph: Any) -> Any:
        node = graph.owner
        if node is None or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Sigmoid):
            return None
        return node.inputs[0]

    found = inside(probability)
    if found is not None:
        return found
    # They turn 1 / (1 + exp(-x)) into sigmoid(x), and take away the copy that a Deterministic is.
    return inside(rewrite_graph(probability, include=("canonicalize", "stabilize", "specialize")))


def _flat(columns: dict[str, list[Any]], shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """Each parameter as one vector over all entries, of the free variables or of the data."""
    sizes = {"prior_loc": shapes, "prior_scale": shapes}
    words = [word for word in columns if word not in sizes]
    rows = [
        jnp.broadcast_shapes(*(np.shape(part) for part in parts))
        for parts in zip(*(columns[w] for w in words), strict=True)
    ]
    found = {}
    for word, column in columns.items():
        pairs = zip(column, sizes.get(word, rows), strict=True)
        found[word] = jnp.concatenate([jnp.ravel(jnp.broadcast_to(part, shape)) for part, shape in pairs])
    return found
