"""Where natural gradients in dual form begin."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.families.dual_gaussian import DualGaussian, DualPoint


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
