"""Stop when the gap is proven to be small enough: shared by the methods with deterministic certificates."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from provi.algorithms.base import AbstractAlgorithm
from provi.certificates.bounds import GapBound, at_most
from provi.certificates.build import issue
from provi.core.outcomes import Outcome
from provi.defaults.answer import Answer, Request, certificate_seed
from provi.runtime.run import run

CERTIFICATE_PASSES = 3
"""What the bounds at one point cost, at most but for rare cases."""

MOST_PASSES, _PATIENCE = 500, 20
_WORTH_TRYING, _RETRY = 0.5, 0.1


class CertifiedStop:
    """Stops when the gap is proven to be at most `tol`, or when rounding ends the progress.

    Half the squared whitened gradient estimates the gap. Bounds cost a pass or two, so they are tried when the
    estimate is half of `tol`, and after a failure again when it has fallen to a tenth, or to the share of it that the
    best bound was too large by.

    **Arguments:**

    - `prove`: the bounds at a point. - `algorithm`: its `progress` is what decides when to try them.
    """

    def __init__(
        self,
        prove: Callable[[Any], tuple[GapBound, ...]],
        tol: float,
        most_passes: int | None,
        algorithm: AbstractAlgorithm,
    ) -> None:
        self.prove, self.tol, self.algorithm = prove, tol, algorithm
        self.most_passes, self.spent = most_passes or MOST_PASSES, False
        self.threshold = _WORTH_TRYING * tol
        self.passes, self.proven, self.stalled = 0, False, False
        self.bounds: tuple[GapBound, ...] = ()
        self.least, self.lowest, self.idle = math.inf, math.inf, 0

    def __call__(self, state: Any) -> bool:
        progress = self.algorithm.progress(state)
        if progress is None:
            return False
        estimate = progress.gap
        self.stalled = self._stalled(estimate, progress.negative_elbo)
        # The last certificate must still be paid for.
        self.spent = int(state.step) + self.passes + 2 * CERTIFICATE_PASSES > self.most_passes
        if self.stalled or self.spent or estimate > self.threshold:
            return self.stalled or (self.spent and self.passes > 0)
        bounds = self.prove(state.point)
        self.passes += len(bounds)
        self.bounds = bounds
        self.proven = bool(min(bound.value for bound in bounds) <= self.tol)
        least = min(bound.value for bound in bounds)
        self.threshold = max(_RETRY, 0.5 * self.tol / least if math.isfinite(least) else 0.0) * estimate
        return self.proven

    def _stalled(self, estimate: float, negative_elbo: float) -> bool:
        """For twenty passes neither the negative ELBO fell by more than rounding nor the gradient's norm to a half.

        Rejected trials are among them: twenty of them divide the step size by 1e12.
        """
        rounding = 1e-12 * (1 + abs(negative_elbo))
        progress = estimate < 0.25 * self.least or negative_elbo < self.lowest - rounding
        self.idle = 0 if progress else self.idle + 1
        self.least = min(self.least, estimate)
        self.lowest = negative_elbo if negative_elbo < self.lowest - rounding else self.lowest
        return self.idle >= _PATIENCE


def run_certified(
    algorithm: Any, target: Any, family: Any, start: Any, stop: CertifiedStop, value_error: float, request: Request
) -> Answer:
    """Run `algorithm`, one pass over the data a step, until `stop`.

    `value_error` is that of one data term's mean, relative to 1 plus its size; the terms add up to at most the negative
    ELBO where none is negative.
    """
    budget = request.budget
    if budget.gradients is not None:
        # The certificate of the result is paid for out of the budget, if that leaves anything for the run.
        budget = dataclasses.replace(budget, gradients=max(budget.gradients - CERTIFICATE_PASSES, 1))
    steps = min(MOST_PASSES, budget.steps or MOST_PASSES)
    found = run(
        algorithm,
        target,
        family,
        start,
        seed=request.seed,
        budget=budget,
        num_steps=steps,
        num_records=2 * steps,
        stop=stop,
        **request.options,
    )
    if found.elbo is not None:
        value, rounding = found.elbo[0], 16 * float(np.finfo(target.dtype).eps)
        found = dataclasses.replace(found, elbo=(value, (value_error + rounding) * (target.num_terms + abs(value))))
    certificate = issue(
        target,
        family,
        found.point,
        confidence=request.confidence,
        seed=certificate_seed(request.seed, 0),
        wanted=request.tol,
        known=stop.bounds if stop.proven else None,
    )
    return Answer(_explained(found, stop, certificate.gap, request), certificate)


def _explained(found: Any, stop: CertifiedStop, gap: float | None, request: Request) -> Any:
    """The run with the passes of its certificates counted, and a message that says what was reached and what not."""
    passes = found.gradient_evaluations + stop.passes + (0 if stop.proven else CERTIFICATE_PASSES)
    reached = gap is not None and gap <= request.tol
    shown = "" if gap is None else at_most(gap)
    if reached:
        outcome, message = (
            Outcome.TOLERANCE,
            f"the gap is proven to be at most {shown} <= tol = {request.tol:g} nats",
        )
    elif stop.stalled:
        outcome, message = Outcome.COMPLETED, "no step lowers the negative ELBO any more; "
        known = gap is not None and math.isfinite(gap)
        message += (
            f"the proven gap is {shown}, above tol = {request.tol:g}" if known else "no bound on the gap is known"
        )
    elif found.outcome is Outcome.TOLERANCE:  # stopped because another certificate would not be within the budget
        outcome, message = Outcome.GRADIENT_BUDGET, Outcome.GRADIENT_BUDGET.value
    else:
        return dataclasses.replace(found, gradient_evaluations=passes)
    return dataclasses.replace(found, gradient_evaluations=passes, outcome=outcome, message=message)
