r"""Natural-gradient descent in N-space: Gaussian processes, and linear models with more columns than rows.

State (a, s): $m = \mu + Ka$, $V^{-1} = K^{-1} + \mathrm{diag}(s)$, from a = s = 0, the prior. With
$\alpha_n = E\ell_n'$, $\gamma_n = E\ell_n''$ under q, $d = m - \mu$ and $r = 1/(1 + \beta)$ (papers 000 and 002):

$$s_+ = rs + (1-r)\gamma, \qquad a_+ = a - (1-r)(I + DK)^{-1}(a + \alpha),$$

$D = \mathrm{diag}(s_+)$: mirror descent in the mean parameters (m, V + mm'), the A-form. $D = r\,\mathrm{diag}(s)$: the
exact KL-proximal step in (m, V), the B-form. In natural parameters $x = (a + s\circ d, s)$ the A-form is the damped
fixed-point iteration $x_+ = x + (1-r)(G(x) - x)$, $G = (\gamma\circ d - \alpha, \gamma)$, which Anderson's method
accelerates (mixing of the last few steps, least squares in the metric of q's marginals).

A Gaussian in dual form seen through its likelihood: moments, negative ELBO, divergences, gradient norms.
"""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.trial import (
    AbstractTrialDescent,
    Memory,
    StepRule,
    Trial,
    needed_share,
    not_overshot,
    rounding_slack,
    step_share,
)
from provi.core.arguments import device_array
from provi.core.types import Count, Scalar, Vector
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_solver import SiteFactor, factorise


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


FORMS = ("natural", "proximal")
MIXING = StepRule(2.0, 4.0, 2.0)
"""Of accelerated methods: a plain step goes at most four fifths of the way, the rest is the mixing's."""

_PLAIN, _FIXED = StepRule(1.5, 1e8, 2.0), StepRule(1.0, math.inf, 2.0)
_LARGEST_QUICK = 500


class DualState(eqx.Module):
    """The accepted point with its evaluation, the step size, and the memory of the acceleration.

    - `stage`: 0 until the start has been evaluated, then 1. - `gradient_norms`: see `whitened_norms`.
    """

    point: DualPoint
    evaluation: SiteEvaluation
    step_size: Scalar
    memory: Memory
    step: Count
    stage: Count
    gradient_norms: tuple[Scalar, Scalar]


