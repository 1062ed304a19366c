r"""Mini-batch projected SGD: paper 004, Theorems 4 and 6 (fixed batch), 7 (growing batches), 8 (without convexity).

The functions below are for any $F$ and $\Theta$; `plan` and `theorem4_bound` are those of the ELBO on $W_M$.

**A fixed batch: Theorem 6, and Theorem 4, its two instances.**

**Problem and assumptions:** $\min f = l+h$ over $W_M$, $C$ symmetric or diagonal; potential convex and
$M$-smooth; a minimiser exists; one draw has $E|g|_\Lambda^2 \le a|w-w^\star|_{\Lambda^{-1}}^2+b$,
$\Lambda = (1, \lambda_C)$, $\lambda_C \le 1$.
**Method:** $w_{k+1} = \mathrm{proj}(w_k-\gamma\Lambda g_N(w_k))$, $g_N$ the mean of $N$ draws; the average of
$w_0, \dots, w_{K-1}$ with weights $\tau^{k+1}$, $\tau = 1/(1+a\gamma^2/N)$.
**Inequality:** $E f(\bar w_K)-f^\star \le \frac{\gamma}{2N}(aD+b) + \frac{D}{2\gamma K}$,
$D = |w_0-w^\star|_{\Lambda^{-1}}^2$, for $\gamma \le 1/(2M)$ (any $\gamma > 0$ when $N = 1$).

**Corrections.** (i) The paper uses co-coercivity of a function that is smooth on a subset only, which fails in
general. For this $f$ it holds, $f(w^\star) \ge f(w)+\langle\nabla f(w), w^\star-w\rangle+|\nabla f(w)|^2/(4M)$ on
$W_M$, so $1/(2M)$ is right (docs, key lemma). (ii) Theorem 4.2 has the factor $4\rho$ of $|C_0-C^\star|^2$, where the
paper prints $2(d-1+\kappa)$. (iii) $\rho = (d+2)\kappa/3$ stands for $d-1+\kappa$ throughout (`noise`). (iv) $N$ and
$K$ are whole numbers: $N$ is rounded up, $K$ down; `bound` at the rounded values is the guarantee. `optimal_plan` is
Remark 5, the best whole numbers.

**A minimiser on the boundary: `constrained`.** The proofs of Theorems 6 and 7 need $\nabla F(\theta^\star) = 0$,
while the theorems speak of a minimiser on $\Theta$. **As printed they are false:** $F(\theta) = \theta$ on
$[0, 1]$, $\theta_0 = 1$, gradients without noise ($a = 0$, $b = 1$), $\gamma = 10$ (any is allowed, as $L$ may be as
small as wanted), $K = 1$, $N = 1000$: the average is $\theta_0$ with gap 1, the printed bound 0.055.
**Correction:** for the average of $\theta_1, \dots, \theta_K$ they hold with $2a$, $2b$ for $a$, $b$ (in the weights
too) and $\gamma_k \le 1/L$, and need $F$ convex and $L$-smooth *on* $\Theta$ only, and a bound of the *variance*,
$E|g-\nabla F|_\Lambda^2 \le a|\theta-\theta^\star|_{\Lambda^{-1}}^2+b$: the proof of 003, Theorem 8, with the indicator
of $\Theta$ for $h$ (docs). The projection is that of the norm of $\Lambda^{-1}$; Assumption 5 ($\Theta$ a product over
the blocks) makes it the Euclidean one, and is needed for nothing else.

**Changing steps and batches: Theorem 7, the functions `dynamic_...` and `summable`.**

**Problem and assumptions:** as for a fixed batch. **Method:**
$w_{k+1} = \mathrm{proj}(w_k-\gamma_k\Lambda g_{N_k}(w_k))$ with $\gamma_k \le 1/(2M)$ (where $N_k > 1$);
the average of $w_0, \dots, w_{K-1}$ with weights $\gamma_k\alpha_{k+1}$,
$\alpha_k = \prod_{i<k}(1+a\gamma_i^2/N_i)^{-1}$.
**Inequality:**
$E f(\bar w_K)-f^\star \le \frac{D+b\sum_k\gamma_k^2\alpha_{k+1}/N_k}{2\sum_k\gamma_k\alpha_{k+1}}$
(`dynamic_bound`), at most the printed $\frac{D+b/a}{2\sum_k\gamma_k\exp(-a\sum_{i\le k}\gamma_i^2/N_i)}$
(`dynamic_printed_bound`). If $\sum\gamma_k^2/N_k < \infty$, then $\sum\gamma_k(f(w_k)-f^\star) < \infty$ almost
surely (`summable`).
**Correction:** the step limit of the paper is $1/L$ with $L = 2M$; its proof needs the key lemma too.

**Without convexity: Theorem 8, `nonconvex_bound`.**

**Problem and assumptions:** $\min_\Theta F$, $\Theta$ closed and convex, a product over the blocks of
$\Lambda \le I$; $F$ $L$-smooth on $\Theta$ ($L = 2M$ on $W_M$) and bounded below there; one draw has
$E|g(w_k)|_\Lambda^2 \le \bar b$ at all iterates. The last holds if the iterates stay in a bounded set; **it cannot be
checked beforehand**, only enforced by a bounded $\Theta$ (which may exclude the optimum) or declared.
**Method:** $w_{k+1} = \mathrm{proj}_\Theta(w_k-\gamma_k\Lambda g_{N_k}(w_k))$, $\gamma_k < 1/L$.
**Inequality:** with the gradient mapping
$G_\gamma(w) = \Lambda^{-1}(w-\mathrm{proj}_\Theta(w-\gamma\Lambda\nabla F(w)))/\gamma$ and
$S = \sum_k\gamma_k(1-\gamma_kL)$,
$\min_k E|G_{\gamma_k}(w_k)|_\Lambda^2 \le 4(F(w_0)-\inf F)/S + 4\bar b\sum_k(\gamma_k/N_k)/S$.
**Ours:** (i) the proof bounds the mean over $k$ with weights $\gamma_k(1-\gamma_kL)$: the bound is that of a *random
iterate* drawn with these weights, which can be returned; the smallest expectation cannot. (ii) $\bar b$ may bound the
variance alone. (iii) On a bounded set it is computed (`noise.bounded_variance`), not assumed. (iv) `nonconvex_plan`:
for a budget $E = NK$ and constant steps the best step is $1/(3L)$, not $1/(2L)$, and the bound
$12\sqrt{3L\bar b(F(w_0)-\inf F)/E}$.
**Checked:** the proof uses $\frac12(2-\gamma L) \le 1$; its display (15) and
the last line write $|G|_{\Lambda^{-1}}$ where $|G|_\Lambda$ is meant; the statement is right. The second term
vanishes only if the batches grow.
"""

