r"""A heuristic stop where nothing can be proven: are the iterates stationary, and is their average precise enough?

Stage one: split $\hat R$ over the last half of the recorded iterates: cut in two, the variance between the halves'
means against that within them. Stage two: the Monte-Carlo error of their average by batch means, in units of q,
$\tfrac12\sum_j(\mathrm{mcse}_j/\mathrm{sd}_j)^2$ nats for the location. Neither proves anything: a method that is stuck
looks stationary too. Two-stage rules of this kind: Dhaka et al. (2020), "Robust, accurate stochastic optimization for
variational inference".
"""

import math

import numpy as np

SMALLEST_RECORD, LARGEST_SPLIT_RHAT, _NUM_BATCHES = 40, 1.1, 10


class StationarityRule:
    """Collects iterates; `stationary(tol)` answers from the last half of them."""

    def __init__(self) -> None:
        self.iterates: list[np.ndarray] = []
        self.deviations: list[np.ndarray] = []

    def record(self, loc: np.ndarray, deviation: np.ndarray) -> None:
        """One iterate: its location and the standard deviations of q."""
        self.iterates.append(np.concatenate([loc, np.log(deviation)]))
        self.deviations.append(deviation)

    def stationary(self, tol: float) -> bool:
        """Both stages hold; never before 40 iterates."""
        if len(self.iterates) < SMALLEST_RECORD:
            return False
        chain = np.stack(self.iterates[len(self.iterates) // 2 :])
        return split_rhat(chain) <= LARGEST_SPLIT_RHAT and average_error(chain, self.deviations[-1]) <= tol


def split_rhat(chain: np.ndarray) -> float:
    """The largest split R-hat over the columns of one chain, (steps, quantities); 1 for constant columns."""
    half = len(chain) // 2
    halves = np.stack([chain[:half], chain[-half:]])
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = half * halves.mean(axis=1).var(axis=0, ddof=1)
    constant = between <= 1e-24 * (1 + np.abs(chain).max(axis=0)) ** 2
    ratio = (half - 1) / half + between / (half * np.where(within > 0, within, np.inf))
    ratio = np.where((within > 0) | constant, ratio, np.inf)
    return math.sqrt(float(np.where(constant, 1.0, ratio).max()))


def average_error(chain: np.ndarray, deviation: np.ndarray) -> float:
    """Half the squared error of the average location in units of q, plus that of the log deviations; nats."""
    batches = np.array_split(chain, _NUM_BATCHES)
    means = np.stack([batch.mean(axis=0) for batch in batches])
    squared = means.var(axis=0, ddof=1) / _NUM_BATCHES
    dim = len(deviation)
    return float(0.5 * np.sum(squared[:dim] / deviation**2) + np.sum(squared[dim:]))
