r"""Prox-SGD on a convex energy: paper 003, Theorem 8.

**Problem and assumptions:** $\min f = l+h$; $l$ convex and $M$-smooth, $h$ convex and closed, a minimiser
$w^\star$ exists; $g_t$ unbiased for $\nabla l(w_t)$ with $E|g_t-\nabla l(w_t)|^2 \le a|w_t-w^\star|^2+b$.
**Method:** $w_{t+1} = \mathrm{prox}_{\gamma h}(w_t-\gamma g_t)$, $\gamma \le 1/M$; the average of
$w_1, \dots, w_T$ with weights $\theta^{t+1}$, $\theta = 1/(1+2a\gamma^2)$.
**Inequality:** $E f(\bar w_T)-f^\star \le \gamma\big(a\,r_0/(1-\theta^T) + b\big)$, $r_0 = |w_0-w^\star|^2$.
**Ours:** the proof uses the noise only through the *variance*, so the mean of $N$ draws has $a/N$ and $b/N$
exactly: pass `minibatch_noise(noise, N, 0.0, 0.0)`.
"""

import math

from provi.core.arguments import check_count, check_positive
from provi.theory import weighted_average
from provi.theory.inputs import (
    Counts,
    Curve,
    Number,
    check_at_most,
    check_nonnegative,
    smallest_count,
)
from provi.theory.noise import NoiseBound


def step_size(num_steps: int, noise_slope: Number, smoothness: Number) -> float:
    r"""$\gamma = \min(1/\sqrt{aT}, 1/M)$; the second is active for small $T$ only."""
    steps = check_count("num_steps", num_steps)
    slope = check_nonnegative("noise_slope", noise_slope)
    largest = 1 / check_positive("smoothness", smoothness)
    return min(1 / math.sqrt(slope * steps), largest) if slope > 0 else largest


def averaging_factor(step_size: Number, noise_slope: Number) -> float:
    r"""$\theta = 1/(1+2a\gamma^2)$."""
    slope = check_nonnegative("noise_slope", noise_slope)
    return weighted_average.averaging_factor(2 * slope * check_positive("step_size", step_size) ** 2)


def bound(
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
    return weighted_average.bound(num_steps, gamma, square * noise.slope, square * noise.floor, start)


def steps_for_accuracy(
    accuracy: Number, initial_distance_squared: Number, noise: NoiseBound, smoothness: Number
) -> int:
    """The smallest number of steps for which `bound` at `step_size` of that number is at most `accuracy`.

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
        gamma = step_size(steps, noise.slope, smoothness)
        return float(bound(steps, gamma, initial_distance_squared, noise, smoothness)) <= accuracy

    return smallest_count(enough)
