"""Gaussian processes, and linear models with more columns than rows: natural gradients on two numbers a datum."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.algorithms.dual_natural_gradient import DualNaturalGradient
from provi.certificates.bounds import GapBound
from provi.certificates.dual import dual_bounds
from provi.defaults.answer import Answer, Request
from provi.defaults.certified_stop import CertifiedStop, run_certified
from provi.families.dual_gaussian import DualGaussian, DualPoint


def fit_dual(target: Any, family: DualGaussian, start: DualPoint | None, request: Request) -> Answer:
    """Start from the prior, or from `start`; one step is one factorisation.

    A likelihood that is not log-concave has no certificate: the run ends when steps bring no more than rounding.
    """
    family.check_target(target)

    def prove(member: DualPoint) -> tuple[GapBound, ...]:
        return dual_bounds(target, family, member)

    stop = CertifiedStop(prove, request.tol, request.budget.gradients, first_stage=1)
    point = first_point(target, family) if start is None else start
    return run_certified(DualNaturalGradient(), target, family, point, stop, target.likelihood.value_error, request)


def first_point(target: Any, family: DualGaussian) -> DualPoint:
    """The prior; but where the curvature is unbounded (Poisson) with the sites of the likelihood at the prior's mean.

    Under a wide prior the mean of exp(eta) is astronomical, and no step from there is of any use.
    """
    point, likelihood = family.prior_point(), target.likelihood
    if not likelihood.log_concave or math.isfinite(likelihood.curvature_given(target.response)[1]):
        return point
    centre = jnp.asarray(np.asarray(family.site_mean))
    weight = np.asarray(likelihood.moments(centre, jnp.zeros_like(centre), target.response).weight)
    return DualPoint(point.dual_mean, jnp.asarray(np.where(np.isfinite(weight), np.maximum(weight, 0.0), 1.0)))
