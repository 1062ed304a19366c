"""A model taken apart by a front-end: what each term of its log density is, before anything is proven of it."""

import abc
from typing import Any, NamedTuple

import equinox as eqx


class Parts(NamedTuple):
    """The terms of a log density at one point of the free coordinates."""

    terms: dict[str, Any]
    """log p of each site or potential whose data are not rows, a scalar with any Jacobian, by name."""
    normals: dict[str, tuple[Any, Any]]
    """Location and scale of each free site, among those in `terms`, that is normal entry by entry in its own space."""
    values: dict[str, Any]
    """Of the free sites, in their own space."""
    rows: dict[str, Any]
    """Of the data, one vector a word: `data`, `predictor` (a logit, rate or mean), and what else the kind needs."""


class AbstractAnatomy(eqx.Module):
    """Of a vector of free coordinates, given as arrays by site: the terms of the model's log density.

    The sites are in the order of the model, parents first. `kind` is the likelihood of all rows, one of those in
    `provi.frontends.recognise.rows`.
    """

    kind: eqx.AbstractVar[str]

    @abc.abstractmethod
    def __call__(self, sites: dict[str, Any]) -> Parts:
        """The terms at free coordinates."""
