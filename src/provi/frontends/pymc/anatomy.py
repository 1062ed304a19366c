"""A PyMC model taken apart: the log density of each variable, normal variables, rows of data."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.frontends.pymc.graphs import logit_of, mean_of_counts
from provi.frontends.pymc.program import PyMCProgram, Traced
from provi.frontends.recognise.anatomy import AbstractAnatomy, Parts
from provi.frontends.recognise.rows import KINDS

_FAMILIES = {
    "BernoulliRV": ("bernoulli", "predictor"),
    "BinomialRV": ("binomial", "total_count", "predictor"),
    "PoissonRV": ("poisson", "predictor"),
    "NormalRV": ("normal", "predictor", "scale"),
    "NegBinomialRV": ("negative-binomial", "concentration", "predictor"),
}
"""Of each recognised distribution of PyTensor: our word for it, and for its parameters in order."""


class PyMCAnatomy(AbstractAnatomy):
    """The terms of a PyMC model's log density. Of two kinds of data, normal ones are terms and no rows."""

    traced: Traced
    kind: str = eqx.field(static=True)

    def __call__(self, sites: dict[str, Any]) -> Parts:
        """One run of the translated program."""
        return self.traced(sites)


def anatomy_of(program: PyMCProgram) -> PyMCAnatomy | None:
    """The model taken apart; `None` where its data are of no known kind."""
    families = [family_of(rv) for rv in program.observed]
    if not families or any(family not in _FAMILIES for family in families):
        return None
    kinds = [_FAMILIES[str(family)][0] for family in families]
    # Normal data are quadratic in an affine mean, so that beside others they need not be rows.
    others = set(kinds) - {"normal"}
    kind = others.pop() if others else "normal"
    if others:
        return None
    chosen = [i for i, found in enumerate(kinds) if found == kind]
    columns = _rows(program, kind, chosen)
    if columns is None:
        return None
    beside = [rv for i, rv in enumerate(program.observed) if i not in chosen]
    variables = [*program.free, *beside, *program.potentials]
    terms = program.fixed(program.model.logp(variables, sum=False))
    pairs = zip(program.free, program.transforms, strict=True)
    normal = [rv for rv, transform in pairs if transform is None and family_of(rv) == "NormalRV"]
    numbers = [program.by_values(rv.owner.op.dist_params(rv.owner)) for rv in normal]
    own = program.by_values(program.free)
    rows = [graph for column in columns.values() for graph in column]
    graphs = [*terms, *(graph for pair in numbers for graph in pair), *own, *rows]
    function = program.of_sites(graphs)

    def anatomy(sites: dict[str, Any]) -> Parts:
        outputs = iter(function(sites))
        log_densities = {variable.name: jnp.sum(next(outputs)) for variable in variables}
        normals = {rv.name: (next(outputs), next(outputs)) for rv in normal}
        values = {rv.name: next(outputs) for rv in program.free}
        return Parts(
            log_densities, normals, values, _flat({w: [next(outputs) for _ in c] for w, c in columns.items()}, kind)
        )

    return PyMCAnatomy(traced=Traced(anatomy, program.unravel(program.example)), kind=kind)


def _rows(program: PyMCProgram, kind: str, chosen: Sequence[int]) -> dict[str, list[Any]] | None:
    """The graphs of data, predictor and numbers of the observed variables `chosen`; `None` where one is not seen."""
    columns = {word: [] for word in ("data", "predictor", *KINDS[kind].numbers)}
    for i in chosen:
        rv, words = program.observed[i], _FAMILIES[str(family_of(program.observed[i]))][1:]
        graphs = dict(zip(words, program.by_values(rv.owner.op.dist_params(rv.owner)), strict=True))
        if kind in ("bernoulli", "binomial"):
            graphs["predictor"] = logit_of(graphs["predictor"])
        if kind == "negative-binomial":
            graphs["predictor"] = mean_of_counts(graphs["concentration"], graphs["predictor"])
        if graphs["predictor"] is None:
            return None
        columns["data"] += program.fixed([program.data[i]])
        for word, graph in graphs.items():
            columns[word].append(graph)
    return columns


def _flat(columns: dict[str, list[Any]], kind: str) -> dict[str, Any]:
    """Each word as one vector over all rows; one that must be common to all rows as it comes."""
    common = KINDS[kind].common
    shapes = [
        jnp.broadcast_shapes(*(np.shape(part) for part in parts)) for parts in zip(*columns.values(), strict=True)
    ]

    def whole(word: str) -> Any:
        pairs = zip(columns[word], shapes, strict=True)
        parts = [part if word in common else jnp.broadcast_to(part, shape) for part, shape in pairs]
        return jnp.concatenate([jnp.ravel(part).astype(float) for part in parts])

    return {word: whole(word) for word in columns}


def family_of(rv: Any) -> str | None:
    """The name of PyTensor's distribution of a random variable; `None` for one that is not PyTensor's own."""
    kind = type(rv.owner.op)
    return kind.__name__ if kind.__module__ == "pytensor.tensor.random.basic" else None
