"""PyMC: FullRankADVI."""

from typing import Any

import numpy as np

from provi_lab.bench.problems import LogisticProblem
from provi_lab.bench.protocol import Finished, Recorder

DRAWS = 10


def full_rank(problem: LogisticProblem, setting: float, record: Recorder) -> None:
    """`pymc.fit` itself, ten draws, Adam at the rate `setting`.

    It compiles on each call, so the warm clock starts at its first step.
    """
    import pymc as pm

    def watch(approximation: Any, _: Any, step: int) -> None:
        if step == 1:
            record.compiled()
        if record.due(step):
            mean, factor = (approximation.params_dict[name].eval() for name in ("mu", "L_tril"))
            record(mean, _covariance(factor, problem.dim), step * DRAWS)
            if record.done:
                raise Finished

    with pm.Model():
        z = pm.Normal("z", 0.0, problem.prior_scale, shape=problem.dim)
        # Bernoulli(logit_p=...) turns into NaN where a probability rounds to one, and the fit stops there.
        signed = (1 - 2 * problem.response)[:, None] * problem.design
        pm.Potential("y", -pm.math.log1pexp(pm.math.dot(signed, z)).sum())  # pyright: ignore
        inference = pm.FullRankADVI(random_seed=0, start={"z": np.zeros(problem.dim)})
        inference.fit(
            10**9,
            score=True,  # without it PyMC 5.28 drifts away, also on a Gaussian target
            callbacks=[watch],
            progressbar=False,
            obj_n_mc=DRAWS,
            obj_optimizer=pm.adam(learning_rate=setting),
        )


def _covariance(factor: np.ndarray, dim: int) -> np.ndarray:
    """The rows of a triangle whose diagonal is stored as rho with sigma = log(1 + exp(rho))."""
    matrix = np.zeros((dim, dim))
    matrix[np.tril_indices(dim)] = factor
    np.fill_diagonal(matrix, np.logaddexp(0.0, np.diagonal(matrix)))
    return matrix @ matrix.T
