r"""Natural gradients in N-space with no matrix of the size of K beside K: conjugate gradients for large N.

All that costs is the N variances, so everything else is done to the end between two computations of them. At given site
precisions s the best dual mean a(s) is found by Newton's method (`mean_solve`); what is left is
$\hat F(V) = \min_mF(m, V)$, whose natural gradient is $\gamma - s$ (the envelope theorem): the damped iteration

$$s_+ = s + (1 - r)(\gamma(s) - s), \qquad r = 1/(1 + \beta),$$

accelerated by Anderson's method, with $\gamma(s)$ the curvatures at the best mean.

**log |B|** is not computed. The low-rank part $L(s) = \sum\log(1 + js_n) + \log|M|$ (`families.site_solver`) is
known exactly; the remainder $\log|B| - L$ has the derivatives $v_n - v_{M,n}$ in $s_n$, known at both ends of a step
$\Delta = s_+ - s$: a kind of trapezoid rule gives its change, with an error of the order of $|C'\Delta C|_F^3$;
the divergence is of second order. log |B| is concave in s, so the change lies between $\Delta'v_+$ and
$\Delta'v$; the estimate is kept there. The ELBO of a run is therefore approximate; `log_det` of the fit's last point is
estimated anew, with a standard error (`estimated_elbo`).

**The best mean** at given variances is found by Newton's method with inner conjugate gradients:
$\Phi(a) = \sum_nE\ell_n(\mu_n + (Ka)_n; v_n) + \tfrac12a'Ka$ is convex for a log-concave likelihood. Its gradient is
$Kc$, $c = a + \alpha$, Newton's direction $-(I + \Gamma K)^{-1}c$, $\Gamma = \mathrm{diag}(\gamma)$: a few dozen
products with K in all, next to the N of them, or more, that variances cost. It is a part of one step, with a line
search of its own, and so not a run of `runtime`.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.dual_natural_gradient import MIXING, SiteEvaluation, divergence
from provi.algorithms.natural.trial import (
    AbstractTrialDescent,
    Memory,
    Trial,
    needed_share,
    not_overshot,
    rounding_slack,
    step_share,
)
from provi.core.arguments import device_array
from provi.core.compilation import program_jit
from provi.core.krylov import stochastic_log_det
from provi.core.tree import select
from provi.core.types import Count, Scalar, Vector
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_solver import SiteSolver, SiteVariances, site_solver, target_jitter
from provi.kernels.rows import gram_diagonal

_MOST_STEPS, _HALVINGS, _DESCENT = 50, 40, 1e-4


class MeanState(NamedTuple):
    """a, d = Ka, the moments at (mu + d, v), Phi, half of Newton's decrement, and the number of steps."""

    dual_mean: Vector
    deviation: Vector
    slope: Vector
    weight: Vector
    likelihood: Scalar
    remaining: Scalar
    steps: Count

    @property
    def value(self) -> Scalar:
        """Phi."""
        return self.likelihood + 0.5 * jnp.sum(self.dual_mean * self.deviation)


def best_mean(
    target: Any, site_mean: Vector, solver: SiteSolver, start: Vector, variance: Vector, goal: Any, residual: Any
) -> MeanState:
    """Minimise Phi from `start` until half of Newton's decrement, about what is left, is at most `goal` nats.

    `residual`: relative, of the inner solutions. A solution that cannot be reached (an infinite Phi at the start, or
    rounding) ends with the best point found.
    """

    def at(dual_mean: Vector, deviation: Vector, remaining: Any, steps: Any) -> MeanState:
        moments = target.likelihood.moments(site_mean + deviation, variance, target.response)
        return MeanState(dual_mean, deviation, moments.slope, moments.weight, jnp.sum(moments.value), remaining, steps)

    def proceed(here: MeanState) -> Any:
        return (here.remaining > goal) & (here.steps < _MOST_STEPS) & jnp.isfinite(here.value)

    def newton(here: MeanState) -> MeanState:
        gradient = here.dual_mean + here.slope
        change = -solver.apply_inverse(here.weight, gradient, residual)
        move = solver.gram @ change
        descent = jnp.sum(gradient * move)
        rounding = 16 * jnp.finfo(move.dtype).eps * (jnp.abs(here.value) + jnp.abs(here.likelihood))

        def trial(length: Any) -> MeanState:
            return at(here.dual_mean + length * change, here.deviation + length * move, -0.5 * descent, here.steps + 1)

        def too_long(carry: Any) -> Any:
            length, found, halvings = carry
            fine = found.value <= here.value + _DESCENT * length * descent + rounding
            return ~fine & (halvings < _HALVINGS)

        def halve(carry: Any) -> Any:
            length, _, halvings = carry
            return length / 2, trial(length / 2), halvings + 1

        one = jnp.ones((), move.dtype)
        _, found, halvings = jax.lax.while_loop(too_long, halve, (one, trial(one), jnp.zeros((), jnp.int32)))
        # No descent: rounding is all that is left, or the moments are not finite along the way.
        stuck = (halvings >= _HALVINGS) | ~(descent < 0)
        stopped = here._replace(remaining=jnp.zeros_like(here.remaining), steps=here.steps + 1)
        return jax.tree.map(lambda a, b: jnp.where(stuck, a, b), stopped, found)

    infinite = jnp.full((), jnp.inf, start.dtype)
    first = at(start, solver.gram @ start, infinite, jnp.zeros((), jnp.int32))
    found = jax.lax.while_loop(proceed, newton, first)
    # d is a sum of moves: once more from a, so that errors do not gather from step to step.
    return at(found.dual_mean, solver.gram @ found.dual_mean, found.remaining, found.steps)


