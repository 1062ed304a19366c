"""ProVI's `MissingLogisticRegression` by MISSO; `setting` is the share of the rows visited in a step."""

from typing import Any

from provi.bench.missing_problem import MissingProblem
from provi.bench.peers.provi_missing import TOLERANCE, fit_and_record
from provi.bench.protocol import Recorder, serve


def solve(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Otherwise as the estimator chooses."""
    return fit_and_record(problem, record, solver="misso", batch=setting, tol=TOLERANCE)


if __name__ == "__main__":
    serve(solve, MissingProblem.load)
