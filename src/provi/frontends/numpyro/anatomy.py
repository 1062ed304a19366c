"""A NumPyro model taken apart: the log density of each site, normal sites, rows of data."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.types import Vector
from provi.frontends.numpyro.model import NumPyroModel, abstractly, observed_sites
from provi.frontends.recognise.anatomy import AbstractAnatomy, Parts
from provi.frontends.recognise.rows import KINDS
from provi.frontends.target import Unravel

_FAMILIES = {
    "BernoulliLogits": ("bernoulli", "logits"),
    "BinomialLogits": ("binomial", "logits"),
    "Poisson": ("poisson", "rate"),
    "Normal": ("normal", "loc"),
    "GammaPoisson": ("negative-binomial", None),
    "NegativeBinomial2": ("negative-binomial", None),
    "NegativeBinomialLogits": ("negative-binomial", None),
}
"""Of each recognised distribution of data: our word for it, and its predictor. For the last three: shape over rate."""


class NumPyroAnatomy(AbstractAnatomy):
    """The terms of a NumPyro model's log density. Of two kinds of data, normal ones are terms and no rows."""

    model: NumPyroModel
    kind: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    """The latent sites."""
    row_sites: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, sites: dict[str, Any]) -> Parts:
        """One run of the model."""
        from numpyro.distributions import biject_to
        from numpyro.distributions.distribution import validation_enabled

        # NumPyro's validation asks of each value whether it is finite, a branch that nothing can be proven through.
        with validation_enabled(False):
            found = {name: site for name, site in self.model.trace_at(sites).items() if site["type"] == "sample"}
            terms = {name: jnp.sum(_log_prob(site)) for name, site in found.items() if name not in self.row_sites}
        normals = {}
        for name in self.names:
            site, core = found[name], core_of(found[name]["fn"])
            bijection = biject_to(site["fn"].support)
            terms[name] = terms[name] + jnp.sum(bijection.log_abs_det_jacobian(sites[name], site["value"]))
            if family_of(site) == "Normal" and is_unweighted(site):
                normals[name] = jnp.asarray(core.loc), jnp.asarray(core.scale)
        values = {name: found[name]["value"] for name in self.names}
        return Parts(terms, normals, values, self._rows([found[name] for name in self.row_sites]))

    def _rows(self, sites: list[Any]) -> dict[str, Any]:
        """Each word as one vector over all rows; one that must be common to all rows as it comes."""

        def whole(part: Any, site: Any) -> Any:
            # As log_prob does: a value may have more axes than its distribution, and the other way round.
            shape = jnp.broadcast_shapes(np.shape(site["value"]), site["fn"].shape())
            return jnp.ravel(jnp.broadcast_to(part, shape)).astype(float)

        kind = KINDS[self.kind]
        columns: dict[str, list[Any]] = {word: [] for word in ("data", "predictor", *kind.numbers)}
        for site in sites:
            core = core_of(site["fn"])
            columns["data"].append(whole(site["value"], site))
            columns["predictor"].append(whole(_predictor(core), site))
            for word in kind.numbers:
                value = getattr(core, word)
                columns[word].append(jnp.ravel(value) if word in kind.common else whole(value, site))
        return {word: jnp.concatenate(column) for word, column in columns.items()}


def anatomy_of(model: NumPyroModel, unravel: Unravel, start: Vector) -> NumPyroAnatomy | None:
    """The model taken apart; `None` where its data are of no known kind."""
    kinds: dict[str, str] | None = abstractly(lambda z: _kinds(model.trace_at(unravel(z))), start)
    if not kinds:
        return None
    # Normal data are quadratic in an affine mean, so that beside others they need not be rows.
    others = set(kinds.values()) - {"normal"}
    kind = others.pop() if others else "normal"
    if others:
        return None
    rows = tuple(name for name in kinds if kinds[name] == kind)
    return NumPyroAnatomy(model=model, kind=kind, names=unravel.names, row_sites=rows)


def _kinds(sites: Any) -> dict[str, str] | None:
    """The kind of each site with data; `None` if one has none or is weighted."""
    found = {}
    for name, site in observed_sites(sites).items():
        family = family_of(site)
        if family not in _FAMILIES or not is_unweighted(site):
            return None
        found[name] = _FAMILIES[family][0]
    return found


def _predictor(core: Any) -> Any:
    attribute = _FAMILIES[type(core).__name__][1]
    return core.concentration / core.rate if attribute is None else getattr(core, attribute)


def _log_prob(site: Any) -> Any:
    values = site["fn"].log_prob(site["value"])
    return values if site["scale"] is None else site["scale"] * values


def family_of(site: Any) -> str | None:
    """The name of NumPyro's distribution of a site; `None` for one that is not NumPyro's."""
    core = type(core_of(site["fn"]))
    return core.__name__ if core.__module__.startswith("numpyro.distributions.") else None


def is_unweighted(site: Any) -> bool:
    """Whether the log density of a site counts once."""
    return site["scale"] is None or (isinstance(site["scale"], int | float) and site["scale"] == 1)


def core_of(fn: Any) -> Any:
    """The distribution under `to_event` and `expand`."""
    while type(fn).__name__ in ("Independent", "ExpandedDistribution"):
        fn = fn.base_dist
    return fn
