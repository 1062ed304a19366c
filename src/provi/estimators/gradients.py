"""Reparameterisation gradients: of the energy l(w) = E[potential(m + C u)], with the exact entropy, along the path;
and the score-function (likelihood-ratio) gradient, for potentials without gradients.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from provi.core.tree import add_scaled, scale
from provi.estimators.base import AbstractEstimator, path_gradient, potential_gradients
from provi.families.location_scale import Point


class _AbstractPath(AbstractEstimator):
    """A gradient whose random part is that of the energy, for any family."""

    def check(self, family):
        del family

    def prepare(self, family, point):
        del family, point

    def mean_over_draws(self, key, potential, family, point, prepared, num):
        del prepared
        return path_gradient(key, potential, family, point, num)


class Energy(_AbstractPath):
    r"""Estimates grad l: g_m = pi, g_C = P(pi u'), pi = grad potential(m + C u), u ~ base.

    P is the projection on the space of C. **Requires** a differentiable potential; any base.
    **Noise** (theory.noise.energy_noise): slope 2(1 + rho) M^2, rho = (d+2) kappa / 3.
    Reference: paper 003, equation 5 and Theorem 2.
    """

    includes_entropy: ClassVar[bool] = False
    name: ClassVar[str] = "energy"

    def constant_part(self, point):
        del point


class Entropy(_AbstractPath):
    r"""Estimates grad f: g_m = pi, g_C = P(pi u' - C^-T).

    The energy gradient plus the exact gradient of the negative entropy.
    **Noise** (theory.noise.entropy_noise), on W_M: slope 4(1 + rho) M^2, rho = (d+2) kappa / 3.
    Reference: paper 003, equation 7 and Theorem 3; paper 004, Theorem 3 for general bases.
    """

    includes_entropy: ClassVar[bool] = True
    name: ClassVar[str] = "entropy"

    def constant_part(self, point):
        return Point(jnp.zeros_like(point.loc), scale(-1, point.scale.log_det_gradient()))


class StickingTheLanding(AbstractEstimator):
    r"""Estimates grad f: v = pi + grad_z log q_w(z) with w held fixed, g_m = v, g_C = P(v u').

    The path derivative, whose noise vanishes when q equals the posterior. For the Gaussian base v = pi - C^-T u.
    Unbiased because E[grad_w log q_w(z)] at fixed z is 0, which needs a base density without a jump: the uniform base
    is refused.
    **Noise** (theory.noise.stl_noise), Gaussian base, on W_M: slope 24(d+3) M^2, floor 0 for a Gaussian target.
    Reference: paper 003, equation 9 and Theorem 4.
    """

    includes_entropy: ClassVar[bool] = True
    name: ClassVar[str] = "sticking the landing"

    def check(self, family):
        if not family.base.has_score:
            raise ValueError(
                f"The sticking-the-landing gradient is biased for the {family.base.name} base, whose density jumps "
                f"at its boundary. Use estimator=provi.estimators.Entropy()."
            )

    def prepare(self, family, point):
        del family
        return point.scale.factorise()

    def mean_over_draws(self, key, potential, family, point, prepared, num):
        u = family.sample_base(key, point, num)
        pi = potential_gradients(potential, family.transform(point, u))
        v = pi + family.score(point, u, prepared)
        return Point(v.mean(axis=0), point.scale.pull_back(v, u))

    def constant_part(self, point):
        del point


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
