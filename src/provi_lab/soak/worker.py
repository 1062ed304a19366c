"""A process that is killed: `python -m provi_lab.soak.worker` imports ProVI once and forks a victim for each start.

The parent (`Victims`) writes one job a line, and reads "begun", then "done" with a text. The process that is forked
has no JAX backend yet, whose threads would not survive a fork: each victim starts its own. A victim goes on to its next
job unless it was killed.
"""

import contextlib
import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple


class Victims:
    """The parent's side: one victim at a time, started again when the last one is dead."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "provi_lab.soak.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, job: dict[str, Any]) -> int:
        """Start a job; returns the victim's process id once it is at work."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return int(self._line("begun"))

    def end(self, pid: int, number: signal.Signals, after: float) -> str:
        """Send a signal after some seconds; what the victim, or its death, says, "in time" where it was done before."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], after)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            return self._line("done")
        return f"in time {self._line('done')}"

    def close(self) -> None:
        """End the process."""
        with self.process:  # closes its pipes, at which it ends, and waits for it
            pass

    def _line(self, word: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found, _, rest = line.strip().partition(" ")
        if found != word:
            raise RuntimeError(f"the worker said {line!r} in place of {word!r}")
        return rest


class _Victim(NamedTuple):
    """Process id, where its jobs are written, where its words are read."""

    pid: int
    jobs: BinaryIO
    words: BinaryIO

    def reap(self) -> str:
        """How it died, once it has."""
        with contextlib.suppress(BrokenPipeError):
            self.jobs.close()
        self.words.close()
        status = os.waitpid(self.pid, 0)[1]
        return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def serve() -> None:
    """The forking side: hands jobs to the victim, and its words, or its death, to the parent."""
    _import_everything()
    victim: _Victim | None = None
    for line in sys.stdin:
        victim = victim or _forked()
        if not _began(victim, line):  # killed between two jobs
            victim.reap()
            victim = _forked()
            _began(victim, line)
        _say(f"begun {victim.pid}")
        said = victim.words.readline().decode().strip()
        if not said or said.startswith("interrupted"):
            died = victim.reap()
            said, victim = said or f"killed by {died}", None
        _say(f"done {said}")
    if victim is not None:
        os.kill(victim.pid, signal.SIGKILL)
        victim.reap()


def _began(victim: _Victim, job: str) -> bool:
    """Hand over a job, and wait until it is begun: before, a signal would only hit what Python does after a fork."""
    try:
        victim.jobs.write(job.encode())
        victim.jobs.flush()
    except BrokenPipeError:
        return False
    return bool(victim.words.readline())


def _import_everything() -> None:
    import provi.kernels
    import provi.report
    import provi.result.storage  # noqa: F401
    from provi.fit import STRUCTURES
    from provi_lab.soak import problems  # noqa: F401

    for module in STRUCTURES:
        importlib.import_module(f"provi.structures.{module}")


def _forked() -> _Victim:
    job_out, job_in = os.pipe()
    word_out, word_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(job_in)
            os.close(word_out)
            _victim(os.fdopen(job_out, "rb"), word_in)
            code = 0
        finally:
            os._exit(code)
    os.close(job_out)
    os.close(word_in)
    return _Victim(pid, os.fdopen(job_in, "wb"), os.fdopen(word_out, "rb"))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _victim(jobs: BinaryIO, words: int) -> None:
    import warnings

    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the pipes of the parent are not the victim's
        os.dup2(nowhere, descriptor)
    for line in jobs:
        try:
            os.write(words, b"begun\n")
            said = _work(json.loads(line))
        except KeyboardInterrupt:  # not turned into a result: it ends a program, and may have halved what JAX was at
            os.write(words, b"interrupted outside\n")
            return
        except Exception as error:
            said = " ".join(f"error {type(error).__name__}: {error}".split())[:400]
        os.write(words, (said + "\n").encode())


def _work(job: dict[str, Any]) -> str:
    import provi
    from provi_lab.soak.problems import answer, fitted

    path = Path(job["path"])
    if job["what"] == "fit":
        saving = {"checkpoint": path, "checkpoint_seconds": 0.0, "resume": job["resume"]}
        fit = fitted(job["structure"], job["number"], **saving)
        return f"{fit.outcome.name} {answer(fit)}"
    fits = [provi.load(name) for name in job["sources"]]
    for fit in itertools.islice(itertools.cycle(fits), job["times"]):
        if job["what"] == "save":
            fit.save(path)
        else:
            fit.report(path)
    return "written"


if __name__ == "__main__":
    serve()
