r"""Mini-batch projected SGD without convexity: paper 004, Theorem 8.

**Problem and assumptions:** $\min_\Theta F$, $\Theta$ closed and convex, a product over the blocks of
$\Lambda \le I$; $F$ $L$-smooth on $\Theta$ ($L = 2M$ on $W_M$) and bounded below there; one draw has
$E|g(w_k)|_\Lambda^2 \le \bar b$ at all iterates. The last holds if the iterates stay in a bounded set; **it
cannot be checked beforehand**, only enforced by a bounded $\Theta$ (which may exclude the optimum) or
declared.
**Method:** $w_{k+1} = \mathrm{proj}_\Theta(w_k-\gamma_k\Lambda g_{N_k}(w_k))$, $\gamma_k < 1/L$.
**Inequality:** with the gradient mapping
$G_\gamma(w) = \Lambda^{-1}(w-\mathrm{proj}_\Theta(w-\gamma\Lambda\nabla F(w)))/\gamma$ and
$S = \sum_k\gamma_k(1-\gamma_kL)$,
$\min_k E|G_{\gamma_k}(w_k)|_\Lambda^2 \le 4(F(w_0)-\inf F)/S + 4\bar b\sum_k(\gamma_k/N_k)/S$.
**Checked:** the proof uses $\frac12(2-\gamma L) \le 1$; its display (15) and the last line write
$|G|_{\Lambda^{-1}}$ where $|G|_\Lambda$ is meant; the statement is right. The second term vanishes only if
the batches grow.
"""

import numpy as np

from provi.core.arguments import check_positive
from provi.theory.inputs import Number, check_nonnegative, check_sequence


def bound(
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
    gamma, draws = check_sequence("step_sizes", step_sizes), check_sequence("num_draws", num_draws)
    if gamma.shape != draws.shape:
        raise ValueError(f"num_draws has {draws.size} entries and step_sizes {gamma.size}: give one of each a step.")
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
