r"""Mini-batch projected SGD with a fixed batch: paper 004, Theorem 6, and Theorem 4, its two instances.

**Problem and assumptions:** $\min f = l+h$ over $W_M$, $C$ symmetric or diagonal; potential convex and
$M$-smooth; a minimiser exists; one draw has $E|g|_\Lambda^2 \le a|w-w^\star|_{\Lambda^{-1}}^2+b$,
$\Lambda = (1, \lambda_C)$, $\lambda_C \le 1$.
**Method:** $w_{k+1} = \mathrm{proj}(w_k-\gamma\Lambda g_N(w_k))$, $g_N$ the mean of $N$ draws; the average of
$w_0, \dots, w_{K-1}$ with weights $\tau^{k+1}$, $\tau = 1/(1+a\gamma^2/N)$.
**Inequality:** $E f(\bar w_K)-f^\star \le \frac{\gamma}{2N}(aD+b) + \frac{D}{2\gamma K}$,
$D = |w_0-w^\star|_{\Lambda^{-1}}^2$, for $\gamma \le 1/(2M)$ (any $\gamma > 0$ when $N = 1$).

**Corrections.** (i) The paper uses co-coercivity of a function that is smooth on a subset only, which fails
in general. For this $f$ it holds,
$f(w^\star) \ge f(w)+\langle\nabla f(w), w^\star-w\rangle+|\nabla f(w)|^2/(4M)$ on $W_M$, so $1/(2M)$ is
right (docs, key lemma). (ii) Theorem 4.2 has the factor $4\rho$ of $|C_0-C^\star|^2$, where the paper
prints $2(d-1+\kappa)$. (iii) $\rho = (d+2)\kappa/3$ stands for $d-1+\kappa$ throughout (`noise`). (iv) $N$
and $K$ are whole numbers: $N$ is rounded up, $K$ down; `bound` at the rounded values is the guarantee.
"""

import dataclasses
import math

import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.theory import weighted_average
from provi.theory.inputs import (
    Counts,
    Curve,
    Number,
    as_curve,
    check_at_most,
    check_counts,
    check_nonnegative,
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
    return weighted_average.averaging_factor(slope * check_positive("step_size", step_size) ** 2)


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
    return weighted_average.bound(num_steps, gamma, square * noise.slope, square * noise.floor, start)


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
