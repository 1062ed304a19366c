"""`provi.certify`: the certificate of any approximation, from any source."""

import dataclasses
import math
from typing import Any

import numpy as np

from provi.certificates.approximations import as_gaussian
from provi.certificates.bounds import STATUSES, GapBound, at_most
from provi.certificates.certificate import Certificate, at_confidence
from provi.core.arguments import check_confidence, check_count, double_precision
from provi.families.location_scale import Gaussian
from provi.fit import choose
from provi.result.fit import Fit
from provi.result.posterior import Posterior
from provi.runtime.run import Budget, as_budget
from provi.structures.base import AbstractStructure, Request, certificate_seed
from provi.targets.base import AbstractTarget

_DIRECT_GRADIENTS = 20_000


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
    check_confidence(confidence)
    check_count("seed", seed, minimum=0)
    structure, point = _member(target, q)
    limits = as_budget(budget)
    # Two statements share the error probability when there are two.
    level = _half(confidence) if compare else confidence
    direct = structure.certificate(
        point,
        confidence=level,
        seed=certificate_seed(seed, 10**6),
        max_gradients=limits.gradients if not compare else _DIRECT_GRADIENTS,
    )
    refused = any(row.status == "violated" for row in direct.assumptions)
    if compare and not refused and target.constants.log_concave.value is not False:
        # A fit that does not start at q, which may be far off.
        request = Request(structure.reference_tol, _half(level), limits, seed, {"progress": False})
        better = structure.run(None, request)
        if better.certificate.counterexample is None:
            bound, spent = _compare(structure, point, better.run.point, better.certificate, level, seed)
            direct = _with_bound(direct, bound, spent)
        else:
            # The target is not what was claimed: nothing that rests on the claim is issued.
            direct = better.certificate
    return dataclasses.replace(
        at_confidence(direct, confidence),
        recompute=lambda other: certify(target, q, confidence, seed=other, budget=budget, compare=compare),
    )


def _member(target: AbstractTarget, q: Any) -> tuple[AbstractStructure, Any]:
    """The structure of the target with q's family, and the point that q is."""
    if isinstance(q, Fit):
        q = q.posterior
    if isinstance(q, Posterior):
        if q.family.dim != target.dim:
            raise ValueError(f"q has dimension {q.family.dim}, but the target has {target.dim}.")
        structure, point = choose(target, q.family), q.point
    else:
        mean, spread = as_gaussian(q, target.dim)
        if spread.ndim == 1:
            family = Gaussian(target.dim, "diagonal")
            point = family.point(mean, np.sqrt(spread), target.dtype)
        else:
            family = Gaussian(target.dim)
            point = family.point_from_covariance(mean, spread, target.dtype)
        structure = choose(target, family)
    structure.check_member(point)
    return structure, point


def _half(level: float) -> float:
    """The confidence of each of two statements that hold together at `level`."""
    return (1 + level) / 2


def _compare(
    structure: AbstractStructure, point: Any, better: Any, own: Certificate, level: float, seed: int
) -> tuple[GapBound, int]:
    """Bound (g) through the member `better`, whose certificate is `own`."""
    name = "through a better member (g)"
    if own.gap is None:
        return GapBound(name, math.inf, "conditional", detail="the better member has no bound"), own.num_gradients
    draws = {"delta": 1 - _half(level), "seed": certificate_seed(seed, 10**6 + 1)}
    found = structure.difference(point, better, **draws)
    held = own.confidence if found.deterministic else level
    detail = f"a member that is {found.value:.3g} better and within {at_most(own.gap)} of the best"
    value = float(max(found.value, 0.0) + own.gap)
    # A mean over draws without known tails is statistical, whatever is proven of the better member.
    status = own.status if found.deterministic else max(own.status, "statistical", key=STATUSES.index)
    return GapBound(name, value, status, held, own.num_gradients, detail), own.num_gradients + found.spent


def _with_bound(certificate: Certificate, bound: GapBound, spent: int) -> Certificate:
    """The certificate with one more bound; it replaces the gap if it is better grounded or smaller."""
    better = math.isfinite(bound.value) and (
        certificate.gap is None
        or STATUSES.index(bound.status) < STATUSES.index(certificate.status)
        or (bound.status == certificate.status and bound.value < certificate.gap)
    )
    changed = {"status": bound.status, "gap": bound.value, "confidence": bound.confidence} if better else {}
    return dataclasses.replace(
        certificate,
        bounds=(*certificate.bounds, bound),
        num_gradients=certificate.num_gradients + spent,
        **changed,
    )
