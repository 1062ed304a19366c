"""What a soak counts: cases by how they ended, and violations with what reproduces them. One time limit a case."""

import contextlib
import dataclasses
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_WAITING = 10.0  # seconds of the clock for one of the processor, on a machine with other things to do


class ViolationError(Exception):
    """Something was lost, or silently wrong: the message says what."""


class _TimeOutError(BaseException):
    """A case took too long. Not an `Exception`: what is tried must not catch it."""


@dataclasses.dataclass
class Tally:
    """Of one kind of cases. `ends`: how often a case ended so. `violations`: number of the case, and what happened."""

    kind: str
    seed: int
    planned: int
    ends: Counter[str] = dataclasses.field(default_factory=Counter)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    violations: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return sum(self.ends.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, from one process to another."""
        return {**vars(self), "ends": dict(self.ends), "counts": dict(self.counts)}

    @staticmethod
    def from_dict(held: dict[str, Any]) -> "Tally":
        """The inverse of `as_dict`."""
        violations = [(int(number), str(text)) for number, text in held["violations"]]
        return Tally(
            **{**held, "ends": Counter(held["ends"]), "counts": Counter(held["counts"]), "violations": violations}
        )


def generator(seed: int, kind: str, number: int) -> np.random.Generator:
    """The random numbers of a case."""
    return np.random.default_rng([seed, number, *kind.encode()])


def soak(
    tally: Tally,
    case: Callable[[np.random.Generator, Tally], str],
    numbers: range | list[int],
    *,
    case_seconds: float | int,
    until: float | int,
) -> Tally:
    """Run the cases of `numbers`, one after the other; `case` returns how it ended or raises a `ViolationError`.

    Any other exception is a violation as well: what the library may raise is for `case` to catch.

    **Arguments:**

    - `case_seconds`: a case that takes longer hangs. - `until`: of `time.monotonic`, when no new case begins.
    """
    began = time.monotonic()
    for number in numbers:
        if time.monotonic() > until:
            break
        try:
            with time_limit(case_seconds):
                end = case(generator(tally.seed, tally.kind, number), tally)
        except ViolationError as error:
            end, text = "VIOLATION", str(error)
            tally.violations.append((number, text))
        except _TimeOutError:
            end = "VIOLATION"
            tally.violations.append(
                (number, f"hangs: not done after {case_seconds:g} s of the processor or {_WAITING * case_seconds:g} s")
            )
        except Exception as error:
            end, where = "VIOLATION", traceback.extract_tb(error.__traceback__)[-1]
            words = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            tally.violations.append((number, f"{words} (raised in {where.filename}:{where.lineno})"))
        tally.ends[end] += 1
    tally.seconds += time.monotonic() - began
    return tally


@contextlib.contextmanager
def time_limit(seconds: float | int) -> Iterator[None]:
    """Python code inside ends after `seconds` of processor time, or ten times that of waiting: machines are shared.

    What never comes back to Python is ended by the parent's own limit.
    """

    def ring(number: int, frame: Any) -> None:
        raise _TimeOutError

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, _WAITING * seconds)}
    before = {number: signal.signal(number, ring) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def clear(error: BaseException, *words: str) -> str:
    """How a refusal is counted; a violation unless it is an error of arguments that has one of `words` in it."""
    text = str(error)
    if not isinstance(error, ValueError | TypeError | OSError) or isinstance(error, np.linalg.LinAlgError):
        raise ViolationError(f"unclear error, {type(error).__name__}: {' '.join(text.split())[:300]}") from error
    if words and not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words):
        raise ViolationError(f"error without the name of an argument: {' '.join(text.split())[:300]}") from error
    return "refused"
