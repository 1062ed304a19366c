"""ProVI's `MissingLogisticRegression` by Monte-Carlo EM, to an estimated gap of `setting` nats."""

from typing import Any

from provi.bench.missing_problem import MissingProblem
from provi.bench.peers.provi_missing import fit_and_record
from provi.bench.protocol import Recorder, serve


def solve(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Otherwise as the estimator chooses."""
    return fit_and_record(problem, record, solver="mcem", tol=setting)


if __name__ == "__main__":
    serve(solve, MissingProblem.load)
