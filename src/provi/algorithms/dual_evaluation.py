r"""A Gaussian in dual form seen through its likelihood: moments, negative ELBO, divergences, gradient norms."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from provi.core.types import Scalar, Vector
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_factor import SiteFactor


class SiteEvaluation(eqx.Module):
    """q at (a, s): deviation d = Ka, variances v, the moments of the likelihood, log |B|, and the negative ELBO."""

    deviation: Vector
    variance: Vector
    likelihood: Scalar
    slope: Vector
    weight: Vector
    log_det: Scalar
    negative_elbo: Scalar


def evaluate(target: Any, family: DualGaussian, point: DualPoint, factor: SiteFactor) -> SiteEvaluation:
    r"""The moments at q, and $F = \sum_nE\ell_n + KL(q\|p)$, $KL = \tfrac12(\log|B| - \sum_ns_nv_n + a'd)$."""
    deviation = family.gram @ point.dual_mean
    moments = target.likelihood.moments(family.site_mean + deviation, factor.variance, target.response)
    likelihood = jnp.sum(moments.value)
    prior = factor.log_det - jnp.sum(point.site_precision * factor.variance) + jnp.sum(point.dual_mean * deviation)
    return SiteEvaluation(
        deviation,
        factor.variance,
        likelihood,
        moments.slope,
        moments.weight,
        factor.log_det,
        likelihood + 0.5 * prior,
    )


def divergence(p: DualPoint, at_p: SiteEvaluation, q: DualPoint, at_q: SiteEvaluation) -> Scalar:
    r"""$KL(p\|q) = \tfrac12[\sum(s_q - s_p)v_p + \Delta a'\Delta d + \sum s_q\Delta d^2 + \log|B_p| - \log|B_q|]$."""
    move = at_p.deviation - at_q.deviation
    trace = jnp.sum((q.site_precision - p.site_precision) * at_p.variance)
    mean = jnp.sum((p.dual_mean - q.dual_mean) * move) + jnp.sum(q.site_precision * move**2)
    return 0.5 * (trace + mean + at_p.log_det - at_q.log_det)


def whitened_norms(
    family: DualGaussian, point: DualPoint, at: SiteEvaluation, factor: SiteFactor
) -> tuple[Scalar, Scalar]:
    """|g| with g = C'(a + alpha) the whitened gradient in the mean, and the norm of (gamma - s) v: the gap is about
    half the sum of their squares, but for what the off-diagonal of V adds to the second."""
    gradient = point.dual_mean + at.slope
    excess = (at.weight - point.site_precision) * at.variance
    squared = jnp.sum(gradient * factor.covariance_times(family.gram, gradient))
    return jnp.sqrt(jnp.maximum(squared, 0)), jnp.sqrt(jnp.sum(excess**2))
