"""`provi.certify`: the certificate of any approximation, from any source."""

import dataclasses
import math
from typing import Any

import numpy as np

from provi.certificates.approximations import as_gaussian
from provi.certificates.bounds import GapBound, at_most
from provi.certificates.build import issue
from provi.certificates.certificate import Certificate, at_confidence
from provi.certificates.comparison import difference_upper_bound, linear_difference_bound
from provi.certificates.dual.dual_pass import dual_negative_elbo
from provi.core.checks import check_count
from provi.core.precision import double_precision
from provi.defaults import run_default
from provi.defaults.answer import Request, certificate_seed
from provi.families.base import AbstractFamily
from provi.families.dual_gaussian import DualGaussian
from provi.families.location_scale import Gaussian
from provi.result import Fit, Posterior
from provi.runtime.run import Budget, as_budget
from provi.targets.base import AbstractTarget

_REFERENCE_TOL, _DIRECT_GRADIENTS = 1e-3, 20_000


@double_precision
def certify(
    target: AbstractTarget,
    q: Any,
    confidence: float = 0.99,
    *,
    seed: int = 0,
    budget: Budget | int | None = None,
    compare: bool = True,
) -> Certificate:
    """How far is q from the best member of its family, and from the posterior?

    The proof does not depend on how q was found: a fit of ProVI's, a guide of NumPyro's, an approximation of PyMC's or
    BlackJAX's, or any pair (mean, covariance).

    **Arguments:**

    - `target`: what q approximates, in the same coordinates.
    - `q`: a `Fit`, its `posterior`, a pair (mean, covariance matrix or vector of variances), or an object of another
      package that `provi.certificates.approximations.as_gaussian` reads. Variances mean the mean-field family.
    - `confidence`: of the gap where it is not deterministic, and of the distance to the posterior.
    - `budget`: gradient evaluations, or a `provi.Budget`.
    - `compare`: also find a better member first, at the cost of a fit, and bound the gap through it:
      bound (g), sharp however far q is. Without it, only bounds from the gradient at q.

    **Returns:** a `Certificate`.
    """
    if not isinstance(target, AbstractTarget):
        raise TypeError(f"target must be a provi target, not {type(target).__name__}.")
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must lie between 0.5 and 1, not {confidence}.")
    check_count("seed", seed, minimum=0)
    family, point = _member(target, q)
    limits = as_budget(budget)
    # Two statements share the error probability when there are two.
    level = _half(confidence) if compare else confidence
    direct = issue(
        target,
        family,
        point,
        confidence=level,
        seed=certificate_seed(seed, 10**6),
        max_gradients=limits.gradients if not compare else _DIRECT_GRADIENTS,
    )
    refused = any(row.status == "violated" for row in direct.assumptions)
    if compare and not refused and target.constants.log_concave.value is not False:
        own, better = _better_member(target, family, level, seed, limits)
        if own.counterexample is None:
            bound, spent = _compare(target, family, point, better, own, level, seed)
            direct = _with_bound(direct, bound, spent)
        else:
            # The target is not what was claimed: nothing that rests on the claim is issued.
            direct = own
    return dataclasses.replace(
        at_confidence(direct, confidence),
        recompute=lambda other: certify(target, q, confidence, seed=other, budget=budget, compare=compare),
    )


def _member(target: AbstractTarget, q: Any) -> tuple[AbstractFamily, Any]:
    """The family and the point that q stands for."""
    if isinstance(q, Fit):
        q = q.posterior
    if isinstance(q, Posterior):
        if q.family.dim != target.dim:
            raise ValueError(f"q has dimension {q.family.dim}, but the target has {target.dim}.")
        if isinstance(q.family, DualGaussian) and q.family.num_sites != getattr(target, "num_terms", None):
            raise ValueError(
                f"q has {q.family.num_sites} sites, one a datum of another target; pass (mean, covariance)."
            )
        return q.family, q.point
    mean, spread = as_gaussian(q, target.dim)
    if spread.ndim == 1:
        family = Gaussian(target.dim, "diagonal")
        return family, family.point(mean, np.sqrt(spread), target.dtype)
    family = Gaussian(target.dim)
    return family, family.point_from_covariance(mean, spread, target.dtype)


def _better_member(
    target: AbstractTarget, family: AbstractFamily, level: float, seed: int, limits: Budget
) -> tuple[Certificate, Any]:
    """The result of a fit, with its certificate. It does not start at q, which may be far off."""
    exact = isinstance(family, DualGaussian) or target.linear_model() is not None
    tol = _REFERENCE_TOL if exact else 10 * _REFERENCE_TOL
    answer = run_default(target, family, None, Request(tol, _half(level), limits, seed, {"progress": False}))
    return answer.certificate, answer.run.point


def _half(level: float) -> float:
    """The confidence of each of two statements that hold together at `level`."""
    return (1 + level) / 2


def _compare(
    target: AbstractTarget,
    family: Any,
    point: Any,
    better: Any,
    own: Certificate,
    level: float,
    seed: int,
) -> tuple[GapBound, int]:
    """Bound (g) through the member `better`, whose certificate is `own`."""
    name = "through a better member (g)"
    if own.gap is None:
        return GapBound(name, math.inf, "conditional", detail="the better member has no bound"), own.num_gradients
    linear, held = None if isinstance(family, DualGaussian) else target.linear_model(), own.confidence
    if isinstance(family, DualGaussian):
        values = [dual_negative_elbo(target, family, member) for member in (point, better)]
        difference, spent = values[0][0] - values[1][0] + values[0][1] + values[1][1], 2
    elif linear is not None:
        difference, spent = linear_difference_bound(linear, family, point, better)
    else:
        difference, spent = difference_upper_bound(
            target, family, point, better, delta=1 - _half(level), seed=certificate_seed(seed, 10**6 + 1)
        )
        held = level
    detail = f"a member that is {difference:.3g} better and within {at_most(own.gap)} of the best"
    value = float(max(difference, 0.0) + own.gap)
    return GapBound(name, value, own.status, held, own.num_gradients, detail), own.num_gradients + spent


def _with_bound(certificate: Certificate, bound: GapBound, spent: int) -> Certificate:
    """The certificate with one more bound; it replaces the gap if it is better grounded or smaller."""
    better = math.isfinite(bound.value) and (
        certificate.gap is None
        or (bound.status, certificate.status) == ("proven", "conditional")
        or (bound.status == certificate.status and bound.value < certificate.gap)
    )
    changed = {"status": bound.status, "gap": bound.value, "confidence": bound.confidence} if better else {}
    return dataclasses.replace(
        certificate,
        bounds=(*certificate.bounds, bound),
        num_gradients=certificate.num_gradients + spent,
        **changed,
    )
