r"""Proj-SGD on a convex objective: paper 003, Theorem 11.

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

from provi.core.arguments import check_count, check_positive
from provi.theory import weighted_average
from provi.theory.inputs import Counts, Curve, Number, check_nonnegative, smallest_count
from provi.theory.noise import NoiseBound


def step_size(num_steps: int, noise_slope: Number) -> float:
    r"""$\gamma = \sqrt{2/(aT)}$."""
    return math.sqrt(2 / (check_positive("noise_slope", noise_slope) * check_count("num_steps", num_steps)))


def averaging_factor(step_size: Number, noise_slope: Number) -> float:
    r"""$\theta = 1/(1+a\gamma^2)$."""
    slope = check_nonnegative("noise_slope", noise_slope)
    return weighted_average.averaging_factor(slope * check_positive("step_size", step_size) ** 2)


def bound(num_steps: Counts, step_size: Number, initial_distance_squared: Number, noise: NoiseBound) -> Curve:
    r"""$E f(\bar w_T)-f^\star \le (\gamma/2)\big(a\,r_0/(1-\theta^T) + b\big)$.

    **Arguments:**

    - `num_steps`: $T$, or an array of them for a fixed step.
    - `step_size`: $\gamma > 0$.
    - `initial_distance_squared`: $|w_0-w^\star|^2$ or an upper bound of it.
    - `noise`: $(a, b)$ of the second moment of the gradient as used.
    """
    gamma = check_positive("step_size", step_size)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    return weighted_average.bound(num_steps, gamma, gamma**2 * noise.slope, gamma**2 * noise.floor, start)


def steps_for_accuracy(accuracy: Number, initial_distance_squared: Number, noise: NoiseBound) -> int:
    """The smallest number of steps for which `bound` at `step_size` of that number is at most `accuracy`."""
    accuracy = check_positive("accuracy", accuracy)

    def enough(steps: int) -> bool:
        gamma = step_size(steps, noise.slope)
        return float(bound(steps, gamma, initial_distance_squared, noise)) <= accuracy

    return smallest_count(enough)