import dataclasses
import math

import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.theory import recursions
from provi.theory.inputs import (
    Counts,
    Curve,
    Number,
    as_curve,
    check_at_most,
    check_counts,
    check_nonnegative,
    check_sequence,
    smallest_count,
)
from provi.theory.noise import NoiseBound, radial_factor


@dataclasses.dataclass(frozen=True)
class Plan:
    """A way to spend a budget of gradient evaluations: `num_draws * num_steps <= budget`."""

    step_size: float
    num_draws: int
    num_steps: int


def largest_step_size(smoothness: Number) -> float:
    r"""$1/(2M)$, the largest step with a guarantee for every batch size."""
    return 1 / (2 * check_positive("smoothness", smoothness))


def _check_step(step_size: Number, num_draws: int, smoothness: Number | None) -> float:
    if num_draws == 1 or smoothness is None:
        return check_positive("step_size", step_size)
    remedy = "Take a smaller step, or one draw a step."
    return check_at_most("step_size", step_size, largest_step_size(smoothness), "1/(2 smoothness)", remedy)


def averaging_factor(step_size: Number, num_draws: int, noise_slope: Number) -> float:
    r"""$\tau = 1/(1+a\gamma^2/N)$."""
    slope = check_nonnegative("noise_slope", noise_slope) / check_count("num_draws", num_draws)
    return recursions.averaging_factor(slope * check_positive("step_size", step_size) ** 2)


