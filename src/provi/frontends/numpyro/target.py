"""The posterior of a NumPyro model as a target, whole or as a sum over the rows of a subsampling plate."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import double_precision
from provi.core.types import Draws, Indices, RandomKey, Scalar, Vector
from provi.frontends.numpyro.model import (
    NumPyroModel,
    abstractly,
    deterministic_sites,
    observed_sites,
    start_value,
)
from provi.frontends.target import AbstractModelTarget, Unravel, read_values
from provi.targets.assumptions import Assumptions
from provi.targets.base import AbstractFiniteSum
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.linear_model import AbstractLinearModel

_STREAM = 2**31 - 4  # of the seed: not the one that drew the latent sites
_WORDS = 300
_SLACK = 1e-5  # of values in single precision, as NumPyro's draws are by default


class AbstractNumPyroTarget(AbstractModelTarget):
    """The posterior density of a model's latent sites, in NumPyro's own unconstrained coordinates.

    The vector z holds the sites in the model's order, each in the coordinates of `biject_to(support)`: order and
    coordinates of NumPyro's automatic guides, so `provi.certify(target, guide.get_posterior(parameters))` is right.
    It starts in the middle of each support. `constrain` has the deterministic sites too; `log_likelihood` is that of
    the observed sites without any `scale`.
    """

    model: NumPyroModel
    start: Vector
    assumptions: Assumptions
    recognised: AbstractLinearModel | None
    nested: AbstractLatentGaussian | None
    unravel: Unravel = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    axes: tuple[Any, ...] = eqx.field(static=True)
    """Of each site whose axes all have labels: its name, and for each axis its name and the labels."""

    @property
    def parameter_variables(self) -> tuple[str, ...]:
        """The latent sites; the rest are deterministic."""
        return self.unravel.names

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[str]]]:
        """The labels that were given for plates and sites."""
        return {name: dict(axes) for name, axes in self.axes}

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The sites' names with indices; `log(scale)` for a coordinate that is not the site itself."""
        return self.names

    @property
    @double_precision
    def observed_data(self) -> dict[str, np.ndarray]:
        """The data, by observed site."""
        return {name: np.asarray(value) for name, value in _data(self).items()}

    @double_precision
    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector z of values of the latent sites, a dictionary by name; other entries do not count."""
        return free_coordinates("values", self.model, self.unravel(self.start), values)

    def _values(self, points: Draws) -> dict[str, Any]:
        return _values(self, points)

    def _log_likelihoods(self, points: Draws) -> dict[str, Any]:
        return _log_likelihoods(self, points)

    def _replicates(self, points: Draws, seed: int) -> dict[str, np.ndarray]:
        return _replicate(self.model, self.unravel, points, seed)

    def _new_replicates(self, points: Draws, seed: int, new: tuple[Any, ...]) -> dict[str, np.ndarray]:
        return _replicate(_renewed(self.model, self.unravel, new), self.unravel, points, seed, whole=True)


class NumPyroTarget(AbstractNumPyroTarget):
    """The posterior of a NumPyro model."""

    def potential(self, z: Vector) -> Scalar:
        """NumPyro's potential energy."""
        return jnp.asarray(self.model.potential(self.unravel(z)), self.dtype)


class NumPyroFiniteSum(AbstractNumPyroTarget, AbstractFiniteSum):
    """The posterior of a NumPyro model with one subsampling plate, whose rows are the data terms."""

    plate: str = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @property
    def num_terms(self) -> int:
        """The size of the plate."""
        return self.size

    def prior_potential(self, z: Vector) -> Scalar:
        """Of all sites outside the plate, with the Jacobian."""
        one_row = {self.plate: jnp.zeros(1, int)}
        return jnp.asarray(self.model.potential(self.unravel(z), one_row, hide=self.plate), self.dtype)

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        """-log p of the observed sites in the plate, a row an entry."""
        rows = jnp.arange(self.size)[indices]
        sites = self.model.trace_at(self.unravel(z), {self.plate: rows})
        total = jnp.zeros(rows.shape[0], self.dtype)
        for site in sites.values():
            frames = {frame.name: frame.dim for frame in site.get("cond_indep_stack", ())}
            if site["type"] == "sample" and self.plate in frames:
                # NumPyro's scale makes up for the rows that are left out; ours does so in `minibatch_potential`.
                weight = (1.0 if site["scale"] is None else site["scale"]) * rows.shape[0] / self.size
                terms = jnp.moveaxis(weight * _pointwise(site), frames[self.plate], 0)
                total = total - jnp.sum(terms.reshape(rows.shape[0], -1), axis=1)
        return total


