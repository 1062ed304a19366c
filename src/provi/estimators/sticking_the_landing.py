"""The path-derivative ("sticking the landing") gradient, whose noise vanishes when q equals the posterior."""

from typing import ClassVar

from provi.estimators.base import AbstractEstimator, potential_gradients
from provi.families.location_scale import Point


class StickingTheLanding(AbstractEstimator):
    r"""Estimates grad f: v = pi + grad_z log q_w(z) with w held fixed, g_m = v, g_C = P(v u').

    For the Gaussian base v = pi - C^-T u. Unbiased because E[grad_w log q_w(z)] at fixed z is 0, which
    needs a base density without a jump: the uniform base is refused.
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
