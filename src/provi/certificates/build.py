"""Issue a certificate: choose the bounds that apply to the target, compute them, keep the grounds."""

import dataclasses
import math
from typing import Any

import numpy as np

from provi.algorithms.guarantee import Guarantee
from provi.certificates.bounds import GapBound
from provi.certificates.certificate import Assumption, Certificate, Counterexample
from provi.certificates.dual.bounds import dual_bounds
from provi.certificates.linear.bounds import linear_model_bounds
from provi.certificates.monte_carlo.bounds import fewest_gradients, monte_carlo_bounds
from provi.certificates.monte_carlo.convexity import find_negative_curvature
from provi.certificates.monte_carlo.tail_audit import LARGEST_SHARE, REACH, unseen_share, unseen_share_of_rows
from provi.certificates.posterior import PosteriorBound, dual_posterior_bound, posterior_bound
from provi.families.base import AbstractFamily
from provi.families.dual_gaussian import DualGaussian
from provi.families.location_scale import LocationScale
from provi.targets.base import AbstractTarget, Constant, Constants
from provi.targets.linear_model import AbstractLinearModel

LARGEST_LINEAR = 2000
"""Dimensions above which the d x d matrices of the deterministic bounds are not formed."""

DEFAULT_GRADIENTS = 200_000

LARGEST_STEEPNESS = 10.0
"""Smoothness times the largest variance of q, up to which no audit of the tails is needed."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was computed for a certificate."""

    bounds: tuple[GapBound, ...]
    posterior: PosteriorBound | None
    counterexample: Counterexample | None
    num_gradients: int
    tails: Assumption | None = None


def issue(
    target: AbstractTarget,
    family: AbstractFamily,
    point: Any,
    *,
    confidence: float = 0.99,
    seed: int = 0,
    wanted: float | None = None,
    max_gradients: int | None = None,
    known: tuple[GapBound, ...] | None = None,
) -> Certificate:
    """The certificate of q: deterministic for linear models, by Monte Carlo otherwise, refused where convexity fails.

    **Arguments:**

    - `confidence`: of the gap, and separately of the distance to the posterior. - `seed`: of fresh draws.
    - `wanted`: the gap that is enough; None spends `max_gradients`.
    - `known`: the deterministic bounds at `point`, if the caller has computed them.
    """
    limit = DEFAULT_GRADIENTS if max_gradients is None else max_gradients
    # Host numbers that cost a pass over the data: once for all.
    constants = target.constants
    evidence = _gather(target, family, point, constants, known, confidence, seed, wanted, limit)
    found, bounds = evidence.counterexample, evidence.bounds
    status, gap, level = _verdict(bounds, found)

    def recompute(other: int) -> Certificate:
        return issue(target, family, point, confidence=confidence, seed=other, wanted=wanted, max_gradients=limit)

    posterior = None if found is not None else evidence.posterior
    return Certificate(
        status=status,
        gap=gap,
        kl=None if posterior is None else posterior.kl,
        assumptions=(*_assumptions(constants, found), *(() if evidence.tails is None else (evidence.tails,))),
        confidence=level,
        bounds=bounds,
        posterior=posterior,
        counterexample=found,
        notes=_notes(constants, family, status, bounds, posterior, found),
        names=target.parameter_names,
        num_gradients=evidence.num_gradients,
        recompute=recompute,
    )


def _gather(
    target: AbstractTarget,
    family: Any,
    point: Any,
    constants: Constants,
    known: tuple[GapBound, ...] | None,
    confidence: float,
    seed: int,
    wanted: float | None,
    max_gradients: int,
) -> Evidence:
    """Every bound that applies."""
    if isinstance(family, DualGaussian):
        bounds = dual_bounds(target, family, point) if known is None else known
        posterior = dual_posterior_bound(target, family, point, confidence=confidence, seed=seed)
        return Evidence(bounds, posterior, None, len(bounds))

    def distance() -> PosteriorBound | None:
        return posterior_bound(target, family, point, confidence=confidence, seed=seed)

    linear = target.linear_model()
    if isinstance(linear, AbstractLinearModel) and target.dim <= LARGEST_LINEAR:
        bounds = linear_model_bounds(linear, family, point) if known is None else known
        # Only the distance to the posterior rests on draws here.
        seen = unseen_share_of_rows(linear, point) <= LARGEST_SHARE
        return Evidence(bounds, distance() if seen else None, None, len(bounds))
    concave = constants.log_concave
    if concave.status != "proven":
        found = find_negative_curvature(target, family, point, seed=seed)
        if found is not None or concave.value is False:
            return Evidence((), None, found, 0)
    if max_gradients < fewest_gradients(target.dim):
        return Evidence((), None, None, 0)
    tails = audit_tails(target, family, point, constants, seed)
    if tails.status == "violated":
        return Evidence((), None, None, 0, tails)
    result = monte_carlo_bounds(
        target, family, point, confidence=confidence, seed=seed, max_gradients=max_gradients, wanted=wanted
    )
    posterior = distance() if result.counterexample is None else None
    return Evidence(result.bounds, posterior, result.counterexample, result.num_gradients, tails)


