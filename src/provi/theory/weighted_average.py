r"""The weighted telescope that the convex theorems share.

**Assumption:** $2\gamma\,E[f(v_t)-f^\star] \le (1+x)\,r_t - r_{t+1} + y$ for $t = 0, \dots, T-1$,
$r_t \ge 0$, $x, y \ge 0$, $f$ convex.
**Inequality:** with $\theta = 1/(1+x)$ and $\bar v$ the average of $v_0, \dots, v_{T-1}$ with weights
$\theta^{t+1}$, $E f(\bar v)-f^\star \le (r_0/S + y)/(2\gamma)$, $S = \sum_{t=1}^T\theta^t = (1-\theta^T)/x$.
Multiply by $\theta^{t+1}$, sum, and use Jensen's inequality.
**Reference:** 003, proofs of Theorems 8 and 11; 004, proof of Theorem 6.
"""

import numpy as np

from provi.theory.inputs import Counts, Curve, as_curve, check_counts


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


def bound(num_steps: Counts, step_size: float, growth: float, addition: float, start: float) -> Curve:
    r"""$(r_0/S + y)/(2\gamma)$."""
    return as_curve((start / weight_sum(num_steps, growth) + addition) / (2 * step_size))
