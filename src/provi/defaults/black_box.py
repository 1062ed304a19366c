"""Any log density with a full covariance: Laplace start, stochastic natural gradient, stopped by its certificate."""

import dataclasses
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.laplace import laplace_approximation
from provi.algorithms.natural.stochastic_natural_gradient import StochasticNaturalGradient
from provi.certificates.bounds import at_most
from provi.certificates.build import DEFAULT_GRADIENTS, issue
from provi.certificates.certificate import Certificate, at_confidence
from provi.certificates.monte_carlo.confidence import spend
from provi.core.outcomes import Outcome
from provi.defaults.answer import Answer, Request, certificate_seed
from provi.families.location_scale import LocationScale, Point
from provi.runtime.loop import estimate_elbo
from provi.runtime.run import Budget, Run, run
from provi.schedules.stationarity import StationarityRule
from provi.targets.base import AbstractTarget

MOST_STEPS = 3000
_FIRST_TRY, _RETRY, _MOST_TRIES = 0.2, 0.3, 6
"""The certificate is tried when the estimated gap is a fifth of `tol`, then at each fall to three tenths."""

_RUN_SHARE = 0.5
"""Of a gradient budget, for the run; the rest is for the certificate."""


_NARROW, _RACE_STEPS, _RACE_DRAWS, _RACE_STREAM = 0.1, 30, 2048, 2**31 - 3


class CertifiedStop:
    """Tries the certificate as the estimated gap falls; where the target is not log-concave, asks for stationarity.

    The k-th try is the one at a gap of _FIRST_TRY * _RETRY^k * tol, so a resumed run does not repeat one, and it
    spends the share 2^-(k+1) of the error probability.
    """

    def __init__(self, target: AbstractTarget, family: LocationScale, request: Request) -> None:
        self.target, self.family, self.request = target, family, request
        self.began = time.monotonic()
        self.algorithm = StochasticNaturalGradient()
        self.run_gradients = 0
        self.tries = 0
        self.certificate: Certificate | None = None
        self.num_gradients = 0
        self.stationarity = StationarityRule()
        self.stationary = False

    def __call__(self, state: Any) -> bool:
        self.run_gradients += int(self.algorithm.cost_at(state.step))
        still = self._looks_stationary(state)
        if self.certificate is not None and self.certificate.status == "none":
            self.stationary = still
            return still
        progress = self.algorithm.progress(state)
        estimate = math.inf if progress is None else progress.gap
        tol = self.request.tol
        # Noise may keep the estimate large for ever, where the density is not log-concave; then the first try is here.
        if still and self.certificate is None and not self.target.constants.log_concave.known:
            estimate = min(estimate, _FIRST_TRY * tol)
        if not estimate <= _FIRST_TRY * tol:
            return False
        # An estimate of zero (a Gaussian target) is the last level.
        level = math.log(_FIRST_TRY * tol / max(estimate, 1e-300)) / math.log(1 / _RETRY)
        level = min(int(level), _MOST_TRIES - 1)
        if level < self.tries or (self.certificate is not None and self.tries >= _MOST_TRIES):
            return False
        self.tries = level + 1
        self.certificate = self.certify(state.point, level, int(state.step))
        self.stationary = still and self.certificate.status == "none"
        return self.reached or self.stationary or level == _MOST_TRIES - 1

    @property
    def reached(self) -> bool:
        gap = None if self.certificate is None else self.certificate.gap
        return gap is not None and gap <= self.request.tol

    def certify(self, point: Point, level: int, step: int) -> Certificate:
        """With fresh draws, on what the budget leaves.

        The tries share the error probability, so whichever is reported holds with the confidence asked for.
        """
        certificate = issue(
            self.target,
            self.family,
            point,
            confidence=1 - spend(1 - self.request.confidence, level),
            seed=certificate_seed(self.request.seed, step),
            wanted=self.request.tol,
            max_gradients=self._affordable(),
        )
        self.num_gradients += certificate.num_gradients
        return at_confidence(certificate, self.request.confidence)

    def _affordable(self) -> int:
        limit, budget = DEFAULT_GRADIENTS, self.request.budget
        if budget.gradients is not None:
            limit = min(limit, int((1 - _RUN_SHARE) * budget.gradients) - self.num_gradients)
        if budget.seconds is not None:
            # At the run's own pace, compilation included: an underestimate of what the time that is left pays for.
            elapsed = time.monotonic() - self.began
            pace = (self.run_gradients + self.num_gradients) / max(elapsed, 1e-9)
            limit = min(limit, int(pace * (budget.seconds - elapsed)))
        return max(limit, 0)

    def _looks_stationary(self, state: Any) -> bool:
        point = state.point
        return self.stationarity.stationary(point.loc, point.scale.matrix, self.request.tol)


