"""When to stop: a certificate is tried as the estimated gap falls, and the run ends with the first that is good enough.

Two rules, one for bounds that are deterministic and cost passes over the data (`ProvenStop`), one for bounds that come
from draws and share an error probability (`SampledStop`); where nothing can be proven, the latter asks whether q still
moves.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.algorithms.base import AbstractAlgorithm
from provi.certificates.bounds import GapBound, at_most, spend
from provi.certificates.build import DEFAULT_GRADIENTS
from provi.certificates.certificate import Certificate, at_confidence
from provi.core.arguments import device_array
from provi.core.limits import NO_LIMIT, Clock
from provi.families.location_scale import Point
from provi.runtime.checkpoint import saved_segments
from provi.runtime.record import Outcome
from provi.runtime.run import AbstractStop, Run, run
from provi.structures.base import (
    AUDIT_GRADIENTS,
    AUDIT_PROGRAMS,
    RUN_SHARE,
    AbstractStructure,
    Answer,
    Request,
    certificate_seed,
    explained,
    limited,
    within,
)
from provi.structures.stationarity import StationarityRule

CERTIFICATE_PASSES = 3
"""What the deterministic bounds at one point cost, at most but for rare cases."""

MOST_PASSES, _PATIENCE = 500, 20
_WORTH_TRYING, _RETRY = 0.5, 0.1

MOST_TRIES = 6
_FIRST_TRY, _NEXT_TRY = 0.2, 0.3
"""A certificate from draws is tried when the estimated gap is a fifth of `tol`, then at each fall to three tenths."""


_RAY_GRADIENTS, _RESTLESS = 500, 0.1
"""Nats that q has moved between two looks from which it is asked whether there is a density to go to."""


class ProvenStop(AbstractStop):
    """Stops when the gap is proven to be at most `tol`, or when rounding ends the progress.

    Half the squared whitened gradient estimates the gap. Bounds cost a pass or two, so they are tried when the
    estimate is half of `tol`, and after a failure again when it has fallen to a tenth, or to the share of it that the
    best bound was too large by.

    **Arguments:**

    - `prove`: the bounds at a point. - `algorithm`: its `progress` is what decides when to try them.
    - `clock`: the run stops when what is left is what another pass and the certificate would take.
    """

    def __init__(
        self,
        prove: Callable[[Any], tuple[GapBound, ...]],
        algorithm: AbstractAlgorithm,
        tol: float,
        most_passes: int | None,
        clock: Clock = NO_LIMIT,
    ) -> None:
        self.clock, self.late, self.last_call = clock, False, time.monotonic()
        self.prove, self.algorithm, self.tol = prove, algorithm, tol
        self.most_passes, self.spent = most_passes or MOST_PASSES, False
        self.threshold = _WORTH_TRYING * tol
        self.passes, self.proven, self.stalled = 0, False, False
        self.bounds: tuple[GapBound, ...] = ()
        self.least, self.lowest, self.idle = math.inf, math.inf, 0

    def __call__(self, state: Any) -> bool:
        now = time.monotonic()
        taken, self.last_call = now - self.last_call, now
        taken = taken if int(state.step) > 1 else 0.0  # the first pass compiles, and is longer than others
        self.late = self.clock.limited and (1 + CERTIFICATE_PASSES) * taken >= self.clock.left
        return self._enough(state) or self.late

    def _enough(self, state: Any) -> bool:
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
        least = min(bound.value for bound in bounds)
        self.bounds, self.passes, self.proven = bounds, self.passes + len(bounds), bool(least <= self.tol)
        self.threshold = max(_RETRY, 0.5 * self.tol / least if math.isfinite(least) else 0.0) * estimate
        return self.proven

    def memory(self) -> dict[str, Any]:
        """Counters, and how small the estimate was."""
        numbers = {name: getattr(self, name) for name in ("passes", "least", "lowest", "idle")}
        return {**numbers, "tol": self.tol, "threshold": self.threshold}

    def recall(self, memory: dict[str, Any], state: Any) -> None:
        """Bounds are deterministic: of a run to another tolerance all counts but when to try them."""
        del state
        self.passes, self.idle = int(memory["passes"]), int(memory["idle"])
        self.least, self.lowest = float(memory["least"]), float(memory["lowest"])
        if memory["tol"] == self.tol:
            self.threshold = float(memory["threshold"])

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

    def reason(self, found: Run, certificate: Certificate) -> tuple[Outcome, str] | None:
        """Why this rule ended the run short of the tolerance; None where something else did."""
        if self.stalled:
            gap = certificate.gap
            shown = "no bound on the gap is known"
            if gap is not None and math.isfinite(gap):
                shown = f"the proven gap is {at_most(gap)}, above tol = {self.tol:g}"
            return Outcome.COMPLETED, f"no step lowers the negative ELBO any more; {shown}"
        if found.outcome is Outcome.TOLERANCE and self.late and not self.proven:
            return Outcome.TIME_BUDGET, Outcome.TIME_BUDGET.value
        if found.outcome is Outcome.TOLERANCE:  # stopped because another certificate would not be within the budget
            return Outcome.GRADIENT_BUDGET, Outcome.GRADIENT_BUDGET.value
        return None


def run_proven(
    structure: AbstractStructure,
    algorithm: AbstractAlgorithm,
    start: Any,
    prove: Callable[[Any], tuple[GapBound, ...]],
    value_error: float,
    request: Request,
) -> Answer:
    """Run `algorithm`, one pass over the data a step, until the bounds of `prove` are within the tolerance.

    `value_error` is that of one data term's mean, relative to 1 plus its size; the terms add up to at most the negative
    ELBO where none is negative.
    """
    target: Any = structure.target
    budget = request.budget
    stop = ProvenStop(prove, algorithm, request.tol, budget.gradients, request.clock)
    if request.clock.limited:
        budget = dataclasses.replace(budget, seconds=max(request.clock.left, 1e-9))
    if budget.gradients is not None:
        # The certificate of the result is paid for out of the budget, if that leaves anything for the run.
        budget = dataclasses.replace(budget, gradients=max(budget.gradients - CERTIFICATE_PASSES, 1))
    steps = min(MOST_PASSES, budget.steps or MOST_PASSES)
    found = run(
        algorithm,
        target,
        structure.family,
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
    certificate = structure.certificate(
        found.point,
        confidence=request.confidence,
        seed=certificate_seed(request.seed, 0),
        wanted=request.tol,
        known=stop.bounds if stop.proven else None,
    )
    passes = stop.passes + (0 if stop.proven else CERTIFICATE_PASSES)
    return Answer(explained(found, certificate, request, passes, stop.reason(found, certificate)), certificate)


@dataclasses.dataclass(frozen=True)
class _Try:
    """A certificate that was tried: where (and the arrays of it), at which level and step, with how many gradients."""

    point: Point
    arrays: dict[str, np.ndarray]
    level: int
    step: int
    most: int


class SampledStop(AbstractStop):
    """Tries the certificate as the estimated gap falls; where the target is not log-concave, asks for stationarity.

    The k-th try is the one at a gap of _FIRST_TRY * _NEXT_TRY^k * tol, and it spends the share 2^-(k+1) of the error
    probability. A resumed run goes on with these tries, so that it ends as it would have done without an interruption.
    What a call issues beside them, of a run that was cut short and can be resumed, comes out of the last share
    (`extra_level`).

    **Arguments:**

    - `structure`: whose certificates are tried. - `algorithm`: whose states are looked at.
    - `spent`: gradients that the search for a start has taken.
    """

    def __init__(
        self, structure: AbstractStructure, algorithm: AbstractAlgorithm, request: Request, spent: int
    ) -> None:
        self.structure, self.algorithm, self.request = structure, algorithm, request
        self.calls = calls_before(request)
        # As long as nothing is recalled: this is the first call, or what others have spent is not known.
        self.level = extra_level(request, self.calls) / 2 if self.calls else 1 - request.confidence
        self.tries = 0
        self.tried: _Try | None = None
        self.nothing_known = False
        self.certificate: Certificate | None = None
        self.num_gradients = spent
        self.stationarity = StationarityRule()
        self.stationary = False
        self.improper: str | None = None

    def memory(self) -> dict[str, Any]:
        """Counters, where q was at the last looks, and the last try."""
        names = ("num_gradients", "tries", "level", "nothing_known")
        found = {name: getattr(self, name) for name in names}
        found |= {"tol": self.request.tol, "confidence": self.request.confidence, **self.stationarity.memory()}
        if self.tried is not None:
            found |= {"tried": [self.tried.level, self.tried.step, self.tried.most], **self.tried.arrays}
        return found

    def recall(self, memory: dict[str, Any], state: Any) -> None:
        """The tries of a run to the same tolerance go on; to another one they begin again, at another level."""
        self.stationarity.recall(memory)
        self.num_gradients = int(memory["num_gradients"])
        if (memory["tol"], memory["confidence"]) != (self.request.tol, self.request.confidence):
            return
        self.tries, self.level = int(memory["tries"]), float(memory["level"])
        self.nothing_known = bool(memory["nothing_known"])
        if "tried" in memory:
            structure = jax.tree.structure(state.point)
            arrays = {f"tried/{i}": memory[f"tried/{i}"] for i in range(structure.num_leaves)}
            point = jax.tree.unflatten(structure, map(device_array, arrays.values()))
            self.tried = _Try(point, arrays, *map(int, memory["tried"]))

    def __call__(self, state: Any) -> bool:
        still = self._looks_stationary(state)
        if self._is_improper(state):
            return True
        if self.nothing_known:
            self.stationary = still
            return still
        progress = self.algorithm.progress(state)
        estimate = math.inf if progress is None else progress.gap
        tol = self.request.tol
        # Noise may keep the estimate large for ever, where the density is not log-concave; then the first try is here.
        if still and self.tries == 0 and not self.structure.target.constants.log_concave.known:
            estimate = min(estimate, _FIRST_TRY * tol)
        if not estimate <= _FIRST_TRY * tol or not self._in_time():
            return False
        # An estimate of zero (a Gaussian target) is the last level.
        level = math.log(_FIRST_TRY * tol / max(estimate, 1e-300)) / math.log(1 / _NEXT_TRY)
        level = min(int(level), MOST_TRIES - 1)
        if level < self.tries or self.tries >= MOST_TRIES:
            return False
        self.tries = level + 1
        arrays = {f"tried/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state.point))}
        self.tried = _Try(state.point, arrays, level, int(state.step), self._affordable())
        self.certificate = self._repeat(self.tried)
        self.num_gradients += self.certificate.num_gradients
        self.nothing_known = self.certificate.status == "none"
        self.stationary = still and self.nothing_known
        return self.reached or self.limited or self.stationary or level == MOST_TRIES - 1

    @property
    def reached(self) -> bool:
        """Whether the last certificate is within the tolerance."""
        return self.certificate is not None and within(self.certificate, self.request)

    @property
    def limited(self) -> bool:
        """Whether draws, and no longer q, keep the proven bound above the tolerance: the statistical one is within."""
        return self.certificate is not None and limited(self.certificate, self.request)

    def last_certificate(self, found: Run) -> Certificate:
        """The certificate of the result: the one that ended the run, or another try."""
        ended = found.outcome is Outcome.TOLERANCE
        if self.improper is not None:
            return self.structure.certificate(found.point, confidence=self.request.confidence, max_gradients=0)
        if self.stationary and self.certificate is None and self.tried is not None:
            self.certificate = self._repeat(self.tried)  # as it was before an interruption
        if self.certificate is not None and (self.reached or self.stationary or (ended and self.limited)):
            return self.certificate
        level = spend(self.level, min(self.tries, MOST_TRIES))
        if not ended and self.request.options.get("checkpoint") is not None:
            level = extra_level(self.request, self.calls) / 4  # a run that goes on from here makes this try itself
        certificate = self._certify(found.point, level, found.num_steps + 1, self._affordable())
        self.num_gradients += certificate.num_gradients
        return certificate

    def reason(self, found: Run, certificate: Certificate) -> tuple[Outcome, str] | None:
        """Why this rule ended the run short of the tolerance; None where something else did."""
        if found.outcome is not Outcome.TOLERANCE:
            return None
        if self.improper is not None:
            return Outcome.IMPROPER, f"{Outcome.IMPROPER.value} ({self.improper})"
        if self.stationary:
            return Outcome.STATIONARY, "the approximation has stopped moving (a heuristic: nothing is proven)"
        shown = "none" if certificate.gap is None else at_most(certificate.gap)
        if self.limited and certificate.gap is not None and certificate.statistical_gap is not None:
            message = (
                f"the gap is at most {at_most(certificate.statistical_gap)} <= tol = {self.request.tol:g} nats "
                f"statistically; what is proven of it from as many draws as there were is {shown}"
            )
            return Outcome.COMPLETED, message
        message = (
            f"the estimated gap is far below tol = {self.request.tol:g}, but the bound that could be shown is {shown}"
        )
        return Outcome.COMPLETED, message

    def _repeat(self, tried: "_Try") -> Certificate:
        """The certificate of a try: the same draws and so the same bits, however often."""
        return self._certify(tried.point, spend(self.level, tried.level), tried.step, tried.most)

    def _certify(self, point: Point, error: float, step: int, most: int) -> Certificate:
        """With fresh draws, at most `most` gradients.

        All that are issued share the error probability, so whichever is reported holds with the confidence asked for.
        """
        certificate = self.structure.certificate(
            point,
            confidence=1 - error,
            seed=certificate_seed(self.request.seed, step),
            wanted=self.request.tol,
            max_gradients=most,
            clock=self.request.clock,
        )
        return at_confidence(certificate, self.request.confidence)

    def _is_improper(self, state: Any) -> bool:
        """Whether the density does not fall along some direction: a q that is still on its way may have none to go to.

        Without this, a flat density took all its steps, 14 million gradients, before the same was said of it.
        """
        if not self.stationarity.moved > _RESTLESS or not self.request.clock.pays_for(_RAY_GRADIENTS, programs=2):
            return False
        self.improper = self.structure.improper_direction(state.point, seed=self.request.seed)
        return self.improper is not None

    def _in_time(self) -> bool:
        """Whether there is time for a certificate; a try that must be left out says nothing of the target."""
        return self.request.clock.pays_for(AUDIT_GRADIENTS, AUDIT_PROGRAMS)

    def _affordable(self) -> int:
        limit, budget = DEFAULT_GRADIENTS, self.request.budget
        if budget.gradients is not None:
            limit = min(limit, int((1 - RUN_SHARE) * budget.gradients) - self.num_gradients)
        return max(limit, 0)

    def _looks_stationary(self, state: Any) -> bool:
        point = state.point
        return self.stationarity.stationary(point.loc, point.scale.matrix, self.request.tol)


def run_sampled(
    structure: AbstractStructure,
    algorithm: AbstractAlgorithm,
    start: Point,
    num_steps: int,
    spent: int,
    request: Request,
) -> Answer:
    """Run `algorithm` until a certificate from draws is within the tolerance, or nothing moves any more.

    `spent`: gradients that the search for `start` has taken.
    """
    stop = SampledStop(structure, algorithm, request, spent)
    budget = request.run_budget(gradients=RUN_SHARE)
    found = run(
        algorithm,
        structure.target,
        structure.family,
        start,
        seed=request.seed,
        budget=budget,
        num_steps=min(num_steps, budget.steps or num_steps),
        stop=stop,
        **request.options,
    )
    certificate = stop.last_certificate(found)
    otherwise = stop.reason(found, certificate)
    return Answer(explained(found, certificate, request, stop.num_gradients, otherwise), certificate)


def extra_level(request: Request, calls: int) -> float:
    """What call number `calls` may spend beside the tries of a `SampledStop`: together no more than those leave.

    The tries, and the certificate after the last of them, are MOST_TRIES + 1 shares.
    """
    return spend(spend(1 - request.confidence, MOST_TRIES), calls)


def calls_before(request: Request) -> int:
    """In how many calls the run that is resumed was made so far."""
    path = request.options.get("checkpoint")
    return 0 if path is None or not request.options.get("resume") else saved_segments(Path(path))
