"""A process that is killed: `python -m provi_lab.soak.worker` imports ProVI once and forks a victim for each fresh start.

The parent (`Victims`) writes one job a line, and reads "begun", then "done" with a text. The process that is forked
has no JAX backend yet, whose threads would not survive a fork: each victim starts its own. A victim goes on to its next
job unless it was killed.
"""

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


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

    def end(self, pid: int, number: signal.Signals | None, after: float) -> str:
        """Send a signal after some seconds, unless the job is done before; what the victim, or its death, says."""
        deadline = time.monotonic() + after
        assert self.process.stdout is not None
        if number is not None:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return self._line("done")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)

    def _line(self, word: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found, _, rest = line.strip().partition(" ")
        if found != word:
            raise RuntimeError(f"the worker said {line!r} in place of {word!r}")
        return rest


def serve() -> None:
    """The forking side. The pipe to a victim is its own; the parent's answers go through here, in order."""
    _import_everything()
    victim: tuple[int, int, int] | None = None
    for line in sys.stdin:
        if victim is None:
            victim = _forked()
        pid, jobs, words = victim
        try:
            os.write(jobs, line.encode())
        except BrokenPipeError:  # killed between two jobs
            _reap(victim)
            victim = pid, jobs, words = _forked()
            os.write(jobs, line.encode())
        _say(f"begun {pid}")
        said = _read_line(words)
        if said is None:
            _say(f"done killed by {_reap(victim)}")
            victim = None
        else:
            _say(f"done {said}")
    if victim is not None:
        os.kill(victim[0], signal.SIGKILL)
        _reap(victim)


def _import_everything() -> None:
    import provi.kernels
    import provi.report
    import provi.result.storage  # noqa: F401
    from provi.fit import structures
    from provi_lab.soak import problems  # noqa: F401

    list(structures())


def _forked() -> tuple[int, int, int]:
    """Process id, and the descriptors to write jobs to and to read words from."""
    job_out, job_in = os.pipe()
    word_out, word_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(job_in), os.close(word_out)
        code = 1
        try:
            _victim(job_out, word_in)
            code = 0
        finally:
            os._exit(code)
    os.close(job_out), os.close(word_in)
    return pid, job_in, word_out


def _reap(victim: tuple[int, int, int]) -> str:
    pid, jobs, words = victim
    os.close(jobs), os.close(words)
    status = os.waitpid(pid, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def _read_line(descriptor: int) -> str | None:
    found = b""
    while not found.endswith(b"\n"):
        part = os.read(descriptor, 4096)
        if not part:
            return None
        found += part
    return found.decode().strip()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _victim(jobs: int, words: int) -> None:
    import warnings

    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the pipes of the parent are not the victim's
        os.dup2(nowhere, descriptor)
    while True:
        try:
            line = _read_line(jobs)
            if line is None:
                return
            said = _work(json.loads(line))
        except KeyboardInterrupt:  # outside of a fit it is the caller's, and this is the caller
            said = "interrupted outside"
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
