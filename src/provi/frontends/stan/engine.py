"""What ProVI asks of a Stan model with its data, as functions of NumPy arrays; its Hessian; BridgeStan's answers."""

import abc
import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.files import write_text
from provi.frontends.stan.build import cache_folder, data_error, shorten

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


class BridgeStanEngine(AbstractEngine):
    """A `bridgestan.StanModel`. Written to, and tested against, its documented interface only."""

    def __init__(self, model: Any):
        """**Arguments:** `model`: a `bridgestan.StanModel` with its data."""
        self.model = model
        self._exact = "BRIDGESTAN_AD_HESSIAN=true" in str(model.model_info())

    @property
    def free_names(self) -> tuple[str, ...]:
        """`param_unc_names`."""
        return tuple(self.model.param_unc_names())

    def names(self, depth: int) -> tuple[str, ...]:
        """`param_names`."""
        return tuple(self.model.param_names(include_tp=depth > 0, include_gq=depth > 1))

    def density(self, points: np.ndarray) -> np.ndarray:
        """`log_density`, row by row."""
        rows = [_or(-np.inf, lambda z=z: self.model.log_density(z, propto=False, jacobian=True)) for z in points]
        return np.asarray(rows, np.float64).reshape(len(points))

    def gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`log_density_gradient`, row by row."""
        blank = (-np.inf, np.full(points.shape[1], np.nan))
        rows = [_or(blank, lambda z=z: self.model.log_density_gradient(z, propto=False, jacobian=True)) for z in points]
        values, gradients = zip(*rows, strict=True)
        return np.asarray(values, np.float64), np.stack(gradients)

    def hessian_products(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray | None:
        """`log_density_hessian_vector_product`, where it was compiled with `BRIDGESTAN_AD_HESSIAN=true`."""
        if not self._exact:
            return None
        product = self.model.log_density_hessian_vector_product
        blank = (-np.inf, np.full(points.shape[1], np.nan))
        pairs = zip(points, directions, strict=True)
        return np.stack([_or(blank, lambda z=z, v=v: product(z, v, propto=False, jacobian=True))[1] for z, v in pairs])

    def reason(self, point: np.ndarray) -> str:
        """The exception's words."""
        try:
            self.model.log_density_gradient(point, propto=False, jacobian=True)
        except RuntimeError as error:
            return _words(error)
        return ""

    def constrain(self, points: np.ndarray, depth: int, seed: int) -> np.ndarray:
        """`param_constrain`, one stream of random numbers for all rows."""
        width, random = len(self.names(depth)), self.model.new_rng(seed)
        values, failure = np.full((len(points), width), np.nan), None
        for row, point in enumerate(points):
            try:
                values[row] = self.model.param_constrain(point, include_tp=depth > 0, include_gq=depth > 1, rng=random)
            except RuntimeError as error:
                failure = error
        if failure is not None and np.isnan(values).all():
            raise ValueError(f"Stan's transformed parameters or generated quantities failed: {_words(failure)}")
        return values

    def unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """`param_unconstrain_json`."""
        try:
            return np.asarray(self.model.param_unconstrain_json(to_json("values", values)), np.float64)
        except RuntimeError as error:
            raise ValueError(f"the values are not in the sets that Stan declares: {_words(error)}") from None


def has_sources() -> bool:
    """Whether BridgeStan is installed with the sources that it compiles, without downloading any."""
    try:
        from bridgestan.compile import get_bridgestan_path, verify_bridgestan_path  # pyright: ignore

        with contextlib.redirect_stdout(io.StringIO()):
            verify_bridgestan_path(get_bridgestan_path(download=False) or "no such folder")
    except (ImportError, ValueError):
        return False
    return True


def build_bridge(code: str, include: Path | None, data: dict[str, Any], seed: int) -> BridgeStanEngine:
    """The program compiled by BridgeStan, in ProVI's cache, with its data."""
    import bridgestan  # pyright: ignore

    folder = cache_folder() / f"bridgestan-{hashlib.sha256(f'{include}{code}'.encode()).hexdigest()[:24]}"
    program = folder / "model.stan"
    if not program.exists() or program.read_text(encoding="utf-8") != code:
        write_text(program, code)
    text = to_json("data", data)
    arguments: dict[str, Any] = {"make_args": ["STAN_THREADS=true"], "warn": False, "seed": seed}
    if include is not None:
        arguments["stanc_args"] = [f"--include-paths={include}"]
    try:
        return BridgeStanEngine(bridgestan.StanModel(str(program), data=text, **arguments))
    except RuntimeError as error:
        if "data initialization" in str(error):
            raise data_error(_words(error), data) from None
        raise ValueError(f"BridgeStan did not compile the Stan program. {shorten(str(error))}") from None


def _or(blank: Any, call: Callable[[], Any]) -> Any:
    """The call's result, `blank` where Stan raises: an exception must not pass through a callback of XLA."""
    try:
        return call()
    except RuntimeError:
        return blank


def _words(error: Exception) -> str:
    return " ".join(shorten(str(error)).split())
