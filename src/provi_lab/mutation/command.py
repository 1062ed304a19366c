"""`python -m provi_lab.mutation`: small changes of some rooms, one at a time, and which of them no test notices.

    python -m provi_lab.mutation --workers 16 --seconds 330 --out build/mutation.json
    python -m provi_lab.mutation --out build/mutation.json --again       # what was not noticed, with the tests of now

First the tests of these rooms run once, each recorded with the lines that it runs (kept beside `--out`, as long as the
files are the same); then each change is tried with those that run its line, the quickest first, until one fails.
Changes come in a random order, so that what was tried by the end of `--seconds` is a random sample of each room; a run
on the same `--out` goes on where it ended. The score is the share that is noticed, with an exact 95 per cent interval
for that of all changes of a room. Changes that mean the same as the code are in `equivalent.json`, with their reasons.
Not noticed is all but "killed" and "timed out": also "cut short" (no test failed, but `--most` left some out), "not
run", and "unfinished" (the clock of a busy machine ended it). Texts are left alone, as in messages, titles and
f-strings, with what stands in them; which text is said when is behaviour, and changes of that count.
One trial in forty is a control, of the unchanged module: those that fail say that tests fail by themselves.
"""

import argparse
import dataclasses
import hashlib
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.mutation import in_place, trials
from provi_lab.mutation.lines import IMPORT
from provi_lab.mutation.mutants import Mutant, mutants

EQUIVALENT = Path(__file__).with_name("equivalent.json")
_NOTICED = ("killed", "timed out")
_ENDS = (*_NOTICED, "survived", "cut short", "not run", "unfinished")
_LEVEL = 0.95
_RECORDING = 0.6  # of the seconds, at most
_CONTROLS = 40
_GRACE = 12.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """A change of a module; `source`: the stripped line of code that it is on."""

    room: str
    module: str
    source: str
    digest: str
    mutant: Mutant

    @property
    def key(self) -> str:
        """The same in every run while the module is the same."""
        return f"{self.module}:{self.digest}:{self.mutant.begin}:{self.mutant.end}:{self.mutant.new}"


def population(room: str, only: str = "") -> list[Trial]:
    """All changes of a room, less those known to mean the same; `only`: of modules with this in their names."""
    known = {(each["module"], each["source"], each["old"], each["new"]) for each in equivalents()}
    found = []
    for module in trials.modules_of(room):
        if only not in module:
            continue
        text = (trials.ROOT / "src" / module).read_text()
        rows, digest = text.splitlines(), _digest(text)
        for mutant in mutants(text):
            source = rows[mutant.line - 1].strip()
            if (module, source, mutant.old, mutant.new) not in known:
                found.append(Trial(room, module, source, digest, mutant))
    return found


def equivalents() -> list[dict[str, str]]:
    """Changes without an effect: module, source line, old, new, and the reason."""
    return json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else []


def shuffled(rooms: dict[str, list[Trial]], seed: int) -> list[Trial]:
    """Every beginning is a random sample of each room, of a size in proportion to the root of the room's."""
    places: list[tuple[float, Trial]] = []
    for room, every in rooms.items():
        order = np.random.default_rng([seed, *room.encode()]).permutation(len(every))
        places += [((k + 0.5) / len(every) ** 0.5, every[j]) for k, j in enumerate(order)]
    return [trial for _, trial in sorted(places, key=lambda place: (place[0], place[1].key))]


def interval(noticed: int, tried: int, whole: int) -> tuple[float, float]:
    """Exact limits for the share of `whole` that would be noticed: a hypergeometric sample, without replacement."""
    return _limits(noticed, tried, whole, 1 - _LEVEL)


def _limits(noticed: int, tried: int, whole: int, error: float) -> tuple[float, float]:
    from scipy.stats import hypergeom

    if not tried:
        return 0.0, 1.0
    shares = np.arange(noticed, whole - tried + noticed + 1)  # how many of the whole might be
    fits = (hypergeom.sf(noticed - 1, whole, shares, tried) > error / 2) & (
        hypergeom.cdf(noticed, whole, shares, tried) > error / 2
    )
    return float(shares[fits].min() / whole), float(shares[fits].max() / whole)


