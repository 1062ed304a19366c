"""What there is of memory, time and processors. What would take more is refused, or left out. Without JAX."""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Clock:
    """When a fit must end, by `time.monotonic()`, and what its parts take: seconds a gradient, and a program.

    Nothing is interrupted. What is known to take longer than is left is not begun; one that does not know its
    gradients' time, as without a budget, begins everything.
    """

    deadline: float = math.inf
    gradient: float = 0.0
    program: float = 0.0
    limited: bool = dataclasses.field(init=False)
    """Whether there is an end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limited", math.isfinite(self.deadline))

    @property
    def left(self) -> float:
        """Seconds; none where they are used up."""
        return max(self.deadline - time.monotonic(), 0.0)

    def pays_for(self, gradients: float | int, programs: float | int = 0) -> bool:
        """Whether the time that is left is enough for so many gradients, and for compiling so many programs."""
        return not self.limited or gradients * self.gradient + programs * self.program < self.left

    def gradients(self, share: float | int = 1.0) -> float:
        """How many gradients a share of the time that is left pays for; infinite without a limit."""
        if not self.limited:
            return math.inf
        return share * self.left / max(self.gradient, 1e-9)

    def measured(self, evaluate: Callable[[], Any]) -> "Clock":
        """The clock that knows what a gradient takes, from two calls of `evaluate`, which must wait for its result."""
        if not self.limited:
            return self
        began = time.monotonic()
        evaluate()
        compiled = time.monotonic()
        evaluate()
        gradient = time.monotonic() - compiled
        return dataclasses.replace(self, gradient=gradient, program=max(compiled - began - gradient, 0.0))


NO_LIMIT = Clock()

STREAM_MEMORY = 2**29
"""Bytes of data that are read in blocks, held at once unless told otherwise: half for blocks, half for a sample."""


def check_memory(what: str, needed: float | int, remedy: str) -> None:
    """Refuse what would take more memory of the host than is there: `needed` bytes for `what`."""
    free = host_bytes()
    if needed > free:
        raise ValueError(
            f"{what} takes about {needed / 2**30:.1f} GiB, more than is free ({free / 2**30:.1f} GiB): {remedy}."
        )


def available_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_bytes() -> int:
    """Memory that the system calls available, whatever the devices have; within a container, what that leaves."""
    info = Path("/proc/meminfo")
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if info.exists():
        lines = (line.split() for line in info.read_text().splitlines() if line.startswith("MemAvailable:"))
        free = min((1024 * int(words[1]) for words in lines), default=free)
    return int(max(min(free, *(_left_in(*files) for files in _CONTAINERS)), 0))


_CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Where Linux states the limit of a container's memory, and what is used of it: the second and the first version."""


def _left_in(limit: str, used: str) -> float | int:
    """What a container's limit leaves; infinite where there is none, or it cannot be read."""
    try:
        return int(Path(limit).read_text()) - int(Path(used).read_text())
    except (OSError, ValueError):  # "max" is no number
        return math.inf
