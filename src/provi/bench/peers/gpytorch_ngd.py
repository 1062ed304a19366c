"""GPyTorch: natural parameters and its optimiser NGD at the constant step `setting`, inducing points at the data."""

from typing import Any

import gpytorch
import numpy as np
import torch

from provi.bench.gp_problem import LAST_STEP, GPProblem, snapshot_due
from provi.bench.peers.gpytorch_model import VERSIONS, BernoulliLogit, NaturalGaussianProcess, squared_exponential
from provi.bench.protocol import Recorder, serve


class Jitter(gpytorch.kernels.Kernel):
    """A variance of each point's own, told by the row number in the last column.

    GPyTorch's own jitter is on the inducing points only, so that the values at the data would be others.
    """

    def __init__(self, variance: float, column: int) -> None:
        super().__init__(active_dims=(column,))
        self.variance = variance

    def forward(self, x1: Any, x2: Any, diag: bool = False, **params: Any) -> Any:
        """The variance where the row numbers agree."""
        if diag:
            return torch.full(x1.shape[:-1], self.variance)
        return self.variance * (x1 == x2.mT)


def solve(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the prior; nothing is compiled."""
    terms, columns = problem.inputs.shape
    inputs = torch.tensor(np.column_stack([problem.inputs, np.arange(terms)]))
    response = torch.tensor(problem.response)
    kernel = squared_exponential(problem.length_scale, problem.amplitude, columns) + Jitter(problem.jitter, columns)
    model, likelihood = NaturalGaussianProcess(inputs, kernel, 0.0), BernoulliLogit()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=terms)
    optimiser = gpytorch.optim.NGD(model.variational_parameters(), num_data=terms, lr=setting)
    model.train()
    with record.off_the_clock():
        factor = np.linalg.cholesky(problem.covariance())
    steps = 0
    while not record.done and steps < LAST_STEP:
        optimiser.zero_grad()
        (-objective(model(inputs), response)).backward()
        optimiser.step()
        steps += 1
        if snapshot_due(steps):
            with record.off_the_clock():
                mean, covariance = model.whitened()
                mean, covariance = factor @ mean, factor @ covariance @ factor.T
            record(mean, covariance, steps)
    return {"versions": VERSIONS, "steps": steps}


if __name__ == "__main__":
    serve(solve, GPProblem.load)
