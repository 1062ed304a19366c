"""ProVI told that the target is a logistic regression; the tolerance is `setting`."""

from typing import Any

import provi
from provi.bench.peers.provi_fit import fit_and_record
from provi.bench.protocol import Problem, Recorder, serve


def solve(problem: Problem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the arrays to the certified answer."""
    target = provi.targets.LogisticRegression(problem.design, problem.response, problem.prior_scale)
    return fit_and_record(target, setting, record)


if __name__ == "__main__":
    serve(solve)
