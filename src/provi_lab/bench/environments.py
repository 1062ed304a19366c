"""`provi bench environments`: a virtual environment for each peer, so that no library's needs bind another's."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from provi_lab.bench.peers.environments import ENVIRONMENTS
from provi_lab.common.tables import Cells

_KEPT = "provi-environment.json"
"""Written last: what the environment was made with. One that ended half-way has none and is made again."""
_LINES = 5


class EnvironmentFailed(RuntimeError):
    """An environment could not be made; the message has the last words of what failed and the command."""


def python_in(folder: Path, peer: str) -> Path:
    """The Python of a peer's environment under `folder`, whether it is there or not."""
    place = folder / peer / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return place.absolute()


def make_environment(peer: str, folder: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """Make the peer's environment under `folder`, where it is not there with these packages.

    **Returns:** its Python. An `EnvironmentFailed` if a step does not succeed.
    """
    packages, place = list(ENVIRONMENTS[peer].packages), folder / peer
    python, kept = python_in(folder, peer), place / _KEPT
    if python.exists() and kept.is_file() and json.loads(kept.read_text(encoding="utf-8")) == packages:
        report(f"{peer}: there already")
        return python
    report(f"{peer}: {' '.join(packages)}")
    folder.mkdir(parents=True, exist_ok=True)
    _run(peer, [sys.executable, "-m", "venv", "--clear", str(place)])
    _run(peer, [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *packages])
    kept.write_text(json.dumps(packages) + "\n", encoding="utf-8")
    return python


def _run(peer: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LINES:])
        raise EnvironmentFailed(f"{peer}: `{' '.join(command)}` ended with {done.returncode}:\n{words}")


def environment_cells(peers: Sequence[str], folder: Path | None) -> Cells:
    """One line a peer: its packages, the benches that run it, and whether it is there."""
    lines = []
    for peer in peers:
        own = ENVIRONMENTS[peer]
        there = folder is not None and (folder / peer / _KEPT).is_file()
        state = str(python_in(folder, peer)) if folder is not None and there else own.note
        lines.append([peer, " ".join(own.packages), ", ".join(own.benches), state])
    return ["peer", "packages", "provi bench", "Python, or what is to be known"], lines


def commands(peers: Sequence[str], folder: Path) -> list[str]:
    """The benches of these peers, with the option that finds them."""
    benches = dict.fromkeys(bench for peer in peers for bench in ENVIRONMENTS[peer].benches)
    return [f"provi bench {bench} --environments {folder}" for bench in benches]


def versions_in(python: str) -> dict[str, str]:
    """The versions that an environment's Python finds of the packages that any of them names."""
    names = sorted({package.partition("==")[0] for own in ENVIRONMENTS.values() for package in own.packages})
    program = (
        "import json, sys\nfrom importlib import metadata\nfound = {}\nfor name in sys.argv[1:]:\n    try:\n"
        "        found[name] = metadata.version(name)\n    except metadata.PackageNotFoundError:\n        pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", program, *names, "numpy"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}
