"""What a covariance function is, the algebra of them (sums, products, constants), and their numbers as a vector."""

import abc
import functools
import math
import numbers
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.types import Scalar
from provi.kernels.distances import Gram, as_hyperparameter, as_point_pair, as_points, check_hyperparameter


class AbstractKernel(eqx.Module):
    """A positive semidefinite function k(x, x') of two points, with positive hyperparameters as array leaves.

    `k1 + k2` and `k1 * k2` are kernels again; a positive number c stands for the constant covariance c, so that
    `2.0 * k` has twice the covariances of k.
    """

    @abc.abstractmethod
    def matrix(self, X: Any, Z: Any = None) -> Gram:
        """The covariances k(x_i, z_j), shape (n, m); with Z = None those of X with itself, exactly symmetric.

        Nothing is added to the diagonal. The result has the floating type of X and can be differentiated in X, Z
        and the hyperparameters, also where points coincide.
        """

    @abc.abstractmethod
    def diagonal(self, X: Any) -> Float[Array, " points"]:
        """The variances k(x_i, x_i): the diagonal of `matrix(X)` without the matrix."""

    def __add__(self, other: Any) -> "AbstractKernel":
        return NotImplemented if _as_kernel(other) is None else Sum(self, other)

    def __radd__(self, other: Any) -> "AbstractKernel":
        return NotImplemented if _as_kernel(other) is None else Sum(other, self)

    def __mul__(self, other: Any) -> "AbstractKernel":
        return NotImplemented if _as_kernel(other) is None else Product(self, other)

    def __rmul__(self, other: Any) -> "AbstractKernel":
        return NotImplemented if _as_kernel(other) is None else Product(other, self)


class Constant(AbstractKernel):
    r"""The constant covariance $k(x, x') = a^2$, $a$ = `amplitude`: one shared normal offset of all values."""

    amplitude: Scalar = eqx.field(converter=as_hyperparameter, default=1.0)

    def __check_init__(self) -> None:
        check_hyperparameter("amplitude", self.amplitude)

    def matrix(self, X: Any, Z: Any = None) -> Gram:
        left, right = as_point_pair(X, Z)
        return jnp.broadcast_to(self.amplitude.astype(left.dtype) ** 2, (left.shape[0], right.shape[0]))

    def diagonal(self, X: Any) -> Float[Array, " points"]:
        points = as_points("X", X)
        return jnp.broadcast_to(self.amplitude.astype(points.dtype) ** 2, (points.shape[0],))


class Sum(AbstractKernel):
    r"""The sum of kernels, $k(x, x') = \sum_t k_t(x, x')$: independent processes added up."""

    terms: tuple[AbstractKernel, ...]

    def __init__(self, *terms: Any):
        self.terms = _flattened("Sum", Sum, "terms", terms)

    def matrix(self, X: Any, Z: Any = None) -> Gram:
        return functools.reduce(operator.add, [term.matrix(X, Z) for term in self.terms])

    def diagonal(self, X: Any) -> Float[Array, " points"]:
        return functools.reduce(operator.add, [term.diagonal(X) for term in self.terms])


class Product(AbstractKernel):
    r"""The product of kernels, $k(x, x') = \prod_t k_t(x, x')$: positive semidefinite by Schur's theorem."""

    factors: tuple[AbstractKernel, ...]

    def __init__(self, *factors: Any):
        self.factors = _flattened("Product", Product, "factors", factors)

    def matrix(self, X: Any, Z: Any = None) -> Gram:
        return functools.reduce(operator.mul, [factor.matrix(X, Z) for factor in self.factors])

    def diagonal(self, X: Any) -> Float[Array, " points"]:
        return functools.reduce(operator.mul, [factor.diagonal(X) for factor in self.factors])


def _as_kernel(value: Any) -> AbstractKernel | None:
    """A kernel, or a number as a constant covariance; None for anything else."""
    if isinstance(value, AbstractKernel):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if not 0 < float(value) < math.inf:
            raise ValueError(f"a kernel can be combined only with a positive finite number, not {value}.")
        return Constant(math.sqrt(float(value)))
    return None


def _flattened(name: str, kind: type, field: str, parts: tuple[Any, ...]) -> tuple[AbstractKernel, ...]:
    """The parts, with sums inside a sum (products inside a product) taken apart, so that names stay short."""
    if not parts:
        raise ValueError(f"{name} needs at least one kernel.")
    flat: list[AbstractKernel] = []
    for part in parts:
        kernel = _as_kernel(part)
        if kernel is None:
            raise ValueError(f"{name} takes kernels and positive numbers, not {part!r}.")
        flat.extend(getattr(kernel, field) if isinstance(kernel, kind) else (kernel,))
    return tuple(flat)


def log_parameters(kernel: AbstractKernel) -> np.ndarray:
    """The hyperparameters as one unconstrained vector: all logarithms, in the order of `parameter_names`."""
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(kernel) if eqx.is_inexact_array(leaf)]
    values = np.concatenate(leaves) if leaves else np.zeros(0)
    if not (values > 0).all():
        name = parameter_names(kernel)[int(np.argmin(values > 0))]
        raise ValueError(f"the hyperparameter {name} is not positive and has no logarithm; make it positive.")
    return np.log(values)


def with_log_parameters(kernel: AbstractKernel, vector: Float[Array, " parameters"]) -> AbstractKernel:
    """The kernel whose hyperparameters have the given logarithms; can be traced and differentiated in `vector`."""
    values, structure = jax.tree.flatten(kernel)
    size = sum(leaf.size for leaf in values if eqx.is_inexact_array(leaf))
    if vector.shape != (size,):
        raise ValueError(f"vector has shape {vector.shape}, but the kernel has {size} hyperparameters.")
    start = 0
    for index, leaf in enumerate(values):
        if eqx.is_inexact_array(leaf):
            values[index] = jnp.exp(vector[start : start + leaf.size]).reshape(leaf.shape)
            start += leaf.size
    return jax.tree.unflatten(structure, values)


def parameter_names(kernel: AbstractKernel) -> tuple[str, ...]:
    """A name for each entry of `log_parameters`, such as `length_scale[2]` or `terms[0].amplitude`."""
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(kernel)[0]:
        if eqx.is_inexact_array(leaf):
            name = jax.tree_util.keystr(path).lstrip(".")
            names += [name] if leaf.ndim == 0 else [f"{name}[{index}]" for index in range(leaf.size)]
    return tuple(names)
