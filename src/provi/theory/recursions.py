r"""The two recursions that the theorems on stochastic gradients share.

**A contraction with growing noise.**

Theorem 31 of paper 003, corrected.

**Problem and assumptions:** numbers $r_t \ge 0$ with
$r_{t+1} \le (1-2\gamma_t\mu+2\gamma_t^2a)\,r_t + 2\gamma_t^2\sigma^2$, $\mu > 0$, $a > 0$, $\sigma^2 \ge 0$.
**Inequalities:** constant step $\gamma \le \min(\mu/(2a), 1/\mu)$:
$r_T \le (1-\gamma\mu)^Tr_0 + (2\gamma/\mu)\sigma^2$. Steps $\gamma_t = \min(\mu/(2a), (2t+1)/(\mu(t+1)^2))$:
$r_T \le 16(a/\mu^2)^2r_0/T^2 + 8\sigma^2/(\mu^2T)$ for all $T \ge 1$.
**Correction:** the paper prints $\lfloor a/\mu^2\rfloor$ in the decaying bound, which its proof does not
give (the switch is at $t_x \le \lceil 4a/\mu^2-1\rceil$, not at $4\lfloor a/\mu^2\rfloor$); here it is not
rounded.

Prox-SGD and Proj-SGD are two choices of $(\mu, a, \sigma^2)$; their files say which.

**The weighted telescope of the convex theorems.**

**Assumption:** $2\gamma\,E[f(v_t)-f^\star] \le (1+x)\,r_t - r_{t+1} + y$ for $t = 0, \dots, T-1$,
$r_t \ge 0$, $x, y \ge 0$, $f$ convex.
**Inequality:** with $\theta = 1/(1+x)$ and $\bar v$ the average of $v_0, \dots, v_{T-1}$ with weights
$\theta^{t+1}$, $E f(\bar v)-f^\star \le (r_0/S + y)/(2\gamma)$, $S = \sum_{t=1}^T\theta^t = (1-\theta^T)/x$.
Multiply by $\theta^{t+1}$, sum, and use Jensen's inequality.
**Reference:** 003, proofs of Theorems 8 and 11; 004, proof of Theorem 6.
"""

import itertools
import math

import numpy as np

from provi.core.arguments import check_positive
from provi.theory.inputs import Counts, Curve, as_curve, check_counts, smallest_count


def largest_constant_step_size(strong_convexity: float, noise_slope: float) -> float:
    r"""$\min(\mu/(2a), 1/\mu)$."""
    return min(strong_convexity / (2 * noise_slope), 1 / strong_convexity)


def constant_step_bound(num_steps: Counts, step_size: float, start: float, mu: float, sigma2: float) -> Curve:
    r"""$(1-\gamma\mu)^Tr_0 + (2\gamma/\mu)\sigma^2$."""
    steps = check_counts("num_steps", num_steps, minimum=0)
    contraction = max(0.0, 1 - step_size * mu) ** steps
    return as_curve(contraction * start + 2 * step_size / mu * sigma2)


def decaying_step_size(step: Counts, mu: float, noise_slope: float) -> Curve:
    r"""$\min(\mu/(2a), (2t+1)/(\mu(t+1)^2))$ at step $t = 0, 1, \dots$"""
    t = check_counts("step", step, minimum=0)
    return as_curve(np.minimum(mu / (2 * noise_slope), (2 * t + 1) / (mu * (t + 1) ** 2)))


def decaying_step_bound(num_steps: Counts, start: float, mu: float, noise_slope: float, sigma2: float) -> Curve:
    r"""$16(a/\mu^2)^2r_0/T^2 + 8\sigma^2/(\mu^2T)$, $T \ge 1$."""
    steps = check_counts("num_steps", num_steps)
    return as_curve(16 * (noise_slope / mu**2 / steps) ** 2 * start + 8 * sigma2 / (mu**2 * steps))


def best_constant_step_size(num_steps: int, start: float, mu: float, noise_slope: float, sigma2: float) -> float:
    r"""The allowed constant step with the smallest bound after $T$ steps; 0 when none improves on the start.

    The bound is convex in $\gamma$ with derivative $-T\mu(1-\gamma\mu)^{T-1}r_0 + 2\sigma^2/\mu$.
    """
    largest = largest_constant_step_size(mu, noise_slope)
    if sigma2 == 0:
        return largest
    ratio = 2 * sigma2 / (mu**2 * num_steps * start) if start > 0 else math.inf
    if ratio >= 1:
        return 0.0
    if num_steps == 1:
        return largest
    # -expm1 keeps the digits of 1 - ratio**(1/(T-1)) when T is large.
    return min(largest, -math.expm1(math.log(ratio) / (num_steps - 1)) / mu)


def steps_for_accuracy(
    accuracy: float, start: float, mu: float, noise_slope: float, sigma2: float, schedule: str
) -> int:
    """The smallest number of steps whose bound, for the named schedule, is at most `accuracy`."""
    accuracy = check_positive("accuracy", accuracy)
    if schedule not in ("constant", "decaying"):
        raise ValueError(f"schedule must be 'constant' or 'decaying', not {schedule!r}.")
    if start <= accuracy:
        return 0

    def enough(steps: int) -> bool:
        if schedule == "decaying":
            return float(decaying_step_bound(steps, start, mu, noise_slope, sigma2)) <= accuracy
        step_size = best_constant_step_size(steps, start, mu, noise_slope, sigma2)
        return float(constant_step_bound(steps, step_size, start, mu, sigma2)) <= accuracy

    return smallest_count(enough)


def unroll(factors: np.ndarray, additions: np.ndarray, start: float) -> np.ndarray:
    r"""The array $r_0, \dots, r_T$ of $r_{t+1} = \max(c_t, 0)\,r_t + d_t$.

    A negative factor is only an upper bound of something non-negative, and it multiplies an upper bound of
    $r_t$; zero in its place keeps the inequality.
    """
    pairs = zip(np.maximum(factors, 0.0).tolist(), additions.tolist(), strict=True)
    return np.array(list(itertools.accumulate(pairs, lambda r, pair: pair[0] * r + pair[1], initial=start)))


def averaging_factor(growth: float) -> float:
    r"""$\theta = 1/(1+x)$."""
    return 1 / (1 + growth)


def weight_sum(num_steps: Counts, growth: float) -> Curve:
    r"""$S = (1-\theta^T)/x$, and $T$ for $x = 0$."""
    steps = check_counts("num_steps", num_steps)
    if growth == 0:
        return as_curve(steps)
    # expm1 and log1p keep the digits of 1 - theta^T for small x.
    return as_curve(-np.expm1(-steps * np.log1p(growth)) / growth)


def weighted_average_bound(num_steps: Counts, step_size: float, growth: float, addition: float, start: float) -> Curve:
    r"""$(r_0/S + y)/(2\gamma)$."""
    return as_curve((start / weight_sum(num_steps, growth) + addition) / (2 * step_size))
