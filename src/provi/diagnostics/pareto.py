"""The tail of importance weights: Pareto k-hat, and what it means in words."""

import math
from typing import Any

import numpy as np

from provi.core.arguments import as_array

GOOD_K, USABLE_K = 0.5, 0.7
"""Vehtari, Simpson, Gelman, Yao and Gabry (2024): below 1/2 the weights have a variance; above 0.7 no number of
draws that one can afford is enough."""

SMALL_ERROR = 0.1
"""A total variation up to which q may be used as it is."""

FEWEST_WEIGHTS = 25
"""The tail is the largest fifth of a small sample, and its fit takes five of them."""


def pareto_k(log_weights: np.ndarray) -> float:
    """The shape k-hat of the generalised Pareto law fitted to the largest weights, by arviz-stats.

    Minus infinity for weights that are all equal; NaN where ties among the largest leave no tail to fit.

    **Arguments:**

    - `log_weights`: log p(z) - log q(z), one for each draw z of q; minus infinity where p is zero; 25 or more.
    """
    try:
        from arviz_stats.base.array import array_stats
    except ImportError:
        raise ImportError("Pareto k-hat needs arviz-stats 0.7 or later: pip install 'provi[arviz]'.") from None
    values = np.asarray(log_weights, np.float64)
    if values.ndim != 1 or len(values) < FEWEST_WEIGHTS:
        raise ValueError(f"log_weights must be a vector of {FEWEST_WEIGHTS} or more; its shape is {values.shape}.")
    positive = as_array("log_weights", values[values != -np.inf])
    if len(positive) == len(values) and np.ptp(positive) <= 1e-9:
        return -math.inf
    try:
        with np.errstate(all="ignore"):
            # The weights themselves: arviz-stats 0.8 ignores `log_weights=True` here, and its `psislw` takes log
            # likelihoods, the negatives of log weights.
            weights = np.exp(values - positive.max())
            fitted: Any = array_stats.pareto_khat(weights, chain_axis=None, r_eff=1.0, tail="right")  # pyright: ignore
    except ValueError:  # the weights in the tail are all the same
        return math.nan
    return float(fitted) if np.isfinite(fitted) else math.nan


def usable_k(num_draws: int) -> float:
    """The k-hat from which `num_draws` weights are of no use: 0.7, less with few draws, where it is 1 - 1/log10 S."""
    return min(USABLE_K, 1 - 1 / math.log10(num_draws))


def tail_advice(tail: float | None, num_draws: int, total_variation: float = 1.0) -> str:
    """What k-hat of `num_draws` weights, and the total variation by the same draws, say of q, and what to do next.

    k-hat is about the tail of the weights, however thin: a Poisson regression with many data has a k-hat of 0.9 and a
    posterior that no probability tells from q by more than 0.02. So both are needed.
    """
    usable = usable_k(num_draws)
    if tail is None:
        return "Pareto k-hat was not computed, so it is not known whether the importance weights can be trusted."
    if math.isnan(tail):
        return "Pareto k-hat could not be fitted: too many of the largest weights are equal. Take more draws."
    error = f"by these draws, no posterior probability is off by more than {total_variation:.2g}"
    if tail < min(GOOD_K, usable):
        if total_variation <= SMALL_ERROR:
            return f"k-hat {tail:.2f}: good. q covers the posterior; {error}."
        return (
            f"k-hat {tail:.2f}: q covers the posterior, but is not close to it: probabilities may be off by "
            f"{total_variation:.2g}. Correct them and means by the importance weights, or take a richer family."
        )
    if total_variation <= SMALL_ERROR:
        return (
            f"k-hat {tail:.2f}: rare draws have large weights, so do not reweight; but what q misses is thin: {error}."
        )
    if tail < usable:
        return (
            f"k-hat {tail:.2f}: usable. Probabilities under q may be off by {total_variation:.2g}: correct means and "
            f"probabilities by the importance weights (fit.loo() does), and take several times as many draws, as the "
            f"weights may have no variance."
        )
    return (
        f"k-hat {tail:.2f}, above {usable:.2f}: q misses part of the posterior; its means and standard deviations, "
        f"log_evidence and kl_estimate cannot be trusted. The certified gap is to the best member of the family, not "
        f"to the posterior. Next: reparameterise the model (hierarchical ones non-centred, scales by their "
        f"logarithm); take a richer family (scale='triangular' instead of 'diagonal', base=StudentT(5)); or run NUTS, "
        f"started from draws of this fit."
    )
