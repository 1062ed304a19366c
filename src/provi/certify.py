"""`provi.certify`: the certificate of any approximation, from any source."""

import dataclasses
import math
import time
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np

from provi.certificates.approximations import as_gaussian
from provi.certificates.bounds import STATUSES, GapBound, at_most
from provi.certificates.build import Evidence, build_certificate
from provi.certificates.certificate import Certificate, at_confidence, check_declared
from provi.core.arguments import check_confidence, check_count, double_precision
from provi.core.devices import chosen_mesh
from provi.core.limits import NO_LIMIT, Clock
from provi.families.location_scale import Gaussian, square_root
from provi.fit import choose
from provi.result.fit import Fit
from provi.result.posterior import Posterior
from provi.runtime.distributed import losses_named
from provi.runtime.run import Budget, as_budget
from provi.structures.base import AbstractStructure, Request, certificate_seed
from provi.targets.base import AbstractTarget, in_double

_DIRECT_GRADIENTS = 20_000
_LARGEST_MOVE = 1e-3
"""Standard deviations of q by which a target that is computed in float32 only may move it."""


@double_precision
@losses_named()
def certify(
    target: AbstractTarget,
    q: Any,
    confidence: float = 0.99,
    *,
    seed: int = 0,
    budget: Budget | int | None = None,
    compare: bool = True,
    mesh: Any = None,
) -> Certificate:
    """How far is q from the best member of its family, and from the posterior?

    The proof does not depend on how q was found: a fit of ProVI's, a guide of NumPyro's, an approximation of PyMC's or
    BlackJAX's, or any pair (mean, covariance). A q that is not Gaussian, such as a normalising flow or a mixture, has
    no family whose best member it could be compared with: its certificate is of the distance to the posterior alone.

    **Arguments:**

    - `target`: what q approximates, in the same coordinates.
    - `q`: a `Fit`, its `posterior`, a pair (mean, covariance matrix or vector of variances), or an object of another
      package that `provi.certificates.approximations.as_gaussian` reads. Variances mean the mean-field family.
      Else any object with `sample` and `log_prob`, of NumPyro, flowjax, Distrax or your own.
    - `confidence`: of the gap where it is not deterministic, and of the distance to the posterior.
    - `budget`: gradient evaluations, or a `provi.Budget`.
    - `compare`: also find a better member first, at the cost of a fit, and bound the gap through it:
      bound (g), sharp however far q is. Without it, only bounds from the gradient at q.
    - `mesh`: devices, as for `provi.fit`.

    **Returns:** a `Certificate`; a `provi.certificates.RefutedDeclarationError`, with the place, where something that
    was declared of the target does not hold.
    """
    if not isinstance(target, AbstractTarget):
        raise TypeError(f"target must be a provi target, not {type(target).__name__}.")
    began = time.monotonic()
    check_confidence(confidence)
    seed = check_count("seed", seed, minimum=0)
    sampler = _not_gaussian(target, q)
    if sampler is not None:
        return _certify_any(target, q, sampler, confidence, seed)
    structure, point, moved = _member(target, q)
    devices = chosen_mesh(mesh, structure.target)
    structure = structure if devices is None else structure.on(devices)
    given, target = target, structure.target
    limits = as_budget(budget)
    clock = NO_LIMIT if limits.seconds is None else structure.measured(Clock(began + limits.seconds))
    # Two statements share the error probability when there are two.
    level = _half(confidence) if compare else confidence
    direct = structure.certificate(
        point,
        confidence=level,
        seed=certificate_seed(seed, 10**6),
        max_gradients=limits.gradients if not compare else _DIRECT_GRADIENTS,
        clock=clock,
    )
    refused = any(row.status == "violated" for row in direct.assumptions)
    if compare and not refused and target.constants.log_concave.value is not False:
        # A fit that does not start at q, which may be far off.
        request = Request(structure.reference_tol, _half(level), limits, seed, {"progress": False}, clock)
        better = structure.run(None, request)
        if better.certificate.counterexample is None:
            bound, spent = _compare(structure, point, better.run.point, better.certificate, level, seed)
            direct = _with_bound(direct, bound, spent)
        else:
            # The target is not what was claimed: nothing that rests on the claim is issued.
            direct = better.certificate
    if direct.counterexample is not None:
        check_declared(structure.constants(), direct)
    notes = () if moved == 0.0 else (f"q was rounded to {target.dtype}, which moves it by {moved:.2g} deviations.",)
    return dataclasses.replace(
        at_confidence(direct, confidence),
        notes=(*direct.notes, *notes),
        recompute=lambda other: certify(given, q, confidence, seed=other, budget=budget, compare=compare, mesh=mesh),
    )


