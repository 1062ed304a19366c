r"""What kernels read and compute first: positive hyperparameters, columns, tables of points; their squared distances.

Distances are made from differences and in little memory. $|x|^2 + |z|^2 - 2 x'z$ loses all digits of the distance of
near points, and a kernel with a kink at zero (Matern 1/2) or a short length scale then sees noise. Differences keep
them, give exactly zero for equal points and an exactly symmetric matrix. Summed 16 columns at a time in one fused pass,
they cost twice the time of the matrix product and the memory of the result.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from provi.core.arguments import device_array, double_precision

Points = Float[Array, "_ columns"]
"""Inputs of a Gaussian process, one a row; two tables need not have the same number of rows."""

Gram = Float[Array, "rows cols"]
"""Covariances between two tables of points."""

_COLUMNS_AT_ONCE = 16


def as_hyperparameter(value: Any) -> Any:
    """`value` as a float64 array; what is traced, or is no number, stays as it is."""
    if isinstance(value, Tracer):
        return value
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return value
    # Always float64, so that a length scale of 0.1 is 0.1 also for a user who has not enabled 64 bits.
    return double_precision(device_array)(numbers)


def as_columns(value: Any) -> tuple[int, ...] | None:
    """`columns` as a tuple of whole numbers."""
    if value is None:
        return None
    chosen = np.atleast_1d(np.asarray(value))
    if chosen.ndim != 1 or chosen.size == 0 or not np.issubdtype(chosen.dtype, np.integer) or chosen.min() < 0:
        raise ValueError(f"columns must name columns of X by their positions, as in (0, 2), not {value!r}.")
    if len(set(chosen.tolist())) != chosen.size:
        raise ValueError(f"columns names a column twice: {value!r}. Name each column once.")
    return tuple(int(index) for index in chosen)


def check_hyperparameter(
    name: str, value: Any, columns: tuple[int, ...] | None = None, per_column: bool = False
) -> None:
    """A positive, finite number, or with `per_column` one for each column the kernel acts on."""
    if not eqx.is_array(value):
        raise ValueError(f"{name} must be a positive number, not {value!r}.")
    if value.ndim > (1 if per_column else 0) or value.size == 0:
        form = "one positive number, or a vector with one for each column" if per_column else "one positive number"
        raise ValueError(f"{name} must be {form}; its shape is {value.shape}.")
    if value.ndim == 1 and columns is not None and value.shape[0] != len(columns):
        raise ValueError(f"{name} has {value.shape[0]} entries, but columns={columns} needs {len(columns)}.")
    # Inside a compiled function the value is not known; the number was checked outside.
    if isinstance(value, Tracer):
        return
    numbers = np.asarray(value)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{name} must be positive and finite, not {numbers.tolist()}.")


def as_points(name: str, value: Any, columns: tuple[int, ...] | None = None) -> Points:
    """The chosen columns of a table of points, in floating point."""
    points = jnp.asarray(value)
    if not jnp.issubdtype(points.dtype, jnp.floating):
        points = points.astype(jnp.result_type(float))
    if points.ndim != 2:
        shape = points.shape
        raise ValueError(f"{name} must be a table, one point a row, not of shape {shape}. Is {name}[:, None] meant?")
    if columns is None:
        return points
    if max(columns) >= points.shape[1]:
        raise ValueError(f"columns={columns} needs {max(columns) + 1} columns, but {name} has {points.shape[1]}.")
    return points[:, np.asarray(columns)]


def as_point_pair(X: Any, Z: Any, columns: tuple[int, ...] | None = None) -> tuple[Points, Points]:
    """X and Z (X again if Z is None), in the same floating type and with the same number of columns."""
    left = as_points("X", X, columns)
    if Z is None:
        return left, left
    right = as_points("Z", Z, columns)
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"Z has {right.shape[1]} columns, but X has {left.shape[1]}: give both the same columns.")
    dtype = jnp.promote_types(left.dtype, right.dtype)
    return left.astype(dtype), right.astype(dtype)


def per_column(name: str, value: Float[Array, "..."], points: Points) -> Float[Array, " columns"]:
    """A hyperparameter as one number for each column of `points`, in their floating type."""
    if value.ndim == 1 and value.shape[0] != points.shape[1]:
        raise ValueError(
            f"{name} has {value.shape[0]} entries, but the kernel acts on {points.shape[1]} columns: "
            f"give one entry for each column, or one number for all."
        )
    return jnp.broadcast_to(value.astype(points.dtype), (points.shape[1],))


def scaled_squared_distances(x: Points, z: Points, length_scale: Float[Array, "..."]) -> Gram:
    r"""$\sum_k (x_{ik} - z_{jk})^2 / \ell_k^2$, for one length scale or one a column."""
    if length_scale.ndim == 0:
        # A shorter scale separates the same points, and its square would be zero.
        scale = jnp.maximum(length_scale.astype(x.dtype), math.sqrt(jnp.finfo(x.dtype).tiny))
        return squared_distances(x, z, None) / scale**2
    return squared_distances(x, z, 1 / per_column("length_scale", length_scale, x))


@jax.custom_jvp
def squared_distances(x: Points, z: Points, factors: Float[Array, " columns"] | None) -> Gram:
    r"""$\sum_k f_k^2 (x_{ik} - z_{jk})^2$ for all pairs (f = 1 if None).

    Exact zeros for equal points, exactly symmetric for z = x. The one exception is a table computed by a product
    inside the same compiled function: the compiler may then contract $ab - z$ to one rounding, and entries differ
    in the last digit.
    """
    return _sum_of_squares(x.T, z.T, factors)


@squared_distances.defjvp
def _squared_distances_jvp(primals, tangents):
    """2 (a - b)'(da - db), a = f x, b = f z, multiplied out: its transpose is matrix products, nothing over (i, j, k).

    A shift of both tables changes nothing but the rounding, which is least around their centre.
    """
    (x, z, factors), (dx, dz, dfactors) = primals, tangents
    centre = jax.lax.stop_gradient(jnp.mean(z, axis=0, keepdims=True))
    a, b = x - centre, z - centre
    if factors is not None:
        dx, dz = dx * factors[None, :] + a * dfactors[None, :], dz * factors[None, :] + b * dfactors[None, :]
        a, b = a * factors[None, :], b * factors[None, :]
    own = jnp.sum(a * dx, axis=1)[:, None] + jnp.sum(b * dz, axis=1)[None, :]
    return squared_distances(x, z, factors), 2 * (own - a @ dz.T - dx @ b.T)


@jax.jit
def _sum_of_squares(
    x: Float[Array, "columns rows"], z: Float[Array, "columns cols"], factors: Float[Array, " columns"] | None
) -> Gram:
    whole_blocks = x.shape[0] // _COLUMNS_AT_ONCE

    def add_block(index, total):
        start = index * _COLUMNS_AT_ONCE
        block = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, _COLUMNS_AT_ONCE), (x, z, factors))
        return _add_squares(total, *block)

    total = jnp.zeros((x.shape[1], z.shape[1]), x.dtype)
    total = jax.lax.fori_loop(0, whole_blocks, add_block, total) if whole_blocks else total
    done = whole_blocks * _COLUMNS_AT_ONCE
    return _add_squares(total, *jax.tree.map(lambda a: a[done:], (x, z, factors)))


def _add_squares(
    total: Gram,
    x: Float[Array, "block rows"],
    z: Float[Array, "block cols"],
    factors: Float[Array, " block"] | None,
) -> Gram:
    # Written out, so that the compiler makes one pass over the result for the whole block. The difference comes
    # first: f x - f z would be contracted to one rounding, which is not symmetric.
    for column in range(x.shape[0]):
        difference = x[column][:, None] - z[column][None, :]
        total = total + jnp.square(difference if factors is None else factors[column] * difference)
    return total
