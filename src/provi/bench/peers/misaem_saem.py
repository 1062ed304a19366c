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
    """From the table to the estimate, in standardised columns: in the units of SUPPORT2 it takes five times as long and
    ends far from the maximum. Standard errors are those of the standardised coefficients."""
    centre, scale = np.nanmean(problem.features, axis=0), np.nanstd(problem.features, axis=0)
    model = SAEMLogisticRegression(var_cal=bool(setting), ll_obs_cal=False, random_state=problem.seed)
    model.fit((problem.features - centre) / scale, problem.response, save_trace=False, progress_bar=False)
    slopes = model.coef_[0] / scale
    mean, covariance = centre + scale * np.ravel(model.mu_), model.sigma_ * np.outer(scale, scale)
    record(np.concatenate([model.intercept_ - centre @ slopes, slopes, mean]), covariance)
    errors = np.asarray(model.std_err_).tolist() if setting else None
    versions = {name: metadata.version(name) for name in ("misaem", "scikit-learn", "numpy")}
    return {"versions": versions, "standard_errors": errors}


if __name__ == "__main__":
    serve(solve, MissingProblem.load)
