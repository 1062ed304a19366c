"""Drives the compiled loop: records, budgets, progress, checkpoints, interruption."""

import abc
import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.algorithms.base import AbstractAlgorithm, without_guarantee
from provi.core.arguments import check_count, check_positive, device_array, double_precision
from provi.core.files import remove_drafts, sole_use, try_writing
from provi.core.interpreter import instant_jit
from provi.core.randomness import folded, key_of, split_key
from provi.runtime.checkpoint import (
    Journal,
    Pace,
    Saved,
    identity_of,
    load_checkpoint,
    save_checkpoint,
)
from provi.runtime.distributed import ProcessLostError, checkpoint_of_first, is_first, losses_named
from provi.runtime.loop import (
    LARGEST_REJECTIONS,
    Carry,
    Objective,
    Space,
    advance,
    affordable,
    describe_rejections,
    estimate_elbo,
    initial_carry,
    interrupts_wait,
    is_lost,
    places_of,
    put_back,
    split,
    termination_interrupts,
)
from provi.runtime.record import History, Outcome, ProgressBar, recorded_steps


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits on a run; whichever is reached first ends it. None means no limit.

    - `gradients`: evaluations of the target's gradient (Monte-Carlo draws, over all steps); never exceeded;
    - `steps`: steps of the algorithm;
    - `seconds`: wall-clock time of the whole fit: start, compilation, run and certificate. A run whose certificate
      comes from draws has half of it. What is known to take longer than is left is left out: a Hessian at the start,
      the certificate (a note says so, and what it would have taken), all but 100 draws of the last ELBO, the search
      for directions in which the density has no integral. Nothing is interrupted, so what can overrun is what has
      begun: the compilation of the method's program, of which nothing is known beforehand, one step of it, the last
      ELBO, and of a linear model or a Gaussian process the last certificate, about three passes over the data. A
      latent Gaussian model has no half of an answer: it ends with an error after the batch of nodes that was begun.
    """

    gradients: int | None = None
    steps: int | None = None
    seconds: float | int | None = None

    def __post_init__(self) -> None:
        for name, check in (("gradients", check_count), ("steps", check_count), ("seconds", check_positive)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check(f"budget.{name}", value))


def as_budget(value: Any) -> Budget:
    """A budget, or a number of gradient evaluations, or None for no limit."""
    if value is None:
        return Budget()
    return value if isinstance(value, Budget) else Budget(gradients=check_count("budget", value))


_NO_LIMIT = 2**62
_BLOCK_SECONDS = 0.5  # how long the compiled loop may go without reporting to the host
CHECKPOINT_SECONDS = 30.0
"""From one checkpoint to the next, unless the user says otherwise."""

RECORD_DRAWS = 100
"""Draws behind each recorded ELBO estimate, as in paper 004's figures."""


# Outside a compiled function every operation of JAX is compiled by itself.
_cost_at = instant_jit(lambda algorithm, step: algorithm.cost_at(step))


class AbstractStop(abc.ABC):
    """A rule that is asked on the host after every step whether to stop; what it remembers is in the checkpoints.

    Where it says no, it may remember what it has seen. Where it says yes, a resumed run asks it again, with the memory
    of the step before: the same answer for the same request, and another one if less is wanted now.
    """

    @abc.abstractmethod
    def __call__(self, state: Any) -> bool:
        """Whether to stop at this state."""

    @abc.abstractmethod
    def memory(self) -> dict[str, Any]:
        """Plain values and NumPy arrays by name; cheap, as it is asked after every step."""

    @abc.abstractmethod
    def recall(self, memory: dict[str, Any], state: Any) -> None:
        """Go on from a `memory`, of a run that was saved with a `state` of this structure."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What came out: the returned point, the last iterate, the history and why it stopped.

    `elbo` is the exact ELBO of the point and the error of its computation, where the algorithm knows them.
    """

    point: Any
    last: Any
    history: History
    outcome: Outcome
    message: str
    num_steps: int
    gradient_evaluations: int
    seconds: float
    elbo: tuple[float, float] | None = None


def uninterrupted(found: Run) -> Run:
    """The run of a search on the way to another: where it was interrupted, so is all of it, and not the search alone.

    What went on from where a search was cut short would be another fit, and the wish to end it would be lost.
    """
    if found.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return found


