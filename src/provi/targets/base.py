"""What a target is: a potential on R^d, and what is known of its shape and on what grounds."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core
from jaxtyping import Array, Float

from provi.core.arguments import as_array
from provi.core.devices import Division
from provi.core.types import Indices, Scalar, Vector

Status: TypeAlias = Literal["proven", "declared", "estimated", "unknown", "violated"]
"""Closed form; the user's word; measured numerically; nothing known; a counter-example was found."""


@dataclasses.dataclass(frozen=True)
class Constant:
    """One property of a target, with the grounds for it.

    **Arguments:**

    - `value`: a host float or bool; `None` when unknown.
    - `status`: `"proven"`, `"declared"`, `"estimated"`, `"unknown"` or `"violated"`.
    - `reason`: a few words for people.
    """

    value: float | bool | None
    status: Status
    reason: str

    @property
    def known(self) -> bool:
        """True when there is a value and nothing contradicts it."""
        return self.value is not None and self.status != "violated"


@dataclasses.dataclass(frozen=True)
class Constants:
    """The three properties of a potential that the theorems ask for: the numbers that the guarantees rest on.

    **Arguments:**

    - `log_concave`: whether the potential is convex.
    - `strong_convexity`: mu; the Hessian of the potential is at least mu everywhere.
    - `smoothness`: M; the Hessian of the potential is at most M everywhere.
    """

    log_concave: Constant
    strong_convexity: Constant
    smoothness: Constant


def proven(value: float | bool, reason: str) -> Constant:
    """A constant known in closed form."""
    return Constant(value, "proven", reason)


def declared(value: float | bool, reason: str = "declared by the user") -> Constant:
    """A constant taken on the user's word."""
    return Constant(value, "declared", reason)


def estimated(value: float | bool, reason: str) -> Constant:
    """A constant measured numerically: it may be too optimistic."""
    return Constant(value, "estimated", reason)


def unknown(reason: str) -> Constant:
    """A constant nothing is known of."""
    return Constant(None, "unknown", reason)


def violated(value: float | bool | None, reason: str) -> Constant:
    """A claim that a counter-example refutes."""
    return Constant(value, "violated", reason)


