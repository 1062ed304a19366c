"""`provi.from_numpyro`: a NumPyro model as a target."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import default_dtype, device_array, double_precision
from provi.core.interpreter import weighed_jit
from provi.core.types import Vector
from provi.frontends.numpyro.anatomy import anatomy_of, core_of, family_of, is_unweighted
from provi.frontends.numpyro.model import (
    NumPyroModel,
    abstractly,
    deterministic_sites,
    is_subsampled,
    latent_sites,
    mask_of,
    start_value,
)
from provi.frontends.numpyro.target import AbstractNumPyroTarget, NumPyroFiniteSum, NumPyroTarget, free_coordinates
from provi.frontends.recognise.glm import linear_model_of
from provi.frontends.recognise.latent import RecognisedLatentGaussian
from provi.frontends.recognise.nested import latent_gaussian_of
from provi.frontends.target import Unravel, coordinate_names
from provi.targets.assumptions import declare
from provi.targets.linear_model import AbstractLinearModel

_FAMILIES = {
    "BernoulliLogits": ("bernoulli", "logits"),
    "BinomialLogits": ("binomial", "logits", "total_count"),
    "Poisson": ("poisson", "rate"),
    "Normal": ("normal", "loc", "scale"),
}
"""Of each recognised distribution: our word for it, its predictor, its other parameters."""

_LABELS = {"IdentityTransform": "", "ExpTransform": "log", "SigmoidTransform": "logit"}
"""What the free coordinates of a site are called, by its bijection; "free" for others."""


@double_precision
def from_numpyro(
    model: Any,
    *args: Any,
    strong_convexity: Any = None,
    smoothness: Any = None,
    log_concave: Any = None,
    start: Any = None,
    axis_labels: Any = None,
    **kwargs: Any,
) -> AbstractNumPyroTarget:
    """The posterior of `model(*args, **kwargs)`, a target over all of its latent sites.

    Constrained sites are transformed by NumPyro's bijections, and the density includes their Jacobians.
    `target.constrain(draws)` goes back, with the deterministic sites; `target.observed_data` and
    `target.log_likelihood(draws)` are the data and the log-likelihood of each datum.

    A model is recognised as linear when all latent sites have independent normal priors with constant locations and
    scales, all observed sites are of one kind (`Bernoulli(logits=...)`, `Binomial(logits=...)`,
    `Poisson(exp(...))`, or `Normal` with known scales) and their predictors are affine in the latent sites, as proven
    from the traced program. Then its constants are proven, and `provi.fit` certifies deterministically.

    It is recognised as a latent Gaussian model when that holds given a few scales (at most 6 free coordinates: standard
    deviations, noise, concentrations, correlations), which may enter as they like: random effects centred or not,
    walks, Gaussian processes; the likelihood may also be `NegativeBinomial2`. Then `provi.fit` integrates the scales
    numerically and brackets the evidence at each of their values by a proof.

    A plate with `subsample_size` is used whole. If it is the only one and no latent site is inside it, the target is a
    sum over its rows, for algorithms that take mini-batches of a size of their own.

    **Arguments:**

    - `model`: a NumPyro model. Discrete latent sites and `numpyro.param` are refused, by name.
    - `args`, `kwargs`: its arguments, the observed data among them.
    - `strong_convexity`, `smoothness`, `log_concave`: what is known of the density in the unconstrained coordinates,
      as for `provi.targets.LogDensity`. Not needed for a model that is recognised. (Hence a model cannot have
      arguments of these names, nor of the next two: bind them with `functools.partial`.)
    - `start`: values of the latent sites, a dictionary by name, where the density is finite; the middle of each
      support by default.
    - `axis_labels`: words for the entries of plates, or of a site with one axis, by name:
      `{"species": ["Adelie", "Gentoo"]}`; summaries then say `a[Adelie]` instead of `a[0]`.

    **Returns:** an `AbstractTarget`.
    """
    _import_numpyro()
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model, a function, not {type(model).__name__}.")
    assumptions = declare(strong_convexity, smoothness, log_concave)
    program, found = _run_abstractly(model, args, kwargs)
    unravel = Unravel(tuple(found.shapes), tuple(found.shapes.values()))
    if unravel.size == 0:
        raise ValueError("the latent sites of the model have no entries: nothing is left to infer.")
    vector = device_array(np.zeros(unravel.size), default_dtype())
    if start is not None:
        vector = jnp.asarray(free_coordinates("start", program, unravel(vector), start), vector.dtype)
    if found.masked:
        _check_masks(program, unravel, vector)
    _check_finite(program, unravel, vector)
    axes = _read_axes(found, axis_labels)
    names = coordinate_names(unravel(np.asarray(vector)), found.labels, {name: dict(pairs) for name, pairs in axes})
    linear = recognise(program, unravel, vector, names)
    fields: dict[str, Any] = {
        "model": program,
        "start": vector,
        "assumptions": assumptions,
        "recognised": linear,
        "nested": _nested(program, unravel, vector, found.labels) if linear is None else None,
        "unravel": unravel,
        "names": names,
        "axes": axes,
    }
    if found.plate is None:
        return NumPyroTarget(**fields)
    plate, size = found.plate
    return NumPyroFiniteSum(**fields, plate=plate, size=size)


def _import_numpyro() -> None:
    try:
        import numpyro  # noqa: F401
    except ImportError as error:
        raise ImportError("from_numpyro needs NumPyro: pip install 'provi[numpyro]'.") from error


@dataclasses.dataclass(frozen=True)
class _Description:
    """What a run of the model without numbers tells: of each latent site, and of the plate whose rows are terms."""

    shapes: dict[str, tuple[int, ...]]
    labels: list[str]
    masked: bool
    plate: tuple[str, int] | None
    axes: dict[str, tuple[tuple[str | None, int], ...]]
    """Of each latent or deterministic site: for each axis the plate along it, if any, and its length."""


def _run_abstractly(model: Callable[..., Any], args: tuple, kwargs: dict) -> tuple[NumPyroModel, _Description]:
    """The model with its data as leaves, or as constants where it asks for a value, as in `int(groups.max())`."""

    def describe(program: NumPyroModel) -> _Description:
        return _describe(program.trace(start_value))

    program = NumPyroModel(model, args, kwargs)
    try:
        return program, abstractly(describe, program)
    except Exception:  # whatever it is: if the model itself is at fault, the second run says so
        program = NumPyroModel(model, args, kwargs, constant=True)
        return program, abstractly(describe, program)


def _describe(sites: Any) -> _Description:
    from numpyro.distributions import biject_to

    latent = latent_sites(sites)
    bijections = {name: biject_to(site["fn"].support) for name, site in latent.items()}
    return _Description(
        shapes={name: bijections[name].inverse_shape(np.shape(site["value"])) for name, site in latent.items()},
        labels=[_label(bijection) for bijection in bijections.values()],
        masked=any(mask_of(site["fn"]) is not True for site in latent.values()),
        plate=_rows_plate(sites),
        axes={name: _axes(sites[name]) for name in (*latent, *deterministic_sites(sites))},
    )


def _axes(site: Any) -> tuple[tuple[str | None, int], ...]:
    """The plates along the axes of a site's value; plates count from the last axis of a batch."""
    shape = np.shape(site["value"])
    end = len(shape) - getattr(site.get("fn"), "event_dim", 0)
    plates = {end + frame.dim: frame.name for frame in site.get("cond_indep_stack") or ()}
    return tuple((plates.get(axis), length) for axis, length in enumerate(shape))


