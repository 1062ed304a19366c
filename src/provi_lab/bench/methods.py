"""The methods that are compared, each a program in a process of its own: what it needs, its settings, its trace."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.environments import python_in, versions_in
from provi_lab.bench.problems import AbstractProblem
from provi_lab.common.tables import Row

PEERS = "provi_lab.bench.peers."

_LAUNCHER = Path(__file__).with_name("launch.py")


@dataclasses.dataclass(frozen=True)
class Method:
    """One row of the comparison.

    - `program`: its solver, as MODULE:FUNCTION; `requires`: the packages it imports; `install`: how to get them.
    - `python`: the Python that has these packages, where it is not this one.
    - `settings`: what `setting` the program is run with, one process each; `quantity`: what the setting is.
    - `stops_itself`: the setting is the gap asked for, and the time is that until the method stopped by itself. Of the
      others the best setting is taken for each gap, at its first snapshot below it: stopped by the oracle.
    """

    name: str
    program: str
    requires: tuple[str, ...]
    install: str
    settings: tuple[float, ...]
    quantity: str
    stops_itself: bool = False
    python: str | None = None

    @property
    def missing(self) -> bool:
        """Whether a package it needs is installed neither here nor in its own Python."""
        return self.python is None and any(importlib.util.find_spec(package) is None for package in self.requires)

    def found_in(self, pythons: Sequence[str]) -> "Method":
        """The method with the first of `pythons` that has what it needs, where this Python has not."""
        if not self.missing:
            return self
        found = (python for python in pythons if _has_packages(python, self.requires))
        return dataclasses.replace(self, python=next(found, None))

    def in_environment(self, folder: Path | None) -> "Method":
        """The method with its library's own Python under `folder` (`provi bench environments`), where there is one."""
        library = self.program.removeprefix(PEERS).partition(":")[0]
        if folder is None or not self.requires or not python_in(folder, library).exists():
            return self
        return dataclasses.replace(self, python=str(python_in(folder, library)))


@dataclasses.dataclass(frozen=True)
class Trace:
    """The snapshots of a run without compilation, and the CPU and wall seconds that compilation adds to each."""

    setting: float
    cpu: np.ndarray
    wall: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    gradients: np.ndarray
    compile_cpu: float
    compile_wall: float
    facts: dict[str, Any]

    @staticmethod
    def load(path: Path, setting: float) -> "Trace":
        """Read what `protocol.serve` wrote; compilation is what the first snapshot of the first run took longer."""
        with np.load(path, allow_pickle=False) as file:
            names = ("cpu", "wall", "mean", "covariance", "gradients")
            arrays = {name: file[name] for name in names}
            extra = np.maximum(file["cold"] - [arrays["cpu"][0], arrays["wall"][0]], 0.0)
            facts = json.loads(str(file["facts"]))
        return Trace(setting, **arrays, compile_cpu=float(extra[0]), compile_wall=float(extra[1]), facts=facts)

    def times(self, index: int = -1) -> Row:
        """CPU and wall seconds to a snapshot, without and with compilation."""
        cpu, wall = float(self.cpu[index]), float(self.wall[index])
        compiling = {"cpu_compiling": cpu + self.compile_cpu, "wall_compiling": wall + self.compile_wall}
        return {"cpu": cpu, "wall": wall, **compiling}


def _has_packages(python: str, packages: tuple[str, ...]) -> bool:
    """Whether another Python finds all these packages; it must at least be there."""
    program = "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(p) is None for p in sys.argv[1:]))"
    return subprocess.run([python, "-c", program, *packages], capture_output=True).returncode == 0


class MethodFailed(RuntimeError):
    """The program of a method ended without a trace; the message is its last line."""


def run_method(method: Method, problem: Path, setting: float, seconds: float) -> Trace:
    """One process of the method's program on a saved problem; a `MethodFailed` with its last words otherwise.

    Every compilation cache is an empty folder: the first call in the process compiles all that it uses.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace.npz"
        caches = {name: scratch for name in ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR", "NUMBA_CACHE_DIR")}
        flags = {"PYTENSOR_FLAGS": f"base_compiledir={scratch}", "OPENBLAS_NUM_THREADS": "1"}
        # A Python of its own need not have this package; the launcher does without.
        here = [sys.executable, "-m", "provi_lab.bench.launch"]
        start = here if method.python is None else [method.python, str(_LAUNCHER)]
        command = [*start, method.program, str(problem), str(trace)]
        command += [f"--setting={setting!r}", f"--seconds={seconds!r}"]
        try:
            environment, limit = {**os.environ, **caches, **flags}, 300 + 4 * seconds
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as late:
            raise MethodFailed(f"no answer in {late.timeout:.0f} s") from None
        if ended.returncode != 0 or not trace.is_file():
            lines = ended.stderr.strip().splitlines()
            raise MethodFailed(lines[-1] if lines else f"exit status {ended.returncode}")
        loaded = Trace.load(trace, setting)
        if method.python is not None and "versions" not in loaded.facts:
            loaded.facts["versions"] = versions_in(method.python)
        return loaded


@contextlib.contextmanager
def saved(problem: AbstractProblem) -> Iterator[Path]:
    """The problem in a file, as long as the methods need it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        problem.save(path)
        yield path


def attempt(method: Method, problem: Path, setting: float, seconds: float, judge: Callable[[Trace], Row]) -> Row:
    """Whether the method ran and, if it did, what `judge` says of its trace: one row of a benchmark's table."""
    if method.missing:
        return {"status": "not installed", "note": f"pip install {method.install}"}
    try:
        trace = run_method(method, problem, setting, seconds)
    except MethodFailed as error:
        return {"status": "failed", "note": str(error)}
    return {"status": "ran", "note": trace.facts.get("error", ""), **judge(trace)}
