r"""Gradient descent with noise in proportion to the gradient: what batches chosen by the norm test would give.

**Problem and assumptions:** $f$ $L$-smooth with $|\nabla f|^2 \ge 2\mu(f-f^\star)$ ($\mu$-strong convexity implies it);
$g_k$ unbiased given the past with $E|g_k-\nabla f(w_k)|^2 \le \theta^2|\nabla f(w_k)|^2$.
**Method:** $w_{k+1} = w_k-\gamma g_k$, $\gamma = 1/(L(1+\theta^2))$.
**Inequality:** $E f(w_{k+1})-f^\star \le \big(1-\frac{\mu}{L(1+\theta^2)}\big)E(f(w_k)-f^\star)$: the exact method's
linear rate, slower by the factor $1+\theta^2$, with no noise floor. Reached for $f = \frac L2|w|^2$, $\mu = L$.
**Proof:** $E|g|^2 \le (1+\theta^2)|\nabla f|^2$ in $E f(w_+) \le f-\gamma|\nabla f|^2+\frac{L\gamma^2}2E|g|^2$.
**What is not proven:** that a batch whose *measured* noise passes the test passes it in truth
(`schedules.NoiseBatch`).
"""

import numpy as np

from provi.core.arguments import check_positive
from provi.theory.inputs import Counts, Curve, Number, as_curve, check_at_most, check_counts, check_nonnegative


def step_size(smoothness: Number, theta: Number) -> float:
    r"""$1/(L(1+\theta^2))$."""
    return 1 / (check_positive("smoothness", smoothness) * (1 + check_nonnegative("theta", theta) ** 2))


def contraction(strong_convexity: Number, smoothness: Number, theta: Number) -> float:
    r"""$1-\mu/(L(1+\theta^2))$."""
    mu = check_at_most("strong_convexity", strong_convexity, smoothness, "smoothness", "The two are exchanged?")
    return 1 - mu * step_size(smoothness, theta)


def bound(num_steps: Counts, initial_gap: Number, strong_convexity: Number, smoothness: Number, theta: Number) -> Curve:
    r"""$(1-\mu/(L(1+\theta^2)))^t(f(w_0)-f^\star)$."""
    steps = check_counts("num_steps", num_steps, minimum=0)
    rate = max(contraction(strong_convexity, smoothness, theta), 0.0)
    return as_curve(np.power(rate, steps) * check_nonnegative("initial_gap", initial_gap))
