"""Every member of every kind, on a small problem: what the laws run over."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from provi.families import AbstractScale, Laplace, LocationScale, LowRank, Normal, Point, StudentT, Uniform

DIM, RANK = 3, 2
# Twelve degrees of freedom: the z-tests of squared gradients need a finite eighth moment.
BASES = {"normal": Normal(), "laplace": Laplace(), "uniform": Uniform(), "student_t": StudentT(12.0)}
SCALES = ("triangular", "symmetric", "diagonal", "low_rank")
FAMILIES = [(b, s) for b in BASES for s in SCALES if s != "low_rank" or b in ("normal", "student_t")]

LOC = np.array([0.3, -0.7, 1.1])
FACTOR = np.array([[0.9, 0.0, 0.0], [0.4, 0.7, 0.0], [-0.3, 0.2, 1.2]])
SPREAD = np.array([[0.4, 0.1], [-0.2, 0.5], [0.3, 0.3]])


# Halves the compile time of functions that a test runs once.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def family_of(base: str, scale: str) -> LocationScale:
    return LocationScale(DIM, BASES[base], scale, rank=RANK)


def point_of(family: LocationScale, dtype=np.float64) -> Point:
    """A point without any symmetry: every free entry is nonzero."""
    loc = LOC.astype(dtype)
    if family.scale == "triangular":
        return family.point(loc, FACTOR.astype(dtype))
    if family.scale == "symmetric":
        return family.point_from_covariance(loc, FACTOR @ FACTOR.T, dtype)
    point = family.point(loc, np.diagonal(FACTOR).astype(dtype))
    if family.scale == "diagonal":
        return point
    return Point(point.loc, LowRank(point.scale.diagonal, jnp.asarray(SPREAD, dtype)))


def dense(scale: AbstractScale) -> jax.Array:
    """C as a matrix, written apart from the library's own operations."""
    if scale.kind == "diagonal":
        return jnp.diag(scale.diagonal)
    if scale.kind == "low_rank":
        return jnp.concatenate([jnp.diag(scale.diagonal), scale.factor], axis=1)
    return scale.matrix


def in_space(scale: AbstractScale) -> AbstractScale:
    """A gradient in all entries of the arrays, projected on the free ones."""
    if scale.kind == "triangular":
        return type(scale)(jnp.tril(scale.matrix))
    if scale.kind == "symmetric":
        return type(scale)((scale.matrix + scale.matrix.T) / 2)
    return scale


def flat(tree) -> np.ndarray:
    """All entries of a pytree as one vector."""
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])
