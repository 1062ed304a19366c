"""The user's tables and labels, checked and made into arrays; errors name the argument and the remedy."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import (
    as_array,
    check_device_table,
    check_length,
    device_array,
    floating_dtype,
    stays_on_device,
)
from provi.core.frames import check_unmasked, frame_names, is_frame, repeated_names
from provi.targets.streaming import RowStream


def read_design(X: Any, names: Sequence[str] | None, intercept: bool) -> tuple[Any, tuple[str, ...] | None]:
    """The design matrix, and a name for each column where there are any.

    float32 tables stay float32. A data frame (of pandas or polars, or an Arrow table) brings its own names. The
    intercept becomes the first column. An array on an accelerator, or on several devices, is checked there and stays.
    """
    if isinstance(X, RowStream):
        if names is not None or intercept:
            raise ValueError("names= and intercept= are those of the stream: give them where it is made.")
        return X, X.names
    if stays_on_device(X):
        check_device_table("X", X)
        labels = read_names(names, X.shape[1], f"X has {X.shape[1]} columns")
        return (_with_ones(X), _with_intercept(labels, X.shape[1])) if intercept else (X, labels)
    table = as_array("X", X, ndim=2)
    framed = not isinstance(X, np.ndarray) and is_frame(X)
    dtype = floating_dtype(table if framed else X)
    chosen = frame_names(X) if names is None and framed else names
    labels = read_names(chosen, table.shape[1], f"X has {table.shape[1]} columns")
    if intercept:
        labels = _with_intercept(labels, table.shape[1])
        table = np.concatenate([np.ones((table.shape[0], 1)), table], axis=1)
    return device_array(np.asarray(table, dtype)), labels


def _with_intercept(labels: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    labels = labels or default_names("coefficient", count)
    if "intercept" in labels:
        raise ValueError("A column of X is called 'intercept', as the one that intercept=True adds: rename it.")
    return ("intercept", *labels)


@jax.jit
def _with_ones(table: Any) -> Any:
    return jnp.concatenate([jnp.ones((table.shape[0], 1), table.dtype), table], axis=1)


def read_names(names: Any, count: int, because: str) -> tuple[str, ...] | None:
    """The names given, as texts, one each for `count` things and no two the same; None where there are none."""
    if names is None:
        return None
    if isinstance(names, str | bytes) or not hasattr(names, "__iter__"):
        raise ValueError(f"names must be a list of names, one each, not {names!r}.")
    labels = tuple(str(name) for name in names)
    if len(labels) != count:
        raise ValueError(f"names has {len(labels)} entries, but {because}.")
    repeated = repeated_names(labels)
    if repeated:
        raise ValueError(f"Two names are {repeated[0]!r}: what is read by name would be one of them. Rename one.")
    return labels


def default_names(stem: str, count: int) -> tuple[str, ...]:
    """`stem[0]`, `stem[1]`, ..."""
    return tuple(f"{stem}[{index}]" for index in range(count))


def read_real(y: Any, length: int) -> np.ndarray:
    """A real response, one for each row of `X`."""
    response = as_array("y", y, ndim=1)
    check_length("y", response, length, "one response for each row of X")
    return response


def read_binary(y: Any, length: int) -> np.ndarray:
    """A response of zeros and ones (or booleans), one for each row of `X`."""
    check_unmasked("y", y)
    if np.asarray(y).dtype.kind in "US" or (np.asarray(y).dtype.kind == "O" and _has_texts(y)):
        raise ValueError("y must hold 0 and 1; convert labels with y = (y == 'the positive label').")
    response = read_real(y, length)
    if ((response == 0) | (response == 1)).all():
        return response
    values = np.unique(response)
    remedy = (
        "convert labels -1 and 1 with (y + 1) / 2"
        if np.isin(values, (-1, 1)).all()
        else "convert with y = (y == the positive label)"
    )
    shown = ", ".join(str(value) for value in values[:4]) + (", ..." if values.size > 4 else "")
    raise ValueError(f"y must hold 0 and 1 only; it holds {shown}: {remedy}.")


def _has_texts(y: Any) -> bool:
    return any(isinstance(value, str | bytes) for value in np.asarray(y).flat)


def read_counts(y: Any, length: int) -> np.ndarray:
    """A response of counts 0, 1, 2, ..., one for each row of `X`."""
    response = read_real(y, length)
    wrong = (response < 0) | (response != np.round(response))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"y must hold counts (whole numbers from 0 up); y[{first}] is {response[first]}. "
            f"Real responses belong to LinearRegression."
        )
    return response


def read_grades(y: Any, length: int, count: int) -> np.ndarray:
    """A response of grades 0, 1, ..., `count` - 1, one for each row of `X`."""
    response = read_real(y, length)
    wrong = (response < 0) | (response >= count) | (response != np.round(response))
    if wrong.any():
        first = int(np.argmax(wrong))
        from_one = response.min() >= 1 and response.max() == count
        remedy = "Grades that begin at 1 need y - 1." if from_one else f"{count} grades have {count - 1} cut points."
        raise ValueError(
            f"y must hold grades, whole numbers from 0 to {count - 1}; y[{first}] is {response[first]}. {remedy}"
        )
    return response


def read_times(y: Any, length: int) -> np.ndarray:
    """Signed times, one for each row of `X`: y > 0 is an event at y, y < 0 a time |y| up to which there was none."""
    response = read_real(y, length)
    if (response == 0).any():
        first = int(np.argmax(response == 0))
        raise ValueError(
            f"y must hold times other than 0; y[{first}] is 0. An event at time t is t, a time t at which the row was "
            f"censored is -t; with a column of events that is np.where(event, t, -t)."
        )
    return response


def read_shares(y: Any, length: int) -> np.ndarray:
    """Shares of successes from 0 to 1, one for each row of `X`."""
    response = read_real(y, length)
    wrong = (response < 0) | (response > 1)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"y must hold shares from 0 to 1; y[{first}] is {response[first]}. Divide counts of successes by trials."
        )
    return response


def read_groups(groups: Any, length: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The group of each row of `X` as an index 0, 1, ..., and the groups' labels in sorted order."""
    check_unmasked("groups", groups)
    labels = np.asarray(groups)
    if labels.dtype.kind not in "OUS":
        labels = as_array("groups", groups, ndim=1)
    if labels.ndim != 1:
        raise ValueError(f"groups must have 1 axes; its shape is {labels.shape}.")
    check_length("groups", labels, length, "one group for each row of X")
    missing = [index for index, label in enumerate(labels) if label is None or label != label]
    if missing:
        raise ValueError(f"groups has {len(missing)} missing entries, the first at index {missing[0]}.")
    try:
        unique, membership = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"groups mixes kinds of labels that cannot be sorted: {error}.") from None
    return membership, tuple(str(label) for label in unique)