_CARE, _LARGEST_TOLERANCE = 0.05, 1e-3
_MEAN_GOAL, _MEAN_RESIDUAL = 1e-9, 1e-3
_PROBE_BATCHES, _LANCZOS_STEPS = 8, 25


class IterativeState(eqx.Module):
    """As `DualState`; `excess` is v - v_M and `remainder` log |B| - L there, `products` with K for each datum."""

    point: DualPoint
    evaluation: SiteEvaluation
    excess: Vector
    remainder: Scalar
    uncertainty: Scalar
    step_size: Scalar
    memory: Memory
    step: Count
    stage: Count
    products: Scalar
    gradient_norms: tuple[Scalar, Scalar]


class IterativeNaturalGradient(AbstractTrialDescent):
    r"""The iteration above; one step is one computation of all variances, whether the trial is accepted or not.

    **Arguments:**

    - `step_size`: the first beta. - `tolerance`: relative, of the variances, at the end of a run.
    - `solver`: filled in by `resolve`.

    **Requires** a log-concave likelihood and the dual family.
    **Guarantee**: a plain step is accepted when $F(q) - F(q_+) \ge \tfrac12(1 + 1/\beta)KL(q\|q_+)$, a mixed one when
    F falls by a tenth of the divergence, both up to the error of the trapezoid rule; else beta is halved. What is left
    is bounded by the certificate (`certificates.dual.bounds`), which rests on no log determinant.
    **Cost per step** O(N r^2) where the low rank r suffices, else 2N^3 for each product of conjugate gradients (4 to
    10); memory K and O(N r).
    """

    step_size: Any = eqx.field(
        default=1.0, converter=lambda value: np.asarray(value, float) if isinstance(value, int | float) else value
    )
    tolerance: Any = eqx.field(
        default=1e-5, converter=lambda value: np.asarray(value, float) if isinstance(value, int | float) else value
    )
    solver: SiteSolver | None = None
    guarantee: Guarantee | None = eqx.field(static=True, default=None)

    settled: ClassVar[int] = 1

    def step_rule(self):
        return MIXING

    def compile_quickly(self, family):
        """Its time goes into products of matrices, which are a library's."""
        del family
        return True

    def resolve(self, target: Any, family):
        if not isinstance(family, DualGaussian):
            raise ValueError(
                "IterativeNaturalGradient needs the dual family: leave family at None for a Gaussian process, or pass "
                "provi.families.dual_gaussian(target) for a linear model."
            )
        if not hasattr(target, "likelihood") or getattr(target, "num_terms", 0) != family.num_sites:
            raise ValueError(f"the family has {family.num_sites} sites: it was made for another target.")
        if not target.likelihood.log_concave:
            raise ValueError(
                f"IterativeNaturalGradient needs a log-concave likelihood, and {target.likelihood.name} is not: use "
                f"provi.algorithms.DualNaturalGradient()."
            )
        if self.solver is not None:
            return self
        return eqx.tree_at(
            lambda a: a.solver, self, site_solver(family.gram, target_jitter(target)), is_leaf=lambda x: x is None
        )

    def init(self, point):
        size, dtype = point.dual_mean.shape[0], point.dual_mean.dtype
        vector, zero, one = (jnp.asarray(x) for x in (np.zeros(size, dtype), np.zeros((), dtype), np.ones((), dtype)))
        infinite, count = device_array(np.asarray(np.inf, dtype)), device_array(np.asarray(0))
        evaluation = SiteEvaluation(vector, vector, infinite, vector, vector, zero, infinite)
        first = device_array(np.asarray(self.step_size, dtype))
        memory = Memory.empty(size, dtype)
        return IterativeState(point, evaluation, vector, zero, infinite, first, memory, count, count, zero, (one, one))

    def attempt(self, state, target, family, beta, moving):
        assert self.solver is not None
        solver, old, here = self.solver, state.evaluation, state.point.site_precision
        share = step_share(beta)
        residual = old.weight - here
        mixed = moving & (state.memory.count > 0)
        wanted = state.memory.mixed(here, residual, share, old.variance)
        wanted = jnp.where(mixed, wanted, here + share * residual)
        wanted = jnp.where(moving, not_overshot(wanted, here, old.weight), here)
        # Variances need not be better known than the sites are right.
        known = jnp.sum(here * old.variance)
        wrong = _CARE * state.gradient_norms[1] / jnp.where(known > 0, known, 1)
        tolerance = jnp.clip(jnp.where(known > 0, wrong, 1), self.tolerance, _LARGEST_TOLERANCE)
        found = solver.variances(wanted, tolerance.astype(here.dtype))
        trial, new, remainder, most = self._evaluate(state, target, family, wanted, found)
        slack = jnp.sum((jnp.abs(wanted - here) + jnp.abs(new.weight - wanted)) * found.error)
        slack = slack + rounding_slack(here.dtype, old.likelihood, old.log_det)
        descent = old.negative_elbo - new.negative_elbo + slack
        enough = descent >= needed_share(beta, mixed) * jnp.maximum(divergence(state.point, old, trial, new), 0)
        memory = select(moving, state.memory.remember(here, residual), state.memory)
        gradient = trial.dual_mean + new.slope
        mean_norm = jnp.sqrt(jnp.maximum(jnp.sum(gradient * (solver.gram @ gradient)), 0))
        norms = (mean_norm, jnp.sum(jnp.abs(new.weight - wanted) * new.variance))
        better = IterativeState(
            trial,
            new,
            found.value - found.low_rank,
            remainder,
            jnp.maximum(remainder, most - remainder),
            state.step_size,
            memory,
            state.step,
            jnp.ones_like(state.stage),
            found.products,
            norms,
        )
        same = dataclasses.replace(state, memory=state.memory.forget(), products=found.products)
        return Trial(better, same, new.negative_elbo, enough)

    def _evaluate(
        self, state: IterativeState, target: Any, family: DualGaussian, wanted: Vector, found: SiteVariances
    ) -> tuple[DualPoint, SiteEvaluation, Scalar, Scalar]:
        """The best mean at `wanted`, the evaluation there, log |B| - L and the most that can be."""
        solver, old, here = self.solver, state.evaluation, state.point.site_precision
        assert solver is not None
        goal = _MEAN_GOAL + jnp.finfo(here.dtype).eps * target.num_terms
        at = best_mean(target, family.site_mean, solver, state.point.dual_mean, found.value, goal, _MEAN_RESIDUAL)
        started = state.stage > 0
        # From s = 0, where v - v_M is the diagonal of the residual, if nothing is known yet.
        origin = jnp.where(started, here, 0)
        excess = jnp.where(started, state.excess, solver.residual)
        change = wanted - origin
        known, most = solver.log_det(wanted)
        remainder = state.remainder + jnp.sum(change * _mean_along(excess, found.value - found.low_rank))
        log_det = known + jnp.clip(remainder, 0, most)
        before = jnp.where(started, old.variance, gram_diagonal(solver.gram))
        bounds = old.log_det + jnp.sum(change * found.value), old.log_det + jnp.sum(change * before)
        log_det = jnp.clip(log_det, bounds[0], jnp.maximum(*bounds))
        prior = log_det - jnp.sum(wanted * found.value) + jnp.sum(at.dual_mean * at.deviation)
        evaluation = SiteEvaluation(
            at.deviation, found.value, at.likelihood, at.slope, at.weight, log_det, at.likelihood + 0.5 * prior
        )
        return DualPoint(at.dual_mean, wanted), evaluation, jnp.clip(log_det - known, 0, most), most

    def elbo_error(self, state):
        """Half of what the low rank leaves open of log |B|."""
        return 0.5 * np.asarray(state.uncertainty)


