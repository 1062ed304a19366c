r"""MISSO, $\min_\Theta L = n^{-1}\sum_iL_i$ by incremental stochastic surrogates: paper 001, Theorems 1 and 2.

**Problem and assumptions:** $\Theta$ convex; surrogates $\hat L_i(\cdot;\bar\theta) \ge L_i$ on $\Theta$, equal at
$\bar\theta$; their mean error $\hat e = n^{-1}\sum_i\hat L_i(\cdot;\bar\theta_i)-L$ has
$|\nabla\hat e|^2 \le 2L_e\hat e$ (true if $\hat e$ is $L_e$-smooth and at least 0 on the whole space; being so on
$\Theta$ alone is not enough at its boundary). $M$ draws give $\tilde L_i$ with
$E\sup_\Theta|\tilde L_i-\hat L_i| \le C_rM^{-1/2}$, $E\sup_{\Theta}|\nabla(\tilde L_i-\hat L_i)| \le C_{gr}M^{-1/2}$
given the past (`value_noise`, `gradient_noise`; no square in the second: erratum 30).
**Method:** all $n$ are built at $\theta_0$ with $M_{init}$ draws; visit $k = 0, 1, \dots$ builds a random batch anew at
$\theta_k$ with $M_k$ draws, each term being in it with probability $p$ whatever happened before ($1/n$ in the paper,
$b/n$ for $b$ without replacement), and $\theta_{k+1} = \arg\min_\Theta n^{-1}\sum_i\tilde L_i^{k+1}$.
**Inequalities:** $A_0 = M_{init}^{-1/2}$, $A_{k+1} = (1-p)A_k+pM_k^{-1/2}$, the mean of $M^{-1/2}$ over the table;
$R$ uniform on $\{1, \dots, K\}$;
$$\Delta_K = 2L_e\Big[\tfrac1p\big(L(\theta_0)-\inf L+C_r(A_{K+1}+mA_1)\big)+C_r\sum_{k=1}^K(A_k+mM_k^{-1/2})\Big],$$
$m = 0$ for independent draws (unbiased), 1 for Markov chains: $E|\nabla\hat e^R(\theta_R)|^2 \le \Delta_K/K$ and
$E g_-(\theta_R) \le \sqrt{\Delta_K/K}+\frac{C_{gr}}K\sum_{k=1}^KA_k$.
**Tight:** the second, in the noise term (ex. 2 below). **Corrections:** as printed both are false. (1) $R = 0$ is among
the paper's, but $\theta_0$ minimises nothing: $n = 1$, $\hat L = L$ makes the bound 0 for any $\theta_0$. (2) It has
$M_k$ for the $A_k$, as if no surrogate were older than a visit, which misses up to $M_{init}^{-1/2}/p$ in the sum:
$L_i = \hat L_i = \theta^2/2$, noise $\pm\sigma\theta$ at the start and none later give $E|\theta_k| = \sigma A_k$.
Proofs: docs/theory/misso.md.
"""

from typing import Any, NamedTuple

import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.theory.inputs import Number, check_nonnegative, check_sequence


def visit_probability(num_terms: int, batch: int, replacement: bool = False) -> float:
    r"""$p$: $b/n$ without replacement, $1-(1-1/n)^b$ with it (`schedules.UniformSampling`)."""
    n, b = check_count("num_terms", num_terms), check_count("batch", batch)
    if not replacement and b > n:
        raise ValueError(
            f"batch = {b} terms cannot be drawn without replacement from num_terms = {n}. Take at most {n}."
        )
    return float(-np.expm1(b * np.log1p(-1 / n))) if replacement and n > 1 else min(1.0, b / n)


def noise_sum(batch_sizes: Any) -> np.ndarray:
    r"""$\sum_{k<K}M_k^{-1/2}$ for $K = 1, 2, \dots$, of the numbers of draws given."""
    return np.cumsum(check_sequence("batch_sizes", batch_sizes) ** -0.5)


def table_noise(batch_sizes: Any, initial_batch: Number, probability: Number) -> np.ndarray:
    r"""$A_0, A_1, \dots$: the expected mean of $M^{-1/2}$ over the table before visit 0, after it, after the next, ...

    **Arguments:** `batch_sizes`: $M_0, M_1, \dots$, one a visit. - `initial_batch`: $M_{init}$, infinity if exact.
    """
    fresh = check_sequence("batch_sizes", batch_sizes) ** -0.5
    p, age = _check_probability(probability), np.empty(fresh.size + 1)
    if not float(initial_batch) > 0:
        raise ValueError(f"initial_batch must be positive, not {initial_batch}.")
    age[0] = float(initial_batch) ** -0.5
    for k, new in enumerate(fresh):
        age[k + 1] = (1 - p) * age[k] + p * new
    return age


