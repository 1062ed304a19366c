"""Parameters as pytrees: the example a user gives, names of its elements, a first trial of the density."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import as_array, check_count, default_dtype, floating_dtype
from provi.core.interpreter import weighed_jit
from provi.core.types import Scalar, Vector


def read_example(dim: Any, start: Any, dtype: Any, argument: str = "start") -> Any:
    """The starting point, as the pytree that the density takes, every leaf of one floating type.

    **Arguments:**

    - `dim`: the length of a vector, or an example pytree.
    - `start`: values to use instead of zeros or the example's.
    - `dtype`: the floating type; `None` for the example's, or the default.
    - `argument`: what errors call `start`.
    """
    if isinstance(dim, int | np.integer | float):
        example: Any = np.zeros(check_count("dim", dim))
        chosen = default_dtype() if dtype is None else dtype
    else:
        example = dim
        leaves = jax.tree.leaves(example)
        if not leaves:
            raise ValueError("dim must be a whole number or a pytree with at least one array in it.")
        chosen = jnp.result_type(*(floating_dtype(leaf) for leaf in leaves)) if dtype is None else dtype
    if not jnp.issubdtype(chosen, jnp.floating):
        raise ValueError(f"dtype must be a floating type, not {chosen}.")
    example = jax.tree.map(lambda leaf: as_array("dim", leaf), example)
    if start is None:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, chosen), example)
    if jax.tree.structure(start) != jax.tree.structure(example):
        start = as_array(argument, start) if isinstance(example, np.ndarray) else start
    _check_structure(argument, start, example)
    return jax.tree.map(lambda leaf: jnp.asarray(as_array(argument, leaf), chosen), start)


def _check_structure(argument: str, start: Any, example: Any) -> None:
    structures = jax.tree.structure(start), jax.tree.structure(example)
    if structures[0] != structures[1]:
        raise ValueError(f"{argument} has the structure {structures[0]}, but dim says {structures[1]}.")
    for given, wanted in zip(jax.tree.leaves(start), jax.tree.leaves(example), strict=True):
        if np.shape(given) != wanted.shape:
            raise ValueError(f"{argument} holds a shape {np.shape(given)} where dim says {wanted.shape}.")


def element_names(
    example: Any, labels: Sequence[str] | None = None, axes: Mapping[str, Mapping[str, Sequence[Any]]] | None = None
) -> tuple[str, ...]:
    """A name for each element: the path of its leaf and its index there; `z[0]`, ... for a bare vector.

    **Arguments:**

    - `labels`: one a leaf, says what the elements are of the leaf: `log(scale)[0]` for the label `log`.
    - `axes`: words instead of indices, as a target's `axis_labels` has them: `a[Adelie]`. They count for a leaf of
      their shape, and where they are different words.
    """
    names: list[str] = []
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(example)):
        stem = jax.tree_util.keystr(path, simple=True, separator=".") or "z"
        words = _words(leaf.shape, (axes or {}).get(stem, {}))
        stem = f"{labels[number]}({stem})" if labels is not None and labels[number] else stem
        names += [stem + (f"[{','.join(index)}]" if index else "") for index in itertools.product(*words)]
    return tuple(names)


def _words(shape: tuple[int, ...], axes: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    """What the entries along each axis are called: labels where there are as many different ones, else numbers."""
    found = [[str(label) for label in labels] for labels in axes.values()]
    fits = tuple(map(len, found)) == shape and all(len(set(labels)) == len(labels) for labels in found)
    return found if fits else [[str(index) for index in range(length)] for length in shape]


def check_density(log_density: Callable[[Vector], Any], start: Vector) -> None:
    """Evaluate the log density and its gradient once: scalar, real and finite, or an error naming `fn`."""
    try:
        result = jax.eval_shape(log_density, start)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise TypeError(f"fn cannot be traced by JAX; write it with jax.numpy. JAX says: {error}") from error
    except Exception as error:
        raise ValueError(
            f"fn failed on parameters of size {start.size}, as dim says: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(result, jax.ShapeDtypeStruct):
        raise TypeError(f"fn must return one number, the log density; it returned {type(result).__name__}.")
    if result.shape != ():
        raise TypeError(
            f"fn must return one number, the log density; it returned an array of shape {result.shape}. "
            f"Sum over the observations."
        )
    if not jnp.issubdtype(result.dtype, jnp.floating):
        raise TypeError(f"fn must return a real number; it returned dtype {result.dtype}.")
    value, gradient = weighed_jit(jax.value_and_grad(log_density))(start)
    _check_finite(value, gradient)


def _check_finite(value: Scalar, gradient: Vector) -> None:
    remedy = "Pass start= (or an example pytree as dim) where it is finite, or use unbounded parameters."
    if not np.isfinite(value):
        raise ValueError(f"fn returned {float(value)} at the starting point. {remedy}")
    bad = np.flatnonzero(~np.isfinite(np.asarray(gradient)))
    if bad.size:
        raise ValueError(f"the gradient of fn is not finite at the starting point, first at element {bad[0]}. {remedy}")
