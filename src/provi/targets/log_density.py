"""A target from any log density written in JAX."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from provi.core.arguments import as_array, check_count, check_positive, device_array, double_precision
from provi.core.captured import captured
from provi.core.compilation import program_jit
from provi.core.krylov import extreme_eigenvalues
from provi.core.types import Draws, RandomKey, Scalar, Vector
from provi.targets.assumptions import Assumptions, confront, declare, proven_bounds, proven_or
from provi.targets.base import AbstractTarget, Constant, Constants, declared, in_double, unknown
from provi.targets.data import read_names
from provi.targets.parameters import check_density, element_names, read_example
from provi.targets.transforms.constraints import (
    constrained,
    log_determinant,
    read_constraints,
    unconstrained,
    zeros_for,
)
from provi.targets.transforms.scalar import AbstractBijection

PerPoint: TypeAlias = Float[Array, " draws"]


class LogDensity(AbstractTarget):
    r"""The density exp(fn), up to a constant. Its shape is what its program proves, the user declares, or is estimated.

    With constraints, the vector z holds free coordinates x of the parameters y = f(x), f a bijection, and the density
    is that of z: $\log p(z) = \mathrm{fn}(f(z)) + \log|\det f'(z)|$. What is declared is declared of this density.
    """

    fn: Callable[..., Any]
    start: Vector
    assumptions: Assumptions
    bijections: tuple[AbstractBijection, ...] | None
    unravel: Callable[[Vector], Any] = eqx.field(static=True)
    names: tuple[str, ...] | None = eqx.field(static=True)
    captured: str = eqx.field(static=True)
    """What `fn` reads from outside: a program compiled before that changed must not be used again."""
    growth_exponent: float | None = eqx.field(static=True)

    @double_precision
    def __init__(
        self,
        fn: Any,
        dim: Any,
        strong_convexity: Any = None,
        smoothness: Any = None,
        log_concave: Any = None,
        *,
        names: Sequence[str] | None = None,
        dtype: Any = None,
        start: Any = None,
        constraints: Any = None,
        growth_exponent: Any = None,
    ):
        """**Arguments:**

        - `fn`: the log density, of a vector or of a pytree like `dim`, written with `jax.numpy`. Data that
            changes between runs goes in through `jax.tree_util.Partial(fn, data)` or an `eqx.Module`.
        - `dim`: the length of the vector, or an example of the pytree of arrays that `fn` takes.
        - `strong_convexity`: mu >= 0, where the potential is known to be mu-strongly convex.
        - `smoothness`: M > 0, where its gradient is known to be M-Lipschitz.
        - `log_concave`: whether the potential is convex; implied by `strong_convexity`.
        - `names`: a name for each coordinate of the vector z.
        - `dtype`: the floating type; the example's, or float64 on the CPU, by default.
        - `start`: a point where `fn` is finite; zeros, or the example's values, by default.
        - `constraints`: the sets that the parameters live in: one for all, a pytree like `dim`, or a dictionary by
            name, `{"scale": "positive"}`. Each is None (real), `"positive"`, `provi.targets.interval(a, b)`,
            `"simplex"` or `"ordered"` (along the last axis), `"correlation matrix"` or its Cholesky factor,
            `"correlation cholesky"` (over the last two). `fn`, the example and `start` are in these sets.
        - `growth_exponent`: an r > 0 for which the potential is known to be at least c |z|^r - c', for some c > 0. The
            theorems ask for it where neither strong convexity nor the gradients show that a best approximation exists.
        """
        if not callable(fn):
            raise TypeError(f"fn must be a function that returns the log density, not {type(fn).__name__}.")
        self.assumptions = declare(strong_convexity, smoothness, log_concave)
        self.growth_exponent = None if growth_exponent is None else check_positive("growth_exponent", growth_exponent)
        # A plain function becomes a pytree without leaves, so that `jax.jit` takes the target as it is.
        self.fn = jax.tree_util.Partial(fn) if jax.tree_util.all_leaves([fn]) else fn
        self.captured = _captured_by(fn)
        example = read_example(dim, start, dtype)
        self.bijections = None if constraints is None else read_constraints(constraints, example)
        if self.bijections is not None:
            blank = start is None and isinstance(dim, int | np.integer | float)
            argument = "dim" if start is None else "start"
            free = zeros_for if blank else functools.partial(unconstrained, argument)
            example = free(self.bijections, example)
        self.start, self.unravel = ravel_pytree(example)
        self.names = read_names(names, self.dim, f"dim is {self.dim}")
        check_density(lambda z: self._log_density(z), self.start)

    @property
    def dim(self) -> int:
        """The length of the flat parameter vector."""
        return self.start.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the parameters."""
        return self.start.dtype

    @property
    @double_precision
    def parameter_names(self) -> tuple[str, ...]:
        """The names given, the pytree's paths, or `z[0]`, `z[1]`, ...; `log(scale)` for a free coordinate."""
        if self.names is not None:
            return self.names
        labels = None if self.bijections is None else [bijection.label for bijection in self.bijections]
        return element_names(jax.eval_shape(self.unravel, self.start), labels)  # by shapes: nothing is compiled

    @property
    @double_precision
    def constrained_names(self) -> tuple[str, ...]:
        """A name for each number of the user's pytree, in the order of its leaves."""
        if self.bijections is None:
            return self.parameter_names
        return element_names(self._parameters(self.start))

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[str]]]:
        """The names given, of a density of one vector."""
        is_vector = self.bijections is None and isinstance(self.unravel(self.start), jax.Array)
        return {"z": {"parameter": self.names}} if self.names is not None and is_vector else {}

    @property
    def constants(self) -> Constants:
        """Proven where the rules of convexity see it in the program of `fn`; else declared, estimated or unknown.

        Violated where a counter-example was found.
        """
        return proven_or(self, self.assumptions)

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Matrices read off the program of `fn`, where they are all that is known."""
        return proven_bounds(self, self.assumptions)

    @property
    def growth(self) -> Constant:
        """The exponent that was declared."""
        return unknown("none is declared") if self.growth_exponent is None else declared(self.growth_exponent)

    @property
    def default_location(self) -> np.ndarray:
        """The `start` that the density was tried at."""
        return np.asarray(self.start, np.float64)

    @property
    def counterexample(self) -> Vector | None:
        """A point whose curvature refutes log-concavity or a declared constant, if one was found."""
        return self.assumptions.counterexample

    def potential(self, z: Vector) -> Scalar:
        """-fn(z); with constraints -fn(f(z)) - log |det f'(z)|."""
        return -jnp.asarray(self._log_density(z), self.dtype)

    @double_precision
    def widened(self) -> "LogDensity":
        """With its own arrays and its parameters in float64; arrays that `fn` closes over are promoted by JAX."""
        if self.dtype == np.float64:
            return self
        wide = in_double(self)
        unravel = ravel_pytree(in_double(self.unravel(self.start)))[1]
        object.__setattr__(wide, "unravel", unravel)
        return wide

    @double_precision
    def constrain(self, z: Any) -> Any:
        """The user's pytree at z, in NumPy; for draws (n, dim), every leaf has n in front."""
        points = as_array("z", z)
        if points.ndim not in (1, 2) or points.shape[-1] != self.dim:
            raise ValueError(f"z has shape {points.shape}; its last axis must be the dimension {self.dim}.")
        values = _parameters_at(self, device_array(np.atleast_2d(points), self.dtype))
        return jax.tree.map(lambda leaf: np.asarray(leaf if points.ndim == 2 else leaf[0]), values)

    @double_precision
    def unconstrain(self, parameters: Any) -> np.ndarray:
        """The vector z of a pytree like the one that `fn` takes; the inverse of `constrain`."""
        example = jax.tree.map(np.asarray, self._parameters(self.start))
        values = read_example(example, parameters, self.dtype, "parameters")
        free = values if self.bijections is None else unconstrained("parameters", self.bijections, values)
        return np.asarray(ravel_pytree(free)[0])

    def _parameters(self, z: Vector) -> Any:
        free = self.unravel(z)
        return free if self.bijections is None else constrained(self.bijections, free)

    def _log_density(self, z: Vector) -> Any:
        if self.bijections is None:
            return self.fn(self.unravel(z))
        return self.fn(self._parameters(z)) + log_determinant(self.bijections, self.unravel(z))

    @double_precision
    def estimate_smoothness(self, seed: int, num_points: int = 16, spread: Any = 1.0) -> "LogDensity":
        """This target with its curvature measured at the start and at random points around it.

        At each point, Lanczos on Hessian-vector products finds the extreme eigenvalues; the largest in
        absolute value over the points is the estimate of the smoothness (an estimate from below). Negative
        curvature, or curvature outside the declared range, marks the assumption as violated.

        **Arguments:**

        - `seed`: of the random points.
        - `num_points`: how many points are tried.
        - `spread`: their standard deviation around `start`.

        **Returns:** a new `LogDensity`.
        """
        check_count("num_points", num_points)
        check_positive("spread", spread)
        draw_key, lanczos_key = jax.random.split(jax.random.key(seed))
        noise = jax.random.normal(draw_key, (num_points, self.dim), self.dtype).at[0].set(0.0)
        points = self.start[None, :] + jnp.asarray(spread, self.dtype) * noise
        values, smallest, largest = (np.asarray(x, np.float64) for x in _spectra(self, points, lanczos_key))
        # Derivatives may be finite where the density is not: log z at a negative z.
        bad = ~(np.isfinite(values) & np.isfinite(smallest) & np.isfinite(largest))
        if bad.any():
            raise ValueError(
                f"fn or its second derivatives are not finite at {int(bad.sum())} of {num_points} points, "
                f"the first {np.asarray(points[int(np.argmax(bad))])}: "
                f"reduce spread, or transform fn to unbounded parameters."
            )
        tolerance = float(np.sqrt(np.finfo(self.dtype).eps))
        revised = confront(self.assumptions, smallest, largest, points, tolerance)
        return eqx.tree_at(lambda target: target.assumptions, self, revised)


def _captured_by(fn: Any) -> str:
    """Of the code only: the leaves of a pytree are data."""
    if isinstance(fn, jax.tree_util.Partial):
        return captured(fn.func)
    return captured(fn if jax.tree_util.all_leaves([fn]) else type(fn).__call__)


@program_jit
def _parameters_at(target: LogDensity, points: Draws) -> Any:
    return jax.vmap(target._parameters)(points)


@program_jit
def _spectra(target: LogDensity, points: Draws, key: RandomKey) -> tuple[PerPoint, PerPoint, PerPoint]:
    """The potential and the extreme Ritz values of its Hessian, at each point."""

    def at(point: Vector) -> tuple[Scalar, Scalar, Scalar]:
        def product(vector: Vector) -> Vector:
            return jax.jvp(jax.grad(target.potential), (point,), (vector,))[1]

        # 32 products fix the ends of a spectrum to a few digits, which is all an estimate needs.
        smallest, largest = extreme_eigenvalues(product, key, target.dim, 32, target.dtype)
        return target.potential(point), smallest, largest

    return jax.lax.map(at, points)
