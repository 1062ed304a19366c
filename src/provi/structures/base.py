"""What a structure is: a target and a family together, and the few questions that `fit` and `certify` ask of them."""

import abc
import dataclasses
import math
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from provi.algorithms.natural.laplace import value_and_gradient
from provi.algorithms.natural.modes import Modes
from provi.certificates.bounds import at_most
from provi.certificates.build import DEFAULT_GRADIENTS, Evidence, Query, build_certificate
from provi.certificates.certificate import Certificate
from provi.certificates.distance.bound import Deferred, PosteriorBound
from provi.core.devices import divided
from provi.core.interpreter import one_blas_thread
from provi.core.limits import NO_LIMIT, Clock
from provi.families.base import AbstractFamily, moment_of
from provi.result.posterior import Posterior
from provi.runtime.loop import estimate_elbo
from provi.runtime.record import Outcome
from provi.runtime.run import Budget, Run
from provi.targets.base import AbstractTarget, Constants
from provi.theory.solution_region import smallest_scale

RUN_SHARE = 0.5
"""Of a budget of gradients or seconds, for a run whose certificate is from draws; the rest is for the certificate."""


AUDIT_GRADIENTS, AUDIT_PROGRAMS = 15_000, 6
"""What a certificate from draws takes at least: the search for negative curvature, the audit of tails, 4096 draws."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asked for: `options` go to `runtime.run` (progress, checkpoint, resume).

    `clock`: when all of it, the certificate included, must be ready. `starts`: how many searches for modes, where
    the target may have several; None for as many as is usual.
    """

    tol: float
    confidence: float
    budget: Budget
    seed: int
    options: dict[str, Any]
    clock: Clock = NO_LIMIT
    starts: int | None = None

    def run_budget(self, gradients: float | int = 1.0, seconds: float | int = RUN_SHARE) -> Budget:
        """The limits of the run itself: a share of the gradients, and of the time that is left now."""
        budget = self.budget
        if budget.gradients is not None:
            budget = dataclasses.replace(budget, gradients=max(int(gradients * budget.gradients), 1))
        if self.clock.limited:
            budget = dataclasses.replace(budget, seconds=max(seconds * self.clock.left, 1e-9))
        return budget


@dataclasses.dataclass(frozen=True)
class Answer:
    """The run and its certificate; `modes`: what a search for modes has found, None where the structure makes none."""

    run: Run
    certificate: Certificate
    modes: Modes | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """An upper bound on how much worse one member is than another: `deterministic`, or at the level asked for.

    `spent`: evaluations of the potential, or passes over the data.
    """

    value: float
    spent: int
    deterministic: bool


@dataclasses.dataclass(frozen=True)
class AbstractStructure(abc.ABC):
    """A target with a family of approximations: how they are fitted, bounded and compared.

    `fit.choose` asks once which structure a target and a family have; nothing else asks again. A structure is
    one final class in a file of its own, and a row in `fit.STRUCTURES`.
    """

    target: AbstractTarget
    family: Any
    memo: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)
    """What was found on the way and is worth keeping: the modes of the target."""

    reference_tol: ClassVar[float]
    """How near to the best member `certify` brings the one that it compares with, in nats."""

    @classmethod
    @abc.abstractmethod
    def default_family(cls, target: AbstractTarget) -> AbstractFamily | None:
        """The family to take where the user names none; None if the target has another structure."""

    @classmethod
    @abc.abstractmethod
    def fits(cls, target: AbstractTarget, family: AbstractFamily) -> bool:
        """Whether the two have this structure."""

    @abc.abstractmethod
    def run(self, start: Any, request: Request) -> Answer:
        """The structure's own method, from `start` or where it likes to begin, until the tolerance is certified."""

    @abc.abstractmethod
    def evidence(self, point: Any, constants: Constants, query: Query) -> Evidence:
        """Every bound that applies at `point`."""

    @abc.abstractmethod
    def difference(self, point: Any, other: Any, *, delta: float, seed: int) -> Difference:
        """A bound on the negative ELBO of `point` minus that of `other`; wrong with probability `delta` at most."""

    def constants(self) -> Constants:
        """What is known of the target's shape; host numbers that may cost a pass over the data."""
        return self.target.constants

    def first_point(self) -> Any:
        """Where an algorithm of the user's choice begins: at the default location, as narrow as the best member."""
        smoothness = self.target.constants.smoothness
        scale = smallest_scale(float(smoothness.value)) if smoothness.known and smoothness.value else 1.0
        return self.family.point(self.target.default_location, scale, self.target.dtype)

    def on(self, mesh: Mesh) -> "AbstractStructure":
        """The same on several devices: rows are divided among them, or else draws."""
        return dataclasses.replace(self, target=divided(self.target, mesh))

    def posterior(self, point: Any) -> Posterior:
        """The member as the user sees it."""
        return Posterior(self.family, point, self.target.parameter_names, self.target)

    def check_start(self, point: Any) -> None:
        """The first evaluation, before any long work: `ValueError` where the log density is not finite."""
        check_finite(self.target, np.asarray(point.loc))

    def measured(self, clock: Clock) -> Clock:
        """The clock that knows what gradients take, where this structure computes any."""
        return clock

    def elbo(self, key: Any, point: Any, draws: int) -> tuple[Any, Any]:
        """Its estimate from draws of q, and the standard error; of a run that has no exact one."""
        return estimate_elbo(key, self.target, self.family, point, draws)

    def improper_direction(self, point: Any, *, seed: int) -> str | None:
        """Where the density does not seem to be integrable, in words; None where the model has a proper prior."""
        del point, seed
        return None

    def fed(self, algorithm: Any, seed: int) -> tuple[Any, dict[str, Any]]:
        """An algorithm of the user's choice as it is run, and options of `runtime.run`: what it is fed, if anything."""
        del seed
        return algorithm, {}

    def check_member(self, point: Any) -> None:
        """`ValueError` unless `point` means the same distribution for this target as where it comes from."""
        del point

    def certificate(
        self,
        point: Any,
        *,
        confidence: float = 0.99,
        seed: int = 0,
        wanted: float | None = None,
        max_gradients: int | None = None,
        known: Any = None,
        clock: Clock = NO_LIMIT,
    ) -> Certificate:
        """The certificate of the member `point`.

        **Arguments:**

        - `confidence`: of the gap, and separately of the distance to the posterior. - `seed`: of fresh draws.
        - `wanted`: the gap that is enough; None spends `max_gradients`.
        - `known`: the deterministic bounds at `point`, if the caller has computed them. - `clock`: when to be ready.
        """
        limit = DEFAULT_GRADIENTS if max_gradients is None else max_gradients
        with self.threads():
            constants = self.constants()
            evidence = self.evidence(point, constants, Query(confidence, seed, wanted, limit, known, clock))

        def recompute(other: int) -> Certificate:
            return self.certificate(point, confidence=confidence, seed=other, wanted=wanted, max_gradients=limit)

        if evidence.distance is not None:
            evidence = dataclasses.replace(evidence, distance=Deferred(partial(self._distance, point, evidence)))
        return build_certificate(self.target, self.family, constants, evidence, recompute)

    def threads(self) -> AbstractContextManager[Any]:
        """Around what it does: few threads where it is small."""
        return one_blas_thread(self.target.dim, getattr(self.target, "num_terms", 1))

    def _distance(self, point: Any, evidence: Evidence) -> PosteriorBound | None:
        """The distance to the posterior, with the deviations of q, in whose units its errors can be read."""
        with self.threads():
            found = evidence.distance() if isinstance(evidence.distance, Deferred) else evidence.distance
        if found is None:
            return None
        spread = np.asarray(moment_of(self.family, point, "marginal_standard_deviation"), np.float64)
        return dataclasses.replace(found, deviations=tuple(spread.tolist()))


