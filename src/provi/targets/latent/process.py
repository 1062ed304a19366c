r"""The block of a Gaussian process with an unknown kernel: a function of inputs, standardised by a Cholesky factor."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import as_array, check_positive
from provi.kernels import AbstractKernel, parameter_names, with_log_parameters
from provi.targets.latent.blocks import AbstractBlock, SparseRows
from provi.targets.latent.priors import AbstractHyperprior, HalfNormal, LogNormal

_LARGEST_LOG = 150.0
"""Of a hyperparameter: its square and that of its inverse are numbers, so that no search runs into infinities."""


class GaussianProcess(AbstractBlock):
    r"""A function of inputs, $u = f(X) \sim N(0, k_\theta(X, X))$, with the kernel's numbers unknown.

    $u = Lv$, $LL' = K$.
    """

    turns: ClassVar[bool] = True
    name: str = eqx.field(static=True)
    index: Any
    inputs: Any
    kernel: AbstractKernel
    chosen: tuple[AbstractHyperprior, ...]
    jitter: Any

    def __init__(
        self,
        X: Any,
        kernel: AbstractKernel,
        *,
        priors: dict[str, AbstractHyperprior] | None = None,
        jitter: float = 1e-6,
        name: str = "f",
    ):
        """**Arguments:**

        - `X`: (N, d) inputs; equal rows share their function value. - `kernel`: of `provi.kernels`.
        - `priors`: by the names that `provi.kernels.parameter_names(kernel)` lists; default `HalfNormal(2.5)` for
          amplitudes, and log-normal around the median distance of the inputs for length-scales.
        - `jitter`: added to the diagonal, times the largest variance: part of the model.
        """
        values = as_array("X", X)
        values = values[:, None] if values.ndim == 1 else values
        self.inputs, place = np.unique(values, axis=0, return_inverse=True)
        self.name, self.kernel, self.index = str(name), kernel, place.reshape(-1).astype(np.int32)
        self.jitter = np.asarray(check_positive("jitter", jitter))
        names, given = parameter_names(kernel), dict(priors or {})
        unknown = set(given) - set(names)
        if unknown:
            raise ValueError(f"priors of {name!r} names {sorted(unknown)}; the kernel's numbers are {list(names)}.")
        self.chosen = tuple(given.get(key) or _kernel_prior(key, self.inputs) for key in names)

    @property
    def size(self) -> int:
        """The number of different inputs."""
        return len(self.inputs)

    @property
    def num_rows(self) -> int:
        """Of the data."""
        return len(self.index)

    @property
    def priors(self) -> dict[str, AbstractHyperprior]:
        """The kernel's numbers."""
        return {f"{key}({self.name})": p for key, p in zip(parameter_names(self.kernel), self.chosen, strict=True)}

    def kernel_at(self, theta: Any) -> AbstractKernel:
        """The kernel with these numbers; extreme ones, where their squares would overflow, are cut off."""
        values = jnp.log(jnp.stack([theta[i] for i in range(len(self.chosen))]))
        return with_log_parameters(self.kernel, jnp.clip(values, -_LARGEST_LOG, _LARGEST_LOG))

    def gram(self, theta: Any) -> Any:
        """K, jitter included."""
        gram = self.kernel_at(theta).matrix(jnp.asarray(self.inputs))
        return gram + jnp.asarray(self.jitter) * jnp.max(jnp.diagonal(gram)) * jnp.eye(self.size)

    def factor(self, theta: Any) -> Any:
        """L."""
        return jnp.linalg.cholesky(self.gram(theta))

    def rows(self, theta: Any) -> SparseRows:
        """The rows of L."""
        rows = self.effect_rows(theta)
        index = jnp.asarray(self.index)
        return SparseRows(rows.index[index], rows.values[index])

    def effect_rows(self, theta: Any) -> SparseRows:
        """L."""
        every = np.broadcast_to(np.arange(self.size), (self.size, self.size))
        return SparseRows(jnp.asarray(every), self.factor(theta))

    @property
    def effect_shape(self) -> tuple[int, ...]:
        """One a different input."""
        return (self.size,)


def _kernel_prior(name: str, inputs: np.ndarray) -> AbstractHyperprior:
    if "length" not in name and "period" not in name:
        return HalfNormal(2.5)
    some = inputs[:: max(len(inputs) // 200, 1)]
    distance = np.linalg.norm(some[:, None] - some[None], axis=2)
    middle = float(np.median(distance[distance > 0])) if (distance > 0).any() else 1.0
    return LogNormal(float(np.log(middle)), 1.0)