def audit_tails(
    target: AbstractTarget, family: LocationScale, point: Any, constants: Constants, seed: int
) -> Assumption:
    """Whether draws of q can see what the expectations are made of: by smoothness, else by `tail_audit`."""
    statement = "draws reach what matters (batch means are nearly Gaussian)"
    smooth = constants.smoothness
    if smooth.status in ("proven", "declared") and smooth.value is not None:
        # In q's coordinates the gradient is Lipschitz with this constant; a huge one can still hide a wall.
        steepness = float(smooth.value) * float(np.max(family.marginal_standard_deviation(point))) ** 2
        if steepness <= LARGEST_STEEPNESS:
            reason = "smooth potential: in q's coordinates its gradient grows at most linearly, with this slope"
            return Assumption(statement, steepness, smooth.status, reason)
    share = unseen_share(target, family, point, seed=seed)
    if share > LARGEST_SHARE:
        reason = (
            f"{share:.0%} of the gradient's variance along a line lies beyond {REACH:g} standard deviations of q, "
            f"where draws do not come: no confidence level can be given"
        )
        return Assumption(statement, share, "violated", reason)
    return Assumption(statement, share, "estimated", f"share beyond {REACH:g} standard deviations, along lines tried")


def with_guarantee(
    certificate: Certificate, family: AbstractFamily, guarantee: Guarantee | None, num_steps: int, rejected_steps: int
) -> Certificate:
    """Add what the algorithm's theorem promised a priori, for the `num_steps` actually taken.

    A run with rejected steps is not the one of the theorem.
    """
    if guarantee is None or num_steps < 1:
        return certificate
    if rejected_steps > 0:
        note = f"The theorem's bound does not apply: {rejected_steps} non-finite step(s) were rejected."
        return dataclasses.replace(certificate, notes=(*certificate.notes, note))
    rows = [Assumption(text, None, status, "used by the theorem") for text, status in guarantee.assumptions]
    return dataclasses.replace(
        certificate,
        assumptions=(*certificate.assumptions, _kurtosis(family), *rows),
        theorem=guarantee.theorem,
        a_priori_bound=float(guarantee.curve(np.asarray([num_steps]))[0]),
        a_priori_metric=guarantee.metric,
    )


def _verdict(bounds: tuple[GapBound, ...], found: Counterexample | None) -> tuple[str, float | None, float | None]:
    """Status, gap and confidence: the smallest proven bound, else the smallest conditional one."""
    if found is None:
        for status in ("proven", "conditional"):
            finite = [bound for bound in bounds if bound.status == status and math.isfinite(bound.value)]
            if finite:
                best = min(finite, key=lambda bound: bound.value)
                return status, best.value, best.confidence
    return "none", None, None


def _assumptions(constants: Constants, found: Counterexample | None) -> tuple[Assumption, ...]:
    concave = _row("potential is convex (log-concave target)", constants.log_concave)
    if found is not None:
        concave = Assumption(concave.statement, False, "violated", str(found))
    return (
        concave,
        _row("strong convexity mu", constants.strong_convexity),
        _row("smoothness M (no bound on the gap needs it)", constants.smoothness),
    )


def _notes(
    constants: Constants,
    family: AbstractFamily,
    status: str,
    bounds: tuple[GapBound, ...],
    posterior: PosteriorBound | None,
    found: Counterexample | None,
) -> tuple[str, ...]:
    """What is missing, and what would tighten it."""
    concave = constants.log_concave
    if found is not None or concave.value is False:
        return ("No certificate: every bound needs a log-concave target. The ELBO is an estimate and a lower bound.",)
    notes = []
    if concave.status not in ("proven", "declared"):
        notes.append("If the log density is known to be concave, pass log_concave=True: the bound is then proven.")
    if status == "none":
        notes.append("A larger budget, a longer run, or lighter tails (see the assumptions) would give a finite bound.")
    elif bounds and any(bound.confidence is not None for bound in bounds):
        notes.append("The confidence level is asymptotic: it presumes that draws reach what matters (see assumptions).")
    if posterior is None:
        notes.append(
            "Distance to the posterior: needs strong_convexity > 0 (proven or declared) and a base with a score."
        )
    elif posterior.kl > 1:
        notes.append(
            "The bound on KL is loose under weak priors; for estimates see provi.diagnostics.importance_diagnostics."
        )
    if family.scale == "low_rank":
        notes.append("The gap of a low-rank member is bounded against all Gaussians, a larger family.")
    return tuple(notes)


def _kurtosis(family: AbstractFamily) -> Assumption:
    statement = f"kurtosis of the base ({family.base.name})"
    try:
        return Assumption(statement, float(family.base.kurtosis(family.dim)), "proven", "closed form")
    except ValueError as error:
        return Assumption(statement, None, "violated", str(error))


def _row(statement: str, constant: Constant) -> Assumption:
    value: Any = constant.value
    value = value if value is None or isinstance(value, bool) else float(value)
    return Assumption(statement, value, constant.status, constant.reason)
