"""`python -m provi_lab.soak`: all kinds of cases in processes of their own, two at a time; a table, and an exit code.

    python -m provi_lab.soak [--seconds 600] [--seed 0] [--jobs 2] [--patience 3]
    python -m provi_lab.soak --only inputs --seed 0 --case 1234     # one case again

How many cases there are is a function of `--seconds` alone, about what two idle cores do in that time; a slower or a
busier machine takes longer, each kind up to `--patience` times that. The default of 600 has at
least 200 kills, 2,000 damaged files, 2,000 hostile inputs and 500 certificates. Exit code 1: a violation, or fewer.
"""

import argparse
import datetime
import importlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from provi_lab.common.report import surroundings
from provi_lab.soak.tally import Tally, soak

SECONDS = 600.0
PATIENCE = 3.0


class Kind(NamedTuple):
    """`module` has `cases`, a context manager of the function that `tally.soak` repeats.

    - `cases`: in `SECONDS`. - `case_seconds`: a case that takes longer hangs; with what is compiled first.
    - `counted`, `required`: what a case may count, and how many of them there must be in `SECONDS`: a signal may come
      too late, and a hostile problem be refused.
    """

    module: str
    cases: int
    case_seconds: int
    counted: str = ""
    required: int = 0


KINDS = {
    "inputs": Kind("provi_lab.soak.inputs", 2000, 60),
    "certificates": Kind("provi_lab.soak.certificates", 550, 120, "certificates", 500),
    "kills": Kind("provi_lab.soak.kills", 200, 120, "kills", 200),
    "commands": Kind("provi_lab.soak.commands", 1000, 120),
    "files": Kind("provi_lab.soak.files", 3000, 60, "damaged files", 2000),
}
"""The longest first: they share two cores."""


def run_kind(
    name: str, seed: int, count: int, numbers: range | list[int], until: float | int, required: int = 0
) -> Tally:
    """The cases of one kind, in this process; more of them until `required` were counted, at most as many again."""
    kind, tally = KINDS[name], Tally(name, seed, count)
    with importlib.import_module(kind.module).cases() as case:
        soak(tally, case, numbers, case_seconds=kind.case_seconds, until=until)
        for number in range(count, 2 * count):
            if tally.counts[kind.counted] >= required or time.monotonic() > until:
                break
            soak(tally, case, [number], case_seconds=kind.case_seconds, until=until)
    return tally


def run_all(names: list[str], seed: int, seconds: float, jobs: int, patience: float = PATIENCE) -> list[Tally]:
    """Each kind in a process of its own: what hangs outside of Python, or dies, is a violation and not the end."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def one(name: str) -> Tally:
            out = Path(folder) / f"{name}.json"
            words = [sys.executable, "-m", "provi_lab.soak", "--only", name, "--json", str(out)]
            words += ["--seed", str(seed), "--seconds", str(seconds), "--patience", str(patience)]
            try:
                code = subprocess.run(words, timeout=patience * seconds + 2 * KINDS[name].case_seconds).returncode
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


def required(name: str, seconds: float | int) -> int:
    """How many of what a kind counts there must be."""
    return round(KINDS[name].required * seconds / SECONDS)


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
                f"\nCUT SHORT {tally.kind}: {tally.done} of {tally.planned} cases; --patience allows more time"
            )
        if _too_few(tally, seconds):
            counted = KINDS[tally.kind].counted
            lines.append(f"\nTOO FEW {counted}: {tally.counts[counted]} of {required(tally.kind, seconds)}")
    found = sum(len(tally.violations) for tally in tallies)
    lines.append(f"\n{sum(tally.done for tally in tallies)} cases, {found} violations")
    return "\n".join(lines)


def failed(tallies: list[Tally], seconds: float | int = 0.0) -> bool:
    """Whether there is a violation, or a case that was planned and not done, or too few of what is counted."""
    return any(tally.violations or tally.done < tally.planned or _too_few(tally, seconds) for tally in tallies)


def _too_few(tally: Tally, seconds: float | int) -> bool:
    kind = KINDS.get(tally.kind)
    return kind is not None and tally.counts[kind.counted] < required(tally.kind, seconds)


def _progress(tally: Tally) -> None:
    print(f"{tally.kind}: {tally.done} cases, {len(tally.violations)} violations, {tally.seconds:.0f} s", flush=True)


def _record(path: Path, tallies: list[Tally], words: list[str] | None) -> None:
    command = " ".join(["python -m provi_lab.soak", *(sys.argv[1:] if words is None else words)])
    about = {"date": f"{datetime.date.today():%Y-%m-%d}", "command": command, "machine": surroundings()}
    content = {**about, "kinds": [tally.as_dict() for tally in tallies]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="on two idle cores; the cases grow with it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="kinds at a time")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="times the seconds that a kind may take")
    parser.add_argument("--only", choices=list(KINDS), help="one kind, in this process")
    parser.add_argument("--case", type=int, help="one case of --only")
    parser.add_argument("--cases", type=int, help="so many cases of --only")
    parser.add_argument("--record", type=Path, help="write the counts, the violations and the machine there, as JSON")
    parser.add_argument("--json", type=Path, help="write the counts of --only there, and print nothing")
    options = parser.parse_args(words)
    if options.only is None:
        tallies = run_all(list(KINDS), options.seed, options.seconds, options.jobs, options.patience)
        whole = options.seconds
    else:
        alone = options.cases is not None or options.case is not None  # then nothing is required but these
        whole = 0.0 if alone else options.seconds
        count = options.cases or (planned(options.only, options.seconds) if options.case is None else 1)
        numbers = range(count) if options.case is None else [options.case]
        until = time.monotonic() + options.patience * options.seconds
        tallies = [run_kind(options.only, options.seed, count, numbers, until, required(options.only, whole))]
    if options.json is not None:
        options.json.write_text(json.dumps(tallies[0].as_dict()))
        return
    if options.record is not None:
        _record(options.record, tallies, words)
    print(table(tallies, whole))
    sys.exit(failed(tallies, whole))
