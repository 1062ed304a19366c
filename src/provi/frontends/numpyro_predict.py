"""Replicated data of a NumPyro model: its observed sites, drawn anew at given values of the latent ones."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Draws, RandomKey, Vector
from provi.frontends.numpyro_model import NumPyroModel, observed_sites

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