@double_precision
def run(
    algorithm: AbstractAlgorithm,
    target: Objective,
    family: Space,
    start: Any,
    *,
    seed: int,
    num_steps: int,
    budget: Budget | None = None,
    num_records: int = 100,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float | int = CHECKPOINT_SECONDS,
    resume: bool = False,
    stop: Callable[[Any], bool] | AbstractStop | None = None,
    feed: Callable[[Any, int], Any] | None = None,
) -> Run:
    """Run `algorithm` for `num_steps` steps or until the budget ends; returns the last good state in any case.

    `stop(state)` is asked on the host after every step; True ends the run with `Outcome.TOLERANCE`. Of an
    `AbstractStop` the checkpoints hold the memory, too.
    `feed(target, step)` is asked on the host before every step for the target that it reads: for rows that only the
    host can draw. It must be a function of the step, of the same shapes each time.

    Randomness is a function of (seed, step): a short run is a prefix of a longer one, and a run resumed from
    `checkpoint` ends with the same bits as an uninterrupted one. It is written after the first step, then after a
    second, two, four, ... and every `checkpoint_seconds`, and at the end, however that comes about: Ctrl-C and SIGTERM
    end a run with `Outcome.INTERRUPTED`. Where it cannot be written any more, the run warns and goes on.
    """
    check_checkpoint(checkpoint, checkpoint_seconds, resume)
    algorithm = without_guarantee(algorithm.resolve(target, family))
    family.check_point(start)
    budget = budget or Budget()
    num_steps = min(check_count("num_steps", num_steps), budget.steps or num_steps)
    driver = _Driver(algorithm, target, family, seed, budget, checkpoint, checkpoint_seconds, stop, feed)
    first_batch = int(_cost_at(algorithm, device_array(0)))
    if budget.gradients is not None and budget.gradients < first_batch:
        raise ValueError(
            f"budget={budget.gradients} gradient evaluations do not pay for one step of {first_batch} draws."
        )
    with contextlib.ExitStack() as stack:
        if checkpoint is not None and is_first():
            stack.enter_context(sole_use(checkpoint, "checkpoint"))
            remove_drafts(checkpoint)
        driver.prepare(start, resume)
        driver.interrupted = stack.enter_context(termination_interrupts())
        bar = stack.enter_context(ProgressBar(num_steps, progress))
        outcome = driver.drive(recorded_steps(num_steps, num_records), bar)
    return driver.result(outcome)


def check_checkpoint(path: Any, seconds: float | int, resume: bool) -> None:
    """`ValueError` before any long work: the path can be written now, and the other two arguments go with it."""
    if not 0 <= seconds < math.inf:
        raise ValueError(f"checkpoint_seconds must be a number of seconds, 0 or more, not {seconds}.")
    if path is None:
        if resume:
            raise ValueError("resume=True needs checkpoint=, the path of the file to resume from.")
        return
    if not isinstance(path, str | Path):
        raise TypeError(f"checkpoint must be the path of a file, not {path!r}.")
    if not is_first():
        return
    try:
        try_writing(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"checkpoint={path} cannot be written ({reason}): give a path that can.") from None


@contextlib.contextmanager
def journal(
    like: Any,
    target: Any,
    settings: Any,
    seed: int,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float | int = CHECKPOINT_SECONDS,
    resume: bool = False,
) -> Iterator[Journal]:
    """The journal of a search, at `checkpoint`; saved however the block ends: an error, Ctrl-C, SIGTERM.

    **Arguments:** `like`: the structure of a result. `target`, `settings`, `seed`: all that the results depend on.
    """
    if checkpoint is None:
        yield Journal(None, None, checkpoint_seconds, like)
        return
    path = Path(checkpoint)
    identity = identity_of((target,), settings, np.asarray(seed))
    found = Journal(path, identity, checkpoint_seconds, like, writes=is_first())
    with contextlib.ExitStack() as stack:
        if is_first():
            stack.enter_context(sole_use(path, "checkpoint"))
            remove_drafts(path)
        if resume:
            with checkpoint_of_first(path) as there:
                if there is not None:
                    found.read(there)
        found.interrupted = stack.enter_context(termination_interrupts())
        stack.callback(found.save)
        yield found


