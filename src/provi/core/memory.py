"""How much memory there is, and what would take more of it refused before it is made. Without JAX."""

import math
import os
from pathlib import Path


def check_memory(what: str, needed: float | int, remedy: str) -> None:
    """Refuse what would take more memory of the host than is there: `needed` bytes for `what`."""
    free = host_bytes()
    if needed > free:
        raise ValueError(
            f"{what} takes about {needed / 2**30:.1f} GiB, more than is free ({free / 2**30:.1f} GiB): {remedy}."
        )


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
