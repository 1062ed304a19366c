"""Forked children that run tests: once to see which lines they run, and once for each change of a module.

The parent imports JAX and what else is heavy, and never computes, so that a child that is forked from it starts in no
time. Children that record lines import the library themselves; then the parent imports it, and those that try a change
make it in place (`in_place`) or, where it is not in a function, import the library anew, with one module's text changed
on its way from the disk. The tree is never written to.
"""

import contextlib
import dataclasses
import importlib
import importlib.machinery
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from provi_lab.mutation import in_place
from provi_lab.mutation.lines import IMPORT, Recorder
from provi_lab.mutation.mutants import Mutant

ROOT = Path(__file__).resolve().parents[3]
TESTS = {
    "certificates": ("certificates", "soundness", "structures", "fit", "diagnostics", "result"),
    "theory": ("theory", "soundness", "algorithms", "laws"),
    "geometry": ("geometry", "algorithms", "laws"),
}
"""Folders of tests that are asked, by room; which of them run a line is recorded. Others may notice more."""

_HEAVY = (
    "jax", "jax.numpy", "jax.scipy.stats", "jax.scipy.optimize", "equinox", "jaxtyping", "optax", "scipy.stats",
    "scipy.optimize", "scipy.linalg", "scipy.special", "scipy.integrate", "matplotlib.figure", "matplotlib.pyplot",
    "beartype", "sklearn.datasets", "sklearn.linear_model", "numpyro", "numpyro.distributions", "rich.progress",
    "typer", "threadpoolctl", "safetensors.numpy", "jinja2", "arviz", "pytest",
)  # fmt: skip
_PATIENCE = 6.0
_FIRST_FEW = 12
"""Tests of a file that are asked before those of the next one."""

_TIME_IS_UP = (signal.SIGXCPU, signal.SIGKILL)
_SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "PROVI_COMPILATION_CACHE": "off",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins of packages that are imported already make it warn, that is, fail
}


def prepare(*, cold: bool = False) -> list[str]:
    """Import what is heavy, nothing of the library; returns the names of what is not there. pytest must be."""
    os.environ.update(_SETTINGS)
    importlib.import_module("pytest")
    missing = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in () if cold else _HEAVY:
            try:
                importlib.import_module(name)
            except ImportError:
                missing.append(name)
    loaded = [name for name in sys.modules if name == "provi" or name.startswith("provi.")]
    if loaded:
        raise RuntimeError(f"{loaded[0]} is imported already, so that a change of it would not be seen")
    return missing


@dataclasses.dataclass
class Job:
    """`work` is called in a child, and answers in JSON; with `seconds` of the processor its answer is "timed out".

    The clock does not decide, since on a busy machine every test is slow: after six times that it is "unfinished".

    - `needs`: a file that the child writes as it goes, read when it was ended before its answer.
    """

    key: Any
    work: Callable[[], Any]
    seconds: float | int
    needs: Path | None = None