def _not_gaussian(target: AbstractTarget, q: Any) -> Any:
    """Draws and density of a q that no Gaussian can be read from; None where one can, or q is ProVI's own."""
    if isinstance(q, Fit | Posterior):
        posterior = q.posterior if isinstance(q, Fit) else q
        family, point = posterior.family, posterior.point
        if family.bounds_gap or family.dim != target.dim:
            return None
        return partial(_draws, family, point), lambda z: family.log_prob(point, z)
    try:
        as_gaussian(q, target.dim)
    except TypeError:
        from provi.certificates.distance.any_density import as_sampler  # few need it

        sampler = as_sampler(q, target.dim)
        if sampler is None:
            raise
        return sampler
    return None


def _draws(family: Any, point: Any, key: Any, num: int) -> Any:
    return family.sample(key, point, num)


def _certify_any(target: AbstractTarget, q: Any, sampler: Any, confidence: float, seed: int) -> Certificate:
    """The certificate of a q without a family: how far the posterior is, and the evidence."""
    from provi.certificates.distance.any_density import any_posterior_bound

    constants = target.constants
    posterior = any_posterior_bound(
        _in_double(target), *sampler, confidence=confidence, seed=certificate_seed(seed, 10**6)
    )
    found = Evidence((), posterior, None, 0 if posterior is None else posterior.num_samples)

    def recompute(other: int) -> Certificate:
        return certify(target, q, confidence, seed=other)

    return build_certificate(target, None, constants, found, recompute)


def _member(target: AbstractTarget, q: Any) -> tuple[AbstractStructure, Any, float]:
    """The structure of the target with q's family, the point that q is, and how far rounding moved it.

    The q that is given is the q that is certified: in float64, whatever the target's own floating type. A target that
    can only be computed in another one refuses a q that it would have to move.
    """
    double = _in_double(target)
    if isinstance(q, Fit):
        q = q.posterior
    if isinstance(q, Posterior):
        if q.family.dim != target.dim:
            raise ValueError(f"q has dimension {q.family.dim}, but the target has {target.dim}.")
        structure, exact = choose(double, q.family), in_double(q.point)
    else:
        mean, spread = as_gaussian(q, target.dim)
        if spread.ndim == 1:
            family = Gaussian(target.dim, "diagonal")
            exact = family.point(mean, np.sqrt(spread), np.float64)
        else:
            family = Gaussian(target.dim)
            exact = family.point_from_covariance(mean, spread, np.float64)
        structure = choose(double, family)
    point, moved = exact, 0.0
    if double.dtype != np.float64:
        point = jax.tree.map(lambda x: x.astype(double.dtype) if eqx.is_inexact_array(x) else x, exact)
        moved = _distance(exact, point)
        if not moved <= _LARGEST_MOVE:
            raise ValueError(
                f"The target is computed in {double.dtype} only, and rounding q to that moves it by {moved:.2g} of "
                f"its standard deviations: another q would be certified. Give the target float64 parameters (dtype=)."
            )
    structure.check_member(point)
    return structure, point, moved


def _in_double(target: AbstractTarget) -> AbstractTarget:
    """The target in float64, or as it is where its own code rounds."""
    if target.dtype == np.float64:
        return target
    try:
        wide = target.widened()
        found = jax.eval_shape(wide.potential, jax.ShapeDtypeStruct((wide.dim,), np.float64))
    except TypeError:
        return target
    return wide if wide.dtype == np.float64 and found.dtype == np.float64 else target


def _distance(exact: Any, rounded: Any) -> float:
    """By how many of its standard deviations, in the worst direction, rounding moved q or stretched it."""
    old, new = square_root(exact), square_root(rounded)
    away = np.asarray(rounded.loc, np.float64) - np.asarray(exact.loc, np.float64)
    try:
        shift, stretch = np.linalg.solve(old, away), np.linalg.solve(old, new)
    except np.linalg.LinAlgError:
        return math.inf
    return float(max(np.linalg.norm(shift), np.linalg.norm(stretch - np.eye(len(away)))))


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