def bound(
    num_steps: Counts,
    num_draws: int,
    step_size: Number,
    initial_distance_squared: Number,
    noise: NoiseBound,
    smoothness: Number | None = None,
) -> Curve:
    r"""$E f(\bar w_K)-f^\star \le \frac{\gamma}{2N}(aD+b) + \frac{D}{2\gamma K}$ (Theorem 6, as printed).

    **Arguments:**

    - `num_steps`, `num_draws`: $K$ (or an array of them) and $N$.
    - `step_size`: $\gamma \le 1/(2M)$ unless $N = 1$; checked when `smoothness` is given.
    - `initial_distance_squared`: $D$, in the norm of $\Lambda^{-1}$:
      $|m_0-m^\star|^2+|C_0-C^\star|^2/\lambda_C$.
    - `noise`: of ONE draw, in the norms of $\Lambda$.
    """
    steps, draws = check_counts("num_steps", num_steps), check_count("num_draws", num_draws)
    gamma = _check_step(step_size, draws, smoothness)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    noisy = gamma / (2 * draws) * (noise.slope * start + noise.floor)
    return as_curve(noisy + start / (2 * gamma * steps))


def sharp_bound(
    num_steps: Counts,
    num_draws: int,
    step_size: Number,
    initial_distance_squared: Number,
    noise: NoiseBound,
    smoothness: Number | None = None,
) -> Curve:
    r"""$\frac{\gamma}{2N}\big(aD/(1-\tau^K)+b\big)$, the line before `bound` in the proof; never larger."""
    draws = check_count("num_draws", num_draws)
    gamma = _check_step(step_size, draws, smoothness)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    square = gamma**2 / draws
    return recursions.weighted_average_bound(num_steps, gamma, square * noise.slope, square * noise.floor, start)


def _draws_factor(dim: int, kurtosis: Number, preconditioned: bool) -> float:
    """The c of N = sqrt(c E), K = sqrt(E/c): a gamma^2 at gamma = 1/(2M)."""
    factor = 1 + radial_factor(dim, kurtosis)
    return 1.0 if preconditioned else factor