def free_coordinates(argument: str, model: NumPyroModel, example: dict[str, Any], values: Any) -> np.ndarray:
    """The vector of free coordinates of values of the latent sites; a `ValueError` names `argument` and the site."""
    shapes = abstractly(
        lambda: {name: site["value"].shape for name, site in model.trace_at(example).items() if name in example}
    )
    given = read_values(argument, values, {name: shapes[name] for name in example}, "latent site")
    dtype = jax.tree.leaves(example)[0].dtype
    found = _invert(model, {name: jnp.asarray(value, dtype) for name, value in given.items()})
    for name in example:
        free, inside = found[name]
        if not np.all(inside) or not np.isfinite(free).all():
            raise ValueError(f"{argument}[{name!r}] must lie inside the support of the site; it is {values[name]}.")
    return np.concatenate([np.ravel(found[name][0]) for name in example])


@eqx.filter_jit
def _invert(model: NumPyroModel, given: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The free coordinates of each site, and whether its value lies in its support.

    NumPyro's tests of matrices and simplices ask for the digits of double precision; values of less come back nearly.
    """
    from numpyro.distributions import biject_to

    sites = model.trace(lambda site: given.get(site["name"]) if site["type"] == "sample" else None)
    supports = {name: sites[name]["fn"].support for name in given}
    found = {}
    for name, value in given.items():
        bijection = biject_to(supports[name])
        free = bijection.inv(value)
        comes_back = jnp.all(jnp.isclose(bijection(free), value, rtol=_SLACK, atol=_SLACK))
        found[name] = free, jnp.all(supports[name](value)) | comes_back
    return found


@eqx.filter_jit
def _data(target: AbstractNumPyroTarget) -> dict[str, Any]:
    sites = observed_sites(target.model.trace_at(target.unravel(target.start)))
    return {name: jnp.asarray(site["value"]) for name, site in sites.items()}


@eqx.filter_jit
def _values(target: AbstractNumPyroTarget, points: Draws) -> dict[str, Any]:
    def at(point: Vector) -> dict[str, Any]:
        free = target.unravel(point)
        sites = target.model.trace_at(free)
        return {name: jnp.asarray(sites[name]["value"]) for name in (*free, *deterministic_sites(sites))}

    return jax.vmap(at)(points)


@eqx.filter_jit
def _log_likelihoods(target: AbstractNumPyroTarget, points: Draws) -> dict[str, Any]:
    def at(point: Vector) -> dict[str, Any]:
        sites = observed_sites(target.model.trace_at(target.unravel(point)))
        return {name: _pointwise(site) for name, site in sites.items()}

    return jax.vmap(at)(points)


def _pointwise(site: Any) -> Any:
    """log p of each datum of an observed site, in the shape of the site's batch."""
    values = site["fn"].log_prob(site["value"])
    return jnp.broadcast_to(values, jnp.broadcast_shapes(values.shape, site["fn"].batch_shape))


def _renewed(model: NumPyroModel, unravel: Unravel, new: tuple[Any, ...]) -> NumPyroModel:
    """The model with new arguments: as they are, a tuple of them, or a dictionary of all by name.

    Latent sites must keep their shapes: JAX would take an index beyond the end for the last one, without a word.
    """
    args, kwargs = (new[0], {}) if len(new) == 1 and isinstance(new[0], tuple) else (new, {})
    if len(new) == 1 and isinstance(new[0], dict):
        args, kwargs = (), new[0]

    def shapes(program: NumPyroModel) -> dict[str, tuple[int, ...]]:
        from numpyro.distributions import biject_to

        sites = program.trace(lambda site: start_value(site) if site["name"] in unravel.names else None)
        held = {name: sites[name] for name in unravel.names if name in sites}
        return {name: biject_to(s["fn"].support).inverse_shape(np.shape(s["value"])) for name, s in held.items()}

    program = NumPyroModel(model.model, args, kwargs)
    try:
        found = abstractly(shapes, program)
    except Exception:  # whatever it is: if the arguments are at fault, the second run says so
        program = NumPyroModel(model.model, args, kwargs, constant=True)
        try:
            found = abstractly(shapes, program)
        except Exception as error:
            words = " ".join(str(error).split())[:_WORDS]
            raise ValueError(
                f"the model cannot be run with the new arguments: {type(error).__name__}: {words}"
            ) from error
    for name, shape in zip(unravel.names, unravel.shapes, strict=True):
        if found.get(name) != shape:
            now = "is absent" if name not in found else f"has the shape {found[name]}"
            raise ValueError(
                f"site {name!r} has the shape {shape} in the fit, but {now} with the new arguments: only observed "
                f"sites may have other rows. Pass its size as an argument of the model, and the same as in the fit."
            )
    return program


def _replicate(
    model: NumPyroModel, unravel: Callable[[Vector], dict[str, Any]], points: Draws, seed: int, whole: bool = False
) -> Any:
    """The observed sites drawn from p(y | z), by name, one replicate for each of the points.

    The model runs once a point, as it was given, with all rows of its subsampling plates. An observed site is drawn
    in the shape of its data, and what comes after it in the model sees the draw. One inside NumPyro's `scan` is drawn
    given the data of the steps before it, because the loop has run before its sites are handed out.

    `whole`: also sites that are neither observed nor in the fit, such as the response with `obs=None`, and what the
    model computes for the output.
    """
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _STREAM), points.shape[0])
    try:
        found = _replicated(model, unravel, points, keys, whole)
    except NotImplementedError as error:
        raise ValueError(f"the model has an observed site whose distribution cannot be drawn from: {error}") from error
    return {name: np.asarray(value) for name, value in found.items()}


