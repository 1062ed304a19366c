"""How much memory there is, so that a table that will not fit is refused before it is made."""

import os
from pathlib import Path

import jax


def available_bytes(num_devices: int = 1) -> int:
    """Memory that large arrays may take on each of the first `num_devices` devices.

    Free on the accelerator, the least of them; else what the system calls available, divided among them.
    """
    devices = jax.devices()[:num_devices]
    stats = [device.memory_stats() or {} for device in devices if device.platform != "cpu"]
    if stats and all("bytes_limit" in found for found in stats):
        return min(int(found["bytes_limit"]) - int(found.get("bytes_in_use", 0)) for found in stats)
    return _host_bytes() // max(1, len(devices))


def _host_bytes() -> int:
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
