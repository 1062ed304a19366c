"""What of a run's state is so large that the loop takes it over (donates it) instead of working on a copy.

An algorithm names such fields of its state in `donated_fields`: for MISSO the table, 21 GB for a ResNet-18. Their old
arrays are gone after a call of the loop, which is why a driver keeps states without them, and why an interrupt waits
until the new ones have a name.
"""

import dataclasses
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax

from provi.algorithms.base import AbstractAlgorithm


def donated_fields(algorithm: AbstractAlgorithm) -> tuple[str, ...]:
    """The fields of the algorithm's state whose arrays the loop may overwrite; most algorithms have none."""
    return getattr(algorithm, "donated_fields", ())


def _is_large(leaf: Any) -> bool:
    # One number a term is not: such columns stay, for what a state says of itself without its table.
    return eqx.is_array(leaf) and leaf.ndim > 1


def split(algorithm: AbstractAlgorithm, state: Any) -> tuple[Any, dict[str, Any]]:
    """The state with None for the large arrays of the donated fields, and these. Nothing is copied."""
    large, small = {}, {}
    for name in donated_fields(algorithm):
        large[name], small[name] = eqx.partition(getattr(state, name), _is_large)
    return (dataclasses.replace(state, **small) if small else state), large


def join(state: Any, large: dict[str, Any]) -> Any:
    """The inverse of `split`."""
    whole = {name: eqx.combine(part, getattr(state, name)) for name, part in large.items()}
    return dataclasses.replace(state, **whole)


def is_lost(state: Any) -> bool:
    """Whether the loop has taken arrays of this state and was stopped before it gave them back."""
    return any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))


@contextmanager
def interrupts_wait(wanted: bool = True) -> Iterator[None]:
    """Ctrl-C takes effect when the block has ended; pressed twice, at once. Nothing changes unless `wanted`.

    For a call that takes arrays over: an exception between its end and the assignment of its result would lose both.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not wanted or threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[Any] = []

    def postpone(number: int, frame: Any) -> None:
        if waiting:
            handler(number, frame)
        waiting.append((number, frame))

    signal.signal(signal.SIGINT, postpone)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if waiting:
        handler(*waiting[0])


def places_of(arrays: Any) -> Any:
    """Where each array lies, so that the arrays themselves may be freed."""
    return jax.tree.map(lambda x: getattr(x, "sharding", False), arrays)


def put_back(arrays: Any, places: Any) -> Any:
    """Arrays from a file, those that lay on several devices divided among them again."""

    def one(place: Any, x: Any) -> Any:
        return jax.device_put(x, place) if place and len(place.device_set) > 1 else x

    return jax.tree.map(one, places, arrays)
