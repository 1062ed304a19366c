"""Drives the compiled loop: records, budgets, progress, checkpoints, interruption."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.algorithms.base import AbstractAlgorithm, without_guarantee
from provi.core.arguments import check_count, check_positive, device_array, double_precision
from provi.core.randomness import folded, key_of, split_key
from provi.runtime.checkpoint import fingerprint, load_checkpoint, save_checkpoint, saved_segments
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
RECORD_DRAWS = 100
"""Draws behind each recorded ELBO estimate, as in paper 004's figures."""


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
    checkpoint_seconds: float = 30.0,
    resume: bool = False,
    stop: Callable[[Any], bool] | None = None,
    feed: Callable[[Any, int], Any] | None = None,
) -> Run:
    """Run `algorithm` for `num_steps` steps or until the budget ends; returns the last good state in any case.

    `stop(state)` is asked on the host after every step; True ends the run with `Outcome.TOLERANCE`.
    `feed(target, step)` is asked on the host before every step for the target that it reads: for rows that only the
    host can draw. It must be a function of the step, of the same shapes each time.

    Randomness is a function of (seed, step): a short run is a prefix of a longer one, and a run resumed from
    `checkpoint` ends with the same bits as an uninterrupted one.
    """
    algorithm = without_guarantee(algorithm.resolve(target, family))
    family.check_point(start)
    budget = budget or Budget()
    num_steps = min(check_count("num_steps", num_steps), budget.steps or num_steps)
    driver = _Driver(algorithm, target, family, seed, budget, checkpoint, checkpoint_seconds, stop, feed)
    driver.prepare(start, resume)
    first_batch = int(algorithm.cost_at(device_array(0)))
    if budget.gradients is not None and budget.gradients < first_batch:
        raise ValueError(
            f"budget={budget.gradients} gradient evaluations do not pay for one step of {first_batch} draws."
        )
    with ProgressBar(num_steps, progress) as bar:
        outcome = driver.drive(recorded_steps(num_steps, num_records), bar)
    return driver.result(outcome)


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

    def prepare(self, start: Any, resume: bool) -> None:
        """Begin at `start`, or where the checkpoint left off."""
        self.carry: Carry = initial_carry(self.parts[0], start)
        self.good_state = self.small_state
        self.history, self.spent, self.segments = History(), 0.0, 1
        self.identity = fingerprint(*self.parts, start, np.asarray(self.seed)) if self.path else ""
        if resume and self.path is None:
            raise ValueError("resume=True needs checkpoint=, the path of the file to resume from.")
        if resume and self.path is not None and self.path.exists():
            places = places_of(self.carry)
            del self.carry  # a table need not be there twice
            loaded, self.history, self.spent = load_checkpoint(self.path, places, self.identity)
            self.carry, self.segments = put_back(loaded, places), saved_segments(self.path) + 1
        self.began = self.saved = time.monotonic()

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

    def drive(self, records: list[int], bar: ProgressBar) -> Outcome:
        """Advance from record to record until something ends the run."""
        block = 1  # the first block is one step, which compiles; later ones last about _BLOCK_SECONDS
        try:
            for record in records:
                while self.step < record:
                    before, started = self.step, time.monotonic()
                    self.advance_to(min(record, before + block))
                    taken, elapsed = self.step - before, time.monotonic() - started
                    # The first step compiles; later ones tell what the next will take.
                    self.pace = elapsed / taken if before > 0 and taken > 0 else 0.0
                    if self.stop is not None or self.feed is not None:
                        block = 1
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
                if not self.recorded(record):
                    self.record()
                    bar.update(self.step, self.last_elbo())
        except KeyboardInterrupt:
            return Outcome.INTERRUPTED
        finally:
            self.save()
        return Outcome.COMPLETED

    def advance_to(self, step: int) -> None:
        algorithm, target, family = self.parts
        target = target if self.feed is None else self.feed(target, self.step)
        with interrupts_wait(bool(algorithm.donated_fields)):
            self.carry = advance(
                self.key, algorithm, target, family, self.carry, device_array(step), self.gradient_budget
            )
        jax.block_until_ready(self.carry)
        if time.monotonic() - self.saved > self.checkpoint_seconds:
            self.save()

    def ended(self) -> Outcome | None:
        health = self.carry.health
        if int(health.consecutive) >= LARGEST_REJECTIONS:
            return Outcome.NONFINITE
        if self.stop is not None and self.stop(self.carry.state):
            return Outcome.TOLERANCE
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
        if self.path is not None and not is_lost(self.carry):
            save_checkpoint(self.path, self.carry, self.history, self.seconds, self.identity, self.segments)
            self.saved = time.monotonic()

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