def _mean_along(first: Vector, last: Vector) -> Vector:
    r"""$\log(x/y)\,xy/(x - y)$: the mean of $1/(p + s)$ between two s, from its values x and y at the ends.

    With it the rule is exact where sites do not interact; it agrees with the trapezoid's (x + y)/2 to second order.
    """
    tiny = jnp.finfo(first.dtype).tiny ** 0.25
    first, last = jnp.maximum(first, tiny), jnp.maximum(last, tiny)
    ratio = last / first
    close = jnp.abs(ratio - 1) < 1e-3
    safe = jnp.where(close, 2, ratio)
    return jnp.where(close, 0.5 * (first + last), last * jnp.log(safe) / (safe - 1))


@program_jit
def estimated_elbo(key: Any, target: Any, family: DualGaussian, point: DualPoint, solver: SiteSolver) -> Any:
    r"""The ELBO at `point` and its standard error: $\log|B| = L + \log|M^{-1/2}B'M^{-1/2}|$, the last by stochastic
    Lanczos quadrature; what the low rank has explained adds no noise. The error of the variances is added."""
    found = solver.variances(point.site_precision, jnp.asarray(1e-5, family.gram.dtype))
    deviation = family.gram @ point.dual_mean
    moments = target.likelihood.moments(family.site_mean + deviation, found.value, target.response)
    known, _ = solver.log_det(point.site_precision)
    operator = solver.whitened(point.site_precision)
    estimate, error = stochastic_log_det(
        operator, key, family.num_sites, _PROBE_BATCHES, _LANCZOS_STEPS, family.gram.dtype
    )
    prior = known + estimate - jnp.sum(point.site_precision * found.value) + jnp.sum(point.dual_mean * deviation)
    error = 0.5 * error + 0.5 * jnp.sum(jnp.abs(moments.weight - point.site_precision) * found.error)
    return -jnp.sum(moments.value) - 0.5 * prior, error
