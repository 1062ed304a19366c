"""Bounds and differences from draws, for any log-concave density: what black boxes and whitened rounds share."""

import math
from functools import partial
from typing import Any, ClassVar

import numpy as np

from provi.algorithms.natural.modes import Modes, find_modes
from provi.certificates.build import Evidence, Query
from provi.certificates.comparison import difference_upper_bound
from provi.certificates.distance.bound import Deferred
from provi.certificates.distance.posterior import posterior_bound
from provi.certificates.monte_carlo.bounds import FEWEST_DRAWS, fewest_gradients, monte_carlo_bounds
from provi.certificates.monte_carlo.convexity import counterexample_between, find_negative_curvature
from provi.certificates.monte_carlo.tail_audit import audit_lines, audit_tails
from provi.certificates.monte_carlo.whitened_frame import scale_factor
from provi.core.limits import Clock
from provi.diagnostics.integrability import refute_integrability
from provi.families.location_scale import LocationScale, Point
from provi.structures.base import AUDIT_GRADIENTS, AUDIT_PROGRAMS, AbstractStructure, Difference, measured_gradients
from provi.targets.base import AbstractTarget, Constants

_SEARCH_GRADIENTS = 10_000
"""The gradients of a certificate from which a search for modes is a small part of it."""


class AbstractSampled(AbstractStructure):
    """A structure whose evidence comes from draws of q."""

    reference_tol: ClassVar[float] = 1e-2

    def evidence(self, point: Point, constants: Constants, query: Query) -> Evidence:
        """By Monte Carlo; refused where convexity fails or draws do not see what matters."""
        return sampled_evidence(self.target, self.family, point, constants, query, self.known_modes(constants, query))

    def known_modes(self, constants: Constants, query: Query) -> Modes | None:
        """The modes that the fit has found, or a search of its own for a q from elsewhere, where there is time for it.

        Two modes refute that a target is log-concave, however far apart, where draws of q see one.
        """
        if constants.log_concave.status == "proven":
            return None
        if "modes" not in self.memo and query.max_gradients >= _SEARCH_GRADIENTS and not query.clock.limited:
            try:
                self.memo["modes"] = find_modes(self.target, seed=query.seed, diagonal=not _is_dense(self.family))
            except ValueError:  # not finite anywhere but at q
                self.memo["modes"] = None
        return self.memo.get("modes")

    def measured(self, clock: Clock) -> Clock:
        """By two evaluations at the default location."""
        return measured_gradients(self.target, clock)

    def improper_direction(self, point: Point, *, seed: int) -> str | None:
        """A ray on which the density does not fall, far beyond q: a log density may be that of nothing."""
        convexity = self.target.constants.strong_convexity
        if convexity.status in ("proven", "declared") and convexity.value and convexity.value > 0:
            return None
        # It is said of the density: once seen, from whatever q, it is not looked for again.
        if self.memo.get("improper") is None:
            self.memo["improper"] = refute_integrability(self.target, self.family, point, seed=seed)
        return self.memo["improper"]

    def difference(self, point: Point, other: Point, *, delta: float, seed: int) -> Difference:
        """With common draws, and what they may miss of `point`; what they miss of `other` is on the safe side."""
        value, spent = difference_upper_bound(self.target, self.family, point, other, delta=delta, seed=seed)
        hidden = audit_lines(self.target, point, seed=seed).hidden(spent // 2)[1]
        return Difference(value + hidden, spent, deterministic=False)


def _places(point: Any, modes: Modes) -> np.ndarray:
    """The mean of q, and the modes that are more than a deviation from it: closer by, q has draws of its own."""
    loc, factor = np.asarray(point.loc, np.float64), np.asarray(scale_factor(point), np.float64)
    away = [mode.location - loc for mode in modes if mode.converged]
    apart = [step / factor if factor.ndim == 1 else np.linalg.solve(factor, step) for step in away]
    far = [loc + step for step, whitened in zip(away, apart, strict=True) if np.linalg.norm(whitened) > 1]
    return np.stack([loc, *far])


def _is_dense(family: Any) -> bool:
    return getattr(family, "scale", None) not in ("diagonal", "low_rank")


def sampled_evidence(
    target: AbstractTarget,
    family: LocationScale,
    point: Any,
    constants: Constants,
    query: Query,
    modes: Modes | None = None,
) -> Evidence:
    """The bounds of `certificates.monte_carlo`, after a search for negative curvature and an audit of the tails."""
    if not query.clock.pays_for(AUDIT_GRADIENTS, AUDIT_PROGRAMS):
        needed = AUDIT_GRADIENTS * query.clock.gradient
        note = f"The time that was left did not pay for a certificate, which takes at least {needed:.0f} s here."
        return Evidence((), None, None, 0, notes=(note,))
    concave = constants.log_concave
    if concave.status != "proven":
        found = None
        if modes is not None and modes.found:
            found = counterexample_between(target, _places(point, modes), modes.num_searches)
        if found is None:
            found = find_negative_curvature(target, family, point, seed=query.seed)
        if found is not None or concave.value is False:
            return Evidence((), None, found, 0)
    if query.max_gradients < fewest_gradients(target.dim):
        return Evidence((), None, None, 0)
    lines = audit_lines(target, point, seed=query.seed)
    if lines.counterexample is not None:
        return Evidence((), None, lines.counterexample, 0)
    tails = audit_tails(lines, family, point, constants, FEWEST_DRAWS)
    refused = tails.status == "violated"
    result = monte_carlo_bounds(
        target,
        family,
        point,
        confidence=query.confidence,
        seed=query.seed,
        max_gradients=int(max(min(query.max_gradients, query.clock.gradients()), fewest_gradients(target.dim))),
        wanted=query.wanted,
        hidden=lines.hidden,
        only_proven=refused,
    )
    if refused:
        # What holds for any number of draws needs no audit.
        bounds = tuple(bound for bound in result.bounds if math.isfinite(bound.value))
        return Evidence(bounds, None, None, result.num_gradients, None if bounds else tails)
    distance = None
    if result.counterexample is None:
        level = {"confidence": query.confidence, "seed": query.seed}
        distance = Deferred(partial(posterior_bound, target, family, point, **level))
    return Evidence(result.bounds, distance, result.counterexample, result.num_gradients, tails)
