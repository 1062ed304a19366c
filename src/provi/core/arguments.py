"""What entry points do with their arguments: check them, and compute in the precision that they came in.

A check raises a `ValueError` that names the argument and the remedy. Float64 is the default on the CPU. JAX keeps
64-bit arrays switched off unless asked, and the switch is global; ProVI turns it on for the duration of its own entry
points only. Functions that a user calls directly carry the decorator `double_precision`; everything below them is plain
JAX.

What will not fit into memory is refused before it is made.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.cache import kept_programs


def as_array(name: str, value: Any, ndim: int | None = None) -> np.ndarray:
    """`value` as a finite, real NumPy array with `ndim` axes, or a `ValueError` naming `name`."""
    array = _plain(name, value)
    if array.dtype == object or np.issubdtype(array.dtype, np.complexfloating):
        raise ValueError(f"{name} must hold real numbers, not dtype {array.dtype}. Encode categories as numbers first.")
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise ValueError(f"{name} must hold numbers, not dtype {array.dtype}.")
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes; its shape is {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}); at least one entry is needed.")
    finite = np.isfinite(array)
    if not finite.all():
        first = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(
            f"{name} has {int((~finite).sum())} entries that are NaN or infinite, the first at index {first}. "
            f"Remove or impute them."
        )
    return array


def _plain(name: str, value: Any) -> np.ndarray:
    """A NumPy array; of a frame or its column, and of objects that are numbers, one of numbers."""
    if not isinstance(value, np.ndarray | jax.Array):
        from provi.core.frames import column_numbers, frame_numbers, is_column, is_frame

        if is_frame(value):
            return frame_numbers(name, value)
        if is_column(value):
            return column_numbers(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not a rectangular array: {error}") from None
    # What pandas makes of a table of booleans and floats; more than numbers is refused by the caller.
    if array.dtype == object and all(isinstance(item, bool | np.bool_ | int | float) for item in array.flat):
        return array.astype(np.float64)
    return array


def check_length(name: str, array: np.ndarray, length: int, because: str) -> None:
    """The first axis of `array` must have the given length."""
    if array.shape[0] != length:
        raise ValueError(f"{name} has length {array.shape[0]}, but {because} needs {length}.")


def check_positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    number = float(value)
    if not (np.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a positive number, not {value}.")
    return number


def check_count(name: str, value: Any, minimum: int = 1) -> int:
    """A whole number of at least `minimum`."""
    if isinstance(value, bool) or not np.isfinite(value) or int(value) != value:
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    if int(value) < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}.")
    return int(value)


def check_positive_definite(name: str, matrix: np.ndarray) -> np.ndarray:
    """A symmetric positive definite matrix; returns its lower Cholesky factor in float64."""
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be a square matrix; its shape is {matrix.shape}.")
    asymmetry = np.abs(matrix - matrix.T).max()
    if asymmetry > 1e-8 * max(1.0, np.abs(matrix).max()):
        raise ValueError(
            f"{name} is not symmetric (largest difference {asymmetry:.3g}); pass (A + A.T) / 2 if that is meant."
        )
    try:
        return np.linalg.cholesky((matrix + matrix.T) / 2)
    except np.linalg.LinAlgError:
        smallest = float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
        raise ValueError(
            f"{name} is not positive definite: its smallest eigenvalue is {smallest:.3g}. "
            f"Add a multiple of the identity, or check how it was computed."
        ) from None


def check_confidence(value: float) -> None:
    """A confidence level that a certificate can have."""
    if not 0.5 < value < 1:
        raise ValueError(f"confidence must lie between 0.5 and 1, not {value}.")


_P = ParamSpec("_P")
_T = TypeVar("_T")


def double_precision(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run `function` with 64-bit arrays allowed, and restore the caller's setting afterwards.

    What is compiled inside is kept for the next process (`core.cache`).
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with jax.enable_x64(True), kept_programs():
            return function(*args, **kwargs)

    return wrapped


def device_array(values: Any, dtype: Any = None) -> Any:
    """`jnp.asarray` of host values: JAX compiles a program for each shape of its own, and none here."""
    return jax.device_put(np.asarray(values, dtype))


def default_dtype() -> Any:
    """Float64 on the CPU, float32 on an accelerator."""
    return jnp.float64 if jax.default_backend() == "cpu" else jnp.float32


def floating_dtype(array: Any) -> Any:
    """The floating type to compute in for the user's `array`: its own, or the default if it has none.

    float32 data stay float32; integers, booleans and lists take `default_dtype()`.
    """
    dtype = getattr(array, "dtype", None)
    if dtype is not None and np.issubdtype(np.dtype(dtype), np.floating):
        return jnp.dtype(dtype) if np.dtype(dtype).itemsize >= 4 else jnp.float32
    return default_dtype()


def available_bytes(num_devices: int = 1) -> int:
    """Memory that large arrays may take on each of the first `num_devices` devices.

    Free on the accelerator, the least of them; else what the system calls available, divided among them.
    """
    devices = jax.devices()[:num_devices]
    stats = [device.memory_stats() or {} for device in devices if device.platform != "cpu"]
    if stats and all("bytes_limit" in found for found in stats):
        return min(int(found["bytes_limit"]) - int(found.get("bytes_in_use", 0)) for found in stats)
    return host_bytes() // max(1, len(devices))


def host_bytes() -> int:
    """Memory that the system calls available."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