class _Driver:
    """The host's side of a run. The loop itself is `runtime.loop.advance`."""

    def __init__(self, algorithm, target, family, seed, budget, checkpoint, checkpoint_seconds, stop, feed) -> None:
        self.parts = (algorithm, target, family)
        self.key, self.record_key = split_key(key_of(seed))
        self.seed = seed
        self.budget = budget
        self.gradient_budget = device_array(budget.gradients or _NO_LIMIT)
        self.path = None if checkpoint is None else Path(checkpoint)
        self.checkpoint_seconds, self.pace = checkpoint_seconds, 0.0
        self.stop, self.feed = stop, feed
        self.interrupted: Callable[[], bool] = lambda: False

    def prepare(self, start: Any, resume: bool) -> None:
        """Begin at `start`, or where the checkpoint left off."""
        self.carry: Carry = initial_carry(self.parts[0], start)
        self.good_state = self.small_state
        self.history, self.spent, self.segments = History(), 0.0, 1
        # The last step that the rule has said no to, and its memory of then: one object, which no interrupt halves.
        self.heard = (0, self.memory())
        self.identity = identity_of(self.parts, start, np.asarray(self.seed)) if self.path else None
        if resume and self.path is not None:
            with checkpoint_of_first(self.path) as found:
                if found is not None:
                    self._resume(found)
        self.began = time.monotonic()
        self.writing = None if self.path is None else Pace(self.checkpoint_seconds)

    def _resume(self, path: Path) -> None:
        places = places_of(self.carry)
        del self.carry  # a table need not be there twice
        assert self.identity is not None
        saved = load_checkpoint(path, places, self.identity)
        self.history, self.spent, self.segments = saved.history, saved.seconds, saved.segments + 1
        self.carry = put_back(saved.carry, places)
        if len(self.history) and np.isfinite(self.history.last("elbo")):
            self.good_state = self.small_state
        if isinstance(self.stop, AbstractStop) and saved.rule is not None:
            self.stop.recall(saved.rule, self.carry.state)
        self.heard = (self.step if saved.asked is None else saved.asked, self.memory())

    def memory(self) -> dict[str, Any] | None:
        return self.stop.memory() if isinstance(self.stop, AbstractStop) else None

    @property
    def seconds(self) -> float:
        return self.spent + time.monotonic() - self.began

    @property
    def step(self) -> int:
        return int(self.carry.state.step)

    @property
    def small_state(self) -> Any:
        """The state without what the next call of the loop takes over: enough for an answer, not to go on."""
        return split(self.parts[0], self.carry.state)[0]

    @property
    def unasked(self) -> bool:
        """Whether the rule has not been asked at this step; so begins a run that was saved in between."""
        return self.stop is not None and self.heard[0] < self.step

    def drive(self, records: list[int], bar: ProgressBar) -> Outcome:
        """Advance from record to record until something ends the run."""
        block = 1  # the first block is one step, which compiles; later ones last about _BLOCK_SECONDS
        try:
            for record in records:
                while self.step < record or self.unasked:
                    if self.interrupted():
                        raise KeyboardInterrupt
                    before, started = self.step, time.monotonic()
                    if not self.unasked:
                        self.advance_to(min(record, before + block))
                    taken, elapsed = self.step - before, time.monotonic() - started
                    # The first step compiles; later ones tell what the next will take.
                    self.pace = elapsed / taken if before > 0 and taken > 0 else 0.0
                    if self.stop is not None or self.feed is not None:
                        block = 1
                    elif jax.process_count() > 1:
                        block = min(2 * block, 64)  # clocks differ, and all must take the same steps
                    elif before > 0 and taken > 0:
                        block = max(1, min(4 * block, int(taken * _BLOCK_SECONDS / max(elapsed, 1e-6))))
                    elif taken > 0:
                        block = 8
                    bar.update(self.step, self.last_elbo())
                    ended = self.ended()
                    final = ended in (Outcome.NONFINITE, Outcome.TOLERANCE)
                    if ended is not None and (final or self.step < records[-1]):
                        if not self.recorded(self.step):
                            self.record()
                        return ended
                    if self.writing is not None and time.monotonic() >= self.writing.due:
                        self.save()
                if not self.recorded(record):
                    self.record()
                    bar.update(self.step, self.last_elbo())
        except KeyboardInterrupt:
            if jax.process_count() > 1:  # the others wait for this one: there is no answer without it
                raise
            return Outcome.INTERRUPTED
        finally:
            self.save()
        return Outcome.COMPLETED

    def advance_to(self, step: int) -> None:
        algorithm, target, family = self.parts
        target = target if self.feed is None else self.feed(target, self.step)
        before = None if algorithm.donated_fields else self.carry
        try:
            with interrupts_wait(bool(algorithm.donated_fields)), losses_named():
                self.carry = advance(
                    self.key, algorithm, target, family, self.carry, device_array(step), self.gradient_budget
                )
                jax.block_until_ready(self.carry)
        except ProcessLostError:
            self.carry = self.carry if before is None else before  # what can still be saved
            raise

    def ended(self) -> Outcome | None:
        health = self.carry.health
        if int(health.consecutive) >= LARGEST_REJECTIONS:
            return Outcome.NONFINITE
        if self.stop is not None and self.unasked:
            if self.stop(self.carry.state):
                return Outcome.TOLERANCE
            self.heard = (self.step, self.memory())
        if self.budget.gradients is not None and not bool(affordable(self.parts[0], self.carry, self.gradient_budget)):
            return Outcome.GRADIENT_BUDGET
        if self.budget.seconds is not None and self.seconds + self.pace >= self.budget.seconds:
            return Outcome.TIME_BUDGET
        return None

    def recorded(self, step: int) -> bool:
        return len(self.history) > 0 and self.history.last("step") >= step

    def record(self) -> None:
        algorithm, target, family = self.parts
        info, health = self.carry.info, self.carry.health
        known = algorithm.recorded_elbo(self.carry.state)
        if known is not None and np.isnan(known[1]):  # the algorithm has not got as far as an ELBO
            return
        if known is None:
            key = folded(self.record_key, self.step)
            known = estimate_elbo(key, target, family, algorithm.output(self.carry.state), RECORD_DRAWS)
        elbo, error = known
        self.good_state = self.small_state if np.isfinite(elbo) else self.good_state
        self.history.append(
            step=self.step,
            gradient_evaluations=health.gradient_evaluations,
            seconds=self.seconds,
            elbo=elbo,
            elbo_standard_error=error,
            step_size=info.step_size,
            num_draws=info.cost,
            gradient_norm=np.hypot(*info.norms[:2]),
            rejected_steps=health.rejected,
        )

    def last_elbo(self) -> float | None:
        return self.history.last("elbo") if len(self.history) else None

    def save(self) -> None:
        """Write a checkpoint. A disk that is full or gone costs the file, and not the run."""
        if self.writing is None or self.path is None or self.identity is None or not is_first() or is_lost(self.carry):
            return
        began = time.monotonic()
        asked, rule = (None, None) if self.stop is None else self.heard
        saved = Saved(self.carry, self.history, self.seconds, self.segments, rule, asked)
        try:
            save_checkpoint(self.path, saved, self.identity)
        except OSError as error:
            warnings.warn(f"The checkpoint was not written, and the run goes on without it. {error}", stacklevel=4)
        self.writing.written(began)

    def result(self, outcome: Outcome) -> Run:
        state, health = self.carry.state, self.carry.health
        message = outcome.value + describe_rejections(health, self.parts[0].quantities)
        elbo = self.history["elbo"]
        # A log density can be NaN where its gradient is finite: then every step looks good and the ELBO tells.
        if len(elbo) and not np.isfinite(elbo[-1]) and outcome is not Outcome.NONFINITE:
            first = int(self.history["step"][np.argmin(np.isfinite(elbo))])
            state, outcome = self.good_state, Outcome.NONFINITE
            message = (
                f"the log density is not finite at draws of q, first seen at iteration {first}; the state of iteration "
                f"{int(state.step)} is returned, the last recorded one with a finite ELBO (or the start)"
            )
        return Run(
            point=self.parts[0].output(state),
            last=state.point,
            history=self.history,
            outcome=outcome,
            message=message,
            num_steps=self.step,
            gradient_evaluations=int(health.gradient_evaluations),
            seconds=self.seconds,
            elbo=self.exact_elbo(state),
        )

    def exact_elbo(self, state: Any) -> tuple[float, float] | None:
        value, error = self.parts[0].recorded_elbo(state) or (np.nan, np.nan)
        return (float(value), 0.0) if float(error) == 0 and np.isfinite(value) else None
