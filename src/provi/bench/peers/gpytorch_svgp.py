"""GPyTorch: sparse model with natural parameters and NGD at the constant step `setting`; a snapshot a pass."""

from typing import Any

import gpytorch
import torch

from provi.bench.gp_problem import SparseGPProblem
from provi.bench.peers.gpytorch_model import VERSIONS, BernoulliLogit, NaturalGaussianProcess, squared_exponential
from provi.bench.protocol import Recorder, serve


def solve(problem: SparseGPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the prior; the last iterate of each pass is the answer."""
    terms, columns = problem.inputs.shape
    inputs, response = torch.tensor(problem.inputs), torch.tensor(problem.response)
    kernel = squared_exponential(problem.length_scale, problem.amplitude, columns)
    model, likelihood = NaturalGaussianProcess(torch.tensor(problem.inducing), kernel, problem.jitter), BernoulliLogit()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=terms)
    optimiser = gpytorch.optim.NGD(model.variational_parameters(), num_data=terms, lr=setting)
    model.train()
    for rows, passes, due in problem.schedule():
        optimiser.zero_grad()
        (-objective(model(inputs[rows]), response[rows])).backward()
        optimiser.step()
        if due:
            with record.off_the_clock():
                mean, covariance = model.whitened()
            record(mean, covariance, passes)
            if record.done:
                break
    return {"versions": VERSIONS}


if __name__ == "__main__":
    serve(solve, SparseGPProblem.load)
