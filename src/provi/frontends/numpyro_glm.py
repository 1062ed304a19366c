"""NumPyro models that are linear models: Gaussian priors, a log-concave likelihood, an affine predictor."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.core.types import Vector
from provi.frontends.numpyro_model import NumPyroModel, Unravel, abstractly
from provi.frontends.recognised_glm import linear_model_of
from provi.targets.linear_models import AbstractLinearModel

_FAMILIES = {
    "BernoulliLogits": ("bernoulli", "logits"),
    "BinomialLogits": ("binomial", "logits", "total_count"),
    "Poisson": ("poisson", "rate"),
    "Normal": ("normal", "loc", "scale"),
}
"""Of each recognised distribution: our word for it, its predictor, its other parameters."""


def recognise(
    model: NumPyroModel, unravel: Unravel, start: Vector, names: tuple[str, ...]
) -> AbstractLinearModel | None:
    """The model's posterior as a linear model in the same coordinates, or `None` where that is not proven.

    All latent sites must be normal and all observed sites of one kind; the rest of the proof is in
    `provi.frontends.recognised_glm`.
    """
    family = abstractly(lambda z: _family(model.trace_at(unravel(z))), start)
    if family is None:
        return None
    kind, *parameters = _FAMILIES[family]
    return linear_model_of(
        kind,
        lambda z: _parameters(model.trace_at(unravel(z)), unravel.names, *parameters),
        lambda z: model.potential(unravel(z)),
        start,
        names,
    )


def _family(sites: Any) -> str | None:
    """The family of all observed sites, if the sites are those of a linear model."""
    kinds = set()
    for site in sites.values():
        if site["type"] != "sample":
            continue
        core = type(_core(site["fn"]))
        kind = core.__name__ if core.__module__.startswith("numpyro.distributions.") else None
        if site["scale"] is not None and not (isinstance(site["scale"], int | float) and site["scale"] == 1):
            return None
        if site["is_observed"]:
            kinds.add(kind)
        elif kind != "Normal":
            return None
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in _FAMILIES else None


def _core(fn: Any) -> Any:
    """The distribution under `to_event` and `expand`."""
    while type(fn).__name__ in ("Independent", "ExpandedDistribution"):
        fn = fn.base_dist
    return fn


def _parameters(sites: Any, names: tuple[str, ...], predictor: str, *others: str) -> dict[str, Any]:
    """Prior, data and likelihood of the sites, each as one vector; latent sites in the order of the vector z."""
    latent = [sites[name] for name in names]
    observed = [site for site in sites.values() if site["type"] == "sample" and site["is_observed"]]

    def gather(sites: list[Any], parameter: str | None) -> Any:
        parts = [site["value"] if parameter is None else getattr(_core(site["fn"]), parameter) for site in sites]
        # As log_prob does: a value may have more axes than its distribution, and the other way round.
        shapes = [jnp.broadcast_shapes(np.shape(site["value"]), site["fn"].shape()) for site in sites]
        both = zip(parts, shapes, strict=True)
        return jnp.concatenate([jnp.ravel(jnp.broadcast_to(part, shape)) for part, shape in both])

    found = {"prior_loc": gather(latent, "loc"), "prior_scale": gather(latent, "scale"), "data": gather(observed, None)}
    return found | {"predictor": gather(observed, predictor)} | {name: gather(observed, name) for name in others}
