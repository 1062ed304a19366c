r"""How far each marginal of q is from the posterior's, in Wasserstein-1 distance: means and all that is Lipschitz.

With T the Brenier map of docs/theory/posterior.md, $0 \le KL(q\|p) \le E[\phi(x) - \phi(T) + \langle s, T - x\rangle]$,
$s = -\nabla\log q(x)$. So for a direction a and t > 0

$$t\,W_1(q_a, p_a) \le t\,E|a'(T - x)| \le E\max_\pm\Lambda_{\pm t}(x), \qquad \Lambda_{\pm t}(x) = \phi(x) +
\phi^*(s \pm ta) - \langle x, s \pm ta\rangle.$$

The best t is near $\sqrt{2E\Lambda_0}$ in units of the posterior's sd, and the bound of that order: 0.17 sd where KL is
bounded by 0.015, and nothing useful where it is bounded by 1.
"""

import math
from typing import Any

import numpy as np

from provi.certificates.distance.conjugate import RowProblem, conjugates
from provi.certificates.distance.dual_bound import Energy, skewed_bound
from provi.certificates.distance.dual_form import dual_problem
from provi.certificates.distance.problems import linear_problem
from provi.core.arguments import check_confidence, check_count, double_precision
from provi.families.bases import Normal
from provi.families.dual_gaussian import DualGaussian

_PAIRS = 256


@double_precision
def marginal_distances(
    target: Any, family: Any, point: Any, *, kl: float, confidence: float = 0.99, seed: int = 0
) -> np.ndarray:
    """A bound on the Wasserstein-1 distance of each marginal to the posterior's, in standard deviations of q.

    It bounds the error of every mean, and of every expectation of a 1-Lipschitz function of one parameter.
    Statistical, each at the level `confidence`. Costs two solutions of the inner problem a draw and parameter.

    **Arguments:**

    - `target`: a linear model, or a Gaussian process. - `family`, `point`: q, a Gaussian.
    - `kl`: a bound on KL(q || posterior), from which t is chosen; any positive number is valid.
    """
    check_confidence(confidence)
    seed = check_count("seed", seed, minimum=0)
    problem, energy = problem_of(target, family, point)
    directions = np.asarray(problem.root)  # the rows are a'R for the parameters; of unit length in sds of q
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    if isinstance(family, DualGaussian) and family.prior is not None:
        raise ValueError("marginal distances of a linear model in dual form: fit it with provi.families.Gaussian(dim).")
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((_PAIRS, problem.dim))
    u = np.concatenate([half, -half])
    size = math.sqrt(2 * max(kl, 1e-6))
    found = [_one(problem, energy, u, size * row, confidence) / size for row in directions / lengths]
    return np.asarray(found)


def problem_of(target: Any, family: Any, point: Any) -> tuple[RowProblem, Energy]:
    """q in its own coordinates; `ValueError` where there is no linear model nor Gaussian process."""
    if isinstance(family, DualGaussian):
        found = dual_problem(target, family, point)
    else:
        model = target.linear_model()
        if model is None or not isinstance(family.base, Normal):
            raise ValueError("marginal distances are known for Gaussian q of linear models and Gaussian processes.")
        found = linear_problem(model, family, point)
    if found is None:
        raise ValueError("a mean under q is not finite: there is no bound on the marginals.")
    return found


def _one(problem: RowProblem, energy: Energy, u: np.ndarray, tilt: np.ndarray, confidence: float) -> float:
    """The bound on t W_1 for the direction `tilt` = t a in the coordinates of q."""
    tilted = np.concatenate([u + tilt, u - tilt])
    found = conjugates(problem, tilted, 1e-3 * float(tilt @ tilt))
    if found is None or energy.value is None:
        return math.inf
    along = u @ tilt
    values = np.maximum(found.upper[: len(u)] - along, found.upper[len(u) :] + along) - 0.5 * np.sum(u**2, axis=1)
    pairs = values.reshape(2, -1).mean(axis=0)
    return skewed_bound(pairs, 1 - confidence) + energy.value + energy.error - 0.5 * problem.dim
