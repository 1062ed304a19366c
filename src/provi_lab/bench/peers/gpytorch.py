"""GPyTorch: natural gradients, dense and sparse, one thread, double precision, a Bernoulli-logit likelihood."""

from typing import Any

# Where the library is not installed, pyright takes this module for it.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
import gpytorch
import numpy as np
import torch

# The first optimiser of a process imports it; no library's imports are on the clock.
import torch._dynamo

from provi_lab.bench.problems import LAST_STEP, GPProblem, SparseGPProblem, snapshot_due
from provi_lab.bench.protocol import Recorder

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

VERSIONS = {"gpytorch": gpytorch.__version__, "torch": torch.__version__}


class BernoulliLogit(gpytorch.likelihoods.likelihood._OneDimensionalLikelihood):
    """GPyTorch's Bernoulli is a probit; this is the logit, by its Gauss-Hermite rule with 20 nodes."""

    def forward(self, function_samples: Any, *args: Any, **kwargs: Any) -> Any:
        """The distribution of a label."""
        return torch.distributions.Bernoulli(logits=function_samples)


class NaturalGaussianProcess(gpytorch.models.ApproximateGP):
    """Zero mean, a fixed kernel, natural parameters for the whitened inducing values, started at the prior."""

    def __init__(self, inducing: Any, kernel: Any, jitter: float) -> None:
        distribution = gpytorch.variational.NaturalVariationalDistribution(len(inducing), mean_init_std=0.0)
        super().__init__(
            gpytorch.variational.VariationalStrategy(
                self, inducing, distribution, learn_inducing_locations=False, jitter_val=jitter
            )
        )
        self.mean, self.kernel = gpytorch.means.ZeroMean(), kernel.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        """The prior at some inputs."""
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def whitened(self) -> tuple[Any, Any]:
        """Mean and covariance of the whitened inducing values."""
        with torch.no_grad():
            found = self.variational_strategy._variational_distribution()
            return found.mean.numpy(), found.covariance_matrix.numpy()


def squared_exponential(length_scale: float, amplitude: float, columns: int) -> Any:
    """GPyTorch's kernel of the first `columns` columns."""
    base = gpytorch.kernels.RBFKernel(active_dims=tuple(range(columns)))
    kernel = gpytorch.kernels.ScaleKernel(base)
    base.lengthscale, kernel.outputscale = length_scale, amplitude**2
    return kernel


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


def natural_gradient(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Natural parameters and its optimiser NGD at the constant step `setting`, inducing points at the data.

    From the prior; nothing is compiled.
    """
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


def svgp(problem: SparseGPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The sparse model with natural parameters and NGD at the constant step `setting` on mini-batches, from the prior.

    The last iterate of each pass is the answer.
    """
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
