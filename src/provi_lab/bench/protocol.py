"""What passes between the benchmark and the program of one library: the problem in, timed snapshots out.

The gaps are computed later and elsewhere, so no oracle is on the clock.
"""

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.problems import load_problem

FIRST_BLOCK, GROWTH = 10, 10
"""Snapshots are taken at step 10 and then whenever the steps have grown by a tenth: a geometric grid."""


class Finished(Exception):
    """Raised by a peer inside a callback of its library, to leave a loop that is not its own."""


class Recorder:
    """The clock of one run and its snapshots; time spent in here does not count.

    - `seconds`: wall-clock limit; `done` is true from then on.
    - `largest`: number of snapshots after which the run is done; one is enough to time the compilation.
    - `warm`: whether `compiled()` sets the clock to zero.
    """

    def __init__(self, seconds: float, *, largest: int | None = None, warm: bool = False) -> None:
        self.seconds, self.largest, self.warm = seconds, largest, warm
        self.done = False
        self.snapshots: list[tuple[float, float, np.ndarray, np.ndarray, float]] = []
        self._next_step = FIRST_BLOCK
        self.start()

    def start(self) -> None:
        """Set the clock to zero."""
        self._cpu, self._wall = _cpu_time(), time.perf_counter()

    def compiled(self) -> None:
        """For a library that compiles anew on each call: its compilation is over, the warm clock starts here."""
        if self.warm:
            self.start()

    @contextlib.contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """For making a mean and a covariance of what the library keeps: what happens inside does not count."""
        cpu, wall = _cpu_time() - self._cpu, time.perf_counter() - self._wall
        yield
        self._cpu, self._wall = _cpu_time() - cpu, time.perf_counter() - wall

    def due(self, step: int) -> bool:
        """Whether a loop that is at `step` should take a snapshot."""
        if step < self._next_step:
            return False
        self._next_step = step + next_block(step)
        return True

    def __call__(self, mean: Any, covariance: Any, gradients: float = np.nan) -> None:
        """Store a snapshot. Asynchronous results must be ready: the clock stops before they are copied."""
        cpu, wall = _cpu_time() - self._cpu, time.perf_counter() - self._wall
        self.snapshots.append((cpu, wall, np.array(mean, float), np.array(covariance, float), float(gradients)))
        self.done = wall >= self.seconds or len(self.snapshots) == self.largest
        self._cpu, self._wall = _cpu_time() - cpu, time.perf_counter() - wall


def _cpu_time() -> float:
    """CPU seconds of all threads of this process and of the compilers that it has started."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def next_block(steps: int) -> int:
    """The number of steps to the next snapshot, after `steps` steps."""
    return max(FIRST_BLOCK, steps // GROWTH)


Solve = Callable[[Any, float, Recorder], dict[str, Any] | None]
"""`solve(problem, setting, record)`: run until `record.done`; what it returns goes into the trace as JSON."""


def serve(solve: Solve) -> None:
    """A peer's process: one run to its first snapshot with compilation, then one to the limit without."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--setting", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    problem = load_problem(arguments.problem)
    cold = Recorder(arguments.seconds, largest=1)
    warm = Recorder(arguments.seconds, warm=True)
    facts = None
    for record in (cold, warm):
        record.start()  # the warm recorder was made before the cold run
        try:
            facts = solve(problem, arguments.setting, record)
        except Finished:
            pass
        except Exception as error:
            # A run that diverged at last may have been good before.
            if not record.snapshots:
                raise
            facts = {"error": f"{type(error).__name__}: {error}"}
    if not (cold.snapshots and warm.snapshots):
        raise RuntimeError("The run ended without a snapshot.")
    cpu, wall, mean, covariance, gradients = (np.array(column) for column in zip(*warm.snapshots, strict=True))
    np.savez(
        arguments.trace,
        cpu=cpu,
        wall=wall,
        mean=mean,
        covariance=covariance,
        gradients=gradients,
        cold=np.array(cold.snapshots[0][:2]),
        facts=json.dumps(facts or {}),
    )