def in_children(jobs: Iterator[Job], workers: int, until: float | int) -> Iterator[tuple[Job, Any, float]]:
    """Jobs as they end, `workers` at a time, each on a core of its own; at `until` all that run are ended."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    running: dict[int, tuple[Job, float, int, Path]] = {}
    free, exhausted = list(range(workers)), False
    with tempfile.TemporaryDirectory() as folder:
        try:
            while True:
                while free and not exhausted and time.monotonic() < until:
                    job = next(jobs, None)
                    if job is None:
                        exhausted = True
                        break
                    slot = free.pop()
                    out = Path(folder) / f"{slot}.json"
                    out.unlink(missing_ok=True)
                    core = cores[slot % len(cores)] if len(cores) >= workers > 1 else None
                    running[_forked(job, out, core)] = job, time.monotonic(), slot, out
                if not running:
                    return
                time.sleep(0.002)
                now = time.monotonic()
                for pid, (job, began, slot, out) in list(running.items()):
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    late = now - began > _PATIENCE * job.seconds
                    if not ended and not late and now < until:
                        continue
                    _end(pid, reaped=bool(ended))
                    del running[pid]
                    free.append(slot)
                    answer = json.loads(out.read_text()) if out.exists() else None
                    if answer is None and ended and not os.WIFSIGNALED(status):
                        print(f"a child died: {out.with_suffix('.log').read_text()[-1500:]}", flush=True)
                    if answer is None and job.needs is None:
                        answer = {"end": _end_of(status) if ended else "unfinished", "by": "", "passed": 0}
                    yield job, answer, now - began
        finally:
            for pid in running:
                _end(pid)


def _end_of(status: int) -> str:
    """Of a child without an answer: a signal ended the tests, else it is a fault of this program and tells nothing."""
    if not os.WIFSIGNALED(status):
        return "unfinished"
    return "timed out" if os.WTERMSIG(status) in _TIME_IS_UP else "killed"


def _end(pid: int, *, reaped: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # with what it has started
    if not reaped:
        os.waitpid(pid, 0)


def _forked(job: Job, out: Path, core: int | None) -> int:
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here and in the child: whoever is first
        return pid
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(job.seconds), math.ceil(job.seconds) + 1))
        if core is not None:
            os.sched_setaffinity(0, {core})  # XLA and BLAS start as many threads as there are cores
        silent, log = (
            os.open(os.devnull, os.O_RDONLY),
            os.open(out.with_suffix(".log"), os.O_RDWR | os.O_CREAT | os.O_TRUNC),
        )
        for stream, target in enumerate((silent, log, log)):
            os.dup2(target, stream)
        draft = out.with_suffix(".draft")
        draft.write_text(json.dumps(job.work()))
        draft.replace(out)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def recorded(path: str, out: Path) -> Any:
    """In a child: the tests of one file, each with its lines; those marked as slow would be asked of no change."""
    recorder = Recorder(f"{ROOT / 'src'}/", out)
    recorder.watch()
    _pytest(["-m", "not slow", path], recorder)
    return recorder.tests


def judged(module: str, text: str, tests: list[list[str]], whole: bool = True) -> dict[str, Any]:
    """In a child: these tests, one batch after the other, with the module's text changed, until one fails.

    Ends are "killed", "survived", "cut short" where not the `whole` of the tests that run the line were asked, and
    "not run" where pytest found none of them. A batch is one call of pytest, which imports all files of its tests
    before it runs the first. A test that is not found was not asked: nothing has failed, and nothing is noticed.
    """
    path = ROOT / "src" / module
    if not in_place.changed_in_place(path, text.encode()):
        in_place.forget_library()
        _serve(path, text.encode())
    watch = _FirstFailure()
    ends = []
    for batch in tests:
        code = _pytest(["-x", *batch], watch)
        ends.append("killed" if watch.failed else "survived" if int(code) == 0 else "not run")
        if ends[-1] == "killed":
            break
    end = next((end for end in ("killed", "survived") if end in ends), "not run")
    if end == "survived" and not (whole and "not run" not in ends):
        end = "cut short"
    return {"end": end, "by": watch.failed, "passed": watch.passed}


class _FirstFailure:
    def __init__(self) -> None:
        self.failed, self.passed = "", 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
        self.passed += report.when == "call" and report.passed

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (import)"


def _pytest(words: list[str], plugin: Any) -> int:
    import pytest

    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    always = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    return int(pytest.main([*always, *words], plugins=[plugin]))


def _serve(path: Path, content: bytes) -> None:
    """Whoever reads the source of `path` gets `content`, through whatever import hook, and no bytecode."""
    loader = importlib.machinery.SourceFileLoader
    get_data, path_stats = loader.get_data, loader.path_stats

    def data(self: Any, name: str) -> bytes:
        return content if name == str(path) else get_data(self, name)

    def stats(self: Any, name: str) -> Any:
        if name == str(path):
            raise OSError("changed on the way: no bytecode")
        return path_stats(self, name)

    loader.get_data, loader.path_stats = data, stats  # pyright: ignore[reportAttributeAccessIssue]


def test_files(rooms: list[str], folders: list[str] | None = None) -> list[str]:
    """All files of tests of the rooms' folders, or of these folders and files, relative to the root."""
    places = [
        ROOT / "tests" / name for name in folders or dict.fromkeys(each for room in rooms for each in TESTS[room])
    ]
    found = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("test_*.py")))]
    found.sort(
        key=lambda path: (path.relative_to(ROOT).parts[1] not in rooms, path.stat().st_size)
    )  # the nearest first
    return [str(path.relative_to(ROOT)) for path in found]


def modules_of(room: str) -> list[str]:
    """Its source files, relative to src."""
    folder = ROOT / "src" / "provi" / room
    paths = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    return sorted(str(path.relative_to(ROOT / "src")) for path in paths if path.name != "__init__.py")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which tests are asked about a change, in batches, how long they take unchanged, and whether they are all."""

    tests: list[list[str]]
    seconds: float
    whole: bool = True


def chosen(module: str, mutant: Mutant, recorded_tests: dict[str, dict[str, Any]], most: float | int) -> Choice:
    """The tests that run the line, the quickest first, file by file; then the others of these files.

    - A line that runs on import only is asked of all tests that run anything of the module.
    - What JAX has traced for one test of a file is not seen to run in the next: hence the others of the files.
    - Files in order of what their tests of the line take together: a file of unit tests comes before one of fits.
    - `most`: seconds; what is beyond is not asked, and a change that would be noticed there only is "cut short": it
      counts as one that was not noticed.
    """
    lines = range(mutant.line, mutant.last + 1)
    here = {name: test for name, test in recorded_tests.items() if test["passed"] and test["lines"].get(module)}
    direct = [name for name, test in here.items() if not set(lines).isdisjoint(test["lines"][module])]
    if not direct and not set(lines).isdisjoint(recorded_tests.get(IMPORT, {"lines": {}})["lines"].get(module, ())):
        direct = list(here)

    def seconds(name: str) -> float:
        return recorded_tests[name]["seconds"]

    files: dict[str, list[str]] = {}
    for name in sorted(direct, key=seconds):
        files.setdefault(name.split("::")[0], []).append(name)
    batches = sorted(files.values(), key=lambda names: sum(seconds(name) for name in names[:_FIRST_FEW]))
    batches = [names[:_FIRST_FEW] for names in batches] + [names[_FIRST_FEW:] for names in batches]
    asked = set(direct)
    for file in list(files):
        others = [n for n, t in recorded_tests.items() if t["passed"] and n.split("::")[0] == file and n not in asked]
        batches.append(sorted(others, key=seconds))
    tests, total = [], 0.0
    for batch in batches:
        taken = []
        for name in batch:
            if total == 0 or total + seconds(name) <= most:
                taken.append(name)
                total += max(seconds(name), 1e-3)
        tests += [taken] if taken else []
    return Choice(tests, total, sum(map(len, tests)) == sum(map(len, batches)))
