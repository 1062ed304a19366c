r"""Mirror steps in mean parameters with a step size found by backtracking: descent, summed progress, linear rate.

**Problem and assumptions:** $q_\mu$ a member of a minimal, regular exponential family with mean parameter $\mu$;
$F(\mu) = f(\mu)+KL(q_\mu\|q_0)$, $f$ differentiable, $F \ge F^\star$.
**Method:** natural parameters $\lambda_+ = (\lambda-\beta\nabla_\mu f+\beta\lambda_0)/(1+\beta)$, the minimiser of
$\langle\nabla_\mu f, \mu\rangle+KL(q_\mu\|q_0)+KL(q_\mu\|q_k)/\beta$. Accept $\beta$ if and only if
$f(q_+) \le f(q_k)+\langle\nabla_\mu f(q_k), \mu_+-\mu_k\rangle+KL(q_+\|q_k)/\beta$, else halve.
**Inequalities:** an accepted step has $F_k-F_{k+1} \ge (1+1/\beta_k)KL(q_k\|q_{k+1})$ (and conversely); so
$\sum_k(1+1/\beta_k)KL(q_k\|q_{k+1}) \le F_0-F^\star$. If $f$ is $L_r$-smooth relative to $A^*$,
$\beta_k \ge \min(\beta_{-1}, 1/(2L_r))$, $\beta_{-1}$ the first trial of all. If $f$ is convex in $\mu$ with minimiser
$q^\star$ of $F$:
$KL(q^\star\|q_{k+1}) \le KL(q^\star\|q_k)/(1+\beta_k)$ and $F_{k+1}-F^\star \le KL(q^\star\|q_k)/\beta_k$.
**Tight:** the first is an equality where the test is. The papers leave the step size open; this answers it (Bauschke,
Bolte and Teboulle 2017; Lu, Freund and Nesterov 2018). Proofs: docs/theory/pgsvi.md.
"""

from typing import Any

import numpy as np

from provi.core.arguments import check_positive
from provi.theory.inputs import Number, check_nonnegative, check_sequence


def descent(step_sizes: Any, divergences: Any) -> np.ndarray:
    r"""$(1+1/\beta_k)KL(q_k\|q_{k+1})$, the least that an accepted step takes off $F$ (`divergences`: old to new)."""
    beta, kl = check_sequence("step_sizes", step_sizes), np.asarray(divergences, dtype=np.float64)
    if beta.shape != kl.shape:
        raise ValueError(f"divergences has shape {kl.shape} and step_sizes {beta.shape}: give one of each a step.")
    return (1 + 1 / beta) * kl


def smallest_step_size(first_trial: Number, relative_smoothness: Number) -> float:
    r"""$\min(\beta_{-1}, 1/(2L_r))$: backtracking by halves never goes below it, however steps grow in between."""
    relative = check_nonnegative("relative_smoothness", relative_smoothness)
    first = check_positive("first_trial", first_trial)
    return first if relative == 0 else min(first, 1 / (2 * relative))


def smallest_divergence_bound(step_sizes: Any, initial_gap: Number) -> np.ndarray:
    r"""$\min_{k<t}KL(q_k\|q_{k+1}) \le (F_0-F^\star)/\sum_{k<t}(1+1/\beta_k)$, $t = 1, 2, \dots$ accepted steps."""
    beta = check_sequence("step_sizes", step_sizes)
    return check_nonnegative("initial_gap", initial_gap) / np.cumsum(1 + 1 / beta)


def convex_distance_bound(step_sizes: Any, initial_divergence: Number) -> np.ndarray:
    r"""$KL(q^\star\|q_t) \le KL(q^\star\|q_0)\prod_{k<t}1/(1+\beta_k)$, $t = 1, 2, \dots$; $f$ convex."""
    beta = check_sequence("step_sizes", step_sizes)
    return check_nonnegative("initial_divergence", initial_divergence) * np.exp(-np.cumsum(np.log1p(beta)))


def convex_gap_bound(step_sizes: Any, initial_divergence: Number) -> np.ndarray:
    r"""$F_t-F^\star \le \frac1{\beta_{t-1}}KL(q^\star\|q_0)\prod_{k<t-1}1/(1+\beta_k)$, $t = 1, 2, \dots$"""
    beta = check_sequence("step_sizes", step_sizes)
    return convex_distance_bound(beta, initial_divergence) * (1 + beta) / beta
