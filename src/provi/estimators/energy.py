"""The reparameterisation gradient of the energy l(w) = E[potential(m + C u)]."""

from typing import ClassVar

from provi.estimators.base import AbstractEstimator, path_gradient


class Energy(AbstractEstimator):
    r"""Estimates grad l: g_m = pi, g_C = P(pi u'), pi = grad potential(m + C u), u ~ base.

    P is the projection on the space of C. **Requires** a differentiable potential; any base.
    **Noise** (theory.noise.energy_noise): slope 2(1 + rho) M^2, rho = (d+2) kappa / 3.
    Reference: paper 003, equation 5 and Theorem 2.
    """

    includes_entropy: ClassVar[bool] = False
    name: ClassVar[str] = "energy"

    def check(self, family):
        del family

    def prepare(self, family, point):
        del family, point

    def mean_over_draws(self, key, potential, family, point, prepared, num):
        del prepared
        return path_gradient(key, potential, family, point, num)

    def constant_part(self, point):
        del point
