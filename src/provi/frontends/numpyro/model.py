"""A NumPyro model with its arguments, run at given values of its latent sites."""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import default_dtype
from provi.core.captured import captured
from provi.core.types import Scalar


class _Identical:
    """Something that can change, or that cannot be hashed: equal to itself alone."""

    def __init__(self, value: Any):
        self.value = value


class _Function:
    """The user's function, equal to one that does the same: its code is, and all that it reads from outside.

    So a model that is defined anew, in a cell that runs again or in a function that makes models, compiles nothing,
    and one whose data in global variables have changed does.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function, self.captured = function, captured(function)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Function) and other.captured == self.captured

    def __hash__(self) -> int:
        return hash(self.captured)

    def __repr__(self) -> str:
        return f"{self.function!r} {self.captured}"


class NumPyroModel(eqx.Module):
    """`model(*args, **kwargs)` with the arrays among its arguments as leaves: new data compile nothing again.

    A subsampling plate holds all of its rows, or those that a method is told.
    """

    arrays: tuple[Any, ...]
    held: _Function = eqx.field(static=True)
    structure: Any = eqx.field(static=True)
    others: tuple[Any, ...] = eqx.field(static=True)
    """The arguments that are no arrays, each with its type (1 is not 1.0 here); None where an array belongs."""

    def __init__(self, model: Callable[..., Any], args: tuple, kwargs: dict, constant: bool = False):
        """`constant`: hold the arrays fixed, for a model that looks at their values in Python."""
        leaves, self.structure = jax.tree.flatten((args, kwargs), is_leaf=lambda node: node is None)
        free = [isinstance(leaf, np.ndarray | jax.Array) and not constant and _is_numeric(leaf) for leaf in leaves]
        self.held = _Function(model)
        self.arrays = tuple(_in_dtype(leaf) for leaf, is_free in zip(leaves, free, strict=True) if is_free)
        pairs = zip(leaves, free, strict=True)
        self.others = tuple(None if is_free else (type(leaf), _hashable(leaf)) for leaf, is_free in pairs)

    @property
    def model(self) -> Callable[..., Any]:
        """The user's function."""
        return self.held.function

    def arguments(self) -> tuple[tuple, dict]:
        """`args` and `kwargs` as the model takes them."""
        arrays = iter(self.arrays)
        held = (None if other is None else other[1] for other in self.others)
        values = [value.value if isinstance(value, _Identical) else value for value in held]
        leaves = [next(arrays) if self.others[i] is None else value for i, value in enumerate(values)]
        return jax.tree.unflatten(self.structure, leaves)

    def trace(self, value_of: Callable[[Any], Any], rows: dict[str, Any] | None = None) -> Any:
        """The sites of a run in which `value_of(site)` is the value of each latent site."""
        from numpyro.handlers import substitute, trace

        args, kwargs = self.arguments()
        return trace(substitute(self.prepared(rows or {}), substitute_fn=value_of)).get_trace(*args, **kwargs)

    def trace_at(self, free: dict[str, Any], rows: dict[str, Any] | None = None) -> Any:
        """The sites of a run at free coordinates: each latent site is `biject_to(support)` of its own."""
        from numpyro.distributions import biject_to

        def value_of(site: Any) -> Any:
            if site["type"] != "sample" or site["name"] not in free:
                return None
            return biject_to(site["fn"].support)(free[site["name"]])

        return self.trace(value_of, rows)

    def potential(self, free: dict[str, Any], rows: dict[str, Any] | None = None, hide: str | None = None) -> Scalar:
        """-log p at free coordinates, the Jacobian included, by NumPyro; without the sites in the plate `hide`."""
        from numpyro.infer.util import potential_energy

        args, kwargs = self.arguments()
        return jnp.asarray(potential_energy(self.prepared(rows or {}, hide), args, kwargs, free))

    def prepared(self, rows: dict[str, Any], hide: str | None = None) -> Callable[..., Any]:
        """The model with a seed, for what it may draw, and with the rows of its subsampling plates."""
        from numpyro.handlers import seed
        from numpyro.primitives import Messenger

        class Rows(Messenger):
            def process_message(self, msg: Any) -> None:
                if is_subsampled(msg):
                    size = msg["args"][0]
                    msg["value"] = jnp.asarray(rows[msg["name"]] if msg["name"] in rows else jnp.arange(size))
                    # NumPyro compares the number of rows with the number that the model asked for.
                    msg["args"] = (size, msg["value"].shape[0])
                    msg["subsampled"] = True
                elif msg["type"] == "sample" and hide in (frame.name for frame in msg["cond_indep_stack"]):
                    msg["fn"] = msg["fn"].mask(False)

        return seed(Rows(self.model), 0)


