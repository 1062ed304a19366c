r"""Hyperparameters of a Gaussian process by maximum ELBO: L-BFGS on the value function of `gp_value_function`.

The value function is not convex: a local optimum is found, and no certificate covers the choice.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from provi.core.checks import check_count, check_positive
from provi.core.precision import double_precision
from provi.defaults.dual_start import first_point
from provi.families.dual_gaussian import DualPoint, dual_gaussian
from provi.models.gp_value_function import (
    Learnt,
    learnt_numbers,
    log_hyperparameters,
    value_and_gradient,
    with_log_hyperparameters,
)
from provi.runtime.progress import ProgressBar
from provi.targets.gaussian_process import GaussianProcess

_RESTART_SPREAD = 2.0
_PENALTY = 1e3


@dataclasses.dataclass(frozen=True)
class LearntHyperparameters:
    """What was learnt.

    - `target`: the process with the best hyperparameters found; `start`: its (a, s), for `provi.fit(target, start=)`.
    - `elbo`: there; `gradient`: of the negative ELBO in the logarithms.
    - `num_evaluations`: of F*, over all starts; `converged`: whether L-BFGS says so of the best of them.
    """

    target: GaussianProcess
    start: DualPoint
    elbo: float
    gradient: np.ndarray
    num_evaluations: int
    converged: bool
    message: str


@double_precision
def learn_hyperparameters(
    target: GaussianProcess,
    *,
    learn_likelihood: bool = True,
    learn_jitter: bool = False,
    start: DualPoint | None = None,
    inner_tol: float = 1e-6,
    max_evaluations: int = 200,
    num_restarts: int = 0,
    bounds: tuple[float, float] = (1e-5, 1e5),
    seed: int = 0,
    progress: bool | None = False,
) -> LearntHyperparameters:
    """Maximise the ELBO over the hyperparameters.

    **Arguments:**

    - `learn_likelihood`: also the likelihood's numbers (noise scale, degrees of freedom, dispersion). A
      `UserLikelihood` has none: its `width` is a setting of the quadrature. - `learn_jitter`: also the jitter.
    - `inner_tol`: the inner fits, each from the (a, s) of the last, end at this estimated gap in nats.
    - `num_restarts`: further starts, `target`'s hyperparameters times exp(2 N(0, 1)); the best end is kept.
    - `bounds`: of every hyperparameter; widened to hold the first start.

    An evaluation that is not finite counts as infinitely bad: L-BFGS takes a shorter step.
    """
    if not 0 < bounds[0] < bounds[1] < np.inf:
        raise ValueError(f"bounds must be two positive numbers, the smaller one first, not {bounds}.")
    learnt = learnt_numbers(target, learn_likelihood, learn_jitter)
    first = log_hyperparameters(target, learnt)
    limits = np.asarray([(min(np.log(bounds[0]), x), max(np.log(bounds[1]), x)) for x in first])
    restarts = check_count("num_restarts", num_restarts, minimum=0)
    spread = _RESTART_SPREAD * np.random.default_rng(seed).normal(size=(restarts, len(first)))
    vectors = [first, *np.clip(first + spread, *limits.T)]
    evaluations = check_count("max_evaluations", max_evaluations)
    with ProgressBar(evaluations * len(vectors), progress) as bar:
        objective = _Objective(target, learnt, start, check_positive("inner_tol", inner_tol), bar)
        ends = [_descend(objective, vector, limits, evaluations) for vector in vectors]
    value, vector, point, gradient = objective.best
    if not np.isfinite(value):
        raise ValueError(
            "The ELBO is not finite at the first hyperparameters: scale X and y, or start from a smaller amplitude."
        )
    process, end = with_log_hyperparameters(target, jnp.asarray(vector), learnt), min(ends, key=lambda end: end.fun)
    return LearntHyperparameters(
        process, point, -value, gradient, objective.num_evaluations, bool(end.success), str(end.message)
    )


def _descend(objective: "_Objective", vector: np.ndarray, limits: np.ndarray, evaluations: int) -> Any:
    """L-BFGS from one start."""
    objective.warm = objective.start
    options = {"maxfun": evaluations, "maxiter": evaluations, "ftol": 1e-10, "gtol": 1e-4}
    return minimize(objective, vector, jac=True, method="L-BFGS-B", bounds=limits, options=options)


class _Objective:
    """F* and its gradient for SciPy; remembers the best evaluation, and (a, s) of the last good one."""

    def __init__(
        self, target: GaussianProcess, learnt: Learnt, start: DualPoint | None, tol: float, bar: ProgressBar
    ) -> None:
        self.target, self.learnt, self.tol, self.bar = target, learnt, jnp.asarray(np.asarray(tol, target.dtype)), bar
        self.first = first_point(target, dual_gaussian(target))
        self.start = self.first if start is None else start
        self.warm, self.num_evaluations = self.start, 0
        self.best: tuple[float, Any, Any, Any] = (np.inf, None, None, None)

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        for start in (self.warm, self.first):
            value, gradient, point = self.evaluate(vector, start)
            if np.isfinite(value):
                break
        self.num_evaluations += 1
        self.bar.update(self.num_evaluations, -np.fmin(value, self.best[0]))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            # The line search interpolates: a large finite value and no slope make it take a part of the step.
            height = abs(self.best[0]) if np.isfinite(self.best[0]) else 0.0
            return height + _PENALTY * (1 + height), np.zeros_like(vector)
        self.warm = point
        if value < self.best[0]:
            self.best = (value, vector.copy(), point, gradient)
        return value, gradient

    def evaluate(self, vector: np.ndarray, start: DualPoint) -> tuple[float, np.ndarray, DualPoint]:
        value, gradient, point = value_and_gradient(jnp.asarray(vector), self.target, self.learnt, start, self.tol)
        return float(value), np.asarray(gradient, np.float64), point
