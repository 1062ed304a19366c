r"""A tighter bracket of the evidence, on request: draws in groups, each with its own best translation.

`dual_bound` gives away the odd part of $\phi^*$, since the point z of Santaló's inequality is not known. But
$\log Z \le d\log2\pi - \min_z\log\int e^{\langle z, s\rangle - \phi^*(s)}ds$, and for a group of K pairs of draws

$$E\min_z\log\frac1{2K}\sum_{k,\pm}e^{\pm\langle z, u_k\rangle - f^*(\pm u_k) + |u_k|^2/2} \le
\min_z\log E\,e^{\langle z, u\rangle - f^*(u) + |u|^2/2},$$

so that minus the mean over groups is an upper bound still; as K grows it counts degree k of log p/q k - 1 times
instead of k times where k is odd: twice instead of three times at a best Gaussian. Few groups of many draws have no
finite-sample bound that is of use, so that the confidence is Student's: 'statistical'.
"""

import math
from typing import Any

import numpy as np

from provi.certificates.distance.bound import PosteriorBound
from provi.certificates.distance.conjugate import AbstractProblem, conjugates
from provi.certificates.distance.dual_bound import MOST_PAIRS, Energy, pilot_frame, skewed_bound
from provi.certificates.distance.marginals import problem_of
from provi.core.arguments import check_confidence, check_count, double_precision

_GROUPS, _NEWTON_STEPS, _SLACK = 16, 60, 1e-6


def tight_bound(
    problem: AbstractProblem, energy: Energy, *, confidence: float, seed: int, group: int
) -> PosteriorBound | None:
    """The bound on KL(q || p) from `_GROUPS` groups of `group` pairs each; None where `dual_bound` has none.

    **Arguments:**

    - `problem`, `energy`: q in its own coordinates; the energy must be known.
    """
    check_confidence(confidence)
    rng, dim = np.random.default_rng(check_count("seed", seed, minimum=0)), problem.dim
    if energy.value is None:
        return None
    offset = energy.value - 0.5 * dim
    found = pilot_frame(problem, rng, offset)
    if found is None:
        return None
    frame, scale = found
    values = []
    for _ in range(_GROUPS):
        half = rng.standard_normal((min(check_count("group", group), MOST_PAIRS), dim))
        u = np.concatenate([half, -half])
        conjugate = conjugates(frame.problem, u, 0.005 * scale)
        if conjugate is None or not np.isfinite(conjugate.upper).any():
            return None
        values.append(-_least_log_mean(u, 0.5 * np.sum(u**2, axis=1) - conjugate.upper))
    log_det, rounding = frame.log_det
    kl = skewed_bound(np.asarray(values), 1 - confidence) + offset + energy.error + log_det + rounding
    estimate = float(np.mean(values)) + offset + log_det
    return PosteriorBound(max(kl, 0.0), (), confidence, 2 * _GROUPS * group, "statistical", max(estimate, 0.0))


def _least_log_mean(u: np.ndarray, exponents: np.ndarray) -> float:
    """min over z of log mean exp(<z, u_k> + exponents_k), by Newton's method, less what it may be off by."""
    z, count = np.zeros(u.shape[1]), len(u)

    def at(place: np.ndarray) -> tuple[float, np.ndarray]:
        terms = u @ place + exponents
        top = float(np.max(terms))
        weights = np.exp(terms - top)
        total = float(np.sum(weights))
        return top + math.log(total / count), weights / total

    value, weights = at(z)
    decrement = math.inf
    for _ in range(_NEWTON_STEPS):
        gradient = weights @ u
        hessian = (u * weights[:, None]).T @ u - np.outer(gradient, gradient)
        step = np.linalg.solve(hessian + 1e-9 * np.eye(len(z)), gradient)
        decrement = float(gradient @ step)
        if decrement < 1e-14:
            break
        length = 1.0
        while length > 1e-8 and not at(z - length * step)[0] <= value - 1e-4 * length * decrement:
            length /= 2
        z = z - length * step
        value, weights = at(z)
    # Newton's decrement is twice what is left to gain, to first order.
    return value - decrement - _SLACK


@double_precision
def tight_posterior_bound(
    target: Any, family: Any, point: Any, *, confidence: float, seed: int, group: int
) -> PosteriorBound | None:
    """For a Gaussian q of a linear model or of a Gaussian process."""
    return tight_bound(*problem_of(target, family, point), confidence=confidence, seed=seed, group=group)
