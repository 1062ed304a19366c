"""The tail of importance weights: Pareto k-hat, and what it means in words."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from provi.core.arguments import as_array

GOOD_K, USABLE_K = 0.5, 0.7
"""Vehtari, Simpson, Gelman, Yao and Gabry (2024): below 1/2 the weights have a variance; above 0.7 no number of
draws that one can afford is enough."""

SMALL_ERROR = 0.1
"""A total variation up to which q may be used as it is."""

FEWEST_WEIGHTS = 25
"""The tail is the largest fifth of a small sample, and its fit takes five of them."""


_COLUMNS_AT_ONCE = 256
_PRIOR_WEIGHT, _PRIOR_SHAPE = 10, 0.5
"""Vehtari et al. (2024), appendix C: as if ten more values had been seen, of shape 1/2."""


def pareto_k(log_weights: np.ndarray) -> float:
    """The shape k-hat of the generalised Pareto law fitted to the largest weights.

    Minus infinity for weights that are all equal; NaN where ties among the largest leave no tail to fit.

    **Arguments:**

    - `log_weights`: log p(z) - log q(z), one for each draw z of q; minus infinity where p is zero; 25 or more.
    """
    values = np.asarray(log_weights, np.float64)
    if values.ndim != 1 or len(values) < FEWEST_WEIGHTS:
        raise ValueError(f"log_weights must be a vector of {FEWEST_WEIGHTS} or more; its shape is {values.shape}.")
    positive = as_array("log_weights", values[values != -np.inf])
    if len(positive) == len(values) and np.ptp(positive) <= 1e-9:
        return -math.inf
    ordered = np.sort(values - positive.max())
    return fit_tail(ordered, _tail_size(len(values)))[0]


def smoothed_log_weights(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Normalised log weights, their largest replaced by quantiles of the fitted Pareto law, and its shape k-hat.

    Plain, with the k-hat minus infinity for weights that are all equal, and NaN where no tail can be fitted.
    """
    plain = log_weights - logsumexp(log_weights)
    if np.ptp(plain) <= 1e-9:
        return plain, -math.inf
    size, values = _tail_size(len(log_weights)), log_weights - log_weights.max()
    order = np.argsort(values)
    shape, scale = fit_tail(values[order], size)
    if math.isnan(shape):
        return plain, math.nan
    tail, levels = order[-size:], (np.arange(size) + 0.5) / size
    with np.errstate(all="ignore"):
        rate = -np.log1p(-levels)
        excess = scale * (np.expm1(shape * rate) / shape if shape else rate)
        # No weight becomes larger than the largest one.
        values[tail] = np.minimum(np.log(np.exp(values[order[-size - 1]]) + excess), 0.0)
    if np.isnan(values).any():
        return plain, math.nan
    return values - logsumexp(values), shape


def pareto_tails(log_weights: np.ndarray) -> np.ndarray:
    """`pareto_k` of each column of log weights (S, N), all columns at once."""
    size, found = _tail_size(len(log_weights)), np.empty(log_weights.shape[1])
    for start in range(0, log_weights.shape[1], _COLUMNS_AT_ONCE):
        some = log_weights[:, start : start + _COLUMNS_AT_ONCE]
        # The largest ones and the next alone are put in order.
        tail = np.sort(np.partition(some, len(some) - size - 1, axis=0)[len(some) - size - 1 :], axis=0)
        equal = np.ptp(some, axis=0) <= 1e-9
        found[start : start + some.shape[1]] = np.where(equal, -np.inf, _fit_tails(tail - tail[-1], size)[0])
    return found


