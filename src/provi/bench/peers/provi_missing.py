"""ProVI's `MissingLogisticRegression` to an estimated gap of `setting` nats by the exact likelihood."""

from typing import Any

import numpy as np

from provi.bench.missing_problem import MissingProblem
from provi.bench.protocol import Recorder, serve
from provi.models import MissingLogisticRegression

TOLERANCE = 0.01


def fit_and_record(problem: MissingProblem, record: Recorder, **arguments: Any) -> dict[str, Any]:
    """From the table to estimate, standard errors and log-likelihood: the estimator always gives all of them."""
    model = MissingLogisticRegression(random_state=problem.seed, **arguments).fit(problem.features, problem.response)
    coefficients = np.concatenate([model.intercept_, model.coef_[0]])
    record(np.concatenate([coefficients, model.mean_]), model.covariance_, float(model.n_iter_))
    return {
        "passes": float(model.n_iter_),
        "estimated_gap": float(model.gap_),
        "converged": bool(model.converged_),
        "log_likelihood": float(model.log_likelihood_),
        "standard_errors": np.asarray(model.standard_errors_).tolist(),
    }


def solve(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The default solver."""
    return fit_and_record(problem, record, solver="exact", tol=setting)


if __name__ == "__main__":
    serve(solve, MissingProblem.load)
