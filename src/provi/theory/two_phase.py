r"""The best of several runs, chosen on fresh samples: a bound that holds with high probability (000, section 6).

**Problem and assumptions:** as in `pgsvi`, with $D(\cdot\|w)$ $\alpha$-strongly convex in its first argument; $S$
independent runs, each returns $w_R$ with $E|\bar G(w_R)|^2 \le B$ (`pgsvi.mapping_bound`; $\bar G$ is the noiseless
step); then for each a fresh gradient of $T$ draws, $E|\delta|^2 \le \sigma^2/T$, and its step $\tilde G$.
**Method:** return the run with the smallest $|\tilde G|^2$.
**Inequality:** for $\kappa > 1$ and $\delta' > 0$, with probability at least $1-\kappa^{-S}-\delta'$,
$|\bar G|^2 \le 4\kappa B+\frac{6S\sigma^2}{\delta'\alpha^2T}$.
**Correction:** 000 calls this "linear convergence"; it is a failure probability that falls geometrically with the
number of runs, by Markov's inequality. The rate in the number of steps is that of `pgsvi`. Not tight.
**Reference:** the idea of Ghadimi and Lan (2013); constants derived in docs/theory/pgsvi.md.
"""

import dataclasses
import math

from provi.core.arguments import check_count, check_positive
from provi.theory.inputs import Number, check_nonnegative


@dataclasses.dataclass(frozen=True)
class TwoPhasePlan:
    """`num_runs` runs and `num_draws` fresh draws for each; then |G|^2 <= `level` except with `failure_probability`."""

    num_runs: int
    num_draws: int
    level: float
    failure_probability: float


def level(
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


def plan(
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
    reached = level(num_runs, num_draws, target, alpha, variance, delta / 2, ratio)
    return TwoPhasePlan(num_runs, num_draws, reached, delta)
