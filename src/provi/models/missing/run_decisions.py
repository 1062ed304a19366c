"""What a stochastic solver decides between two passes: how many draws, whether to check, whether to stop."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.models.missing.monte_carlo_error import Assessment
from provi.schedules.batch_sizes import as_batch_size

FEWEST_DRAWS = 16
_LARGEST_GROWTH = 4
_LONGEST_WAIT = 4
"""Passes after which a check is made whatever the steps were."""
_UNKNOWN_RATE = 0.9
"""The rate of EM where it is needed and could not be measured: a cautious one."""


@dataclasses.dataclass
class DrawCount:
    """How many draws a row the next pass makes, in calls of the surrogate's `draw`."""

    asked: Any
    block: int
    present: int = FEWEST_DRAWS

    def calls(self, k: int) -> int:
        """For pass k, from 0."""
        if not isinstance(self.asked, str):
            self.present = int(as_batch_size(self.asked)(jnp.asarray(k)))
        return self.present // self.block

    def grow(self, remaining: float, noise: float, tol: float) -> None:
        """Fourfold at most, so that the noise comes to a quarter of what remains without it, or of `tol`."""
        wanted = 4 * noise / max(remaining - noise, tol)
        if isinstance(self.asked, str) and wanted > 1:
            self.present *= int(np.ceil(np.clip(wanted, 2, _LARGEST_GROWTH)))


class Watch:
    """When a check is due, and what the checks have said: the decisions of a run, made on the host."""

    def __init__(self, tol: float, dense: bool, incremental: bool) -> None:
        self.tol, self.dense, self.incremental = tol, dense, incremental
        self.waited, self.passes, self.step, self.step_before = 0, 0, np.inf, np.inf
        self.rate, self.signal, self.signal_at = _UNKNOWN_RATE, np.nan, 0
        self.remaining, self.noise, self.gap = np.nan, 0.0, np.nan
        self.errors: np.ndarray | None = None

    def due(self) -> bool:
        """Small steps, steps that no longer shrink (noise), or a long wait: never a verdict, only its occasion."""
        if self.tol <= 0 or self.waited < 1:
            return False
        stalled = self.waited > 1 and self.step > 0.5 * self.step_before
        return self.step <= 4 * max(self.tol, self.noise) or stalled or self.waited >= _LONGEST_WAIT

    def passed(self, step: float) -> None:
        """Take in a pass, of the length `step` in nats."""
        self.step_before, self.step = self.step, step
        self.waited, self.passes = self.waited + 1, self.passes + 1

    def checked(self, found: Assessment) -> bool:
        """Take in a check, before its own pass; whether it is good enough to stop."""
        remaining, noise, scale = float(found.remaining), float(found.noise), 1.0
        if not self.dense:
            signal = remaining - noise
            if signal > 4 * noise:  # otherwise the ratio of two signals says nothing
                ratio = signal / self.signal
                if np.isfinite(ratio):
                    self.rate = min(ratio ** (0.5 / (self.passes - self.signal_at)), 0.999)
                self.signal, self.signal_at = signal, self.passes
            scale = 1 / (1 - self.rate)
        # A check of MISSO costs a pass of its own, so that one of its passes is made before the next.
        self.waited = -1 if self.incremental else 0
        self.remaining, self.noise = scale * remaining, scale * noise
        self.gap, self.errors = self.remaining + self.noise, scale * np.asarray(found.coefficient_errors)
        # Half of `tol`: the gap is an estimate, from draws and from a quadratic at the present point.
        return self.gap <= self.tol / 2


def ending(watch: Watch, converged: bool, failed: bool, passes: int, num_draws: int) -> str:
    """How a run ended, in a sentence or two, with the remedy if it did not converge."""
    if failed:
        return (
            f"The parameters left the finite numbers at pass {passes}; the last finite ones are returned. "
            f"surrogate='jaakkola' cannot overshoot; separated classes need a penalty."
        )
    if np.isnan(watch.gap):
        known = "No check was made" if watch.errors is None else "The information is not positive definite there"
        return f"{passes} passes. {known}: nothing is known about the gap."
    verdict = (
        f"The estimated gap to the maximum is {watch.gap:.2g} nats, {watch.noise:.2g} of it Monte-Carlo error, "
        f"after {passes} passes and with {num_draws} draws a row."
    )
    if converged:
        return verdict
    remedy = "num_draws" if watch.noise > 0.5 * watch.gap else "max_passes"
    return f"Not converged: {verdict[0].lower()}{verdict[1:]} Raise {remedy}."