@dataclasses.dataclass(frozen=True)
class WeighedMoments:
    r"""Means and standard deviations of some quantities x by weighted draws, and whether each is to be trusted.

    - `mean`, `deviation`: $m = \sum_s w_s x_s$, and the root of $\sum_s w_s (x_s - m)^2$.
    - `mean_error`: the standard error of m over the deviation; `deviation_error`: that of the deviation over itself,
      $\frac 12 (\sum_s w_s^2 ((x_s - m)^2/v - 1)^2)^{1/2}$, by the delta method.
    - `tail`: k-hat of $w (x - m)^2$, whose sum the variance is: weights that are harmless where most draws are may
      still rest the variance of one parameter on a few (Vehtari et al. 2024, on k-hat of a function).
    """

    mean: np.ndarray
    deviation: np.ndarray
    mean_error: np.ndarray
    deviation_error: np.ndarray
    tail: np.ndarray

    def doubtful(self, num_draws: int) -> np.ndarray:
        """Which of them are not known to a tenth: by two standard errors, or by five where the tail is heavy.

        With a k-hat from 0.7 on a standard error is itself an estimate from few draws, and too low.
        """
        errors = np.maximum(self.mean_error, self.deviation_error)
        times = np.where(self.tail >= usable_k(num_draws), 5.0, 2.0)
        return ~(times * errors <= SMALL_ERROR)

    def discrepancy(self, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
        """How far other means, in deviations, and deviations, as |log ratio|, are from these; 0 within three errors."""
        with np.errstate(all="ignore"):
            shift = np.abs(mean - self.mean) / self.deviation
            stretch = np.abs(np.log(deviation / self.deviation))
        parts = [np.where(part > 3 * error, part, 0.0) for part, error in
                 ((shift, self.mean_error), (stretch, self.deviation_error))]  # fmt: skip
        return np.nan_to_num(np.maximum(*parts), nan=0.0)


def weighed_moments(values: np.ndarray, weights: np.ndarray) -> WeighedMoments:
    """Moments of each column of `values` (S, N) by normalised `weights` (S); what does not vary counts as known."""
    with np.errstate(all="ignore"):
        mean = weights @ values
        squares = (values - mean) ** 2
        variance = weights @ squares
        fixed = ~(variance > 1e-24 * (1 + mean**2))
        mean_error = np.sqrt(weights**2 @ squares / variance)
        deviation_error = np.sqrt(weights**2 @ (squares / variance - 1) ** 2) / 2
        tail = pareto_tails(np.log(weights)[:, None] + np.log(np.where(fixed, 1.0, squares)))
        # Of S terms with a tail of shape k the largest is about S^(k - 1) of their sum. Where it is less than for 1/2
        # there is no heavy tail, whatever a law fitted to it says: two clusters, for instance, are no Pareto law.
        largest = (weights[:, None] * squares).max(axis=0) / variance
        tail = np.where(largest <= len(weights) ** -0.5, np.minimum(tail, GOOD_K), tail)
    known = [np.where(fixed, 0.0, part) for part in (mean_error, deviation_error, np.nan_to_num(tail, nan=-np.inf))]
    return WeighedMoments(mean, np.sqrt(variance), *known)


def fit_tail(ordered: np.ndarray, size: int) -> tuple[float, float]:
    r"""Shape k and scale s of the generalised Pareto law of the `size` largest weights beyond the next one.

    $P(w - c > x) = (1 + k x / s)^{-1/k}$. The estimate of Zhang and Stephens (2009): with $b = -k/s$ the likelihood
    has $k(b) = \frac 1n \sum_i \log(1 - b x_i)$ in closed form, and b is its mean under the profile likelihood
    $n(\log(-b/k(b)) - k(b) - 1)$ on a rule of $30 + \sqrt n$ points; then k is drawn to 1/2 (Vehtari et al. 2024).

    **Arguments:**

    - `ordered`: log weights, ascending, the last 0.

    **Returns:** NaN twice where the tail is of equal weights.
    """
    shape, scale = _fit_tails(ordered[:, None], size)
    return float(shape[0]), float(scale[0])


def _fit_tails(ordered: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """`fit_tail` of each column."""
    with np.errstate(all="ignore"):
        excess = (np.exp(ordered[-size:]) - np.exp(ordered[-size - 1])).T
        count = 30 + int(size**0.5)
        rule = 1 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))
        rule = rule / (3 * excess[:, int(size / 4 + 0.5) - 1, None]) + 1 / excess[:, -1:]
        shapes = np.log1p(-rule[:, :, None] * excess[:, None, :]).mean(axis=2)
        profile = size * (np.log(-rule / shapes) - shapes - 1)
        weights = np.exp(profile - profile.max(axis=1, keepdims=True))
        weights[weights < 10 * np.finfo(float).eps * weights.sum(axis=1, keepdims=True)] = 0.0
        slope = (weights * rule).sum(axis=1) / weights.sum(axis=1)
        shape = np.log1p(-slope[:, None] * excess).mean(axis=1)
        scale = -shape / slope
        shape = (size * shape + _PRIOR_WEIGHT * _PRIOR_SHAPE) / (size + _PRIOR_WEIGHT)
    known = np.isfinite(shape) & (scale > 0) & (ordered[-1] != ordered[-size])
    return np.where(known, shape, np.nan), np.where(known, scale, np.nan)