class DualNaturalGradient(AbstractTrialDescent):
    r"""The iteration above; one step is one factorisation, whether the trial is accepted or not.

    **Arguments:**

    - `step_size`: the first beta. - `form`: "natural" (A) or "proximal" (B).
    - `accelerate`: Anderson's method, safeguarded; the A-form only.
    - `adapt`: False keeps beta and accepts every step, as the papers do.

    **Requires** a Gaussian process, or a linear model with the family `dual_gaussian(target)`.
    **Guarantee**, with `adapt`: without acceleration a trial is accepted when
    $f(q_+) \le f(q) + \langle\nabla f, \mu_+ - \mu\rangle + KL(q_+\|q)/\beta$, which implies
    $F(q) - F(q_+) \ge (1 + 1/\beta)KL(q\|q_+)$ for the A-form and $F(q_+) \le F(q)$ for the B-form
    (docs/theory/pgsvi.md); else beta is halved. With acceleration a plain step needs half of that descent, a mixed
    one $F(q) - F(q_+) \ge KL(q\|q_+)/10$; so F falls at every accepted step and the steps tend to zero.
    What is left is bounded by the certificate.
    **Cost per step** O(N^3), memory O(N^2) for K and the factor.
    """

    step_size: Any = eqx.field(
        default=1.0, converter=lambda value: np.asarray(value, float) if isinstance(value, int | float) else value
    )
    form: str = eqx.field(static=True, default="natural")
    accelerate: bool = eqx.field(static=True, default=True)
    adapt: bool = eqx.field(static=True, default=True)
    guarantee: Guarantee | None = eqx.field(static=True, default=None)

    settled: ClassVar[int] = 1
    branches: ClassVar[bool] = True

    def step_rule(self):
        return _FIXED if not self.adapt else MIXING if self.accelerate else _PLAIN

    def compile_quickly(self, family):
        """Saves about a second of compilation, and costs a third of a step."""
        return family.num_sites <= _LARGEST_QUICK

    def resolve(self, target, family):
        if not isinstance(family, DualGaussian):
            raise ValueError(
                "DualNaturalGradient needs the dual family: leave family at None for a Gaussian process, or pass "
                "provi.families.dual_gaussian(target) for a linear model."
            )
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {self.form!r}.")
        family.check_target(target)
        if self.form == "proximal" and family.root is not None:
            raise ValueError("form='proximal' needs a log-concave likelihood: use form='natural'.")
        if self.accelerate and (self.form == "proximal" or not self.adapt):
            return dataclasses.replace(self, accelerate=False)
        return self

    def init(self, point):
        size, dtype = point.dual_mean.shape[0], point.dual_mean.dtype
        vector, infinite, one = np.zeros(size, dtype), np.asarray(np.inf, dtype), np.ones((), dtype)
        vector, infinite, one = (device_array(x) for x in (vector, infinite, one))
        return DualState(
            point,
            SiteEvaluation(vector, vector, infinite, vector, vector, one, infinite),
            device_array(np.asarray(self.step_size, dtype)),
            Memory.empty(2 * size if self.accelerate else 1, dtype),
            step=device_array(np.asarray(0)),
            stage=device_array(np.asarray(0)),
            gradient_norms=(one, one),
        )

    def attempt(self, state, target, family, beta, moving):
        old, point = state.evaluation, state.point
        share = jnp.where(moving, step_share(beta), 0)
        here = jnp.concatenate([point.dual_mean + point.site_precision * old.deviation, point.site_precision])
        residual = jnp.concatenate([old.weight * old.deviation - old.slope, old.weight]) - here
        wanted = here + share * residual
        if self.accelerate:
            metric = jnp.concatenate([jnp.sqrt(old.variance), old.variance / math.sqrt(2.0)])
            wanted = state.memory.mixed(here, residual, share, metric)
        natural, precision = jnp.split(wanted, 2)
        if family.root is None:
            precision = not_overshot(precision, point.site_precision, old.weight)
        factor = factorise(family.gram, precision, family.root)
        if self.form == "proximal":
            inner = factorise(family.gram, point.site_precision / (1 + beta))
            change = -share * inner.apply_inverse(family.gram, point.dual_mean + old.slope)
        else:
            # (I + S_+ K) a_+ = natural: solved for the change of a, which is small at the end of a run.
            change = factor.apply_inverse(family.gram, natural - point.dual_mean - precision * old.deviation)
        trial = DualPoint(point.dual_mean + change, precision)
        new = evaluate(target, family, trial, factor)
        enough = self._enough(state, trial, new, beta)
        memory = state.memory.remember(here, residual, moving) if self.accelerate else state.memory
        norms, one = whitened_norms(family, trial, new, factor), jnp.ones_like(state.stage)
        better = DualState(trial, new, state.step_size, memory, state.step, one, norms)
        same = dataclasses.replace(state, memory=state.memory.forget())
        return Trial(better, same, new.negative_elbo, enough)

    def _enough(self, state: DualState, trial: DualPoint, new: SiteEvaluation, beta: Scalar) -> Any:
        """Whether the trial descends by what the class promises."""
        old = state.evaluation
        if not self.adapt:
            return jnp.isfinite(new.negative_elbo)
        slack = rounding_slack(new.slope.dtype, old.likelihood, old.log_det)
        if self.accelerate:
            share = needed_share(beta, state.memory.count > 0)
            return old.negative_elbo - new.negative_elbo + slack >= share * divergence(state.point, old, trial, new)
        move, spread = new.deviation - old.deviation, new.variance - old.variance
        linear = jnp.sum(old.slope * move) + 0.5 * jnp.sum(old.weight * spread)
        if self.form == "natural":
            # The gradient in the mean parameters (m, V + mm') along their change: that in (m, V) plus gamma (dm)^2/2.
            linear = linear + 0.5 * jnp.sum(old.weight * move**2)
        return new.likelihood <= old.likelihood + linear + divergence(trial, new, state.point, old) / beta + slack
