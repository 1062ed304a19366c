"""How to make a fit again: the call, and a fingerprint of the model and data that it was made with."""

import dataclasses
import hashlib
from typing import Any

import equinox as eqx
import jax
import numpy as np


def describe_call(target: Any, family: Any, algorithm: Any = None, **options: Any) -> str:
    """The call of `provi.fit` as text, an algorithm with the numbers of its settings. Cheap: no data are read.

    **Arguments:**

    - `options`: keyword arguments of `provi.fit`, as they were given or filled in; None is left out.
    """
    lines = [f"target,  # {type(target).__name__}, {target.dim} parameters"]
    lines.append(f"family,  # {type(family).__name__}: base {family.base.name}, scale {family.scale}")
    if algorithm is not None:
        lines.append(f"{_settings(algorithm)},")
    lines += [f"{name}={value!r}," for name, value in options.items() if value is not None]
    return "provi.fit(\n" + "".join(f"    {line}\n" for line in lines) + ")"


def fingerprint(target: Any) -> str:
    """The first 16 digits of SHA-256 over the target's type, sizes and numbers: the same for the same model and data.

    Functions inside the target (a log density) are not part of it.
    """
    digest = hashlib.sha256(type(target).__name__.encode())
    for leaf in jax.tree.leaves(target):
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int):
            array = np.ascontiguousarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _settings(algorithm: Any) -> str:
    """The algorithm as code that is near to what makes it; a theorem's plan is named, not printed."""
    settings = []
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if field.name != "guarantee" and value is not None:
            text = eqx.tree_pformat(jax.tree.map(_scalar, value), short_arrays=False, width=10_000)
            settings.append(f"{field.name}={' '.join(text.split())}")
    plan = algorithm.guarantee
    planned = "" if plan is None else f"  # from_theorem: {plan.theorem}, {plan.num_steps} steps"
    return f"{type(algorithm).__name__}({', '.join(settings)}){planned}"


def _scalar(leaf: Any) -> Any:
    """A number instead of an array without axes, which prints more plainly."""
    is_scalar = isinstance(leaf, jax.Array | np.ndarray | np.generic) and np.ndim(leaf) == 0
    return np.asarray(leaf).item() if is_scalar else leaf
