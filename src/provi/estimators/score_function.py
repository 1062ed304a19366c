"""The score-function (likelihood-ratio) gradient, for potentials without gradients."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from provi.core.tree import add_scaled
from provi.estimators.base import AbstractEstimator
from provi.families.location_scale import Point


class ScoreFunction(AbstractEstimator):
    r"""Estimates grad l: (potential(z) - b) grad_w log q_w(z), z ~ q_w, with a baseline b as control variate.

    grad_m log q = -grad_z log q and grad_C log q = P(-grad_z log q u') - P(C^-T). The baseline is the mean of
    the other draws' potentials, which is independent of the draw it multiplies and so leaves the estimate
    unbiased; a single draw uses potential(m). **No guarantee** is claimed: its noise grows with the size of the
    potential and with the dimension. **Requires** a base density without a jump.
    """

    includes_entropy: ClassVar[bool] = False
    name: ClassVar[str] = "score function"

    def check(self, family):
        if not family.base.has_score:
            raise ValueError(
                f"The score-function gradient is biased for the {family.base.name} base, whose density jumps at its "
                f"boundary. Use estimator=provi.estimators.Energy()."
            )

    def prepare(self, family, point):
        del family
        return point.scale.factorise(), point.scale.log_det_gradient()

    def mean_over_draws(self, key, potential, family, point, prepared, num):
        factors, log_det_gradient = prepared
        u = family.sample_base(key, point, num)
        # Data of higher precision than the point must not raise the precision of the gradient.
        values = jax.vmap(potential)(family.transform(point, u)).astype(point.loc.dtype)
        if num > 1:
            baseline = (jnp.sum(values) - values) / (num - 1)
        else:
            baseline = potential(point.loc)[None].astype(point.loc.dtype)
        weight = values - baseline
        direction = -weight[:, None] * family.score(point, u, factors)
        scale = add_scaled(point.scale.pull_back(direction, u), -jnp.mean(weight), log_det_gradient)
        return Point(direction.mean(axis=0), scale)

    def constant_part(self, point):
        del point
