"""Tables over two devices: the parameters of one, half the table on each, in place; see `two_devices.py`."""

import os
import subprocess
import sys
from pathlib import Path


def test_two_devices_give_the_parameters_of_one(tmp_path):
    flags = "--xla_force_host_platform_device_count=2"
    here = Path(__file__)
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
        "PYTHONPATH": str(here.parents[2] / "src"),
    }
    command = [sys.executable, str(here.with_name("two_devices.py")), str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.strip() == "all checked"