def _read_axes(found: _Description, given: Any) -> tuple[Any, ...]:
    """The labels of all axes of each site that has them for all, in a form that can be hashed."""
    if given is None:
        return ()
    lengths = {plate: length for axes in found.axes.values() for plate, length in axes if plate is not None}
    lengths |= {name: axes[0][1] for name, axes in found.axes.items() if len(axes) == 1}
    if not isinstance(given, dict):
        raise TypeError(f"axis_labels must be a dictionary by plate or site, not {type(given).__name__}.")
    for name, labels in given.items():
        if name not in lengths:
            raise ValueError(f"axis_labels has {name!r}, no plate or vector of the model: there are {sorted(lengths)}.")
        if len(labels) != lengths[name]:
            raise ValueError(f"axis_labels[{name!r}] must hold {lengths[name]} labels, not {len(labels)}.")
    known = {name: tuple(str(label) for label in labels) for name, labels in given.items()}
    pairs = []
    for name, axes in found.axes.items():
        if len(axes) == 1 and name in known:
            pairs.append((name, ((f"{name}_dim_0", known[name]),)))
        elif axes and all(plate in known for plate, _ in axes):
            pairs.append((name, tuple((plate, known[plate]) for plate, _ in axes)))
    return tuple(pairs)


def _label(bijection: Any) -> str:
    """What the free coordinates of a site are called."""
    while type(bijection).__name__ == "IndependentTransform":
        bijection = bijection.base_transform
    return _LABELS.get(type(bijection).__name__, "free")


