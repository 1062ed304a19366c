"""Double precision inside ProVI, without touching the user's global JAX setting.

Float64 is the default on the CPU. JAX keeps 64-bit arrays switched off unless asked, and the
switch is global; ProVI turns it on for the duration of its own entry points only. Functions that
a user calls directly carry the decorator `double_precision`; everything below them is plain JAX.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

_P = ParamSpec("_P")
_T = TypeVar("_T")


def double_precision(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run `function` with 64-bit arrays allowed, and restore the caller's setting afterwards."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped


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
