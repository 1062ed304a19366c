"""`family="auto"` and families by name: the cheapest family that is good enough, tried from the Gaussian upwards.

A member is good enough where the weights $w = p/q$ of its draws say so: the largest error of a probability, $E|w/Ew -
1|/2$, at most 0.02, or at most 0.05 with k-hat below 0.7; and no parameter's mean or deviation off by more than 0.05.
These are estimates from draws around q: they cannot see what no draw reaches, which is why other modes are searched for
first.

Student's law is tried where q's weights ask for it: there they depend on nothing but the distance from q's mean. Then
it is nearly exact, and the cheapest; elsewhere it gains next to nothing (`docs/beyond-the-gaussian.md` has figures).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from provi.diagnostics.importance import ImportanceDiagnostics
from provi.diagnostics.loo import log_densities
from provi.diagnostics.pareto import usable_k
from provi.families.location_scale import Gaussian
from provi.families.mixture import GaussianMixture
from provi.families.pushed import Flow, Skewed
from provi.families.richer import LARGEST_DIMENSION, Student
from provi.result.fit import Fit
from provi.runtime.record import Outcome
from provi.structures.richer import modes_seen
from provi.targets.base import AbstractTarget

FAMILIES: dict[str, Callable[[int], Any]] = {
    "gaussian": Gaussian,
    "student": Student,
    "skewed": Skewed,
    "mixture": GaussianMixture,
    "flow": Flow,
}
"""The words that `family=` takes beside "auto"."""

SMALL_ERROR, TINY_ERROR = 0.05, 0.02
_ENOUGH_GAIN = 0.01  # nats by which a dearer family must be better than a cheaper one
_RADIAL, _LOOKS, _LOOK_SEED = 0.8, 2000, 5
_NOTICEABLE = 0.01  # share of the evidence at other modes from which a mixture is tried


def named_family(name: str, dim: int) -> Any:
    """The family of this name; a `ValueError` lists them."""
    if name not in FAMILIES:
        known = ", ".join(map(repr, ("auto", *FAMILIES)))
        raise ValueError(f"family={name!r} is not known: take one of {known}, or e.g. provi.families.Gaussian({dim}).")
    return FAMILIES[name](dim)


def fit_automatically(fit_one: Callable[..., Fit], target: AbstractTarget) -> Fit:
    """The default fit where it is good enough, else the first richer family that is, else the best of all by ELBO.

    `fit_one(family, start)`: the fit with a family; `start`: None, or the Gaussian point to begin at.
    """
    first = fit_one(None, None)
    posterior = first.posterior
    if not posterior.family.has_density:
        return _said(first, [("nested", None, first)], "its scales are integrated numerically, and it needs no other")
    if not first.outcome.ok or target.dim > LARGEST_DIMENSION:
        return _said(first, [("gaussian", None, first)], "no richer family was tried")
    # With as many draws as a summary looks at, so that none are spent twice.
    tried = [("gaussian", _diagnosed(first), first)]
    several = first.modes.missed > _NOTICEABLE
    gaussian = posterior.point if hasattr(posterior.point, "loc") and posterior.family.scale == "triangular" else None
    for name in _order(first, several) if several or not _is_enough(tried[0][1]) else ():
        found = fit_one(FAMILIES[name](target.dim), None if name == "mixture" and several else gaussian)
        posterior = found.posterior
        seen = modes_seen(posterior.family, posterior.point, first.modes) if first.modes.found else posterior.modes
        found = dataclasses.replace(found, posterior=dataclasses.replace(posterior, modes=seen))
        tried.append((name, _diagnosed(found), found))
        if found.outcome is Outcome.INTERRUPTED:
            return _said(found, tried, "at which it was interrupted")
        several = several and not (name == "mixture" and _is_enough(tried[-1][1]))
        if _is_enough(tried[-1][1]):
            break
    return _chosen(tried)


def _order(first: Fit, several: bool) -> tuple[str, ...]:
    """The families that are richer than a Gaussian that is not good enough, those that are likely to do first."""
    if several:
        return "mixture", "skewed", "flow"
    rest = ("skewed", "flow", "mixture")
    return ("student", *rest) if radial_share(first) >= _RADIAL else rest


def radial_share(fit: Fit) -> float:
    r"""How much of the variance of log p/q under q is explained by $ar^2 + b\log(1 + r^2)$ with b < 0: heavier tails.

    r is the distance from q's mean in q's units. Nearly all of it where p is Student's law with q's shape.
    """
    posterior = fit.posterior
    z = np.concatenate([posterior.mean[None], posterior.sample(_LOOKS, _LOOK_SEED)])
    log_p, log_q = log_densities(posterior.target, posterior.family, posterior.point, z)
    # log q of a Gaussian is a constant less half the squared distance.
    squared, log_w = 2 * (log_q[0] - log_q) / posterior.family.dim, log_p - log_q
    if not np.isfinite(log_w).all() or np.ptp(log_w) == 0:
        return 0.0
    basis = np.stack([np.ones_like(squared), squared, np.log1p(squared)], axis=1)
    weights = np.linalg.lstsq(basis, log_w, rcond=None)[0]
    return float(1 - np.var(log_w - basis @ weights) / np.var(log_w)) if weights[2] < 0 else 0.0


def _chosen(tried: list[tuple[str, ImportanceDiagnostics | None, Fit]]) -> Fit:
    if _is_enough(tried[-1][1]):
        return _said(tried[-1][2], tried, "the cheapest that is good enough")
    usable = [row for row in tried if row[1] is not None and row[2].outcome.ok] or tried[:1]
    best = max(float(row[2].elbo) for row in usable)
    name, _, found = next(row for row in usable if float(row[2].elbo) >= best - _ENOUGH_GAIN)
    del name
    return _said(found, tried, "the best by its ELBO; none was good enough, and fit.diagnose() says how far it is")


def _diagnosed(fit: Fit) -> ImportanceDiagnostics | None:
    """None where the density is not finite at draws of q."""
    try:
        return fit.posterior.diagnose()
    except ValueError:
        return None


def _is_enough(found: ImportanceDiagnostics | None) -> bool:
    if found is None:
        return False
    light = found.pareto_k < usable_k(found.num_draws)
    return found.total_variation <= (SMALL_ERROR if light else TINY_ERROR) and found.moment_error <= SMALL_ERROR


def _said(fit: Fit, tried: list[tuple[str, ImportanceDiagnostics | None, Fit]], reason: str) -> Fit:
    """The fit, with what was tried and why it was chosen in its message."""
    parts = []
    for name, found, each in tried:
        words = f"{name}: ELBO {each.elbo.value:.6g}"
        if found is not None:
            words += f", k-hat {found.pareto_k:.2f}, largest error of a probability {found.total_variation:.2g}"
        parts.append(words)
    name = next(name for name, _, each in tried if each is fit)
    message = f"{fit.message}; family='auto' took {name}, {reason} ({'; '.join(parts)})"
    posterior = dataclasses.replace(fit.posterior, richer_tried=len(tried) > 1)
    return dataclasses.replace(fit, message=message, posterior=posterior)
