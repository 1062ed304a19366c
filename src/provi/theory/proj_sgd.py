r"""Proj-SGD: paper 003, Theorems 10 (strongly convex objective) and 11 (convex), and Corollary 14.

**Strongly convex: Theorem 10 and Corollary 14.**

**Problem and assumptions:** $\min_W f$, $W$ closed and convex; $f$ $\mu$-strongly convex, differentiable on
$W$; $g_t$ unbiased for $\nabla f(w_t)$ with $E|g_t|^2 \le a|w_t-w^\star|^2+b$ on $W$.
**Method:** $w_{t+1} = \mathrm{proj}_W(w_t-\gamma_tg_t)$; the last iterate.
**Inequality:** $r_{t+1} \le (1-\gamma_t\mu+\gamma_t^2a)r_t + \gamma_t^2b$, which is that of `recursions` with $\mu/2$,
$a/2$ and $\sigma^2 = b/2$. Strong convexity and optimality give more,
$\langle\nabla f(w), w-w^\star\rangle \ge \mu r$: `recursion_bound` uses $1-2\gamma_t\mu+\gamma_t^2a$ and is
sharper than the paper.
**Correction:** $a/\mu^2$ where the paper prints a rounded number (see `recursions`).

Arguments as in `prox_sgd`; `noise` is `noise.entropy_noise` or `noise.stl_noise`.
Smoothness and the reference point do not enter.

**Convex: Theorem 11, the functions `convex_...`.**

**Problem and assumptions:** $\min_W f$, $W$ closed and convex; $f$ convex, differentiable on $W$
(smoothness is not needed), a minimiser $w^\star$ exists; $g_t$ unbiased for $\nabla f(w_t)$ with
$E|g_t|^2 \le a|w_t-w^\star|^2+b$ on $W$.
**Method:** $w_{t+1} = \mathrm{proj}_W(w_t-\gamma g_t)$, any $\gamma > 0$; the average of
$w_0, \dots, w_{T-1}$ with weights $\theta^{t+1}$, $\theta = 1/(1+a\gamma^2)$.
**Inequality:** $E f(\bar w_T)-f^\star \le (\gamma/2)\big(a\,r_0/(1-\theta^T) + b\big)$,
$r_0 = |w_0-w^\star|^2$. Here the second moment enters, not the variance: for $N$ draws use
`minibatch_noise` with the bound of $|\nabla f|^2$, or `mpsgd` with a step of at most $1/(2M)$.
"""

import math

import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.theory import recursions
from provi.theory.inputs import (
    Counts,
    Curve,
    Number,
    check_at_most,
    check_nonnegative,
    check_sequence,
    smallest_count,
)
from provi.theory.noise import NoiseBound, stl_noise


def _constants(strong_convexity: Number, noise_slope: Number) -> tuple[float, float]:
    """The two constants of `recursions`: mu/2 and a/2."""
    mu = check_positive("strong_convexity", strong_convexity)
    return mu / 2, check_positive("noise_slope", noise_slope) / 2


def largest_constant_step_size(strong_convexity: Number, noise_slope: Number) -> float:
    r"""$\min(\mu/(2a), 2/\mu)$, the largest step of `constant_step_bound`."""
    return recursions.largest_constant_step_size(*_constants(strong_convexity, noise_slope))


def constant_step_bound(
    num_steps: Counts,
    step_size: Number,
    initial_distance_squared: Number,
    strong_convexity: Number,
    noise: NoiseBound,
) -> Curve:
    r"""$E|w_T-w^\star|^2 \le (1-\gamma\mu/2)^Tr_0 + 2\gamma b/\mu$, $\gamma \le \min(\mu/(2a), 2/\mu)$.

    Theorem 10, first part. `num_steps` may be an array of $T$.
    """
    half_mu, half_slope = _constants(strong_convexity, noise.slope)
    largest = recursions.largest_constant_step_size(half_mu, half_slope)
    remedy = "Take a smaller step, or use recursion_bound, which allows any."
    step = check_at_most(
        "step_size", step_size, largest, "min(strong_convexity/(2 noise.slope), 2/strong_convexity)", remedy
    )
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    return recursions.constant_step_bound(num_steps, step, start, half_mu, noise.floor / 2)


def decaying_step_size(step: Counts, strong_convexity: Number, noise_slope: Number) -> Curve:
    r"""$\gamma_t = \min(\mu/(2a), (2/\mu)(2t+1)/(t+1)^2)$, $t = 0, 1, \dots$; `step` may be an array."""
    return recursions.decaying_step_size(step, *_constants(strong_convexity, noise_slope))


def decaying_step_bound(
    num_steps: Counts, initial_distance_squared: Number, strong_convexity: Number, noise: NoiseBound
) -> Curve:
    r"""$E|w_T-w^\star|^2 \le 64(a/\mu^2)^2r_0/T^2 + 16b/(\mu^2T)$ for `decaying_step_size`, all $T \ge 1$.

    Theorem 10, second part, with $a/\mu^2$ not rounded. `num_steps` may be an array of $T$.
    """
    half_mu, half_slope = _constants(strong_convexity, noise.slope)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    return recursions.decaying_step_bound(num_steps, start, half_mu, half_slope, noise.floor / 2)


