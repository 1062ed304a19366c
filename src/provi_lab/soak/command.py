"""`python -m provi_lab.soak`: all kinds of cases in processes of their own, two at a time; a table, and an exit code.

    python -m provi_lab.soak [--seconds 600] [--seed 0] [--jobs 2]
    python -m provi_lab.soak --only inputs --seed 0 --case 1234     # one case again

How many cases there are is a function of `--seconds` alone, about what two idle cores do in that time; a slower machine
takes longer, up to three times that. Exit code 1: a violation, or fewer cases than planned.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from provi_lab.soak.tally import Tally, soak

SECONDS = 600.0
_PATIENCE = 3.0  # times the seconds asked for, on a machine with other things to do


class Kind(NamedTuple):
    """`module` has `cases`, a context manager of the function that `tally.soak` repeats.

    - `cases`: in `SECONDS`. - `case_seconds`: a case that takes longer hangs; with what is compiled first.
    """

    module: str
    cases: int
    case_seconds: int


KINDS = {
    "inputs": Kind("provi_lab.soak.inputs", 2000, 60),
    "certificates": Kind("provi_lab.soak.certificates", 550, 120),
    "kills": Kind("provi_lab.soak.kills", 200, 120),
    "commands": Kind("provi_lab.soak.commands", 1000, 120),
    "files": Kind("provi_lab.soak.files", 3000, 60),
}
"""The longest first: they share two cores."""


def run_kind(name: str, seed: int, count: int, numbers: range | list[int], until: float) -> Tally:
    """The cases of one kind, in this process."""
    kind, tally = KINDS[name], Tally(name, seed, count)
    with importlib.import_module(kind.module).cases() as case:
        return soak(tally, case, numbers, case_seconds=kind.case_seconds, until=until)


def run_all(names: list[str], seed: int, seconds: float, jobs: int) -> list[Tally]:
    """Each kind in a process of its own: what hangs outside of Python, or dies, is a violation and not the end."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def one(name: str) -> Tally:
            out = Path(folder) / f"{name}.json"
            words = [sys.executable, "-m", "provi_lab.soak", "--only", name, "--json", str(out)]
            words += ["--seed", str(seed), "--seconds", str(seconds)]
            try:
                code = subprocess.run(words, timeout=_PATIENCE * seconds + 2 * KINDS[name].case_seconds).returncode
                said = f"its process ended with code {code}"
            except subprocess.TimeoutExpired:
                said = "its process did not end"
            tally = Tally(name, seed, planned(name, seconds))
            if out.exists():
                tally = Tally.from_dict(json.loads(out.read_text()))
            else:
                tally.violations.append((-1, said))
            _progress(tally)
            return tally

        return list(pool.map(one, names))


def planned(name: str, seconds: float) -> int:
    """How many cases of a kind there are in so many seconds."""
    return max(1, round(KINDS[name].cases * seconds / SECONDS))


def table(tallies: list[Tally], seconds: float | int) -> str:
    """Counts by kind, how cases ended, and violations with the command that repeats each."""
    lines = [f"{'kind':<14}{'planned':>9}{'done':>8}{'violations':>12}{'seconds':>9}"]
    for tally in tallies:
        row = f"{tally.kind:<14}{tally.planned:>9}{tally.done:>8}{len(tally.violations):>12}{tally.seconds:>9.0f}"
        lines.append(row)
    for tally in tallies:
        lines.append(f"\n{tally.kind}")
        for name, count in [*sorted(tally.counts.items()), *sorted(tally.ends.items())]:
            lines.append(f"{count:>8}  {name}")
    for tally in tallies:
        for number, text in tally.violations:
            again = f"python -m provi_lab.soak --only {tally.kind} --seed {tally.seed} --case {number}"
            lines.append(f"\nVIOLATION {tally.kind} {number}: {text}\n    {again}")
        if tally.done < tally.planned:
            lines.append(
                f"\nCUT SHORT {tally.kind}: {tally.done} of {tally.planned} cases in {_PATIENCE * seconds:.0f} s"
            )
    found = sum(len(tally.violations) for tally in tallies)
    lines.append(f"\n{sum(tally.done for tally in tallies)} cases, {found} violations")
    return "\n".join(lines)


def failed(tallies: list[Tally]) -> bool:
    """Whether there is a violation, or a case that was planned and not done."""
    return any(tally.violations or tally.done < tally.planned for tally in tallies)


def _progress(tally: Tally) -> None:
    print(f"{tally.kind}: {tally.done} cases, {len(tally.violations)} violations, {tally.seconds:.0f} s", flush=True)


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="on two idle cores; the cases grow with it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="kinds at a time")
    parser.add_argument("--only", choices=list(KINDS), help="one kind, in this process")
    parser.add_argument("--case", type=int, help="one case of --only")
    parser.add_argument("--cases", type=int, help="so many cases of --only")
    parser.add_argument("--json", type=Path, help="write the counts of --only there, and print nothing")
    options = parser.parse_args(words)
    if options.only is None:
        tallies = run_all(list(KINDS), options.seed, options.seconds, options.jobs)
    else:
        count = options.cases or (planned(options.only, options.seconds) if options.case is None else 1)
        numbers = range(count) if options.case is None else [options.case]
        until = time.monotonic() + _PATIENCE * options.seconds
        tallies = [run_kind(options.only, options.seed, count, numbers, until)]
    if options.json is not None:
        options.json.write_text(json.dumps(tallies[0].as_dict()))
        return
    print(table(tallies, options.seconds))
    sys.exit(failed(tallies))
