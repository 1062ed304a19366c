"""NumPyro models that are linear models: Gaussian priors, a log-concave likelihood, an affine predictor."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Scalar, Vector
from provi.frontends.affine import Form, forms
from provi.frontends.numpyro_model import NumPyroModel, Unravel, abstractly
from provi.frontends.row_likelihoods import BinomialRows, PoissonRows, row_numbers
from provi.targets.generalised_linear_model import GeneralisedLinearModel
from provi.targets.linear_models import AbstractLinearModel
from provi.targets.linear_regression import LinearRegression
from provi.targets.logistic_regression import LogisticRegression
from provi.targets.poisson_regression import PoissonRegression

_LARGEST_DESIGN = 2**26  # numbers: 512 MiB
_AGREEMENT = 1e-9

_FAMILIES = {
    "BernoulliLogits": ("logits",),
    "BinomialLogits": ("logits", "total_count"),
    "Poisson": ("rate",),
    "Normal": ("loc", "scale"),
}


def recognise(
    model: NumPyroModel, unravel: Unravel, start: Vector, names: tuple[str, ...]
) -> AbstractLinearModel | None:
    """The model's posterior as a linear model in the same coordinates, or `None` where that is not proven.

    Proven means: the traced program of the model says that locations and scales of the priors, the data and the
    known parameters of the likelihood do not depend on the latent sites, and that the predictor is affine in them
    (`provi.frontends.affine`). Its matrix is then the Jacobian at one point.
    """
    kind = abstractly(lambda z: _kind(model.trace_at(unravel(z))), start)
    if kind is None:
        return None

    def parameters(z: Vector) -> Any:
        return _parameters(model.trace_at(unravel(z)), unravel.names, kind)

    shapes = jax.eval_shape(parameters, start)
    wanted = Form.LOG_AFFINE if kind == "Poisson" else Form.AFFINE
    found = jax.tree.unflatten(jax.tree.structure(shapes), forms(parameters, start))
    constant = all(form == Form.CONSTANT for name, form in found.items() if name != "predictor")
    if not constant or found["predictor"] not in (wanted, Form.CONSTANT):
        return None
    if shapes["predictor"].size * start.size > _LARGEST_DESIGN:
        return None

    @jax.jit
    def read(z: Vector) -> Any:
        def predictor(z: Vector) -> Any:
            found = parameters(z)
            value = found.pop("predictor")
            return jnp.log(value) if kind == "Poisson" else value, found

        offset, push, known = jax.linearize(predictor, z, has_aux=True)
        return offset, jax.vmap(push, out_axes=1)(jnp.eye(z.size, dtype=z.dtype)), known

    offset, design, known = jax.tree.map(lambda x: np.asarray(x, np.float64), read(jnp.zeros_like(start)))
    if not (np.isfinite(offset).all() and np.isfinite(design).all()):
        return None
    prior = {"prior_scale": known["prior_scale"], "prior_mean": known["prior_loc"], "names": names}
    linear = _build(kind, design, offset, known, prior)
    return linear if linear is not None and _agrees(linear, model, unravel, start) else None


def _kind(sites: Any) -> str | None:
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


def _parameters(sites: Any, names: tuple[str, ...], kind: str) -> dict[str, Any]:
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
    first, *others = _FAMILIES[kind]
    return found | {"predictor": gather(observed, first)} | {name: gather(observed, name) for name in others}


def _build(
    kind: str, design: np.ndarray, offset: np.ndarray, known: dict[str, np.ndarray], prior: dict[str, Any]
) -> AbstractLinearModel | None:
    """The linear model; `None` where the data are not of the likelihood's kind."""
    y, rows, plain = known["data"], row_numbers(offset.size), not offset.any()
    if not np.isfinite(y).all() or not (known["prior_scale"] > 0).all():
        return None
    if kind == "Normal":
        return _gaussian(design, y - offset, known["scale"], prior)
    if (y < 0).any() or (y != np.round(y)).any():
        return None
    if kind == "Poisson":
        if plain:
            return PoissonRegression(design, y, **prior)
        return GeneralisedLinearModel(design, rows, PoissonRows(jnp.asarray(y), jnp.asarray(offset)), **prior)
    trials = known["total_count"] if kind == "BinomialLogits" else np.ones_like(y)
    if (y > trials).any():
        return None
    if plain and (trials == 1).all():
        return LogisticRegression(design, y, **prior)
    likelihood = BinomialRows(jnp.asarray(y), jnp.asarray(trials - y), jnp.asarray(offset))
    return GeneralisedLinearModel(design, rows, likelihood, **prior)


def _gaussian(design: np.ndarray, y: np.ndarray, scale: np.ndarray, prior: dict[str, Any]) -> LinearRegression | None:
    """One noise scale for all rows: their geometric mean g, with row n times g/s_n, is the same normalised density."""
    if not ((scale > 0) & np.isfinite(scale)).all():
        return None
    common = float(np.exp(np.mean(np.log(scale)))) if np.ptp(scale) > 0 else float(scale[0])
    weight = common / scale
    return LinearRegression(design * weight[:, None], y * weight, common, **prior)


def _agrees(linear: AbstractLinearModel, model: NumPyroModel, unravel: Unravel, start: Vector) -> bool:
    """Whether the two densities are equal at a point: no proof, but a guard against a change of NumPyro's meaning."""
    scale = np.broadcast_to(np.asarray(linear.prior.factor), (linear.dim,))
    point = jnp.asarray(np.asarray(linear.prior.mean) + 0.1 * scale * np.cos(np.arange(linear.dim)), start.dtype)

    @eqx.filter_jit
    def both(linear: AbstractLinearModel, z: Vector) -> tuple[Scalar, Scalar]:
        return linear.potential(z), model.potential(unravel(z))

    ours, theirs = (float(x) for x in both(linear, point))
    tolerance = _AGREEMENT if start.dtype == jnp.float64 else 1e-3
    return bool(abs(ours - theirs) <= tolerance * (1 + abs(theirs)))
