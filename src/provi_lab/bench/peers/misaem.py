"""misaem 1.0 (PyPI): SAEM for logistic regression with missing covariates, with its own settings."""

from importlib import metadata
from typing import Any

# Where the library is not installed, pyright takes this module for it.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
import numpy as np
from misaem import SAEMLogisticRegression  # pyright: ignore[reportMissingImports]

from provi_lab.bench.problems import MissingProblem
from provi_lab.bench.protocol import Recorder


def saem(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the table to the estimate; with standard errors where `setting` is 1, without where it is 0.

    In standardised columns: in the units of SUPPORT2 it takes five times as long and ends far from the maximum.
    Standard errors are those of the standardised coefficients. Its log-likelihood is not asked for: as long again.
    """
    centre, scale = np.nanmean(problem.features, axis=0), np.nanstd(problem.features, axis=0)
    model = SAEMLogisticRegression(var_cal=bool(setting), ll_obs_cal=False, random_state=problem.seed)
    model.fit((problem.features - centre) / scale, problem.response, save_trace=False, progress_bar=False)
    slopes = model.coef_[0] / scale
    mean, covariance = centre + scale * np.ravel(model.mu_), model.sigma_ * np.outer(scale, scale)
    record(np.concatenate([model.intercept_ - centre @ slopes, slopes, mean]), covariance)
    errors = np.asarray(model.std_err_).tolist() if setting else None
    versions = {name: metadata.version(name) for name in ("misaem", "scikit-learn", "numpy")}
    return {"versions": versions, "standard_errors": errors}
