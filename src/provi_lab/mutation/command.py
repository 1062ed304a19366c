"""`python -m provi_lab.mutation`: a random sample of small changes of some rooms, and which of them no test notices.

    python -m provi_lab.mutation [--rooms certificates theory geometry] [--sample 20] [--seed 0] [--jobs 1]

For each room's sample the test files that name its modules are run once with a trace, to know which run which line;
then each change is tried with those that run its line, the shortest first, until one fails. The score is the share of
changes that are noticed. A few changes mean the same as the code, so that no score is 100 per cent.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from provi_lab.mutation.mutants import Mutant, mutants
from provi_lab.mutation.trials import ROOT, TESTS, Copy, TestFile, modules_of

_NOTICED = ("killed", "timed out")


class Trial(NamedTuple):
    """A change of a module, and its end."""

    room: str
    module: str
    mutant: Mutant
    end: str = ""


def sampled(rooms: list[str], count: int, seed: int) -> list[Trial]:
    """`count` changes of each room, without repetition, all of them equally likely."""
    found = []
    for room in rooms:
        every = [
            Trial(room, name, mutant)
            for name in modules_of(room)
            for mutant in mutants((ROOT / "src" / name).read_text())
        ]
        chosen = np.random.default_rng([seed, *room.encode()]).choice(len(every), min(count, len(every)), replace=False)
        found += [every[k] for k in sorted(chosen)]
    return found


def tried(trials: list[Trial], jobs: int) -> list[Trial]:
    """Each with its end, in copies of the tree."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for job in range(jobs):
            copies.put(Copy(Path(folder) / str(job)))

        def with_copy(work):  # noqa: ANN001, ANN202
            copy = copies.get()
            try:
                return work(copy)
            finally:
                copies.put(copy)

        asked = {(t.room, t.module): with_copy(lambda copy, t=t: copy.test_files(t.room, t.module)) for t in trials}
        paths = sorted({path for several in asked.values() for path in several})
        print(f"{len(paths)} files of tests for {len(trials)} changes", flush=True)
        measure = pool.map(lambda path: with_copy(lambda copy: copy.measured(path)), paths)
        files = dict(zip(paths, measure, strict=True))
        for file in files.values():
            if not file.lines:
                print(f"left out, since it fails here or takes too long: {file.path}", flush=True)

        def one(trial: Trial) -> Trial:
            chosen: list[TestFile] = [files[path] for path in asked[trial.room, trial.module]]
            end = with_copy(lambda copy: copy.judged(trial.module, trial.mutant, chosen))
            print(described(trial._replace(end=end)), flush=True)
            return trial._replace(end=end)

        return list(pool.map(one, trials))


def described(trial: Trial) -> str:
    """One line: its end, the place, and the change."""
    old, new = (" ".join(text.split()) for text in (trial.mutant.old, trial.mutant.new))
    return f"{trial.end:<10} src/{trial.module}:{trial.mutant.line}: {trial.mutant.kind}: {old[:90]}  ->  {new[:90]}"


def summary(trials: list[Trial]) -> str:
    """The score of each room and of all, then what was not noticed."""
    lines = []
    for room in [*dict.fromkeys(trial.room for trial in trials), "all"]:
        ends = [trial.end for trial in trials if room in (trial.room, "all")]
        noticed = sum(end in _NOTICED for end in ends)
        counts = ", ".join(f"{ends.count(end)} {end}" for end in ("killed", "timed out", "survived", "not run"))
        lines.append(
            f"{room:<14} {noticed} of {len(ends)} noticed, {100 * noticed / max(len(ends), 1):.0f} % ({counts})"
        )
    missed = [described(trial) for trial in trials if trial.end not in _NOTICED]
    return "\n".join([*lines, "", "not noticed:" if missed else "all noticed", *missed])


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=list(TESTS), choices=list(TESTS))
    parser.add_argument("--sample", type=int, default=20, help="changes of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that are tested at a time")
    options = parser.parse_args(words)
    began = time.monotonic()
    trials = tried(sampled(options.rooms, options.sample, options.seed), options.jobs)
    print(f"\n{summary(trials)}\n{time.monotonic() - began:.0f} s")