def scores(rooms: dict[str, list[Trial]], ends: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By room, and of all: each room weighs as much as it has changes, its limits taken at a share of the error."""
    found, low, high, share = {}, 0.0, 0.0, 0.0
    whole = sum(map(len, rooms.values()))
    for room, every in rooms.items():
        counts = dict.fromkeys(_ENDS, 0)
        for trial in every:
            if trial.key in ends:
                counts[ends[trial.key]["end"]] += 1
        tried, noticed = sum(counts.values()), sum(counts[end] for end in _NOTICED)
        limits = interval(noticed, tried, len(every))
        found[room] = {"changes": len(every), "tried": tried, "noticed": noticed, "low": limits[0], "high": limits[1]}
        found[room] |= {"score": noticed / max(tried, 1), **counts}
        narrow = _limits(noticed, tried, len(every), (1 - _LEVEL) / len(rooms))
        weight = len(every) / whole
        low, high, share = low + weight * narrow[0], high + weight * narrow[1], share + weight * found[room]["score"]
    total = {name: sum(room[name] for room in found.values()) for name in ("changes", "tried", "noticed", *_ENDS)}
    return {**found, "all": {**total, "score": share, "low": low, "high": high}}


def record(
    files: list[str], kept: Path, modules: set[str], workers: int, until: float, file_seconds: float, trust: bool
) -> dict[str, dict[str, Any]]:
    """Tests with their lines of `modules`, from `kept` where neither their file nor such a module has changed.

    - `trust`: also where they have, and record nothing.
    """
    held = json.loads(kept.read_text()) if kept.exists() else {}
    if trust:
        files = list(held)
    else:
        held = {path: each for path, each in held.items() if path in files and _unchanged(each)}
    with tempfile.TemporaryDirectory() as folder:
        outs = {path: Path(folder) / f"{k}.json" for k, path in enumerate(files) if path not in held}
        jobs = (
            trials.Job(path, lambda path=path, out=out: trials.recorded(path, out), file_seconds, out)
            for path, out in outs.items()
        )
        for job, answer, seconds in trials.in_children(jobs, workers, until):
            out = outs[job.key]
            tests = answer if answer is not None else json.loads(out.read_text()) if out.exists() else {}
            for test in tests.values():
                test["lines"] = {name: lines for name, lines in test["lines"].items() if name in modules}
            ran = {f"src/{name}" for test in tests.values() for name in test["lines"]}
            digests = {name: _digest((trials.ROOT / name).read_text()) for name in sorted({job.key, *ran})}
            done = answer is not None or seconds > file_seconds  # cut short by `until` it is recorded again
            held[job.key] = {"digests": digests, "done": done, "tests": tests}
            _write(kept, held)
            bad = [name for name, test in tests.items() if not test["passed"] and name != IMPORT]
            short = "" if answer is not None else ", cut short"
            print(
                f"recorded {job.key}: {len(tests) - len(bad) - (IMPORT in tests)} tests, {seconds:.0f} s{short}",
                flush=True,
            )
            for name in bad:
                print(f"    has no say, since it does not pass unchanged: {name}", flush=True)
    found = {name: test for each in held.values() for name, test in each["tests"].items()}
    lines: dict[str, set[int]] = {}
    for each in held.values():
        for module, some in each["tests"].get(IMPORT, {"lines": {}})["lines"].items():
            lines.setdefault(module, set()).update(some)
    return {**found, IMPORT: {"passed": False, "seconds": 0.0, "lines": lines}}


def attempts(todo: list[Trial], tests: dict[str, Any], most: float | int) -> Iterator[trials.Job]:
    """Each change with its tests."""
    texts: dict[str, str] = {}
    for number, trial in enumerate(todo):
        text = texts.setdefault(trial.module, (trials.ROOT / "src" / trial.module).read_text())
        choice = trials.chosen(trial.module, trial.mutant, tests, most)
        new = trial.mutant.applied(text)

        def work(trial: Trial = trial, new: str = new, choice: trials.Choice = choice) -> dict[str, Any]:
            if not choice.tests:
                return {"end": "not run", "by": "", "passed": 0}
            return trials.judged(trial.module, new, choice.tests, choice.whole)

        limit = _GRACE + 3 * choice.seconds  # with the imports, on a core that others use, too
        yield trials.Job(trial, work, limit)
        if number % _CONTROLS == 0:
            yield trials.Job(None, lambda work=work, text=text: work(new=text), limit)


def described(trial: Trial, end: str) -> str:
    """One line: its end, the place, and the change."""
    old, new = (" ".join(text.split()) for text in (trial.mutant.old, trial.mutant.new))
    return f"{end:<10} src/{trial.module}:{trial.mutant.line}: {trial.mutant.kind}: {old[:90]}  ->  {new[:90]}"


def summary(held: dict[str, dict[str, Any]]) -> str:
    """The score of each room and of all."""
    lines = []
    for room, each in held.items():
        counts = ", ".join(f"{each[end]} {end}" for end in _ENDS if each[end])
        limits = f"{100 * each['low']:.1f} to {100 * each['high']:.1f} %"
        lines.append(
            f"{room:<14} {100 * each['score']:.1f} % noticed (95 %: {limits}), "
            f"{each['tried']} of {each['changes']} tried ({counts})"
        )
    return "\n".join(lines)


def recorded_scores(
    held: dict[str, Any], controls: dict[str, Any], ends: list[dict[str, Any]], words: list[str] | None
) -> dict[str, Any]:
    """What is worth keeping of a sample: who measured what, the scores, and each change that was not noticed."""
    command = " ".join(["python -m provi_lab.mutation", *(sys.argv[1:] if words is None else words)])
    missed = [
        f"{each['module']}:{each['line']}: {each['kind']}: {each['old']} -> {each['new']} ({each['end']})"
        for each in ends
        if each["end"] not in _NOTICED
    ]
    about = {"date": time.strftime("%Y-%m-%d"), "command": command, "python": platform.python_version()}
    return {**about, "controls": controls, "scores": held, "not_noticed": missed}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _unchanged(held: dict[str, Any]) -> bool:
    paths = {name: trials.ROOT / name for name in held["digests"]}
    same = (path.exists() and _digest(path.read_text()) == held["digests"][name] for name, path in paths.items())
    return held["done"] and all(same)


def _write(path: Path, content: Any) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=None))
    draft.replace(path)


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rooms = list(trials.TESTS)
    parser.add_argument("--rooms", nargs="+", default=rooms, choices=rooms)
    parser.add_argument("--only", default="", help="modules with this in their names")
    parser.add_argument("--tests", nargs="+", help="folders of tests that are asked, in place of the rooms' own")
    parser.add_argument("--sample", type=int, help="so many changes in all; without it, as many as there is time for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="children at a time, each on a core of its own")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no more than these, with the recording")
    parser.add_argument(
        "--file-seconds", type=float, default=100.0, help="of recording a file of tests; the rest is left"
    )
    parser.add_argument("--trust", action="store_true", help="take the recorded lines as they are, of whatever version")
    parser.add_argument("--most", type=float, default=25.0, help="seconds of tests that a change is asked of")
    parser.add_argument("--out", type=Path, default=Path("build/mutation.json"))
    parser.add_argument("--record", type=Path, help="write the scores, and what was not noticed, to this file, too")
    parser.add_argument("--again", action="store_true", help="try what was not noticed before, and nothing else")
    parser.add_argument(
        "--packages", type=Path, help="a folder of packages, pytest say, for those that are not installed"
    )
    parser.add_argument("--cold", action="store_true", help="import no other packages before children are forked")
    options = parser.parse_args(words)
    began = time.monotonic()
    until = began + options.seconds
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.packages is not None:
        sys.path.append(str(options.packages.resolve()))
    missing = trials.prepare(cold=options.cold)
    every = {room: population(room, options.only) for room in options.rooms}
    ends: dict[str, dict[str, Any]] = {}
    if options.out.exists():
        ends = {each["key"]: each for each in json.loads(options.out.read_text())["trials"]}
    done = [t for t in shuffled(every, options.seed) if t.key in ends]
    missed = [t for t in done if ends[t.key]["end"] not in _NOTICED]
    todo = missed if options.again else [t for t in shuffled(every, options.seed) if t.key not in ends]
    todo = todo[: options.sample] if options.sample is not None else todo
    kept = options.out.with_suffix(".map.json")
    recording = began + _RECORDING * options.seconds
    files = trials.test_files(options.rooms, options.tests)
    modules = {trial.module for several in every.values() for trial in several}
    tests = record(files, kept, modules, options.workers, recording, options.file_seconds, options.trust)
    slowest = _GRACE + 3 * options.most
    in_place.import_library(trials.ROOT)
    print(f"{len(tests)} tests recorded after {time.monotonic() - began:.0f} s; {len(todo)} changes to try", flush=True)

    controls: dict[str, Any] = {"tried": 0, "failed": []}

    def save() -> dict[str, dict[str, Any]]:
        held = scores(every, ends)
        about = {"python": platform.python_version(), "workers": options.workers, "seed": options.seed}
        about |= {
            "controls": controls,
            "missing": missing,
            "seconds": round(time.monotonic() - began, 1),
            "most": options.most,
        }
        _write(options.out, {"about": about, "scores": held, "trials": list(ends.values())})
        return held

    started: dict[str, Trial] = {}

    def begun() -> Iterator[trials.Job]:
        for job in attempts(todo, tests, options.most):
            if time.monotonic() > until - slowest / 2:  # those that run may end: the last ones would be the quick ones
                return
            if job.key is not None:
                started[job.key.key] = job.key
            yield job

    for job, answer, seconds in trials.in_children(begun(), options.workers, until):
        if job.key is None:
            controls["tried"] += 1
            if answer["end"] in _NOTICED:
                controls["failed"].append(answer["by"] or answer["end"])
            continue
        trial: Trial = job.key
        place = {"room": trial.room, "module": trial.module, "line": trial.mutant.line, "source": trial.source}
        change = {"kind": trial.mutant.kind, "old": trial.mutant.old, "new": trial.mutant.new}
        ends[trial.key] = {"key": trial.key, **place, **change, **answer, "seconds": round(seconds, 2)}
        started.pop(trial.key, None)
        print(described(trial, answer["end"]), flush=True)
        if len(ends) % 20 == 0:
            save()
    for key, trial in started.items():  # at the end of the time: nobody noticed, as far as we know
        if key not in ends:
            ends[key] = {"key": key, "room": trial.room, "module": trial.module, "line": trial.mutant.line}
            ends[key] |= {"source": trial.source, "kind": trial.mutant.kind, "old": trial.mutant.old}
            ends[key] |= {"new": trial.mutant.new, "end": "unfinished", "by": "", "passed": 0, "seconds": 0.0}
    held = save()
    print("\nnot noticed:")
    for trial in (t for every_one in every.values() for t in every_one):
        if trial.key in ends and ends[trial.key]["end"] not in _NOTICED:
            print(described(trial, ends[trial.key]["end"]))
    if options.record is not None:
        text = json.dumps(recorded_scores(held, controls, list(ends.values()), words), indent=1)
        options.record.write_text(f"{text}\n")
    print(f"\n{summary(held)}\ncontrols: {len(controls['failed'])} of {controls['tried']} failed {controls['failed']}")
    print(f"{time.monotonic() - began:.0f} s; {options.out}")
