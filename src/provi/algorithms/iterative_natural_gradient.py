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
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.algorithms.anderson import Memory
from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.dual_evaluation import SiteEvaluation, divergence
from provi.algorithms.mean_solve import best_mean
from provi.certificates.guarantee import Guarantee
from provi.core.stochastic_log_det import stochastic_log_det
from provi.core.tree import select
from provi.core.types import Count, Scalar, Vector
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_solver import SiteSolver, SiteVariances, site_solver, target_jitter
from provi.schedules.batch_sizes import AbstractBatchSize, ConstantBatch

_LARGEST_STEP, _SHARE = 4.0, 0.1
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


class IterativeNaturalGradient(AbstractAlgorithm):
    r"""The iteration above; one step is one computation of all variances, whether the trial is accepted or not.

    **Arguments:**

    - `step_size`: the first beta. - `tolerance`: relative, of the variances, at the end of a run.
    - `solver`: filled in by `resolve`.

    **Requires** a log-concave likelihood and the dual family.
    **Guarantee**: a plain step is accepted when $F(q) - F(q_+) \ge \tfrac12(1 + 1/\beta)KL(q\|q_+)$, a mixed one when
    F falls by a tenth of the divergence, both up to the error of the trapezoid rule; else beta is halved. What is left
    is bounded by the certificate (`certificates.dual_iterative`), which rests on no log determinant.
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
    num_draws: AbstractBatchSize = eqx.field(default_factory=lambda: ConstantBatch(1))
    guarantee: Guarantee | None = eqx.field(static=True, default=None)

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
        infinite, count = jnp.asarray(np.asarray(np.inf, dtype)), jnp.asarray(np.asarray(0))
        evaluation = SiteEvaluation(vector, vector, infinite, vector, vector, zero, infinite)
        first = jnp.asarray(np.asarray(self.step_size, dtype))
        memory = Memory.empty(size, dtype)
        return IterativeState(point, evaluation, vector, zero, infinite, first, memory, count, count, zero, (one, one))

    def step(self, key, state, target: Any, family, shrink):
        del key
        assert self.solver is not None
        solver, old, here = self.solver, state.evaluation, state.point.site_precision
        moving = state.stage > 0
        beta = state.step_size * shrink
        share = beta / (1 + beta)
        residual = old.weight - here
        mixed = moving & (state.memory.count > 0)
        wanted = state.memory.mixed(here, residual, share, old.variance)
        wanted = jnp.where(mixed, wanted, here + share * residual)
        # A mixed step may overshoot; plain ones stay between s and gamma.
        wanted = jnp.where(moving, jnp.maximum(wanted, 0.1 * jnp.minimum(here, old.weight)), here)
        # Variances need not be better known than the sites are right.
        known = jnp.sum(here * old.variance)
        wrong = _CARE * state.gradient_norms[1] / jnp.where(known > 0, known, 1)
        tolerance = jnp.clip(jnp.where(known > 0, wrong, 1), self.tolerance, _LARGEST_TOLERANCE)
        found = solver.variances(wanted, tolerance.astype(here.dtype))
        trial, new, remainder, most = self._evaluate(state, target, family, wanted, found)
        slack = jnp.sum((jnp.abs(wanted - here) + jnp.abs(new.weight - wanted)) * found.error)
        slack = slack + 64 * jnp.finfo(here.dtype).eps * (jnp.abs(old.likelihood) + jnp.abs(old.log_det))
        needed = jnp.where(mixed, _SHARE, 0.5 * (1 + 1 / beta))
        descent = old.negative_elbo - new.negative_elbo + slack
        descends = descent >= needed * jnp.maximum(divergence(state.point, old, trial, new), 0)
        accepted = jnp.isfinite(new.negative_elbo) & (~moving | descends)
        grown = jnp.where(moving, jnp.minimum(2 * state.step_size, _LARGEST_STEP), state.step_size)
        memory = select(moving, state.memory.remember(here, residual), state.memory)
        gradient = trial.dual_mean + new.slope
        mean_norm = jnp.sqrt(jnp.maximum(jnp.sum(gradient * (solver.gram @ gradient)), 0))
        norms = (mean_norm, jnp.sum(jnp.abs(new.weight - wanted) * new.variance))
        one, count = jnp.ones_like(state.stage), state.step + 1
        better = IterativeState(
            trial,
            new,
            found.value - found.low_rank,
            remainder,
            jnp.maximum(remainder, most - remainder),
            grown,
            memory,
            count,
            one,
            found.products,
            norms,
        )
        # A failure ends the memory: the next trial is a plain step, which descends if it is short enough.
        same = eqx.tree_at(
            lambda s: (s.step_size, s.memory, s.step, s.products),
            state,
            (state.step_size / 2, state.memory.forget(), count, found.products),
        )
        chosen = select(accepted, better, same)
        size = jnp.sqrt(jnp.sum(chosen.point.dual_mean**2) + jnp.sum(chosen.point.site_precision**2))
        info = StepInfo(beta, jnp.asarray(1, jnp.int32), chosen.gradient_norms[0], chosen.gradient_norms[1], size)
        return chosen, info

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
        before = jnp.where(started, old.variance, jnp.diagonal(solver.gram))
        bounds = old.log_det + jnp.sum(change * found.value), old.log_det + jnp.sum(change * before)
        log_det = jnp.clip(log_det, bounds[0], jnp.maximum(*bounds))
        prior = log_det - jnp.sum(wanted * found.value) + jnp.sum(at.dual_mean * at.deviation)
        evaluation = SiteEvaluation(
            at.deviation, found.value, at.likelihood, at.slope, at.weight, log_det, at.likelihood + 0.5 * prior
        )
        return DualPoint(at.dual_mean, wanted), evaluation, jnp.clip(log_det - known, 0, most), most

    def output(self, state):
        return state.point

    def recorded_elbo(self, state):
        error = 0.5 * np.asarray(state.uncertainty)
        return -np.asarray(state.evaluation.negative_elbo), error if int(state.stage) > 0 else np.nan


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


@eqx.filter_jit
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
