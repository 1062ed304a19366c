"""What entry points do with their arguments: check them, and compute in the precision that they came in.

A check raises a `ValueError` that names the argument and the remedy. Float64 is the default on the CPU. JAX keeps
64-bit arrays switched off unless asked, and the switch is global; ProVI turns it on for the duration of its own entry
points only. Functions that a user calls directly carry the decorator `double_precision`; everything below them is plain
JAX.

What will not fit into memory is refused before it is made.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.cache import kept_programs
from provi.core.frames import check_unmasked
from provi.core.limits import host_bytes

_NUMBERS_AT_ONCE = 2**24


def as_array(name: str, value: Any, ndim: int | None = None) -> np.ndarray:
    """`value` as a finite, real NumPy array with `ndim` axes, or a `ValueError` naming `name`."""
    if hasattr(value, "toarray"):
        raise ValueError(f"{name} is sparse, and a dense array is needed: {name}.toarray().")
    array = _plain(name, value)
    if array.dtype == object or np.issubdtype(array.dtype, np.complexfloating):
        raise ValueError(f"{name} must hold real numbers, not dtype {array.dtype}. Encode categories as numbers first.")
    if array.dtype.kind in "Mm":
        raise ValueError(
            f"{name} must hold numbers, not dtype {array.dtype}: choose a unit, such as days, {name} / "
            f"np.timedelta64(1, 'D') of times and ({name} - {name}.min()) / np.timedelta64(1, 'D') of dates."
        )
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise ValueError(f"{name} must hold numbers, not dtype {array.dtype}.")
    array = _native(name, array)
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes; its shape is {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}); at least one entry is needed.")
    # A run of rows at a time: the mask of a large table would be a large table.
    rows = max(1, _NUMBERS_AT_ONCE * len(array) // array.size) if array.ndim else 1
    parts = [array] if array.size <= _NUMBERS_AT_ONCE else (array[k : k + rows] for k in range(0, len(array), rows))
    if not all(np.isfinite(part).all() for part in parts):
        wrong = ~np.isfinite(array)
        _refuse_not_finite(name, int(wrong.sum()), tuple(int(i) for i in np.argwhere(wrong)[0]))
    return array


def _refuse_not_finite(name: str, count: int, first: tuple[int, ...]) -> None:
    raise ValueError(
        f"{name} has {count} entries that are NaN or infinite, the first at index {first}. Remove or impute them."
    )


def stays_on_device(value: Any) -> bool:
    """Whether `value` is an array of floating numbers that lies elsewhere than in the memory of the host."""
    if not isinstance(value, jax.Array) or value.dtype not in (jnp.float32, jnp.float64):
        return False
    return any(device.platform != "cpu" for device in value.devices()) or len(value.devices()) > 1


def check_device_table(name: str, table: jax.Array) -> None:
    """What `as_array` checks of a table, where it lies."""
    if table.ndim != 2:
        raise ValueError(f"{name} must have 2 axes; its shape is {table.shape}.")
    if table.size == 0:
        raise ValueError(f"{name} is empty (shape {table.shape}); at least one entry is needed.")
    if not bool(_all_finite(table)):
        count, row = (int(x) for x in _not_finite(table))
        column = int(np.argmax(~np.isfinite(np.asarray(table[row]))))
        _refuse_not_finite(name, count, (row, column))


@jax.jit
def _all_finite(table: Any) -> Any:
    return jnp.isfinite(table).all()


@jax.jit
def _not_finite(table: Any) -> Any:
    wrong = ~jnp.isfinite(table)
    return jnp.sum(wrong), jnp.argmax(wrong.any(axis=1))


def _native(name: str, array: np.ndarray) -> np.ndarray:
    """The same numbers in the byte order and in a floating type of the machine; `ValueError` where some would change.

    JAX knows neither numbers of the other byte order nor extended precision.
    """
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            double = array.astype(np.float64)
        changed = int((double != array).sum() - np.isnan(array).sum())
        if changed:
            raise ValueError(
                f"{name} has dtype {array.dtype}, and {changed} of its numbers are none of float64, in which ProVI "
                f"computes: round them yourself, {name}.astype(float)."
            )
        return double
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _plain(name: str, value: Any) -> np.ndarray:
    """A NumPy array; of a frame or its column, and of objects that are numbers, one of numbers."""
    check_unmasked(name, value)
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
        try:
            return array.astype(np.float64)
        except OverflowError:
            raise ValueError(f"{name} has whole numbers beyond floating point: rescale it.") from None
    return array


def check_length(name: str, array: np.ndarray, length: int, because: str) -> None:
    """The first axis of `array` must have the given length."""
    if array.shape[0] != length:
        raise ValueError(f"{name} has length {array.shape[0]}, but {because} needs {length}.")


def check_positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    number = _number(value)
    if number is None or not (np.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a positive number, not {value!r}.")
    return number


def _number(value: Any) -> float | None:
    """Of a number or an array that holds one; None of truth values, texts and whatever else."""
    if np.ndim(value) != 0 or isinstance(value, bool | np.bool_ | str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def check_scale(name: str, value: Any, dtype: Any = np.float64) -> np.ndarray:
    """Standard deviations above zero whose variances and precisions a fit can compute with in this type."""
    array = as_array(name, value)
    if not (array > 0).all():
        raise ValueError(f"{name} must be positive; its smallest entry is {array.min()}.")
    # Some digits short of the ends: variances are multiplied, and precisions squared in the norm of a gradient.
    top = float(np.finfo(dtype).max)
    smallest, largest = 10 * top**-0.25, 1e-4 * top**0.5
    wrong = array[(array < smallest) | (array > largest)]
    if wrong.size:
        raise ValueError(
            f"{name} must lie between {smallest:.0e} and {largest:.0e}, not {wrong.flat[0]:g}: {np.dtype(dtype)} must "
            f"hold the variance and the square of the precision. Change the units of the data."
        )
    return array


LARGEST_COUNT = 2**63 - 1
"""What fits the integers of a compiled program, and of a random key."""

_ILL_CONDITIONED, _MOST_REFINED = 1e-3, 300  # a variance given the others, as a share of it; longdouble has no BLAS


def check_count(name: str, value: Any, minimum: int = 1) -> int:
    """A whole number of at least `minimum`, below 2^63; the number as an `int`."""
    number = _whole(value)
    if number is None:
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}.")
    if number > LARGEST_COUNT:
        raise ValueError(f"{name} must be below 2^63, not {value}.")
    return number


def _whole(value: Any) -> int | None:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    number = _number(value)
    return int(number) if number is not None and np.isfinite(number) and number == int(number) else None


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
        return _refined(matrix, np.linalg.cholesky((matrix + matrix.T) / 2))
    except np.linalg.LinAlgError:
        smallest = float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
        raise ValueError(
            f"{name} is not positive definite: its smallest eigenvalue is {smallest:.3g}. "
            f"Add a multiple of the identity, or check how it was computed."
        ) from None


def _refined(matrix: np.ndarray, factor: np.ndarray) -> np.ndarray:
    r"""The Cholesky factor of an ill-conditioned matrix S to three digits more: Newton steps with a longer residual.

    Cholesky's own factor is that of a matrix which is off by rounding times the condition number, in S's own metric: a
    certificate of it was 2e-8 nats below the gap of N(m, S). With $E = L^{-1}SL^{-\top}-I$ and $\Phi$ the lower
    triangle, its diagonal halved, $L(I+\Phi(E))$ is the factor up to $E^2$.
    """
    dim, wide = len(matrix), np.finfo(np.longdouble).eps < np.finfo(np.float64).eps
    least = float(np.min(np.diagonal(factor) ** 2 / np.diagonal(matrix)))
    if not (wide and least < _ILL_CONDITIONED and dim <= _MOST_REFINED):
        return factor
    for _ in range(2):
        exact = factor.astype(np.longdouble)
        residual = ((matrix.astype(np.longdouble) + matrix.T) / 2 - exact @ exact.T).astype(np.float64)
        half = np.linalg.solve(factor, np.linalg.solve(factor, residual).T)
        step = np.tril(half) - np.diag(np.diagonal(half)) / 2
        if not np.abs(half).max() < 0.1:
            return factor
        factor = (exact + exact @ step.astype(np.longdouble)).astype(np.float64)
    return factor


def check_confidence(value: Any) -> None:
    """A confidence level that a certificate can have."""
    number = _number(value)
    if number is None or not 0.5 < number < 1:
        raise ValueError(f"confidence must lie between 0.5 and 1, not {value!r}.")


_P = ParamSpec("_P")
_T = TypeVar("_T")


def double_precision(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run `function` with 64-bit arrays allowed, and restore the caller's setting afterwards.

    What is compiled inside is kept for the next process (`core.cache`). What a callback told (`tell_failure`) is raised
    as it was.
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            with jax.enable_x64(True), kept_programs():
                return function(*args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            told = _told.pop() if _told else None
            if told is None or type(told).__name__ not in str(error):
                raise
            raise told from None

    return wrapped


_told: list[BaseException] = []


def tell_failure(error: BaseException) -> None:
    """Of a callback that is about to fail: `double_precision` raises this error instead of the compiled program's."""
    _told[:] = [error]


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
        size = np.dtype(dtype).itemsize  # of any byte order; extended precision is refused or lossless in float64
        return jnp.dtype(np.float64 if size >= 8 else np.float32)
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
