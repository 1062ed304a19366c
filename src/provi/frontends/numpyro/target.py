"""The posterior of a NumPyro model as a target, whole or as a sum over the rows of a subsampling plate."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.checks import as_array, check_count
from provi.core.precision import double_precision
from provi.core.types import Draws, Indices, RandomKey, Scalar, Vector
from provi.frontends.numpyro.model import NumPyroModel, Unravel, abstractly, deterministic_sites, observed_sites
from provi.targets.assumptions import Assumptions
from provi.targets.base import AbstractFiniteSum, AbstractTarget, Constants, read_points
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.parameters import element_names

# Replicated data of a NumPyro model: its observed sites, drawn anew at given values of the latent ones.


_STREAM = 2**31 - 4  # of the seed: not the one that drew the latent sites


def replicate(model: NumPyroModel, unravel: Callable[[Vector], dict[str, Any]], points: Draws, seed: int) -> Any:
    """The observed sites drawn from p(y | z), by name, one replicate for each of the points.

    The model runs once a point, as it was given, with all rows of its subsampling plates. An observed site is drawn
    in the shape of its data, and what comes after it in the model sees the draw. One inside NumPyro's `scan` is drawn
    given the data of the steps before it, because the loop has run before its sites are handed out.
    """
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _STREAM), points.shape[0])
    try:
        found = _replicates(model, unravel, points, keys)
    except NotImplementedError as error:
        raise ValueError(f"the model has an observed site whose distribution cannot be drawn from: {error}") from error
    return {name: np.asarray(value) for name, value in found.items()}


@eqx.filter_jit
def _replicates(model: NumPyroModel, unravel: Callable[[Vector], Any], points: Draws, keys: Any) -> dict[str, Any]:
    return jax.vmap(lambda point, key: _one(model, unravel(point), key))(points, keys)


def _one(model: NumPyroModel, free: dict[str, Any], key: RandomKey) -> dict[str, Any]:
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

    def value_of(site: Any) -> Any:
        if site["type"] != "sample" or site["name"] not in free:
            return None
        return biject_to(site["fn"].support)(free[site["name"]])

    args, kwargs = model.arguments()
    held = substitute(Uncondition(model.prepared({})), substitute_fn=value_of)
    sites = trace(held).get_trace(*args, **kwargs)
    return {name: sites[name]["value"] for name in drawn}


def _in_shape(fn: Any, shape: tuple[int, ...]) -> Any:
    """The distribution of as many data as there are: one without axes is that of each datum."""
    batch = shape[: len(shape) - fn.event_dim]
    wanted = jnp.broadcast_shapes(batch, fn.batch_shape)
    return fn if wanted == fn.batch_shape else fn.expand(wanted)


_SLACK = 1e-5  # of values in single precision, as NumPyro's draws are by default


class AbstractNumPyroTarget(AbstractTarget):
    """The posterior density of a model's latent sites, in NumPyro's own unconstrained coordinates.

    The vector z holds the sites in the model's order, each in the coordinates of `biject_to(support)`: order and
    coordinates of NumPyro's automatic guides, so `provi.certify(target, guide.get_posterior(parameters))` is right.
    """

    model: eqx.AbstractVar[NumPyroModel]
    start: eqx.AbstractVar[Vector]
    assumptions: eqx.AbstractVar[Assumptions]
    recognised: eqx.AbstractVar[AbstractLinearModel | None]
    unravel: eqx.AbstractVar[Unravel]
    names: eqx.AbstractVar[tuple[str, ...]]

    @property
    def dim(self) -> int:
        """The number of free coordinates."""
        return self.start.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the parameters."""
        return self.start.dtype

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The sites' names with indices; `log(scale)` for a coordinate that is not the site itself."""
        return self.names

    @property
    def default_location(self) -> np.ndarray:
        """The middle of each support, or the `start` that was given."""
        return np.asarray(self.start, np.float64)

    @property
    def constants(self) -> Constants:
        """Proven where the model was recognised as a linear one; else declared or unknown."""
        return self.assumptions.constants if self.recognised is None else self.recognised.constants

    def linear_model(self) -> AbstractLinearModel | None:
        """The same density as a linear model, where it was recognised as one."""
        return self.recognised

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Those of the linear model, where there is one."""
        return None if self.recognised is None else self.recognised.curvature_bounds()

    @double_precision
    def constrain(self, z: Any) -> dict[str, np.ndarray]:
        """The latent sites in the model's own space, and its deterministic sites; for draws (n, dim), n of each."""
        return self._at(z, _values)

    @double_precision
    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y | z) of each datum, by observed site; for draws (n, dim), n of each. Without any `scale`."""
        return self._at(z, _log_likelihoods)

    @double_precision
    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Data drawn from p(y | z), by observed site, one replicate for each row of z."""
        points = read_points(z, self.dim)
        rows = jnp.asarray(np.atleast_2d(points), self.dtype)
        found = replicate(self.model, self.unravel, rows, check_count("seed", seed, minimum=0))
        return {name: value if points.ndim == 2 else value[0] for name, value in found.items()}

    @property
    @double_precision
    def observed_data(self) -> dict[str, np.ndarray]:
        """The data, by observed site."""
        return {name: np.asarray(value) for name, value in _data(self).items()}

    @property
    def constrained_names(self) -> tuple[str, ...]:
        """A name for each number of `constrain`, its sites sorted by name."""
        return element_names(self.constrain(self.default_location))

    @double_precision
    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector z of values of the latent sites, a dictionary by name; other entries do not count."""
        return free_coordinates("values", self.model, self.unravel(self.start), values)

    def _at(self, z: Any, function: Callable[[Any, Draws], Any]) -> dict[str, np.ndarray]:
        points = read_points(z, self.dim)
        found = function(self, jnp.asarray(np.atleast_2d(points), self.dtype))
        return {name: np.asarray(leaf if points.ndim == 2 else leaf[0]) for name, leaf in found.items()}


class NumPyroTarget(AbstractNumPyroTarget):
    """The posterior of a NumPyro model."""

    model: NumPyroModel
    start: Vector
    assumptions: Assumptions
    recognised: AbstractLinearModel | None
    unravel: Unravel = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def potential(self, z: Vector) -> Scalar:
        """NumPyro's potential energy."""
        return jnp.asarray(self.model.potential(self.unravel(z)), self.dtype)


class NumPyroFiniteSum(AbstractNumPyroTarget, AbstractFiniteSum):
    """The posterior of a NumPyro model with one subsampling plate, whose rows are the data terms."""

    model: NumPyroModel
    start: Vector
    assumptions: Assumptions
    recognised: AbstractLinearModel | None
    unravel: Unravel = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
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
    if not isinstance(values, dict) or set(example) - set(values):
        missing = ", ".join(sorted(set(example) - set(values))) if isinstance(values, dict) else "all of them"
        raise ValueError(f"{argument} must be a dictionary with a value for each latent site; it lacks: {missing}.")
    dtype = jax.tree.leaves(example)[0].dtype
    given = {name: jnp.asarray(as_array(f"{argument}[{name!r}]", values[name]), dtype) for name in example}
    sites = abstractly(
        lambda: {name: site["value"].shape for name, site in model.trace_at(example).items() if name in example}
    )
    for name, shape in sites.items():
        if given[name].shape != shape:
            raise ValueError(f"{argument}[{name!r}] has shape {given[name].shape}; the site's is {shape}.")
    found = _invert(model, given)
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