def certificate_seed(seed: int, attempt: int) -> int:
    """A seed for the draws of the `attempt`-th certificate: none of them was used by the fit or by another attempt."""
    return int(np.random.SeedSequence((seed, 1, attempt)).generate_state(1)[0])


def limited(certificate: Certificate, request: Request) -> bool:
    """Whether the proven bound is above the tolerance for want of draws only: the statistical one is within it."""
    return certificate.status == "proven" and (certificate.statistical_gap or math.inf) <= request.tol


def within(certificate: Certificate, request: Request) -> bool:
    """Whether the gap is bounded by the tolerance."""
    return certificate.gap is not None and certificate.gap <= request.tol


def explained(
    found: Run, certificate: Certificate, request: Request, spent: int, otherwise: tuple[Outcome, str] | None
) -> Run:
    """The run with what its certificates cost counted in, and a message that says what was reached and what not.

    `spent`: on certificates, in gradients or passes. `otherwise`: outcome and message where the tolerance was not
    reached; None for those of the run.
    """
    outcome, message = otherwise or (found.outcome, found.message)
    # A deterministic bound holds of the point however the run ended.
    if within(certificate, request) and (found.outcome.ok or certificate.confidence is None):
        outcome, message = _reached(certificate, request)
    total = found.gradient_evaluations + spent
    return dataclasses.replace(found, outcome=outcome, message=message, gradient_evaluations=total)


def _reached(certificate: Certificate, request: Request) -> tuple[Outcome, str]:
    level = certificate.confidence
    words = f"at most {at_most(certificate.gap)} <= tol = {request.tol:g} nats"  # pyright: ignore[reportArgumentType]
    words += "" if level is None else f", confidence {level:g}"
    if certificate.status == "proven":
        return Outcome.TOLERANCE, f"the gap is proven to be {words}"
    if certificate.status == "statistical":
        return Outcome.TOLERANCE, f"the gap is {words} (statistical: asymptotic, tails audited and not known)"
    best = min((b for b in certificate.bounds if b.status == "conditional"), key=lambda bound: bound.value)
    return Outcome.CONDITIONAL, f"the gap is {words}, if what it assumes holds: {best.detail}"


def measured_gradients(target: AbstractTarget, clock: Clock) -> Clock:
    """The clock that knows what a gradient of the target takes."""
    location = jnp.asarray(target.default_location, target.dtype)
    return clock.measured(lambda: jax.block_until_ready(value_and_gradient(target, location)))


def check_finite(target: AbstractTarget, loc: np.ndarray) -> None:
    """`ValueError`, with the coordinate, where the log density or its gradient is not finite at `loc`."""
    value, gradient = value_and_gradient(target, jnp.asarray(loc, target.dtype))
    check_finite_values(target, value, gradient)


def check_finite_values(target: AbstractTarget, value: Any, gradient: Any) -> None:
    """The same, where the potential and its gradient at the start are known already."""
    if not np.isfinite(value):
        raise ValueError(
            f"The target's log density is {-float(value)} at the start. Pass start=family.point(loc, scale) with a loc "
            f"where it is finite, or check the log density."
        )
    if not np.isfinite(gradient).all():
        index = int(np.argmin(np.isfinite(np.asarray(gradient))))
        raise ValueError(
            f"The gradient of the target's log density is not finite at the start (coordinate {index}, "
            f"{target.parameter_names[index]}). Pass another start=, or make the log density differentiable there."
        )