def _rows_plate(sites: Any) -> tuple[str, int] | None:
    """Name and size of the one subsampling plate, if all sample sites in it are observed."""
    plates = [(name, site["args"][0]) for name, site in sites.items() if is_subsampled(site)]
    if len(plates) != 1:
        return None
    for site in sites.values():
        inside = plates[0][0] in (frame.name for frame in site.get("cond_indep_stack", ()))
        if site["type"] == "sample" and inside and not site["is_observed"]:
            return None
    return plates[0]


def _check_masks(program: NumPyroModel, unravel: Unravel, vector: Any) -> None:
    """Entries of a latent site that a mask takes out of the density are free to go anywhere."""

    @jax.jit
    def whole(z: Any) -> dict[str, Any]:
        sites = program.trace_at(unravel(z))
        return {name: jnp.all(jnp.asarray(mask_of(sites[name]["fn"]))) for name in unravel(z)}

    for name, fine in whole(vector).items():
        if not fine:
            raise ValueError(
                f"site {name!r} is masked in part, and entries without prior and data have no posterior. Leave them "
                f"out: instead of obs_mask, condition on the observed entries only."
            )


def _check_finite(program: NumPyroModel, unravel: Unravel, vector: Any) -> None:
    """The density at the start; an error names the site that is not finite there."""
    value, gradient = weighed_jit(jax.value_and_grad(lambda z: program.potential(unravel(z))))(vector)
    if np.isfinite(value) and np.isfinite(gradient).all():
        return
    remedy = "Pass start={site: value, ...} where the density is finite, or check the data."

    @jax.jit
    def finite(z: Any) -> dict[str, Any]:
        sites = {name: site for name, site in program.trace_at(unravel(z)).items() if site["type"] == "sample"}
        return {name: jnp.isfinite(site["fn"].log_prob(site["value"])).all() for name, site in sites.items()}

    for name, fine in finite(vector).items():
        if not fine:
            raise ValueError(f"the log density of site {name!r} is not finite at the start. {remedy}")
    raise ValueError(f"the model's log density ({-float(value)}) or its gradient is not finite at the start. {remedy}")


def _nested(model: NumPyroModel, unravel: Unravel, start: Vector, labels: list[str]) -> RecognisedLatentGaussian | None:
    anatomy = anatomy_of(model, unravel, start)
    return latent_gaussian_of(anatomy, lambda z: model.potential(unravel(z)), unravel, start, labels)


def recognise(
    model: NumPyroModel, unravel: Unravel, start: Vector, names: tuple[str, ...]
) -> AbstractLinearModel | None:
    """The model's posterior as a linear model in the same coordinates, or `None` where that is not proven.

    That is: Gaussian priors, a log-concave likelihood, an affine predictor. All latent sites must be normal and all
    observed sites of one kind; the rest of the proof is in `provi.frontends.recognise.glm`.
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
        kind = family_of(site)
        if not is_unweighted(site):
            return None
        if site["is_observed"]:
            kinds.add(kind)
        elif kind != "Normal":
            return None
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in _FAMILIES else None


def _parameters(sites: Any, names: tuple[str, ...], predictor: str, *others: str) -> dict[str, Any]:
    """Prior, data and likelihood of the sites, each as one vector; latent sites in the order of the vector z."""
    latent = [sites[name] for name in names]
    observed = [site for site in sites.values() if site["type"] == "sample" and site["is_observed"]]

    def gather(sites: list[Any], parameter: str | None) -> Any:
        parts = [site["value"] if parameter is None else getattr(core_of(site["fn"]), parameter) for site in sites]
        # As log_prob does: a value may have more axes than its distribution, and the other way round.
        shapes = [jnp.broadcast_shapes(np.shape(site["value"]), site["fn"].shape()) for site in sites]
        both = zip(parts, shapes, strict=True)
        return jnp.concatenate([jnp.ravel(jnp.broadcast_to(part, shape)) for part, shape in both])

    found = {"prior_loc": gather(latent, "loc"), "prior_scale": gather(latent, "scale"), "data": gather(observed, None)}
    return found | {"predictor": gather(observed, predictor)} | {name: gather(observed, name) for name in others}
