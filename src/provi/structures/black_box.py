"""Any log density with a full covariance: Laplace start, stochastic natural gradient, stopped by its certificate."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.laplace import laplace_approximation
from provi.algorithms.natural.modes import BatchedPotential, Modes, find_modes, not_searched, usual_starts
from provi.algorithms.natural.stochastic_natural_gradient import StochasticNaturalGradient
from provi.core.limits import NO_LIMIT, Clock
from provi.core.randomness import folded, key_of
from provi.families.base import AbstractFamily
from provi.families.bases import Normal
from provi.families.location_scale import Gaussian, LocationScale, Point
from provi.runtime.loop import estimate_elbo
from provi.runtime.run import Budget, run, uninterrupted
from provi.structures.base import AbstractStructure, Answer, Request, check_finite, check_finite_values
from provi.structures.sampled import AbstractSampled
from provi.structures.stopping import run_sampled
from provi.targets.base import AbstractTarget

LARGEST_DENSE = 500
"""Dimensions up to which the default covariance is full."""

MOST_STEPS = 3000

_NARROW, _RACE_STEPS, _RACE_DRAWS, _RACE_STREAM = 0.1, 30, 2048, 2**31 - 3
_WORTH, _MOST_ENTRANTS = 0.01, 3
"""The share of the evidence from which a mode takes part in the race, and how many do."""


class BlackBox(AbstractSampled):
    """A density that nothing more is known of, and Gaussians with full covariance."""

    @classmethod
    def default_family(cls, target: AbstractTarget) -> AbstractFamily | None:
        """The Gaussian with full covariance, up to 500 dimensions."""
        return Gaussian(target.dim, "triangular") if target.dim <= LARGEST_DENSE else None

    @classmethod
    def fits(cls, target: AbstractTarget, family: AbstractFamily) -> bool:
        """Every target, with a full covariance."""
        del target
        return isinstance(family, LocationScale) and has_full_covariance(family)

    def run(self, start: Point | None, request: Request) -> Answer:
        """The best of several modes and its Laplace approximation unless `start` is given, then natural gradients."""
        return run_black_box(self, start, request)


def has_full_covariance(family: LocationScale) -> bool:
    """Whether the family holds every Gaussian."""
    return isinstance(family.base, Normal) and family.scale in ("triangular", "symmetric")


def run_black_box(structure: AbstractStructure, start: Point | None, request: Request) -> Answer:
    """Stochastic natural gradients until the certificate of `structure` holds."""
    if start is not None:
        check_finite(structure.target, np.asarray(start.loc))
        modes, point, spent = not_searched("start= was given"), start, 0
    else:
        modes = searched_modes(structure, request)
        point, spent = _choose_start(structure.target, structure.family, modes, request)
    answer = run_sampled(structure, StochasticNaturalGradient(), point, MOST_STEPS, spent, request)
    return with_modes(structure, answer, modes)


def searched_modes(structure: AbstractStructure, request: Request, diagonal: bool = False) -> Modes:
    """The modes of a target that may have several: no search where it is proven to have one, or on a budget.

    That it is log-concave may also be declared; two modes refute it. A `ValueError` where the log density is not finite
    at the first point.
    """
    target, reason = structure.target, None
    if target.constants.log_concave.status == "proven":
        reason = "the target is log-concave, so it has one"
    elif request.starts == 1 or (request.starts is None and request.budget != Budget()):
        reason = "one start" if request.starts == 1 else "on a budget there is one start, unless starts= says more"
    if reason is not None:
        check_finite(target, target.default_location)
        return not_searched(reason)
    starts = usual_starts(target) if request.starts is None else request.starts
    # One program for all of it: the first look, the searches, and the evidence.
    evaluate = BatchedPotential(target, starts)
    value, gradient = evaluate(target.default_location[None])
    check_finite_values(target, value[0], gradient[0])
    settings: Any = {"diagonal": diagonal, "clock": request.clock, "evaluate": evaluate}
    structure.memo["modes"] = find_modes(target, starts=request.starts, seed=request.seed, **settings)
    return structure.memo["modes"]


def with_modes(structure: AbstractStructure, answer: Answer, modes: Modes) -> Answer:
    """The answer with the modes as they are seen from the q that was found."""
    if len(modes) > 1:
        posterior = structure.posterior(answer.run.point)
        dense = structure.target.dim <= LARGEST_DENSE
        modes = modes.seen_from(posterior.mean, posterior.covariance if dense else posterior.standard_deviation**2)
    return dataclasses.replace(answer, modes=modes)


def _choose_start(target: AbstractTarget, family: LocationScale, modes: Modes, request: Request) -> tuple[Point, int]:
    """The Laplace approximation at the best mode or, where that is worse after a few steps, a narrow q at the default
    location. Also returns the gradients spent.

    Modes that hold a noticeable part of the evidence are raced by their ELBO. The mode of a density that is not
    log-concave may be a spike without mass: a hierarchical model with its scale at zero. No race where log-concavity is
    known, nor on a budget.
    """
    if modes.found:
        points = [member_at(family, mode.location, mode.factor, target.dtype) for mode in modes if mode.share >= _WORTH]
    else:
        points = [laplace_start(target, family, request.clock)]
    spent = modes.evaluations
    if target.constants.log_concave.known or request.budget != Budget():
        return points[0], spent
    narrow = family.point(target.default_location, _NARROW, target.dtype)
    entrants = [
        uninterrupted(
            run(
                StochasticNaturalGradient(),
                target,
                family,
                entrant,
                seed=request.seed,
                num_steps=_RACE_STEPS,
                progress=False,
            )
        )
        for entrant in (*points[:_MOST_ENTRANTS], narrow)
    ]
    key = folded(key_of(request.seed), _RACE_STREAM)
    elbos = [float(estimate_elbo(key, target, family, each.point, _RACE_DRAWS)[0]) for each in entrants]
    best = int(np.argmax(np.nan_to_num(elbos[:-1], nan=-np.inf)))
    chosen = entrants[-1].point if not elbos[best] >= elbos[-1] - request.tol else points[best]
    return chosen, spent + sum(each.gradient_evaluations for each in entrants)


def laplace_start(target: AbstractTarget, family: LocationScale, clock: Clock = NO_LIMIT) -> Point:
    """The Laplace approximation as a member of the family."""
    laplace = laplace_approximation(target, target.default_location, clock=clock)
    return member_at(family, laplace.mode, laplace.factor, target.dtype)


def member_at(family: LocationScale, location: np.ndarray, factor: np.ndarray, dtype: Any) -> Point:
    """The Gaussian N(location, factor factor') as a member; a vector is the factor's diagonal."""
    factor = factor if factor.ndim == 2 else np.diag(factor)
    if family.scale == "triangular":
        return family.point(jnp.asarray(location, dtype), factor, dtype)
    return family.point_from_covariance(location, factor @ factor.T, dtype)
