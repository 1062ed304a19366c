r"""Mini-batch projected SGD with changing steps and batches: paper 004, Theorem 7.

**Problem and assumptions:** as in `mpsgd`. **Method:**
$w_{k+1} = \mathrm{proj}(w_k-\gamma_k\Lambda g_{N_k}(w_k))$ with $\gamma_k \le 1/(2M)$ (where $N_k > 1$);
the average of $w_0, \dots, w_{K-1}$ with weights $\gamma_k\alpha_{k+1}$,
$\alpha_k = \prod_{i<k}(1+a\gamma_i^2/N_i)^{-1}$.
**Inequality:**
$E f(\bar w_K)-f^\star \le \frac{D+b\sum_k\gamma_k^2\alpha_{k+1}/N_k}{2\sum_k\gamma_k\alpha_{k+1}}$
(`bound`), at most the printed $\frac{D+b/a}{2\sum_k\gamma_k\exp(-a\sum_{i\le k}\gamma_i^2/N_i)}$
(`printed_bound`). If $\sum\gamma_k^2/N_k < \infty$, then $\sum\gamma_k(f(w_k)-f^\star) < \infty$ almost
surely (`summable`).
**Correction:** the step limit of the paper is $1/L$ with $L = 2M$; its proof needs the key lemma of `mpsgd`.
"""

import dataclasses

import numpy as np

from provi.core.arguments import check_positive
from provi.theory.inputs import Number, check_nonnegative, check_sequence
from provi.theory.noise import NoiseBound


def _sequences(
    step_sizes: np.ndarray | list[float], num_draws: np.ndarray | list[int]
) -> tuple[np.ndarray, np.ndarray]:
    gamma, draws = check_sequence("step_sizes", step_sizes), check_sequence("num_draws", num_draws)
    if gamma.shape != draws.shape:
        raise ValueError(f"num_draws has {draws.size} entries and step_sizes {gamma.size}: give one of each a step.")
    if np.any(draws != np.floor(draws)):
        raise ValueError("num_draws must hold whole numbers; round them up.")
    return gamma, draws


def averaging_weights(
    step_sizes: np.ndarray | list[float], num_draws: np.ndarray | list[int], noise_slope: Number
) -> np.ndarray:
    r"""$\gamma_k\alpha_{k+1}$, not normalised: the prefix of length $K$ is that of a run of $K$ steps."""
    gamma, draws = _sequences(step_sizes, num_draws)
    slope = check_nonnegative("noise_slope", noise_slope)
    return gamma * np.exp(-np.cumsum(np.log1p(slope * gamma**2 / draws)))


def bound(
    step_sizes: np.ndarray | list[float],
    num_draws: np.ndarray | list[int],
    initial_distance_squared: Number,
    noise: NoiseBound,
) -> np.ndarray:
    r"""The bound after each of $K = 1, 2, \dots$ steps, the sharper line of the proof.

    **Arguments:**

    - `step_sizes`, `num_draws`: $\gamma_k$ and $N_k$, one a step. The caller keeps $\gamma_k \le 1/(2M)$.
    - `initial_distance_squared`: $D = |w_0-w^\star|^2$ in the norm of $\Lambda^{-1}$.
    - `noise`: of ONE draw, in the norms of $\Lambda$.

    **Returns:** entry $K-1$ bounds $E f(\bar w_K)-f^\star$.
    """
    gamma, draws = _sequences(step_sizes, num_draws)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    weights = averaging_weights(gamma, draws, noise.slope)
    return (start + noise.floor * np.cumsum(gamma / draws * weights)) / (2 * np.cumsum(weights))


def printed_bound(
    step_sizes: np.ndarray | list[float],
    num_draws: np.ndarray | list[int],
    initial_distance_squared: Number,
    noise: NoiseBound,
) -> np.ndarray:
    r"""The bound as Theorem 7 prints it, after each of $K = 1, 2, \dots$ steps. Never below `bound`."""
    gamma, draws = _sequences(step_sizes, num_draws)
    start = check_nonnegative("initial_distance_squared", initial_distance_squared)
    slope = check_positive("noise.slope", noise.slope)
    with np.errstate(divide="ignore"):
        weights = gamma * np.exp(-slope * np.cumsum(gamma**2 / draws))
        return (start + noise.floor / slope) / (2 * np.cumsum(weights))


@dataclasses.dataclass(frozen=True)
class Summability:
    """Whether a pair of schedules meets the condition of almost-sure convergence, and its rate then."""

    holds: bool
    reason: str
    rate_exponent: float
    """The best gap falls as (gradient evaluations)^(-rate_exponent); 0 where no power is guaranteed."""


def summable(step_exponent: Number, batch_exponent: Number) -> Summability:
    r"""Whether $\sum\gamma_k^2/N_k < \infty$ for $\gamma_k \sim k^{-p}$, $N_k \sim k^s$: when $2p+s > 1$.

    Then $\min_k f(w_k)-f^\star = O(1/\sum\gamma_k)$ almost surely, $\sum_{k\le K}\gamma_k \sim K^{1-p}$
    ($p < 1$) and $E = \sum N_k \sim K^{1+s}$: the rate is $E^{-(1-p)/(1+s)}$ (Appendix F; always slower
    than $E^{-1/2}$).
    """
    p = check_nonnegative("step_exponent", step_exponent)
    s = check_nonnegative("batch_exponent", batch_exponent)
    total = 2 * p + s
    if total <= 1:
        return Summability(False, f"sum step^2/batch diverges: 2 p + s = {total:g} is not above 1.", 0.0)
    if p > 1:
        return Summability(True, f"sum step^2/batch is finite, but so is sum step (p = {p:g} > 1): no rate.", 0.0)
    if p == 1:
        return Summability(True, "sum step^2/batch is finite; sum step grows as log K: rate 1/log E.", 0.0)
    rate = (1 - p) / (1 + s)
    return Summability(True, f"sum step^2/batch is finite: 2 p + s = {total:g} > 1; rate E^-{rate:.4g}.", rate)
