"""JAX's random numbers on the host: the same bits, without a compiled program for each operation.

A key is its two words of 32 bits, in a last axis (`RANDOM`, for `core.host_primitives`), or wrapped as JAX has it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def key_of(seed: int) -> Any:
    """`jax.random.key(seed)` for a seed from 0 up, with 64-bit integers allowed."""
    return _wrapped(np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32))


def folded(key: Any, number: int) -> Any:
    """`jax.random.fold_in(key, number)`."""
    with np.errstate(over="ignore"):  # words wrap around
        return _wrapped(_random_fold_in(_words(key), np.uint32(number)))


def split_key(key: Any) -> tuple[Any, Any]:
    """The two keys of `jax.random.split(key)`."""
    first, second = _random_split({"shape": (2,)})(_words(key))
    return _wrapped(first), _wrapped(second)


def split_keys(key: Any, count: int) -> Any:
    """`jax.random.split(key, count)`, one array of keys."""
    return _wrapped(_random_split({"shape": (count,)})(_words(key)))


def _words(key: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def _wrapped(words: np.ndarray) -> Any:
    return jax.random.wrap_key_data(jax.device_put(words))


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


_TURNS = tuple(tuple((np.uint32(turn), np.uint32(32 - turn)) for turn in turns) for turns in _ROTATIONS)
_GROUPS = tuple(map(np.uint32, range(1, 6)))
_WORD = 0xFFFFFFFF


def threefry(first: Any, second: Any, high: Any, low: Any) -> list[Any]:
    """The block cipher of JAX's random numbers, twenty rounds on words of 32 bits."""
    x, y = high + first, low + second
    if np.ndim(x) == 0:
        return _threefry_of_one(int(first), int(second), int(x), int(y))
    keys, turned = (first, second, first ^ second ^ np.uint32(0x1BD11BDA)), np.empty_like(y)
    for group in range(5):
        for left, right in _TURNS[group % 2]:
            np.add(x, y, out=x)
            np.left_shift(y, left, out=turned)
            np.right_shift(y, right, out=y)
            np.bitwise_or(y, turned, out=y)
            np.bitwise_xor(y, x, out=y)
        np.add(x, keys[(group + 1) % 3], out=x)
        np.add(y, keys[(group + 2) % 3] + _GROUPS[group], out=y)
    return [x, y]


def _threefry_of_one(first: int, second: int, x: int, y: int) -> list[Any]:
    """By Python's numbers: NumPy takes four times as long for one."""
    keys = first, second, first ^ second ^ 0x1BD11BDA
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = x + y & _WORD
            y = (y << turn & _WORD | y >> 32 - turn) ^ x
        x = x + keys[(group + 1) % 3] & _WORD
        y = y + keys[(group + 2) % 3] + group + 1 & _WORD
    return [np.uint32(x), np.uint32(y)]


def _counts(shape: tuple[int, ...], leading: int) -> list[Any]:
    places = np.arange(math.prod(shape), dtype=np.uint64).reshape((1,) * leading + shape)
    return [(places >> np.uint64(32)).astype(np.uint32), places.astype(np.uint32)]


def _key_words(key: Any, rank: int) -> tuple[Any, Any]:
    words = key.reshape(key.shape[:-1] + (1,) * rank + (2,))
    return words[..., 0], words[..., 1]


def _random_bits(params: dict[str, Any]) -> Callable[..., Any]:
    shape, width = tuple(params["shape"]), params["bit_width"]

    def bits(key: Any) -> Any:
        high, low = threefry(*_key_words(key, len(shape)), *_counts(shape, key.ndim - 1))
        if width == 64:
            return (high.astype(np.uint64) << np.uint64(32)) | low
        return (high ^ low).astype(f"uint{width}")

    return bits


def _random_split(params: dict[str, Any]) -> Callable[..., Any]:
    shape = tuple(params["shape"])
    return lambda key: np.stack(
        threefry(*_key_words(key, len(shape)), *_counts(shape, key.ndim - 1)), axis=-1
    )  # fmt: skip


def _random_seed(seed: Any) -> Any:
    wide = np.asarray(seed).astype(np.int64).view(np.uint64)
    high = wide >> np.uint64(32) if np.asarray(seed).dtype.itemsize == 8 else np.zeros_like(wide)
    return np.stack([high.astype(np.uint32), wide.astype(np.uint32)], axis=-1)


def _random_fold_in(key: Any, data: Any) -> Any:
    second = _random_seed(np.asarray(data).astype(np.uint32))
    return np.stack(threefry(key[..., 0], key[..., 1], second[..., 0], second[..., 1]), axis=-1)


def _itself(params: dict[str, Any]) -> Callable[..., Any]:
    del params
    return lambda x: x


RANDOM: dict[str, Callable[[dict[str, Any]], Callable[..., Any]]] = {
    "random_bits": _random_bits,
    "random_clone": _itself,
    "random_fold_in": lambda params: _random_fold_in,
    "random_seed": lambda params: _random_seed,
    "random_split": _random_split,
    "random_unwrap": _itself,
    "random_wrap": _itself,
    "threefry2x32": lambda params: threefry,
}
