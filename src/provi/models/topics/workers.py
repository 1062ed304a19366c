"""Blocks of documents worked on at the same time."""

import collections
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from provi.core.precision import double_precision


def num_processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_pool() -> ThreadPoolExecutor:
    """A thread for each processor: on the CPU, JAX runs a program in the thread that calls it, on one processor."""
    return ThreadPoolExecutor(num_processors())


def few_at_a_time(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """function(item) of each item, in order; what is ahead of the reader are as many as there are processors."""
    with worker_pool() as pool:
        waiting = collections.deque()
        for item in items:
            waiting.append(pool.submit(double_precision(function), item))
            if len(waiting) > num_processors():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
