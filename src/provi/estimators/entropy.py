"""The energy gradient plus the exact gradient of the negative entropy."""

from typing import ClassVar

import jax.numpy as jnp

from provi.core.tree import scale
from provi.estimators.base import AbstractEstimator, path_gradient
from provi.families.location_scale import Point


class Entropy(AbstractEstimator):
    r"""Estimates grad f: g_m = pi, g_C = P(pi u' - C^-T).

    **Noise** (theory.noise.entropy_noise), on W_M: slope 4(1 + rho) M^2, rho = (d+2) kappa / 3.
    Reference: paper 003, equation 7 and Theorem 3; paper 004, Theorem 3 for general bases.
    """

    includes_entropy: ClassVar[bool] = True
    name: ClassVar[str] = "entropy"

    def check(self, family):
        del family

    def prepare(self, family, point):
        del family, point

    def mean_over_draws(self, key, potential, family, point, prepared, num):
        del prepared
        return path_gradient(key, potential, family, point, num)

    def constant_part(self, point):
        return Point(jnp.zeros_like(point.loc), scale(-1, point.scale.log_det_gradient()))