class AbstractTarget(eqx.Module):
    """A density on R^d, known through its potential -log p.

    Arrays that may change between runs are leaves, sizes and names are static: a function compiled
    for one target serves every other of the same shapes.
    """

    variable: ClassVar[str] = "parameters"
    """What the vector z is called as one variable of the model, where the model says no more than that."""

    division: Division | None = eqx.field(static=True, default=None, kw_only=True)
    """How its rows or its draws are divided among devices; None on one."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The length d of the parameter vector."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The floating type the potential is computed in."""

    @property
    @abc.abstractmethod
    def constants(self) -> Constants:
        """Log-concavity, strong convexity and smoothness, as host numbers with their grounds."""

    @property
    @abc.abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """A name for each of the d coordinates."""

    @abc.abstractmethod
    def potential(self, z: Vector) -> Scalar:
        """-log p(z), up to a constant."""

    def value_and_gradient(self, z: Vector) -> tuple[Scalar, Vector]:
        """The potential and its gradient; a target that has a quicker way than autodiff says so."""
        return autodiff(self, z)

    @property
    def default_location(self) -> np.ndarray:
        """Where a run starts unless told otherwise: zero. A target whose density may not be finite there says where."""
        return np.zeros(self.dim)

    def search_points(self, count: int, seed: int) -> np.ndarray:
        """`count` points from which to look for modes, one a row: `default_location`, then random ones around it.

        More than half of them are uniform within 2 of it, as in Stan and NumPyro. Of a density whose scale nobody told,
        the rest are normal and far out, with deviations of 8, 32, 128, 8, ..., in pairs on both sides: a mode
        elsewhere attracts a half-space of the far points, which one of two opposite ones is in.
        """
        return points_around(self.default_location, count, seed, radius=2.0, far=(8.0, 32.0, 128.0))

    def constrain(self, z: Any) -> Any:
        """The parameters at z in the model's own space, a dictionary of NumPy arrays; for draws (n, dim), n in front.

        Here z itself. Models with constraints, or with quantities computed from the parameters, say so.
        """
        return {self.variable: read_points(z, self.dim)}

    @property
    def constrained_names(self) -> tuple[str, ...]:
        """A name for each number of `constrain`, in the order of its leaves."""
        return self.parameter_names

    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector z of parameters in the model's own space; the inverse of `constrain`."""
        if not isinstance(values, Mapping) or self.variable not in values:
            raise ValueError(f"values must be a dictionary with {self.variable!r}, as `constrain` returns it.")
        return read_points(values[self.variable], self.dim)

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[str]]]:
        """For variables of `constrain` whose axes have names: variable -> {axis: a label for each entry}, in order."""
        return {}

    @property
    def parameter_variables(self) -> tuple[str, ...] | None:
        """The variables of `constrain` that are parameters; the model computes the others of them. `None`: all are."""
        return None

    @property
    def observed_data(self) -> dict[str, np.ndarray]:
        """The data by name; empty where the target does not know them."""
        return {}

    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y_n | z) of each datum, by name; for draws (n, dim), n in front. Empty where it is not known."""
        del z
        return {}

    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Data drawn from p(y | z), by name, one replicate for each row of z. Empty where that is not known."""
        del z, seed
        return {}

    takes_new_data: ClassVar[bool] = False
    """Whether `predict_new` is known: models of other packages, which are run again with other arguments."""

    def predict_new(self, z: Any, seed: int, *new: Any) -> dict[str, np.ndarray]:
        """Data drawn from p(y | z) of the model with new arguments, by name, one replicate for each row of z."""
        del z, seed, new
        raise ValueError(f"{type(self).__name__} cannot be run again with other data.")

    def response_law(self, z: Any) -> tuple[Any, np.ndarray] | None:
        """The likelihood and its eta, one a datum, at z (or for draws, n in front), on the host; None where that is not
        how the data are drawn, or where it takes a program."""
        del z
        return None

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Proven matrices (low, high) with low <= Hessian of the potential <= high everywhere.

        Sharper than the two numbers in `constants`. This is the answer of a target that knows none;
        models that do, say so. `high` is `None` when the potential is not smooth. Host float64; the
        matrices include the rounding of their own computation.
        """
        return None

    @property
    def growth(self) -> Constant:
        """An exponent r > 0 with potential(z) >= c |z|^r - c' for some c > 0, where one is declared."""
        return unknown("none is declared")

    def linear_model(self) -> Any:
        """The same density as a linear model (an `AbstractLinearModel`), if it is one; else `None`."""
        return None

    def latent_gaussian(self) -> Any:
        """The same density as a latent Gaussian model (an `AbstractLatentGaussian`), if it is one; else `None`."""
        return None

    def widened(self) -> "AbstractTarget":
        """The same density computed in float64, of the same data: what a certificate of a given q is computed with."""
        return in_double(self)

    def curvature_lower_bound(self) -> np.ndarray | None:
        """The first of `curvature_bounds`, where it can be had for less than both."""
        bounds = self.curvature_bounds()
        return None if bounds is None else bounds[0]


class AbstractFiniteSum(AbstractTarget):
    """A target whose potential is a prior and a sum of data terms, prior(z) + sum_n term_n(z)."""

    @property
    @abc.abstractmethod
    def num_terms(self) -> int:
        """The number of data terms."""

    @abc.abstractmethod
    def prior_potential(self, z: Vector) -> Scalar:
        """The part that every mini-batch holds in full."""

    @abc.abstractmethod
    def term_potentials(self, z: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        """The data terms at `indices`, one an entry.

        Implementations index their data directly, `self.data[indices]`, so that a slice means a run of
        terms without a copy.
        """

    def potential(self, z: Vector) -> Scalar:
        """prior(z) + sum over all n of term_n(z)."""
        terms = self.term_potentials(z, slice(None))
        if self.division is not None:
            terms = jnp.where(self.division.real(terms.shape[0]), terms, 0)
        return self.prior_potential(z) + jnp.sum(terms)

    def minibatch_potential(self, z: Vector, indices: Indices) -> Scalar:
        """prior(z) + num_terms * mean of the terms at `indices`: unbiased when they are drawn uniformly."""
        return self.prior_potential(z) + self.num_terms * jnp.mean(self.term_potentials(z, indices))


_traced: dict[Any, Any] = {}
_MOST_TRACED = 64
"""Programs of potentials that are kept; they hold what the user's functions have captured."""


def traced_potential(target: AbstractTarget, z: Vector) -> Scalar:
    """The potential, traced once for all programs in which it stands.

    Tracing is half of a first fit that compiles little, and most of that is the differentiation of one and the same
    potential: seven times in the fit of a NumPyro model. Equations that are known take a third of the time.
    """
    return _by_equations(_potential, target, z)[0]


def autodiff(target: AbstractTarget, z: Vector) -> tuple[Scalar, Vector]:
    """The potential and its gradient, traced once for all programs in which they stand."""
    value, gradient = _by_equations(_value_and_gradient, target, z)
    return value, gradient


def _potential(target: AbstractTarget, z: Vector) -> tuple[Scalar]:
    return (target.potential(z),)


def _value_and_gradient(target: AbstractTarget, z: Vector) -> tuple[Scalar, Vector]:
    return jax.value_and_grad(target.potential)(z)


def _by_equations(function: Any, target: AbstractTarget, z: Vector) -> Any:
    leaves, structure = jax.tree.flatten((target, z))
    places = [k for k, leaf in enumerate(leaves) if eqx.is_array(leaf)]
    arrays = [leaves[k] for k in places]
    rest = tuple(leaf for leaf in leaves if not eqx.is_array(leaf))
    kinds = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in arrays)
    settings: Any = jax.config
    key = function, structure, tuple(places), rest, kinds
    key = *key, bool(settings.jax_enable_x64), settings.jax_default_matmul_precision
    try:
        found = _traced.get(key)
    except TypeError:  # a leaf that cannot be hashed
        return function(target, z)
    if target.division is not None:  # where things lie is not a part of such a program
        return function(target, z)
    if found is None:

        def program(*given: Any) -> Any:
            known, others = dict(zip(places, given, strict=True)), iter(rest)
            whole = [known[k] if k in known else next(others) for k in range(len(places) + len(rest))]
            return function(*jax.tree.unflatten(structure, whole))

        shapes = (jax.ShapeDtypeStruct(s, d, weak_type=w) for s, d, w in kinds)
        found = jax_core.jaxpr_as_fun(jax.make_jaxpr(program)(*shapes))
        while len(_traced) >= _MOST_TRACED:
            _traced.pop(next(iter(_traced)), None)
        _traced[key] = found
    return found(*arrays)