def plan(budget: int, dim: int, kurtosis: Number, smoothness: Number, preconditioned: bool) -> Plan:
    r"""Theorem 4's setting for a budget of $E$ gradient evaluations.

    $\gamma = 1/(2M)$, $N = \lceil\sqrt{cE}\rceil$, $K = \lfloor E/N\rfloor$ with $c = 1+\rho$ ($d+3$ for
    the normal base), or 1 with `scale_preconditioner`. Refused when the budget does not pay for one step
    ($E < c$).
    """
    budget = check_count("budget", budget)
    factor = _draws_factor(dim, kurtosis, preconditioned)
    draws = math.ceil(math.sqrt(factor * budget))
    if draws > budget:
        raise ValueError(
            f"budget = {budget} does not pay for one step of {draws} draws. Use {math.ceil(factor)} or more, "
            f"or the preconditioned plan."
        )
    return Plan(largest_step_size(smoothness), draws, budget // draws)


def constrained(noise: NoiseBound) -> NoiseBound:
    """The noise to put into `bound`, `sharp_bound`, `dynamic_bound` and the weights where grad F(theta*) need not be 0.

    `noise` bounds the variance of one draw; the average is of the iterates *after* the steps.
    """
    return NoiseBound(2 * noise.slope, 2 * noise.floor, f"{noise.description}; doubled for a minimiser on the boundary")


_MOST_PAIRS = 2_000_000


def _best_pair(budget: int, per_draw: float, per_step: float) -> tuple[int, int]:
    r"""Whole $N, K \ge 1$, $NK \le E$, with the least $p/N+s/K$.

    One of them is at most $\sqrt E$, the other $\lfloor E/\cdot\rfloor$: all such pairs are tried; above 4e12 gradients
    those within 2,000,000 of the best real number.
    """
    root = math.isqrt(budget)
    if per_draw == 0 or per_step == 0:
        return (1, budget) if per_draw == 0 else (budget, 1)
    ideal = min(math.sqrt(per_draw / per_step * budget), math.sqrt(per_step / per_draw * budget))
    first = max(1, min(int(ideal), root) - _MOST_PAIRS) if root > _MOST_PAIRS else 1
    small = np.arange(first, min(root, first + 2 * _MOST_PAIRS) + 1, dtype=np.int64)
    draws = np.concatenate([small, budget // small])
    steps = np.concatenate([budget // small, small])
    best = int(np.argmin(per_draw / draws + per_step / steps))
    return int(draws[best]), int(steps[best])


def optimal_plan(budget: int, initial_distance_squared: Number, noise: NoiseBound, step_size: Number) -> Plan:
    r"""The $N$ and $K$, $NK \le E$, with the least `bound` for a given step: Remark 5 in whole numbers.

    For real numbers $N = \gamma\sqrt{(a+b/D)E}$, and the bound is $\sqrt{(aD^2+bD)/E}$ (`optimal_bound`), whatever
    $\gamma$: a larger step pays for a larger batch. **Correction:** the remark needs $1 \le N \le E$; here $N$ is cut
    there. **Arguments:** as of `bound`; `step_size` at most $1/(2M)$ ($1/L$), see there.
    """
    budget, gamma = check_count("budget", budget), check_positive("step_size", step_size)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    draws, steps = _best_pair(budget, gamma / 2 * (noise.slope * start + noise.floor), start / (2 * gamma))
    return Plan(gamma, draws, steps)


def optimal_bound(budget: Number, initial_distance_squared: Number, noise: NoiseBound) -> float:
    r"""$\sqrt{D(aD+b)/E}$: Remark 5 for real $N$ and $K$; `bound` at `optimal_plan` is never below it."""
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    return math.sqrt(start * (noise.slope * start + noise.floor) / check_positive("budget", budget))


def optimal_budget(accuracy: Number, initial_distance_squared: Number, noise: NoiseBound, step_size: Number) -> int:
    """The smallest budget for which `bound` at `optimal_plan` is at most `accuracy`: it never rises with the budget."""
    accuracy = check_positive("accuracy", accuracy)

    def enough(budget: int) -> bool:
        found = optimal_plan(budget, initial_distance_squared, noise, step_size)
        return float(bound(found.num_steps, found.num_draws, step_size, initial_distance_squared, noise)) <= accuracy

    return smallest_count(enough)


def psgd_step_size(budget: int, dim: int, kurtosis: Number, smoothness: Number, preconditioned: bool) -> float:
    r"""Appendix C's step with one draw, as printed.

    $1/(2M\sqrt{(d-1+\kappa)E})$, or $1/(2M\sqrt E)$ preconditioned. Any step is allowed for $N = 1$; the
    minimiser of the $D$-terms of `bound` is $1/\sqrt{aE}$, which has $1+\rho$ ($d+3$ for the normal base)
    in the place of $d-1+\kappa$.
    """
    budget = check_count("budget", budget)
    radial_factor(dim, kurtosis)
    factor = 1 if preconditioned else dim - 1 + kurtosis
    return largest_step_size(smoothness) / math.sqrt(factor * budget)


def theorem4_bound(
    budget: Number,
    dim: int,
    kurtosis: Number,
    smoothness: Number,
    location_distance_squared: Number,
    scale_distance_squared: Number,
    reference_distance_squared: Number,
    preconditioned: bool,
) -> float:
    r"""Theorem 4 in closed form, for the unrounded $N = \sqrt{cE}$, $K = \sqrt{E/c}$.

    Plain:
    $\frac{M\sqrt{1+\rho}}{\sqrt E}\big(2|m_0-m^\star|^2+2|C_0-C^\star|^2+|w^\star-\bar w|^2+\frac1{2M}\big)$.
    Preconditioned:
    $\frac M{\sqrt E}\big(2|m_0-m^\star|^2+4\rho|C_0-C^\star|^2+|w^\star-\bar w|^2+\frac1{4M}\big)$; the
    paper prints $2(d-1+\kappa)$ for $4\rho$, half of what its proof gives. With rounding use `bound` at
    `plan`.
    """
    budget, smoothness = check_positive("budget", budget), check_positive("smoothness", smoothness)
    location = check_nonnegative("location_distance_squared", location_distance_squared)
    scale = check_nonnegative("scale_distance_squared", scale_distance_squared)
    reference = check_nonnegative("reference_distance_squared", reference_distance_squared)
    rho = radial_factor(dim, kurtosis)
    if preconditioned:
        inside = 2 * location + 4 * rho * scale + reference + 1 / (4 * smoothness)
        return smoothness / math.sqrt(budget) * inside
    inside = 2 * location + 2 * scale + reference + 1 / (2 * smoothness)
    return smoothness * math.sqrt((1 + rho) / budget) * inside


def budget_for_accuracy(
    accuracy: Number,
    initial_distance_squared: Number,
    noise: NoiseBound,
    dim: int,
    kurtosis: Number,
    smoothness: Number,
    preconditioned: bool,
) -> int:
    r"""The smallest budget $E$ for which `bound` at `plan` is at most `accuracy`.

    Rounding makes the bound saw-toothed in $E$: a slightly larger budget may do worse, never by more than
    the step lost in $K$. For a given $N$ the largest $K$ is $\lfloor N/c\rfloor$, and the bound there falls
    in $N$; so the search is over $N$, then over $K$.
    """
    accuracy = check_positive("accuracy", accuracy)
    factor = _draws_factor(dim, kurtosis, preconditioned)
    gamma = largest_step_size(smoothness)

    def enough(draws: int, steps: int) -> bool:
        if steps < 1:
            return False
        return float(bound(steps, draws, gamma, initial_distance_squared, noise)) <= accuracy

    draws = smallest_count(lambda count: enough(count, int(np.floor(count / factor))))
    steps = smallest_count(lambda count: enough(draws, count))
    # The first budget that rounds to `draws`; one less or more is left to the floating-point square root.
    budget = max(draws * steps, int((draws - 1) ** 2 / factor))
    while math.ceil(math.sqrt(factor * budget)) < draws:
        budget += 1
    return budget


def _sequences(
    step_sizes: np.ndarray | list[float], num_draws: np.ndarray | list[int]
) -> tuple[np.ndarray, np.ndarray]:
    gamma, draws = check_sequence("step_sizes", step_sizes), check_sequence("num_draws", num_draws)
    if gamma.shape != draws.shape:
        raise ValueError(f"num_draws has {draws.size} entries and step_sizes {gamma.size}: give one of each a step.")
    if np.any(draws != np.floor(draws)):
        raise ValueError("num_draws must hold whole numbers; round them up.")
    return gamma, draws


def dynamic_averaging_weights(
    step_sizes: np.ndarray | list[float], num_draws: np.ndarray | list[int], noise_slope: Number
) -> np.ndarray:
    r"""$\gamma_k\alpha_{k+1}$, not normalised: the prefix of length $K$ is that of a run of $K$ steps."""
    gamma, draws = _sequences(step_sizes, num_draws)
    slope = check_nonnegative("noise_slope", noise_slope)
    return gamma * np.exp(-np.cumsum(np.log1p(slope * gamma**2 / draws)))


def dynamic_bound(
    step_sizes: np.ndarray | list[float],
    num_draws: np.ndarray | list[int],
    initial_distance_squared: Number,
    noise: NoiseBound,
) -> np.ndarray:
    r"""The bound after each of $K = 1, 2, \dots$ steps, the sharper line of the proof.

    **Arguments:**

    - `step_sizes`, `num_draws`: $\gamma_k$ and $N_k$, one a step. The caller keeps $\gamma_k \le 1/(2M)$.
    - `initial_distance_squared`: $D = |w_0-w^\star|^2$ in the norm of $\Lambda^{-1}$.
    - `noise`: of ONE draw, in the norms of $\Lambda$.

    **Returns:** entry $K-1$ bounds $E f(\bar w_K)-f^\star$.
    """
    gamma, draws = _sequences(step_sizes, num_draws)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    weights = dynamic_averaging_weights(gamma, draws, noise.slope)
    return (start + noise.floor * np.cumsum(gamma / draws * weights)) / (2 * np.cumsum(weights))


def dynamic_printed_bound(
    step_sizes: np.ndarray | list[float],
    num_draws: np.ndarray | list[int],
    initial_distance_squared: Number,
    noise: NoiseBound,
) -> np.ndarray:
    r"""The bound as Theorem 7 prints it, after each of $K = 1, 2, \dots$ steps. Never below `dynamic_bound`."""
    gamma, draws = _sequences(step_sizes, num_draws)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    slope = check_positive("noise.slope", noise.slope)
    with np.errstate(divide="ignore"):
        weights = gamma * np.exp(-slope * np.cumsum(gamma**2 / draws))
        return (start + noise.floor / slope) / (2 * np.cumsum(weights))


@dataclasses.dataclass(frozen=True)
class Summability:
    """Whether a pair of schedules meets the condition of almost-sure convergence, and its rate then."""

    holds: bool
    reason: str
    rate_exponent: float
    """The best gap falls as (gradient evaluations)^(-rate_exponent); 0 where no power is guaranteed."""


def summable(step_exponent: Number, batch_exponent: Number) -> Summability:
    r"""Whether $\sum\gamma_k^2/N_k < \infty$ for $\gamma_k \sim k^{-p}$, $N_k \sim k^s$: when $2p+s > 1$.

    Then $\min_k f(w_k)-f^\star = O(1/\sum\gamma_k)$ almost surely, $\sum_{k\le K}\gamma_k \sim K^{1-p}$
    ($p < 1$) and $E = \sum N_k \sim K^{1+s}$: the rate is $E^{-(1-p)/(1+s)}$ (Appendix F; always slower
    than $E^{-1/2}$).
    """
    p = check_nonnegative("step_exponent", step_exponent)
    s = check_nonnegative("batch_exponent", batch_exponent)
    total = 2 * p + s
    if total <= 1:
        return Summability(False, f"sum step^2/batch diverges: 2 p + s = {total:g} is not above 1.", 0.0)
    if p > 1:
        return Summability(True, f"sum step^2/batch is finite, but so is sum step (p = {p:g} > 1): no rate.", 0.0)
    if p == 1:
        return Summability(True, "sum step^2/batch is finite; sum step grows as log K: rate 1/log E.", 0.0)
    rate = (1 - p) / (1 + s)
    return Summability(True, f"sum step^2/batch is finite: 2 p + s = {total:g} > 1; rate E^-{rate:.4g}.", rate)


def nonconvex_bound(
    step_sizes: np.ndarray | list[float],
    num_draws: np.ndarray | list[int],
    initial_gap: Number,
    objective_smoothness: Number,
    second_moment: Number,
) -> np.ndarray:
    r"""The bound of $\min_{k<K}E|G_{\gamma_k}(w_k)|_\Lambda^2$ after each of $K = 1, 2, \dots$ steps.

    **Arguments:**

    - `step_sizes`, `num_draws`: $\gamma_k \in (0, 1/L)$ and $N_k$, one a step.
    - `initial_gap`: $F(w_0)-\inf F$ or an upper bound of it.
    - `objective_smoothness`: $L$ of the whole objective, $2M$ on $W_M$.
    - `second_moment`: $\bar b$, of ONE draw.
    """
    gamma, draws = _sequences(step_sizes, num_draws)
    gap = check_nonnegative("initial_gap", initial_gap)
    smoothness = check_positive("objective_smoothness", objective_smoothness)
    moment = check_nonnegative("second_moment", second_moment)
    if np.any(gamma * smoothness >= 1):
        raise ValueError(
            f"step_sizes must be in (0, 1/objective_smoothness) = (0, {1 / smoothness:.6g}); the largest is "
            f"{gamma.max():.6g}. Take smaller steps."
        )
    total = np.cumsum(gamma * (1 - gamma * smoothness))
    return 4 * (gap + moment * np.cumsum(gamma / draws)) / total


def second_moment(noise_slope: Number, noise_floor: Number, radius_squared: Number) -> float:
    r"""$\bar b = aR^2+b$ when all iterates stay within $|w-w^\star|_{\Lambda^{-1}} \le R$."""
    slope, floor = (
        check_nonnegative("noise_slope", noise_slope),
        check_nonnegative("noise_floor", noise_floor),
    )
    return slope * check_nonnegative("radius_squared", radius_squared) + floor


def nonconvex_plan(budget: int, initial_gap: Number, objective_smoothness: Number, second_moment: Number) -> Plan:
    r"""The constant step and the whole $N$, $K$, $NK \le E$, with the least `nonconvex_bound` of constant steps.

    It is $\frac4{1-\gamma L}\big(\frac{F(w_0)-\inf F}{\gamma K}+\frac{\bar b}N\big)$. The best real $N$ and $K$ give
    $8\sqrt{(F(w_0)-\inf F)\bar b/(\gamma E)}/(1-\gamma L)$, least where $\sqrt\gamma(1-\gamma L)$ is largest, at
    $\gamma = 1/(3L)$.
    """
    gamma = 1 / (3 * check_positive("objective_smoothness", objective_smoothness))
    gap, moment = check_nonnegative("initial_gap", initial_gap), check_nonnegative("second_moment", second_moment)
    draws, steps = _best_pair(check_count("budget", budget), moment, gap / gamma)
    return Plan(gamma, draws, steps)