def delta(
    batch_sizes: Any,
    initial_batch: Number,
    initial_gap: Number,
    smoothness: Number,
    value_noise: Number,
    probability: Number,
    *,
    markov: bool = False,
) -> np.ndarray:
    r"""$\Delta_K$ for $K = 1, \dots, V-1$, where $V$ is the number of visits in `batch_sizes`.

    **Arguments:** `initial_gap`: $L(\theta_0)-\inf L$. - `smoothness`: $L_e$, of the surrogates' error. -
    `value_noise`: $C_r$; 0 for MISO. - `markov`: whether draws may be biased, i.e. come from Markov chains.
    """
    age = table_noise(batch_sizes, initial_batch, probability)
    fresh = check_sequence("batch_sizes", batch_sizes) ** -0.5
    if fresh.size < 2:
        raise ValueError("batch_sizes must hold two visits at least: the theorem is about theta_1, theta_2, ...")
    gap, noise = check_nonnegative("initial_gap", initial_gap), check_nonnegative("value_noise", value_noise)
    ends, sums = age[2:], np.cumsum(age[1:-1])
    if markov:
        ends, sums = ends + age[1], sums + np.cumsum(fresh[1:])
    return 2 * check_positive("smoothness", smoothness) * ((gap + noise * ends) / probability + noise * sums)


def gradient_bound(
    batch_sizes: Any,
    initial_batch: Number,
    initial_gap: Number,
    smoothness: Number,
    value_noise: Number,
    probability: Number,
    *,
    markov: bool = False,
) -> np.ndarray:
    r"""$E|\nabla\hat e^R(\theta_R)|^2 \le \Delta_K/K$, $K = 1, \dots, V-1$; arguments as in `delta`."""
    total = delta(batch_sizes, initial_batch, initial_gap, smoothness, value_noise, probability, markov=markov)
    return total / np.arange(1, total.size + 1)


def stationarity_bound(
    batch_sizes: Any,
    initial_batch: Number,
    initial_gap: Number,
    smoothness: Number,
    value_noise: Number,
    gradient_noise: Number,
    probability: Number,
    *,
    markov: bool = False,
) -> np.ndarray:
    r"""$E g_-(\theta_R) \le \sqrt{\Delta_K/K}+\frac{C_{gr}}K\sum_{k=1}^KA_k$; `gradient_noise` is $C_{gr}$."""
    squared = gradient_bound(
        batch_sizes, initial_batch, initial_gap, smoothness, value_noise, probability, markov=markov
    )
    age = table_noise(batch_sizes, initial_batch, probability)[1:-1]
    count = np.arange(1, age.size + 1)
    return np.sqrt(squared) + check_nonnegative("gradient_noise", gradient_noise) * np.cumsum(age) / count


def _check_probability(probability: Number) -> float:
    value = float(probability)
    if not 0 < value <= 1:
        raise ValueError(f"probability must lie in (0, 1], not {probability}. Compute it with visit_probability.")
    return value


class Verdict(NamedTuple):
    """Whether a condition holds (None: cannot be known), and why, in words."""

    holds: bool | None
    explanation: str


def summable(schedule: Any) -> Verdict:
    r"""Theorem 2's condition, $M_k$ not decreasing and $\sum_kM_k^{-1/2} < \infty$: then $g_-(\theta_k) \to 0$ surely.

    For $M_k \sim k^a$ it holds if and only if $a > 2$; $k$ may count visits or passes, which changes the sum by the
    factor visits a pass. `schedule`: one of `provi.schedules`, whose `growth` is (a, cap).
    """
    if schedule.growth is None:
        return Verdict(
            None,
            "A function of your own: whether sum_k M_k^(-1/2) is finite cannot be seen from its values. It is if M_k "
            "does not decrease and grows faster than k^a for some a > 2.",
        )
    exponent, cap = schedule.growth
    remedy = "provi.schedules.PolynomialBatch(10, 2.5) would satisfy it"
    if cap is not None or exponent == 0:
        constant = f"stays at its cap of {cap} draws" if cap is not None else "is constant"
        return Verdict(
            False,
            f"M_k {constant}, so sum_k M_k^(-1/2) is infinite and Theorem 2 does not apply: noise remains, which more "
            f"draws make smaller but not zero (Theorem 1); {remedy}, without a cap.",
        )
    if exponent > 2:
        return Verdict(True, f"M_k grows like k^{exponent:g} and {exponent:g} > 2, so sum_k M_k^(-1/2) is finite.")
    rate = f"K^-{exponent / 4:g}" if exponent < 2 else "(log K / K)^(1/2)"
    return Verdict(
        False,
        f"M_k grows like k^{exponent:g}, so sum_k M_k^(-1/2) is infinite and Theorem 2 (convergence with probability "
        f"one) does not apply: it needs an exponent above 2; {remedy}. In expectation the mean of g_- over K visits "
        f"still tends to 0, like {rate} (Theorem 1).",
    )
