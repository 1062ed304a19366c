"""A Stan program compiled with PyStan's tools and called through `ctypes`."""

import ctypes
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.limits import available_cores
from provi.frontends.stan.build import data_error, shorten
from provi.frontends.stan.engine import AbstractEngine, to_json

_MESSAGE_ROOM = 4096
_THREAD_SECONDS = 2e-4  # work that pays for another thread, which costs about 5e-5 s to start


class CompiledStan(AbstractEngine):
    """The model of a library of `build_library` with its data.

    A batch of points is one call that releases Python's lock and shares the rows among threads. PyStan's own functions
    build the model anew from Python lists at each call and drop constants. Measured on one core, 21 parameters: 2.5
    microseconds a gradient with 5 data against 26 of the extension module that PyStan compiles, 5.4 with 3000 numbers
    as data against 720. `jax.pure_callback` adds 100 a batch.
    """

    def __init__(self, library: Path, data: dict[str, Any], seed: int):
        """**Arguments:**

        - `library`: from `build_library`.
        - `data`: a value for each variable of the `data` block.
        - `seed`: of random numbers in `transformed data`.
        """
        self._library = ctypes.CDLL(str(library))
        self._library.provi_delete.restype = None
        message, handle = ctypes.create_string_buffer(_MESSAGE_ROOM), ctypes.c_void_p()
        text = to_json("data", data).encode()
        if self._library.provi_new(text, ctypes.c_uint(seed), ctypes.byref(handle), message, _MESSAGE_ROOM):
            raise data_error(_words(message), data)
        self._handle = handle
        weakref.finalize(self, self._library.provi_delete, handle)
        self._free_names = self._read_names(-1)
        self._seconds = self._time_gradient()

    @property
    def free_names(self) -> tuple[str, ...]:
        """As Stan calls them."""
        return self._free_names

    def names(self, depth: int) -> tuple[str, ...]:
        """As Stan calls them."""
        return self._read_names(depth)

    def density(self, points: np.ndarray) -> np.ndarray:
        """`log_prob` with Jacobian and constants."""
        values = np.empty(points.shape[0])
        self._evaluate(points, values, None)
        return values

    def gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By Stan's reverse mode."""
        values, gradients = np.empty(points.shape[0]), np.empty(points.shape)
        self._evaluate(points, values, gradients)
        return values, gradients

    def hessian_products(self, points: np.ndarray, directions: np.ndarray) -> None:
        """None: second derivatives are not compiled in, which would double the time of compilation."""
        return None

    def reason(self, point: np.ndarray) -> str:
        """The exception's words."""
        return self._evaluate(point[None], np.empty(1), np.empty((1, point.size)))

    def constrain(self, points: np.ndarray, depth: int, seed: int) -> np.ndarray:
        """`write_array`, one stream of random numbers for all rows."""
        rows, dim = points.shape
        points, message = np.ascontiguousarray(points, np.float64), ctypes.create_string_buffer(_MESSAGE_ROOM)
        values = np.empty((rows, len(self.names(depth))))
        failed = self._library.provi_constrain(
            self._handle,
            _pointer(points),
            rows,
            dim,
            depth,
            ctypes.c_uint(seed),
            values.shape[1],
            _pointer(values),
            message,
            _MESSAGE_ROOM,
        )
        if failed and failed == rows:
            raise ValueError(f"Stan's transformed parameters or generated quantities failed: {_words(message)}")
        return values

    def unconstrain(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """`transform_inits`."""
        z, message = np.empty(len(self.free_names)), ctypes.create_string_buffer(_MESSAGE_ROOM)
        text = to_json("values", values).encode()
        if self._library.provi_unconstrain(self._handle, text, z.size, _pointer(z), message, _MESSAGE_ROOM):
            raise ValueError(f"the values are not in the sets that Stan declares: {_words(message)}")
        return z

    def _evaluate(self, points: np.ndarray, values: np.ndarray, gradients: np.ndarray | None) -> str:
        rows, dim = points.shape
        points, message = np.ascontiguousarray(points, np.float64), ctypes.create_string_buffer(_MESSAGE_ROOM)
        threads = min(rows, available_cores(), 1 + int(rows * self._seconds / _THREAD_SECONDS)) if rows > 1 else 1
        self._library.provi_density(
            self._handle,
            _pointer(points),
            rows,
            dim,
            threads,
            _pointer(values),
            None if gradients is None else _pointer(gradients),
            message,
            _MESSAGE_ROOM,
        )
        return _words(message)

    def _read_names(self, depth: int) -> tuple[str, ...]:
        room = self._library.provi_names(self._handle, depth, None, 0)
        text = ctypes.create_string_buffer(room)
        self._library.provi_names(self._handle, depth, text, room)
        return tuple(text.value.decode().splitlines())

    def _time_gradient(self) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            self.reason(np.zeros(len(self.free_names)))
            times.append(time.perf_counter() - began)
        return min(times)


def _pointer(array: np.ndarray) -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)


def _words(message: Any) -> str:
    return " ".join(shorten(message.value.decode(errors="replace")).split())
