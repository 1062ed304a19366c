r"""Prox-SGD: paper 003, Theorems 7 (strongly convex energy) and 8 (convex), and Corollary 34.

**Strongly convex: Theorem 7 and Corollary 34.**

**Problem and assumptions:** $\min l + h$; $l$ is $\mu$-strongly convex and $M$-smooth with minimiser
$\bar w$, $h$ convex and closed; $g_t$ unbiased for $\nabla l(w_t)$ with $E|g_t|^2 \le a|w_t-w^\star|^2+b$.
**Method:** $w_{t+1} = \mathrm{prox}_{\gamma_th}(w_t-\gamma_tg_t)$; the last iterate.
**Inequality:** $r_t = E|w_t-w^\star|^2$ obeys
$r_{t+1} \le (1-2\gamma_t\mu+2\gamma_t^2a)r_t + 2\gamma_t^2\sigma^2$ with
$\sigma^2 = b + M^2|w^\star-\bar w|^2$; `recursions` then gives the two closed forms.
**Correction:** the decaying bound has $a/\mu^2$ where the paper prints $\lfloor a/\mu^2\rfloor$ (see
`recursions`). Not tight: $E|g-\nabla l(w^\star)|^2$ is split by $|x+y|^2 \le 2|x|^2+2|y|^2$.

Arguments of its functions: `step_size` $\gamma$, `initial_distance_squared` $r_0$, `strong_convexity` $\mu$,
`smoothness` $M$, `noise` $(a, b)$ (`noise.energy_noise`), `reference_distance_squared` $|w^\star-\bar w|^2$;
upper bounds may stand for the distances.

**Convex: Theorem 8, the functions `convex_...`.**

**Problem and assumptions:** $\min f = l+h$; $l$ convex and $M$-smooth, $h$ convex and closed, a minimiser
$w^\star$ exists; $g_t$ unbiased for $\nabla l(w_t)$ with $E|g_t-\nabla l(w_t)|^2 \le a|w_t-w^\star|^2+b$.
**Method:** $w_{t+1} = \mathrm{prox}_{\gamma h}(w_t-\gamma g_t)$, $\gamma \le 1/M$; the average of
$w_1, \dots, w_T$ with weights $\theta^{t+1}$, $\theta = 1/(1+2a\gamma^2)$.
**Inequality:** $E f(\bar w_T)-f^\star \le \gamma\big(a\,r_0/(1-\theta^T) + b\big)$, $r_0 = |w_0-w^\star|^2$.
**Ours:** the proof uses the noise only through the *variance*, so the mean of $N$ draws has $a/N$ and $b/N$
exactly: pass `minibatch_noise(noise, N, 0.0, 0.0)`.
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
from provi.theory.noise import NoiseBound


def _sigma2(smoothness: Number, noise: NoiseBound, reference_distance_squared: Number) -> float:
    reference = check_nonnegative("reference_distance_squared", reference_distance_squared)
    return noise.floor + check_positive("smoothness", smoothness) ** 2 * reference


def _constants(strong_convexity: Number, noise_slope: Number) -> tuple[float, float]:
    return check_positive("strong_convexity", strong_convexity), check_positive("noise_slope", noise_slope)


def largest_constant_step_size(strong_convexity: Number, noise_slope: Number) -> float:
    r"""$\min(\mu/(2a), 1/\mu)$, the largest step of `constant_step_bound`."""
    return recursions.largest_constant_step_size(*_constants(strong_convexity, noise_slope))


def constant_step_bound(
    num_steps: Counts,
    step_size: Number,
    initial_distance_squared: Number,
    strong_convexity: Number,
    smoothness: Number,
    noise: NoiseBound,
    reference_distance_squared: Number,
) -> Curve:
    r"""$E|w_T-w^\star|^2 \le (1-\gamma\mu)^Tr_0 + (2\gamma/\mu)\sigma^2$, $\gamma \le \min(\mu/(2a), 1/\mu)$.

    Theorem 7, first part. `num_steps` may be an array of $T$.
    """
    mu, slope = _constants(strong_convexity, noise.slope)
    largest = recursions.largest_constant_step_size(mu, slope)
    remedy = "Take a smaller step, or use recursion_bound, which allows any."
    step = check_at_most(
        "step_size", step_size, largest, "min(strong_convexity/(2 noise.slope), 1/strong_convexity)", remedy
    )
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    sigma2 = _sigma2(smoothness, noise, reference_distance_squared)
    return recursions.constant_step_bound(num_steps, step, start, mu, sigma2)


def decaying_step_size(step: Counts, strong_convexity: Number, noise_slope: Number) -> Curve:
    r"""$\gamma_t = \min(\mu/(2a), (2t+1)/(\mu(t+1)^2))$, $t = 0, 1, \dots$; `step` may be an array."""
    return recursions.decaying_step_size(step, *_constants(strong_convexity, noise_slope))


def decaying_step_bound(
    num_steps: Counts,
    initial_distance_squared: Number,
    strong_convexity: Number,
    smoothness: Number,
    noise: NoiseBound,
    reference_distance_squared: Number,
) -> Curve:
    r"""$E|w_T-w^\star|^2 \le 16(a/\mu^2)^2r_0/T^2 + 8\sigma^2/(\mu^2T)$, $T \ge 1$, for `decaying_step_size`.

    Theorem 7, second part, with $a/\mu^2$ not rounded. `num_steps` may be an array of $T$.
    """
    mu, slope = _constants(strong_convexity, noise.slope)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    sigma2 = _sigma2(smoothness, noise, reference_distance_squared)
    return recursions.decaying_step_bound(num_steps, start, mu, slope, sigma2)


def recursion_bound(
    step_sizes: np.ndarray | list[float],
    initial_distance_squared: Number,
    strong_convexity: Number,
    smoothness: Number,
    noise: NoiseBound,
    reference_distance_squared: Number,
) -> np.ndarray:
    r"""The recursion itself, unrolled for any step sizes: bounds of $E|w_t-w^\star|^2$ for $t = 0, \dots, T$.

    Sharper than the closed forms and valid for every positive step (it may grow when a step is too large).
    """
    gamma = check_sequence("step_sizes", step_sizes)
    mu = check_positive("strong_convexity", strong_convexity)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    sigma2 = _sigma2(smoothness, noise, reference_distance_squared)
    return recursions.unroll(1 - 2 * gamma * mu + 2 * gamma**2 * noise.slope, 2 * gamma**2 * sigma2, start)


def log_over_t_step_size(num_steps: int, strong_convexity: Number) -> float:
    r"""$\gamma = \log T/(\mu T)$, Corollary 34 with $A = 1/\mu$; $T \ge 2$.

    `constant_step_bound` at this step is at most $r_0/T + 2\log T\,\sigma^2/(\mu^2T)$, once $T$ is large
    enough that the step is allowed there.
    """
    steps = check_count("num_steps", num_steps, minimum=2)
    return math.log(steps) / (check_positive("strong_convexity", strong_convexity) * steps)


def best_constant_step_size(
    num_steps: int,
    initial_distance_squared: Number,
    strong_convexity: Number,
    smoothness: Number,
    noise: NoiseBound,
    reference_distance_squared: Number,
) -> float:
    """The allowed constant step with the smallest `constant_step_bound` after `num_steps`.

    Refused when no step improves on the start within so few steps.
    """
    steps = check_count("num_steps", num_steps)
    mu, slope = _constants(strong_convexity, noise.slope)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    sigma2 = _sigma2(smoothness, noise, reference_distance_squared)
    step = recursions.best_constant_step_size(steps, start, mu, slope, sigma2)
    if step <= 0:
        raise ValueError(f"num_steps = {steps} is too small for any constant step to improve on the start. Raise it.")
    return step


def steps_for_accuracy(
    accuracy: Number,
    initial_distance_squared: Number,
    strong_convexity: Number,
    smoothness: Number,
    noise: NoiseBound,
    reference_distance_squared: Number,
    schedule: str = "constant",
) -> int:
    r"""The smallest $T$ whose bound on $E|w_T-w^\star|^2$ is at most `accuracy`; 0 if the start is that near.

    `schedule` is "constant" (with `best_constant_step_size`) or "decaying" (`decaying_step_size`).
    """
    mu, slope = _constants(strong_convexity, noise.slope)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    sigma2 = _sigma2(smoothness, noise, reference_distance_squared)
    return recursions.steps_for_accuracy(accuracy, start, mu, slope, sigma2, schedule)


def convex_step_size(num_steps: int, noise_slope: Number, smoothness: Number) -> float:
    r"""$\gamma = \min(1/\sqrt{aT}, 1/M)$; the second is active for small $T$ only."""
    steps = check_count("num_steps", num_steps)
    slope = check_nonnegative("noise_slope", noise_slope)
    largest = 1 / check_positive("smoothness", smoothness)
    return min(1 / math.sqrt(slope * steps), largest) if slope > 0 else largest


def convex_averaging_factor(step_size: Number, noise_slope: Number) -> float:
    r"""$\theta = 1/(1+2a\gamma^2)$."""
    slope = check_nonnegative("noise_slope", noise_slope)
    return recursions.averaging_factor(2 * slope * check_positive("step_size", step_size) ** 2)


def convex_bound(
    num_steps: Counts,
    step_size: Number,
    initial_distance_squared: Number,
    noise: NoiseBound,
    smoothness: Number,
) -> Curve:
    r"""$E f(\bar w_T)-f^\star \le \gamma\big(a\,r_0/(1-\theta^T) + b\big)$, $\gamma \le 1/M$.

    **Arguments:**

    - `num_steps`: $T$, or an array of them for a fixed step.
    - `step_size`, `smoothness`: $\gamma \in (0, 1/M]$.
    - `initial_distance_squared`: $|w_0-w^\star|^2$ or an upper bound of it.
    - `noise`: $(a, b)$ of the gradient as used; for $N$ draws `minibatch_noise(noise, N, 0.0, 0.0)`.
    """
    largest = 1 / check_positive("smoothness", smoothness)
    gamma = check_at_most("step_size", step_size, largest, "1/smoothness", "Take a smaller step.")
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    square = 2 * gamma**2
    return recursions.weighted_average_bound(num_steps, gamma, square * noise.slope, square * noise.floor, start)


def convex_steps_for_accuracy(
    accuracy: Number, initial_distance_squared: Number, noise: NoiseBound, smoothness: Number
) -> int:
    """The smallest number of steps for which `convex_bound` at `convex_step_size` of that number is at most `accuracy`.

    With a positive slope the bound falls in the number of steps all the way to 0. Without one the step
    stays at 1/smoothness, the bound does not fall below noise.floor/smoothness, and such an accuracy is
    refused.
    """
    accuracy = check_positive("accuracy", accuracy)
    if noise.slope == 0 and noise.floor > 0 and accuracy <= noise.floor / smoothness:
        raise ValueError(
            f"accuracy = {accuracy} must exceed noise.floor/smoothness = {noise.floor / smoothness:.6g} when "
            f"noise.slope is 0: the step size of this theorem is then constant. Pass a positive slope."
        )

    def enough(steps: int) -> bool:
        gamma = convex_step_size(steps, noise.slope, smoothness)
        return float(convex_bound(steps, gamma, initial_distance_squared, noise, smoothness)) <= accuracy

    return smallest_count(enough)