def points_around(centre: np.ndarray, count: int, seed: int, *, radius: float, far: tuple[float, ...]) -> np.ndarray:
    """`centre`, points uniform within `radius` of it, and for every four of all a pair of opposite normal points, with
    the deviations `far` in turn."""
    near_stream, far_stream = (np.random.default_rng((seed, stream)) for stream in (0, 1))
    num_far = 2 * ((count - 1) // 4) if far else 0
    near = near_stream.uniform(-radius, radius, (max(count - 1 - num_far, 0), len(centre)))
    half = far_stream.standard_normal((num_far // 2, len(centre)))
    half *= np.resize(np.asarray(far or (1.0,)), num_far // 2)[:, None]
    moved = np.concatenate([np.zeros((1, len(centre))), near, np.stack([half, -half], axis=1).reshape(-1, len(centre))])
    return centre + moved[:count]


def in_double(tree: Any) -> Any:
    """A pytree with its floating arrays in float64; those that are so already are not copied."""

    def widen(leaf: Any) -> Any:
        return jnp.asarray(leaf, np.float64) if eqx.is_inexact_array(leaf) and leaf.dtype != np.float64 else leaf

    return jax.tree.map(widen, tree)


def read_points(z: Any, dim: int) -> np.ndarray:
    """One point (dim,) or draws (n, dim), finite, as a NumPy array; a `ValueError` names `z`."""
    points = as_array("z", z)
    if points.ndim not in (1, 2) or points.shape[-1] != dim:
        raise ValueError(f"z has shape {points.shape}; its last axis must be the dimension {dim}.")
    return points


def outer_spectrum(matrix: np.ndarray, error: float = 0.0) -> tuple[float, float]:
    """Numbers below the smallest and above the largest eigenvalue of a symmetric `matrix`.

    `eigvalsh` is backward stable, so each eigenvalue is off by at most a modest multiple of
    dim * eps * |matrix|; both ends move outwards by 8 dim eps |matrix|, plus `error`, a bound on how
    far `matrix` itself is from the matrix that is meant. A diagonal matrix needs no such allowance.
    """
    dim, epsilon = matrix.shape[0], float(np.finfo(np.float64).eps)
    diagonal = np.diagonal(matrix)
    if np.count_nonzero(matrix) == np.count_nonzero(diagonal):
        return (
            float(diagonal.min() - 8 * epsilon * abs(diagonal.min()) - error),
            float(diagonal.max() + 8 * epsilon * abs(diagonal.max()) + error),
        )
    eigenvalues = np.linalg.eigvalsh(matrix)
    slack = 8 * dim * epsilon * float(np.abs(eigenvalues).max()) + float(error)
    return float(eigenvalues[0]) - slack, float(eigenvalues[-1]) + slack
