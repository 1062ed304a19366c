"""What ProVI asks of a Stan model with its data, as functions of NumPy arrays; and its Hessian from gradients."""

import abc
import json
from typing import Any

import numpy as np

# The step is a fraction h = 2^-12 of |v|, since the searches for curvature hand over directions as long as q is wide:
# with fifth derivatives of size 1 in that unit the truncation error is h^4/30 = 1e-16, and with gradients whose terms
# have size S the rounding error about eps S / h = 1e-12 S. Where |v| is far from 1 it is more
# likely to be no width at all, and the step stops at what the digits of z and a width of 1 allow.
_FRACTION, _SHORTEST, _LONGEST = 2.0**-12, 1e-2, 16.0
_OFFSETS, _WEIGHTS = np.array([-2.0, -1.0, 1.0, 2.0]), np.array([1.0, -8.0, 8.0, -1.0]) / 12


class AbstractEngine(abc.ABC):
    """A Stan model and its data. Points are rows of free coordinates; every method may be called from any thread."""

    @property
    @abc.abstractmethod
    def free_names(self) -> tuple[str, ...]:
        """Stan's names of the free coordinates, such as `theta.1`; within an array their order is not that of z."""

    @abc.abstractmethod
    def names(self, depth: int) -> tuple[str, ...]:
        """Stan's names of what `constrain` returns at this depth, in its order, such as `theta.1.2`."""

    @abc.abstractmethod
    def density(self, points: np.ndarray) -> np.ndarray:
        """The log density with the Jacobian at each row, with all constants; -inf where Stan raises."""

    @abc.abstractmethod
    def gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same with its gradient, which is NaN where Stan raises."""

    @abc.abstractmethod
    def hessian_products(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray | None:
        """Exact products of the Hessian at each row with the direction of the row; `None` from an engine without."""

    @abc.abstractmethod
    def reason(self, point: np.ndarray) -> str:
        """What Stan says where it raises; empty where it does not."""

    @abc.abstractmethod
    def constrain(self, points: np.ndarray, depth: int, seed: int) -> np.ndarray:
        """Parameters (depth 0), transformed parameters (1) and generated quantities (2); NaN in rows where Stan raises.

        A `ValueError` with Stan's words if it does so in all of them.
        """

    @abc.abstractmethod
    def unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """The free coordinates of values of all parameters; a `ValueError` with Stan's words if they have none."""


def hessian_products(engine: AbstractEngine, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
    r"""The Hessian at each row times the direction v of the row, exact or by central differences of the gradient.

    With $u = v/|v|$ and the step $h = 2^{-12}|v|$, where |v| counts as 0.01 at least and as 16 at most,
    $Hv \approx |v| \, [g(z - 2hu) - 8 g(z - hu) + 8 g(z + hu) - g(z + 2hu)] / (12 h)$.
    """
    exact = engine.hessian_products(points, directions)
    if exact is not None:
        return exact
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    units = directions / np.where(lengths > 0, lengths, 1.0)
    steps = _FRACTION * np.clip(lengths, _SHORTEST, _LONGEST)
    moved = points[None] + _OFFSETS[:, None, None] * (steps * units)[None]
    gradients = engine.gradient(moved.reshape(-1, points.shape[1]))[1].reshape(moved.shape)
    return lengths * np.tensordot(_WEIGHTS, gradients, axes=1) / steps


def to_json(argument: str, values: dict[str, Any]) -> str:
    """A dictionary of numbers and arrays in Stan's JSON; a `ValueError` names the entry that is neither."""
    return json.dumps({name: _numbers(f"{argument}[{name!r}]", value).tolist() for name, value in values.items()})


def _numbers(argument: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{argument} must be a number or an array; its rows have different lengths.") from None
    if array.dtype.kind == "b":
        return array.astype(int)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{argument} must hold numbers, not {array.dtype}.")
    return array
