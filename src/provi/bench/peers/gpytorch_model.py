"""What both GPyTorch peers share: one thread, double precision, a Bernoulli-logit likelihood, and the model."""

from typing import Any

import gpytorch
import torch

# The first optimiser of a process imports it; no library's imports are on the clock.
import torch._dynamo

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