def fit_black_box(target: AbstractTarget, family: LocationScale, start: Point | None, request: Request) -> Answer:
    """Mode and Laplace approximation unless `start` is given, then natural gradients until the certificate holds."""
    point, spent = (start, 0) if start is not None else _choose_start(target, family, request)
    stop = CertifiedStop(target, family, request)
    stop.num_gradients += spent
    budget = request.budget
    if budget.gradients is not None:
        budget = dataclasses.replace(budget, gradients=int(_RUN_SHARE * budget.gradients))
    found = run(
        stop.algorithm,
        target,
        family,
        point,
        seed=request.seed,
        budget=budget,
        num_steps=min(MOST_STEPS, budget.steps or MOST_STEPS),
        stop=stop,
        **request.options,
    )
    certificate = stop.certificate
    if certificate is None or not (stop.reached or stop.stationary):
        certificate = stop.certify(found.point, min(stop.tries, _MOST_TRIES), found.num_steps + 1)
    return Answer(_explained(found, stop, certificate, request), certificate)


def _choose_start(target: AbstractTarget, family: LocationScale, request: Request) -> tuple[Point, int]:
    """The Laplace approximation or, where that is worse after a few steps, a narrow q at the default location.

    The mode of a density that is not log-concave may be a spike without mass: a hierarchical model with its scale at
    zero. No race where log-concavity is known, nor on a budget. Also returns the gradients spent.
    """
    point = laplace_start(target, family)
    if target.constants.log_concave.known or request.budget != Budget():
        return point, 0
    narrow = family.point(target.default_location, _NARROW, target.dtype)
    entrants = [
        run(
            StochasticNaturalGradient(),
            target,
            family,
            entrant,
            seed=request.seed,
            num_steps=_RACE_STEPS,
            progress=False,
        )
        for entrant in (point, narrow)
    ]
    key = jax.random.fold_in(jax.random.key(request.seed), _RACE_STREAM)
    laplace, other = (float(estimate_elbo(key, target, family, each.point, _RACE_DRAWS)[0]) for each in entrants)
    chosen = entrants[1].point if not laplace >= other - request.tol else point
    return chosen, sum(each.gradient_evaluations for each in entrants)


def laplace_start(target: AbstractTarget, family: LocationScale) -> Point:
    """The Laplace approximation as a member of the family."""
    laplace = laplace_approximation(target, target.default_location)
    factor = laplace.factor if laplace.factor.ndim == 2 else np.diag(laplace.factor)
    if family.scale == "triangular":
        return family.point(jnp.asarray(laplace.mode, target.dtype), factor, target.dtype)
    return family.point_from_covariance(laplace.mode, factor @ factor.T, target.dtype)


def _explained(found: Run, stop: CertifiedStop, certificate: Certificate, request: Request) -> Run:
    outcome, message = found.outcome, found.message
    gap, level = certificate.gap, certificate.confidence
    if found.outcome is Outcome.TOLERANCE or (gap is not None and gap <= request.tol and found.outcome.ok):
        if gap is not None and gap <= request.tol:
            words = f"at most {at_most(gap)} <= tol = {request.tol:g} nats, confidence {level:g}"
            proven = certificate.status == "proven"
            outcome = Outcome.TOLERANCE if proven else Outcome.CONDITIONAL
            message = (
                f"the gap is proven to be {words}" if proven else f"the gap is {words}, if {_condition(certificate)}"
            )
        elif stop.stationary:
            outcome = Outcome.STATIONARY
            message = "the approximation has stopped moving (a heuristic: nothing is proven)"
        else:
            outcome = Outcome.COMPLETED
            shown = "none" if gap is None else at_most(gap)
            message = (
                f"the estimated gap is far below tol = {request.tol:g}, but the bound that could be shown is {shown}"
            )
    total = found.gradient_evaluations + stop.num_gradients
    return dataclasses.replace(found, outcome=outcome, message=message, gradient_evaluations=total)


def _condition(certificate: Certificate) -> str:
    best = min((b for b in certificate.bounds if b.status == "conditional"), key=lambda bound: bound.value)
    return f"what it assumes holds: {best.detail}"
