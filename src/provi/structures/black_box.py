"""Any log density with a full covariance: Laplace start, stochastic natural gradient, stopped by its certificate."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.laplace import laplace_approximation
from provi.algorithms.natural.stochastic_natural_gradient import StochasticNaturalGradient
from provi.core.limits import NO_LIMIT, Clock
from provi.core.randomness import folded, key_of
from provi.families.base import AbstractFamily
from provi.families.bases import Normal
from provi.families.location_scale import Gaussian, LocationScale, Point
from provi.runtime.loop import estimate_elbo
from provi.runtime.run import Budget, run
from provi.structures.base import AbstractStructure, Answer, Request, check_finite
from provi.structures.sampled import AbstractSampled
from provi.structures.stopping import run_sampled
from provi.targets.base import AbstractTarget

LARGEST_DENSE = 500
"""Dimensions up to which the default covariance is full."""

MOST_STEPS = 3000

_NARROW, _RACE_STEPS, _RACE_DRAWS, _RACE_STREAM = 0.1, 30, 2048, 2**31 - 3


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
        """Mode and Laplace approximation unless `start` is given, then natural gradients."""
        check_finite(self.target, self.target.default_location if start is None else np.asarray(start.loc))
        return run_black_box(self, start, request)


def has_full_covariance(family: LocationScale) -> bool:
    """Whether the family holds every Gaussian."""
    return isinstance(family.base, Normal) and family.scale in ("triangular", "symmetric")


def run_black_box(structure: AbstractStructure, start: Point | None, request: Request) -> Answer:
    """Stochastic natural gradients until the certificate of `structure` holds."""
    target, family = structure.target, structure.family
    point, spent = (start, 0) if start is not None else _choose_start(target, family, request)
    return run_sampled(structure, StochasticNaturalGradient(), point, MOST_STEPS, spent, request)


def _choose_start(target: AbstractTarget, family: LocationScale, request: Request) -> tuple[Point, int]:
    """The Laplace approximation or, where that is worse after a few steps, a narrow q at the default location.

    The mode of a density that is not log-concave may be a spike without mass: a hierarchical model with its scale at
    zero. No race where log-concavity is known, nor on a budget. Also returns the gradients spent.
    """
    point = laplace_start(target, family, request.clock)
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
    key = folded(key_of(request.seed), _RACE_STREAM)
    laplace, other = (float(estimate_elbo(key, target, family, each.point, _RACE_DRAWS)[0]) for each in entrants)
    chosen = entrants[1].point if not laplace >= other - request.tol else point
    return chosen, sum(each.gradient_evaluations for each in entrants)


def laplace_start(target: AbstractTarget, family: LocationScale, clock: Clock = NO_LIMIT) -> Point:
    """The Laplace approximation as a member of the family."""
    laplace = laplace_approximation(target, target.default_location, clock=clock)
    factor: Any = laplace.factor if laplace.factor.ndim == 2 else np.diag(laplace.factor)
    if family.scale == "triangular":
        return family.point(jnp.asarray(laplace.mode, target.dtype), factor, target.dtype)
    return family.point_from_covariance(laplace.mode, factor @ factor.T, target.dtype)
