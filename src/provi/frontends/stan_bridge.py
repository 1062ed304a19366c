"""A Stan program through BridgeStan."""

import contextlib
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from provi.frontends.stan_build import cache_folder, data_error, shorten
from provi.frontends.stan_engine import AbstractEngine, to_json


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
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "model.stan"
    if not program.exists() or program.read_text(encoding="utf-8") != code:
        program.write_text(code, encoding="utf-8")
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