@eqx.filter_jit
def _replicated(
    model: NumPyroModel, unravel: Callable[[Vector], Any], points: Draws, keys: Any, whole: bool
) -> dict[str, Any]:
    return jax.vmap(lambda point, key: _one(model, unravel(point), key, whole))(points, keys)


def _one(model: NumPyroModel, free: dict[str, Any], key: RandomKey, whole: bool) -> dict[str, Any]:
    from numpyro.distributions import biject_to
    from numpyro.handlers import substitute, trace
    from numpyro.primitives import Messenger

    drawn = []

    class Uncondition(Messenger):
        def process_message(self, msg: Any) -> None:
            if observed_sites({msg.get("name"): msg}):
                msg["fn"] = _in_shape(msg["fn"], jnp.shape(msg["value"]))
                msg["kwargs"] = msg["kwargs"] | {"rng_key": jax.random.fold_in(key, len(drawn)), "sample_shape": ()}
                msg["is_observed"], msg["value"] = False, None
                drawn.append(msg["name"])
            elif whole and msg["type"] == "sample" and not msg["is_observed"] and msg["name"] not in free:
                msg["kwargs"] = msg["kwargs"] | {"rng_key": jax.random.fold_in(key, len(drawn))}
                drawn.append(msg["name"])

    def value_of(site: Any) -> Any:
        if site["type"] != "sample" or site["name"] not in free:
            return None
        return biject_to(site["fn"].support)(free[site["name"]])

    args, kwargs = model.arguments()
    held = substitute(Uncondition(model.prepared({})), substitute_fn=value_of)
    sites = trace(held).get_trace(*args, **kwargs)
    computed = deterministic_sites(sites) if whole else ()
    return {name: jnp.asarray(sites[name]["value"]) for name in (*drawn, *computed)}


def _in_shape(fn: Any, shape: tuple[int, ...]) -> Any:
    """The distribution of as many data as there are: one without axes is that of each datum."""
    batch = shape[: len(shape) - fn.event_dim]
    wanted = jnp.broadcast_shapes(batch, fn.batch_shape)
    return fn if wanted == fn.batch_shape else fn.expand(wanted)
