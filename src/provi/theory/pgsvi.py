r"""Proximal-gradient SVI, $\min F = f+h$: papers 000 (Theorem 1, Corollary 1) and 002 (Propositions 1-3, Theorem 1).

**Problem and assumptions:** $h$ convex on the convex set of valid parameters, $F \ge F^\star$; $\nabla f$
$L$-Lipschitz along the steps; $(w_{k+1}-w_k)^\top\nabla_1D(w_{k+1}\|w_k) \ge \alpha|w_{k+1}-w_k|^2$ at the iterates
(nothing else is asked of $D$: neither convexity nor that it be Bregman); stochastic:
$E|g_k-\nabla f(w_k)|^2 \le \sigma^2/M_k$, $\sigma^2$ the variance of ONE draw of the whole gradient (factor $N$
included).
**Method:** $w_{k+1} = \arg\min\ \langle w, g_k\rangle+h(w)+D(w\|w_k)/\beta_k$, $G_k = (w_k-w_{k+1})/\beta_k$.
**Inequalities:** $C_0 = F(w_0)-F^\star$. Exact gradient, $\beta_k \le 2\alpha/L$:
$\min_{k<t}|G_k|^2 \le C_0/\sum_k(\alpha\beta_k-L\beta_k^2/2)$.
Stochastic, $c > 1/(2\alpha)$, $\alpha_* = \alpha-1/(2c)$, $\beta_k \le 2\alpha_*/L$, $R$ drawn with weights
$\alpha_*\beta_k-L\beta_k^2/2$:
$E|G_R|^2 \le (C_0+\frac{c\sigma^2}2\sum\beta_k/M_k)/\sum(\alpha_*\beta_k-L\beta_k^2/2)$.
**Tight:** the exact bound at $t = 1$ ($f = \frac L2|w|^2$, Euclidean, $\beta = 1/L$); the stochastic one does not
vanish with constant step and batch. **Corrections:** errata 3-6, 24: the left side of 000 (19) is $E|G_R|^2$; its
Corollary's $q$ is $c$. $G_R$ holds the noise of its own step; `mapping_bound` is about the noiseless one. Proofs:
docs/theory/pgsvi.md.

**The best of several runs, chosen on fresh samples (000, section 6): the functions `two_phase_...`.**

A bound that holds with high probability.

**Problem and assumptions:** as above, with $D(\cdot\|w)$ $\alpha$-strongly convex in its first argument; $S$
independent runs, each returns $w_R$ with $E|\bar G(w_R)|^2 \le B$ (`mapping_bound`; $\bar G$ is the noiseless
step); then for each a fresh gradient of $T$ draws, $E|\delta|^2 \le \sigma^2/T$, and its step $\tilde G$.
**Method:** return the run with the smallest $|\tilde G|^2$.
**Inequality:** for $\kappa > 1$ and $\delta' > 0$, with probability at least $1-\kappa^{-S}-\delta'$,
$|\bar G|^2 \le 4\kappa B+\frac{6S\sigma^2}{\delta'\alpha^2T}$.
**Correction:** 000 calls this "linear convergence"; it is a failure probability that falls geometrically with the
number of runs, by Markov's inequality. The rate in the number of steps is that of one run. Not tight.
**Reference:** the idea of Ghadimi and Lan (2013); constants derived in docs/theory/pgsvi.md.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.theory.inputs import Counts, Curve, Number, as_curve, check_counts, check_nonnegative, check_sequence


def largest_step_size(alpha: Number, smoothness: Number) -> float:
    r"""$2\alpha/L$; half of it, $\alpha/L$, has the smallest bound of all constant steps (exact gradient)."""
    return 2 * check_positive("alpha", alpha) / check_positive("smoothness", smoothness)


def reduced_alpha(alpha: Number, young: Number) -> float:
    r"""$\alpha_* = \alpha-1/(2c)$, for $c > 1/(2\alpha)$."""
    alpha, young = check_positive("alpha", alpha), check_positive("young", young)
    if 2 * young * alpha <= 1:
        raise ValueError(
            f"young = {young:g} must be above 1/(2 alpha) = {1 / (2 * alpha):.6g}. Take young = 1/alpha, "
            f"or best_young_constant(...)."
        )
    return alpha - 1 / (2 * young)


def progress(step_sizes: Any, alpha: Number, smoothness: Number) -> np.ndarray:
    r"""$\alpha\beta_k-L\beta_k^2/2$: what one step takes off $F$ per $|G_k|^2$; with $\alpha_*$, the weights of $R$.

    Refuses steps above $2\alpha/L$ (rounding of 1e-12 forgiven).
    """
    beta, largest = check_sequence("step_sizes", step_sizes), largest_step_size(alpha, smoothness)
    if np.any(beta > largest * (1 + 1e-12)):
        raise ValueError(
            f"step_sizes must be in (0, 2 alpha/smoothness] = (0, {largest:.6g}]; the largest is {beta.max():.6g}. "
            f"Take smaller steps (with stochastic gradients alpha is alpha - 1/(2 young): a larger young allows more)."
        )
    return np.maximum(beta * (alpha - smoothness * beta / 2), 0.0)


def index_probabilities(step_sizes: Any, alpha: Number, smoothness: Number, young: Number) -> np.ndarray:
    r"""$P(R = k) \propto \alpha_*\beta_k-L\beta_k^2/2$, $k = 0, \dots, t-1$; uniform for constant steps."""
    weights = progress(step_sizes, reduced_alpha(alpha, young), smoothness)
    if not weights.sum() > 0:
        raise ValueError("step_sizes are all 2 alpha_*/smoothness: make at least one of them smaller.")
    return weights / weights.sum()


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    # Nothing is claimed while every step so far was the largest allowed one.
    return np.divide(numerator, denominator, out=np.full(denominator.shape, np.inf), where=denominator > 0)


def exact_bound(step_sizes: Any, initial_gap: Number, alpha: Number, smoothness: Number) -> np.ndarray:
    r"""Proposition 2: the bound of $\min_{k<t}|G_k|^2$ after each of $t = 1, 2, \dots$ steps, exact gradient."""
    total = np.cumsum(progress(step_sizes, alpha, smoothness))
    return _divide(np.full(total.shape, check_nonnegative("initial_gap", initial_gap)), total)


def constant_step_bound(num_steps: Counts, initial_gap: Number, alpha: Number, smoothness: Number) -> Curve:
    r"""Proposition 1: $2LC_0/(\alpha^2t)$, exact gradient, $\beta = \alpha/L$."""
    steps, gap = check_counts("num_steps", num_steps), check_nonnegative("initial_gap", initial_gap)
    alpha, smoothness = check_positive("alpha", alpha), check_positive("smoothness", smoothness)
    return as_curve(2 * smoothness * gap / (alpha**2 * steps))


def _check_batches(step_sizes: Any, batch_sizes: Any) -> tuple[np.ndarray, np.ndarray]:
    beta, batch = check_sequence("step_sizes", step_sizes), check_sequence("batch_sizes", batch_sizes)
    if beta.shape != batch.shape:
        raise ValueError(f"batch_sizes has {batch.size} entries and step_sizes {beta.size}: give one of each a step.")
    return beta, batch


def stochastic_bound(
    step_sizes: Any,
    batch_sizes: Any,
    initial_gap: Number,
    alpha: Number,
    smoothness: Number,
    variance: Number,
    young: Number,
) -> np.ndarray:
    r"""Theorem 1: the bound of $E|G_R|^2$ after each of $t = 1, 2, \dots$ steps; $R$ drawn among those $t$.

    **Arguments:**

    - `step_sizes`, `batch_sizes`: $\beta_k \le 2\alpha_*/L$ and $M_k$, one a step.
    - `initial_gap`: $F(w_0)-F^\star$ or an upper bound of it.
    - `variance`: $\sigma^2$ of ONE draw. Unbiasedness is not used, so a bias may be counted in it.
    - `young`: $c > 1/(2\alpha)$; a free choice, see `best_young_constant`.
    """
    beta, batch = _check_batches(step_sizes, batch_sizes)
    gap, variance = check_nonnegative("initial_gap", initial_gap), check_nonnegative("variance", variance)
    total = np.cumsum(progress(beta, reduced_alpha(alpha, young), smoothness))
    return _divide(gap + young * variance / 2 * np.cumsum(beta / batch), total)


def constant_stochastic_bound(
    num_steps: Counts,
    batch_size: Number,
    initial_gap: Number,
    alpha: Number,
    smoothness: Number,
    variance: Number,
    young: Number,
) -> Curve:
    r"""Proposition 3: $2LC_0/(\alpha_*^2t)+c\sigma^2/(M\alpha_*)$, $\beta = \alpha_*/L$; $R$ uniform.

    The second term stays: a neighbourhood, not a limit. It is smallest at $c = 1/\alpha$: $2\sigma^2/(M\alpha^2)$.
    """
    reduced, batch = reduced_alpha(alpha, young), check_positive("batch_size", batch_size)
    floor = young * check_nonnegative("variance", variance) / (batch * reduced)
    return as_curve(constant_step_bound(num_steps, initial_gap, reduced, smoothness) + floor)


def best_young_constant(
    step_sizes: Any, batch_sizes: Any, initial_gap: Number, alpha: Number, smoothness: Number, variance: Number
) -> float:
    r"""The $c$ with the smallest bound of Theorem 1 after all the steps given, among those that allow these steps.

    With $a = \frac{\sigma^2}2\sum\beta_k/M_k$, $S = \sum\beta_k$, $P = \sum(\alpha\beta_k-L\beta_k^2/2)$ the bound is
    $(C_0c+ac^2)/(Pc-S/2)$, least at $c = (aS+\sqrt{a^2S^2+2aPC_0S})/(2aP)$; it falls before that point and rises after
    it, so the condition $c \ge 1/(2\alpha-L\max\beta)$ only cuts. Infinite without noise.
    """
    beta, batch = _check_batches(step_sizes, batch_sizes)
    gap, variance = check_nonnegative("initial_gap", initial_gap), check_nonnegative("variance", variance)
    total, length = float(progress(beta, alpha, smoothness).sum()), float(beta.sum())
    room = 2 * alpha - smoothness * float(beta.max())
    if room <= 0:
        raise ValueError("step_sizes must stay below 2 alpha/smoothness: no young constant allows them. Shrink them.")
    noise = variance / 2 * float((beta / batch).sum())
    if noise == 0:
        return np.inf
    root = np.sqrt((noise * length) ** 2 + 2 * noise * total * gap * length)
    return max((noise * length + root) / (2 * noise * total), 1 / room)


def unbiased_bound(
    step_sizes: Any, batch_sizes: Any, initial_gap: Number, alpha: Number, smoothness: Number, variance: Number
) -> np.ndarray:
    r"""**Ours:** $E|G_R|^2 \le (C_0+\frac{\sigma^2}\alpha\sum\beta_k/M_k)/\sum(\alpha\beta_k-L\beta_k^2/2)$.

    For unbiased gradients and $D(\cdot\|w)$ $\alpha$-strongly convex in its first argument (a Bregman divergence of an
    $\alpha$-strongly convex function is; the papers' condition is weaker). $\beta_k \le 2\alpha/L$, weights of $R$
    with $\alpha$ in place of $\alpha_*$. At $\beta = \alpha/L$: $2LC_0/(\alpha^2t)+2\sigma^2/(\alpha^2M)$, the floor of
    Proposition 3 with the best $c$ and a quarter of its first term (Ghadimi, Lan and Zhang 2014, for general $D$).
    """
    beta, batch = _check_batches(step_sizes, batch_sizes)
    gap, variance = check_nonnegative("initial_gap", initial_gap), check_nonnegative("variance", variance)
    total = np.cumsum(progress(beta, alpha, smoothness))
    return _divide(gap + variance / alpha * np.cumsum(beta / batch), total)


def mapping_bound(noisy_bound: Any, weights: Any, batch_sizes: Any, alpha: Number, variance: Number) -> float:
    r"""$E|\bar G_R|^2 \le 2E|G_R|^2+\frac{2\sigma^2}{\alpha^2}E\frac1{M_R}$, $\bar G_R$ the noiseless step at $w_R$.

    Needs $D(\cdot\|w)$ $\alpha$-strongly convex, so that the step is $\beta/\alpha$-Lipschitz in the gradient.
    `weights`: those of $R$, as `progress` gives them; `noisy_bound`: the bound of $E|G_R|^2$.
    """
    draw, batch = np.asarray(weights, dtype=np.float64), check_sequence("batch_sizes", batch_sizes)
    if draw.shape != batch.shape:
        raise ValueError(f"weights has shape {draw.shape} and batch_sizes {batch.shape}: give one of each a step.")
    noise = check_nonnegative("variance", variance) / check_positive("alpha", alpha) ** 2
    return float(2 * check_nonnegative("noisy_bound", noisy_bound) + 2 * noise * (draw / batch).sum() / draw.sum())


def guarantee_report(
    step_sizes: Any,
    step_lengths: Any,
    initial_gap: Number,
    alpha: Number,
    smoothness: Number,
    measured_alpha: Any,
    measured_smoothness: Any,
) -> str:
    r"""A table: assumed beside measured $\alpha$ and $L$, Proposition 2 beside the measured $\min|G_k|^2$.

    Measured: $\min_k\alpha_k$ and $\max_kL_k$ over the steps. A measured $\alpha$ below the assumed one, or an $L$
    above, refutes the assumption; agreement does not prove it ($L_k$ compares the two ends of a step only). What is
    not finite in the measurements is left out, and so are steps not taken (length NaN): they leave F as it was.
    """
    lengths = np.asarray(step_lengths, dtype=np.float64)
    taken = np.isfinite(lengths)
    if not taken.any():
        raise ValueError("step_lengths holds no finite number: no step was taken, so there is nothing to report.")
    sizes = np.broadcast_to(np.asarray(step_sizes, dtype=np.float64), lengths.shape)[taken]
    bound = exact_bound(sizes, initial_gap, alpha, smoothness)[-1]
    seen_alpha = np.asarray(measured_alpha, dtype=np.float64)
    seen_smoothness = np.asarray(measured_smoothness, dtype=np.float64)
    worst_alpha = np.min(seen_alpha, where=np.isfinite(seen_alpha), initial=np.inf)
    worst_smoothness = np.max(seen_smoothness, where=np.isfinite(seen_smoothness), initial=0.0)
    smallest = float((lengths[taken] ** 2).min())
    slack = 1 + 1e-9  # rounding of the measurements
    rows = [
        ("alpha (at least)", alpha, worst_alpha, worst_alpha * slack >= alpha),
        ("L (at most)", smoothness, worst_smoothness, worst_smoothness <= smoothness * slack),
        ("min |G|^2 (at most)", bound, smallest, smallest <= bound * slack),
    ]
    lines = [f"{sizes.size} steps, exact gradient", f"{'':20}{'assumed/bound':>15}{'measured':>15}  agrees"]
    lines += [f"{name:20}{left:15.6g}{right:15.6g}  {'yes' if ok else 'NO'}" for name, left, right, ok in rows]
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class TwoPhasePlan:
    """`num_runs` runs and `num_draws` fresh draws for each; then |G|^2 <= `level` except with `failure_probability`."""

    num_runs: int
    num_draws: int
    level: float
    failure_probability: float


def two_phase_level(
    num_runs: int,
    num_draws: int,
    mapping_bound: Number,
    alpha: Number,
    variance: Number,
    failure: Number,
    ratio: Number = 2.0,
) -> float:
    r"""$4\kappa B+6S\sigma^2/(\delta'\alpha^2T)$; fails with probability at most $\kappa^{-S}+\delta'$."""
    noise = check_nonnegative("variance", variance) / check_positive("alpha", alpha) ** 2
    runs, draws = check_count("num_runs", num_runs), check_count("num_draws", num_draws)
    if not ratio > 1:
        raise ValueError(f"ratio must be above 1, not {ratio}: Markov's inequality says nothing otherwise. Take 2.")
    selection = 6 * runs * noise / (check_positive("failure", failure) * draws)
    return 4 * ratio * check_nonnegative("mapping_bound", mapping_bound) + selection


def two_phase_plan(
    failure_probability: Number, mapping_bound: Number, alpha: Number, variance: Number, ratio: Number = 2.0
) -> TwoPhasePlan:
    r"""Runs and fresh draws for a failure probability $\delta$, half of it for each of the two events.

    $S = \lceil\log(2/\delta)/\log\kappa\rceil$; $T$ is the smallest with which the second term is at most a quarter of
    the first, so that the level is at most $5\kappa B$.
    """
    delta = check_positive("failure_probability", failure_probability)
    if delta >= 1:
        raise ValueError(f"failure_probability must be below 1, not {failure_probability}.")
    if not ratio > 1:
        raise ValueError(f"ratio must be above 1, not {ratio}: Markov's inequality says nothing otherwise. Take 2.")
    target = check_positive("mapping_bound", mapping_bound)
    num_runs = max(1, math.ceil(math.log(2 / delta) / math.log(ratio)))
    noise = check_nonnegative("variance", variance) / check_positive("alpha", alpha) ** 2
    num_draws = max(1, math.ceil(6 * num_runs * noise / (delta / 2 * ratio * target)))
    reached = two_phase_level(num_runs, num_draws, target, alpha, variance, delta / 2, ratio)
    return TwoPhasePlan(num_runs, num_draws, reached, delta)
