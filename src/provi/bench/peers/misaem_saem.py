"""misaem 1.0 (PyPI), SAEM with its own settings; with its standard errors where `setting` is 1, without where it is 0.

Its own log-likelihood is not asked for, which would take as long again.
"""

from importlib import metadata
from typing import Any

import numpy as np
from misaem import SAEMLogisticRegression  # pyright: ignore[reportMissingImports]

from provi.bench.missing_problem import MissingProblem
from provi.bench.protocol import Recorder, serve


def solve(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the table to the estimate."""
    model = SAEMLogisticRegression(var_cal=bool(setting), ll_obs_cal=False, random_state=problem.seed)
    model.fit(problem.features, problem.response, save_trace=False, progress_bar=False)
    coefficients = np.concatenate([model.intercept_, model.coef_[0]])
    record(np.concatenate([coefficients, model.mu_]), model.sigma_)
    errors = np.asarray(model.std_err_).tolist() if setting else None
    versions = {name: metadata.version(name) for name in ("misaem", "scikit-learn", "numpy")}
    return {"versions": versions, "standard_errors": errors}


if __name__ == "__main__":
    serve(solve, MissingProblem.load)
