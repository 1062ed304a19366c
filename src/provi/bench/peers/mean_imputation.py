"""Missing entries replaced by the column's mean, then scikit-learn's logistic regression without a penalty."""

from typing import Any

import numpy as np
import sklearn
from sklearn.linear_model import LogisticRegression

from provi.bench.missing_problem import MissingProblem
from provi.bench.protocol import Recorder, serve


def solve(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """What most people do; mean and covariance are those of the filled table. `setting` is the solver's `tol`."""
    filled = np.where(np.isnan(problem.features), np.nanmean(problem.features, axis=0), problem.features)
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=setting).fit(filled, problem.response)
    coefficients = np.concatenate([model.intercept_, model.coef_[0]])
    record(np.concatenate([coefficients, filled.mean(axis=0)]), np.cov(filled.T, bias=True))
    return {"versions": {"scikit-learn": sklearn.__version__}}


if __name__ == "__main__":
    serve(solve, MissingProblem.load)