def recursion_bound(
    step_sizes: np.ndarray | list[float],
    initial_distance_squared: Number,
    strong_convexity: Number,
    noise: NoiseBound,
) -> np.ndarray:
    r"""$r_{t+1} = (1-2\gamma_t\mu+\gamma_t^2a)r_t + \gamma_t^2b$ for any steps: bounds for $t = 0, \dots, T$.

    Ours: twice the paper's contraction, from
    $\langle\nabla f(w)-\nabla f(w^\star), w-w^\star\rangle \ge \mu r$ and
    $\langle\nabla f(w^\star), w-w^\star\rangle \ge 0$ on $W$.
    """
    gamma = check_sequence("step_sizes", step_sizes)
    mu = check_positive("strong_convexity", strong_convexity)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    return recursions.unroll(1 - 2 * gamma * mu + gamma**2 * noise.slope, gamma**2 * noise.floor, start)


def gaussian_target_bound(
    num_steps: Counts,
    step_size: Number,
    initial_distance_squared: Number,
    strong_convexity: Number,
    smoothness: Number,
    dim: int,
) -> Curve:
    r"""$E|w_T-w^\star|^2 \le (1-\gamma\mu/2)^Tr_0$: sticking the landing on a Gaussian target in the family.

    Corollary 14, $\gamma \le \min(\mu/(2a), 2/\mu)$ with $a = 8(d+3)M^2$ (`stl_noise` at $K = 0$); the
    paper's general $24(d+3)M^2$ would allow a third of that step.
    """
    noise = stl_noise(dim=dim, smoothness=smoothness, residual_smoothness=0.0)
    return constant_step_bound(num_steps, step_size, initial_distance_squared, strong_convexity, noise)


def log_over_t_step_size(num_steps: int, strong_convexity: Number) -> float:
    r"""$\gamma = 2\log T/(\mu T)$: Corollary 34 carried over to Proj-SGD ($\mu/2$ for $\mu$); $T \ge 2$."""
    steps = check_count("num_steps", num_steps, minimum=2)
    return 2 * math.log(steps) / (check_positive("strong_convexity", strong_convexity) * steps)


def best_constant_step_size(
    num_steps: int, initial_distance_squared: Number, strong_convexity: Number, noise: NoiseBound
) -> float:
    """The allowed constant step with the smallest `constant_step_bound` after `num_steps`.

    Refused when no step improves on the start within so few steps.
    """
    steps = check_count("num_steps", num_steps)
    half_mu, half_slope = _constants(strong_convexity, noise.slope)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    step = recursions.best_constant_step_size(steps, start, half_mu, half_slope, noise.floor / 2)
    if step <= 0:
        raise ValueError(f"num_steps = {steps} is too small for any constant step to improve on the start. Raise it.")
    return step


def steps_for_accuracy(
    accuracy: Number,
    initial_distance_squared: Number,
    strong_convexity: Number,
    noise: NoiseBound,
    schedule: str = "constant",
) -> int:
    r"""The smallest $T$ whose bound on $E|w_T-w^\star|^2$ is at most `accuracy`; 0 if the start is that near.

    `schedule` is "constant" (with `best_constant_step_size`) or "decaying" (`decaying_step_size`).
    """
    half_mu, half_slope = _constants(strong_convexity, noise.slope)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    return recursions.steps_for_accuracy(accuracy, start, half_mu, half_slope, noise.floor / 2, schedule)


def convex_step_size(num_steps: int, noise_slope: Number) -> float:
    r"""$\gamma = \sqrt{2/(aT)}$."""
    return math.sqrt(2 / (check_positive("noise_slope", noise_slope) * check_count("num_steps", num_steps)))


def convex_averaging_factor(step_size: Number, noise_slope: Number) -> float:
    r"""$\theta = 1/(1+a\gamma^2)$."""
    slope = check_nonnegative("noise_slope", noise_slope)
    return recursions.averaging_factor(slope * check_positive("step_size", step_size) ** 2)


def convex_bound(num_steps: Counts, step_size: Number, initial_distance_squared: Number, noise: NoiseBound) -> Curve:
    r"""$E f(\bar w_T)-f^\star \le (\gamma/2)\big(a\,r_0/(1-\theta^T) + b\big)$.

    **Arguments:**

    - `num_steps`: $T$, or an array of them for a fixed step.
    - `step_size`: $\gamma > 0$.
    - `initial_distance_squared`: $|w_0-w^\star|^2$ or an upper bound of it.
    - `noise`: $(a, b)$ of the second moment of the gradient as used.
    """
    gamma = check_positive("step_size", step_size)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    return recursions.weighted_average_bound(num_steps, gamma, gamma**2 * noise.slope, gamma**2 * noise.floor, start)


def convex_steps_for_accuracy(accuracy: Number, initial_distance_squared: Number, noise: NoiseBound) -> int:
    """The smallest number of steps whose `convex_bound`, at the `convex_step_size` for them, is at most `accuracy`."""
    accuracy = check_positive("accuracy", accuracy)

    def enough(steps: int) -> bool:
        gamma = convex_step_size(steps, noise.slope)
        return float(convex_bound(steps, gamma, initial_distance_squared, noise)) <= accuracy

    return smallest_count(enough)