def _tail_size(number: int) -> int:
    """Three square roots of the number of weights, or a fifth of them where they are few."""
    return int(3 * number**0.5) if number > 225 else number // 5


def usable_k(num_draws: int) -> float:
    """The k-hat from which `num_draws` weights are of no use: 0.7, less with few draws, where it is 1 - 1/log10 S."""
    return min(USABLE_K, 1 - 1 / math.log10(num_draws))


def tail_advice(
    tail: float,
    num_draws: int,
    total_variation: float = 1.0,
    *,
    searched: bool = False,
    missed: float = 0.0,
    hints: Sequence[str] = (),
) -> str:
    """What k-hat of `num_draws` weights, and the total variation by the same draws, say of q, and what to do next.

    k-hat is about the tail of the weights, however thin: a Poisson regression with many data has a k-hat of 0.9 and a
    posterior that no probability tells from q by more than 0.02. So both are needed.

    **Arguments:**

    - `searched`: whether something was tried that could have shown that q does not cover the posterior: its draws do
      not see what is far from them. The target is log-concave, or modes were searched for.
    - `missed`: the share of the evidence at modes that q does not reach. - `hints`: what to do, each a call in words.
    """
    usable = usable_k(num_draws)
    following = f" Next: {'; or '.join(hints)}." if hints else ""
    if missed > SMALL_ERROR / 10:
        lost = f"about {missed:.2g} of the evidence is at modes that q does not reach (fit.modes; an estimate)"
        if missed <= SMALL_ERROR:
            return f"k-hat {tail:.2f} where q is; {lost}, and no draw of q sees it.{following}"
        return f"q covers one mode, with k-hat {tail:.2f} there, and misses others: {lost}.{following}"
    if math.isnan(tail):
        return "Pareto k-hat could not be fitted: too many of the largest weights are equal. Take more draws."
    error = f"by these draws, no posterior probability is off by more than {total_variation:.2g}"
    covers = "q covers the posterior" if searched else "Other modes were not looked for"
    if tail < min(GOOD_K, usable):
        if total_variation <= SMALL_ERROR:
            return f"k-hat {tail:.2f}: good. {covers}; {error}."
        return (
            f"k-hat {tail:.2f}: {covers}, but q is not close to the posterior: probabilities may be off by "
            f"{total_variation:.2g}.{following}"
        )
    if total_variation <= SMALL_ERROR:
        return (
            f"k-hat {tail:.2f}: rare draws have large weights, so do not reweight; but what q misses is thin: {error}."
        )
    if tail < usable:
        return f"k-hat {tail:.2f}: usable. Probabilities under q may be off by {total_variation:.2g}.{following}"
    return (
        f"k-hat {tail:.2f}, above {usable:.2f}: q misses part of the posterior; its means and standard deviations, "
        f"log_evidence and kl_estimate cannot be trusted. The certified gap is to the best member of the family, not "
        f"to the posterior.{following}"
    )
