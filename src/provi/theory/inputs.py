"""What every theorem checks of its numbers, and the search for the smallest sufficient count."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Number: TypeAlias = float | int
"""A host number: theorems take whole numbers where they take reals."""

Counts: TypeAlias = int | np.integer | np.ndarray
"""One number of steps, or an array of them (the bound as a curve)."""

Curve: TypeAlias = float | np.ndarray
"""The value of a bound: a float for one count, an array for an array of counts."""


def check_nonnegative(name: str, value: Any) -> float:
    """A finite number of at least zero."""
    number = float(value)
    if not (np.isfinite(number) and number >= 0):
        raise ValueError(f"{name} must be a finite number of at least 0, not {value}.")
    return number


def check_at_most(name: str, value: Any, largest: float, rule: str, remedy: str) -> float:
    """A number in (0, largest]; `rule` is the formula of `largest`, `remedy` what to do instead.

    A relative rounding error of 1e-12 is forgiven, so that `largest` computed in another order passes.
    """
    number = float(value)
    if not (np.isfinite(number) and 0 < number <= largest * (1 + 1e-12)):
        raise ValueError(f"{name} = {value} is outside the allowed range (0, {rule}] = (0, {largest:.6g}]. {remedy}")
    return number


def check_counts(name: str, value: Counts, minimum: int = 1) -> np.ndarray:
    """One or many whole numbers of at least `minimum`, as a float64 array of the same shape."""
    array = np.asarray(value)
    if array.dtype == bool or not np.issubdtype(array.dtype, np.number):
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    if array.size == 0 or not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError(f"{name} must hold whole numbers, not {value!r}.")
    if np.any(array < minimum):
        raise ValueError(f"{name} must be at least {minimum}, not {array.min()}.")
    return array.astype(np.float64)


def check_sequence(name: str, value: Any) -> np.ndarray:
    """A one-dimensional float64 array of positive numbers (one a step)."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty sequence of numbers; its shape is {array.shape}.")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError(f"{name} must hold positive numbers only; its smallest is {array.min()}.")
    return array


def as_curve(value: Any) -> Curve:
    """A float when there is one value, else the array."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def smallest_count(enough: Callable[[int], bool], minimum: int = 1) -> int:
    """The smallest whole number from `minimum` on for which `enough` holds.

    `enough` must be monotone (once true, true ever after): doubling, then bisection.
    """
    if enough(minimum):
        return minimum
    low, high = minimum, 2 * minimum
    while not enough(high):
        low, high = high, 2 * high
        if high > 2**60:
            raise ValueError("accuracy is too small: more than 2^60 steps would be needed. Ask for a larger one.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