def abstractly(function: Callable[..., Any], *args: Any) -> Any:
    """What `function` returns when it is run without computing anything: for facts such as shapes, not numbers."""
    found = []
    jax.eval_shape(lambda *args: found.append(function(*args)), *args)
    return found[0]


def is_subsampled(site: Any) -> bool:
    """Whether a site is a plate that asks for fewer rows than it has."""
    if site["type"] != "plate":
        return False
    size, asked = site["args"]
    return bool(site.get("subsampled", False)) or (asked is not None and asked != size)


def start_value(site: Any) -> Any:
    """The middle of a latent site's support: free coordinates 0."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    from numpyro.distributions import biject_to

    bijection = biject_to(_check_support(site))
    return bijection(jnp.zeros(bijection.inverse_shape(site["fn"].shape(site["kwargs"]["sample_shape"]))))


def _check_support(site: Any) -> Any:
    """The support of a latent site, which must be continuous and have a bijection from R^k."""
    from numpyro.distributions import biject_to

    name, kind = site["name"], type(site["fn"]).__name__
    try:
        support = site["fn"].support
        discrete = support is not None and support.is_discrete
        if support is not None and not discrete:
            biject_to(support)
    except (NotImplementedError, AttributeError):
        support, discrete = None, False
    if discrete:
        raise ValueError(
            f"site {name!r} is a discrete latent variable ({kind}); Gaussian approximations need continuous ones. "
            f"If it is data, pass the observed values to the model. Else marginalise it: sum over its values in the "
            f"model, with a mixture distribution (numpyro.distributions.MixtureSameFamily) or "
            f"numpyro.factor(jax.scipy.special.logsumexp(...)), which is what enumeration does."
        )
    if support is None:
        raise ValueError(
            f"site {name!r} ({kind}) has no support with a bijection from R^k. Give its distribution a `support`, or "
            f"write the site in unconstrained coordinates."
        )
    return support


def latent_sites(sites: Any) -> dict[str, Any]:
    """The sites to infer, by name; a `ValueError` where there are none, or some that have no place here."""
    for name, site in sites.items():
        if site["type"] in ("param", "mutable"):
            raise ValueError(
                f"site {name!r} is a numpyro.{site['type']}, a number without a prior. Give it a prior with "
                f"numpyro.sample, or fix it: numpyro.handlers.substitute(model, data={{{name!r}: value}})."
            )
    latent = {name: site for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]}
    if not latent:
        raise ValueError("the model has no latent site: nothing is left to infer.")
    for site in latent.values():
        _check_support(site)
    return latent


def mask_of(fn: Any) -> Any:
    """The mask of a distribution, under `to_event` and `expand`: an array, or True where there is none."""
    while type(fn).__name__ in ("Independent", "ExpandedDistribution"):
        fn = fn.base_dist
    return getattr(fn, "_mask", True)


def observed_sites(sites: Any) -> dict[str, Any]:
    """The sites with data, by name, without the factors."""
    return {name: site for name, site in sites.items() if _has_data(site)}


def _has_data(site: Any) -> bool:
    return site["type"] == "sample" and site["is_observed"] and not site["infer"].get("is_auxiliary", False)


def deterministic_sites(sites: Any) -> Iterable[str]:
    """The names of what the model computes for the output."""
    return [name for name, site in sites.items() if site["type"] == "deterministic"]


def _is_numeric(leaf: Any) -> bool:
    return getattr(leaf.dtype, "kind", "") in tuple("fiub")  # a key of random numbers has no kind


def _in_dtype(leaf: Any) -> Any:
    floating = np.issubdtype(np.dtype(leaf.dtype), np.floating)
    return jnp.asarray(leaf, default_dtype()) if floating else jnp.asarray(leaf)


def _hashable(leaf: Any) -> Any:
    return leaf if isinstance(leaf, bool | int | float | complex | str | bytes | None) else _Identical(leaf)
