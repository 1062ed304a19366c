r"""Bayesian neural networks as an incremental problem (paper 001, example 2): a surrogate for each block of data.

With $q = N(\mu, \mathrm{diag}\,\sigma^2)$, a prior $N(0, s^2I)$, N data and B blocks $I_i$, the negative ELBO *per
datum* is the mean over the blocks of
$$L_i(\theta) = \frac BN\sum_{n\in I_i}E_\varepsilon\,t_n(\mu+\sigma\odot\varepsilon)+\frac1N\mathrm{KL}(q\,\|\,p),
  \qquad\mathrm{KL} = \sum_j\Bigl(\frac{\sigma_j^2+\mu_j^2}{2s^2}-\frac12-\log\frac{\sigma_j}s\Bigr),\qquad
  \theta = (\mu, \log\sigma).$$
The surrogates are the paper's (13), quadratics of curvature L = 1/rate, which no theorem makes majorisers here: a
network has no bounded curvature. There may be one $\sigma$ for all weights (the paper), one a tensor, or one a weight.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from provi.algorithms.incremental.quadratic_surrogate import (
    AbstractQuadratic,
    Expansion,
    QuadraticStatistics,
    check_table_dtype,
)
from provi.core.arguments import check_count, check_positive, double_precision
from provi.core.types import Count, Indices, RandomKey, Scalar, Vector
from provi.targets.bayesian_network import BayesianNetwork, check_noise

POSTERIORS = ("global", "tensor", "weight")


class NetworkPoint(eqx.Module):
    r"""$\theta$: the means (dim,) and the log standard deviations, (1,), (tensors,) or (dim,)."""

    mean: Vector
    log_sd: Float[Array, " groups"]


class NetworkSurrogate(AbstractQuadratic):
    """The surrogates above; make them with `network_surrogate`. Block i holds the rows i, i + B, i + 2B, ..."""

    target: BayesianNetwork
    posterior: str = eqx.field(static=True)
    noise: str = eqx.field(static=True)
    augment: Callable | None = eqx.field(static=True)
    curvature: Any
    weights: Float[Array, " terms"]
    kl_weight: Any
    num_terms: int = eqx.field(static=True)
    table_dtype: Any = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    def start(self, sd: float = 0.05) -> NetworkPoint:
        """The network's own weights as means, and `sd` for all of them."""
        groups = {"global": 1, "tensor": self.target.num_tensors, "weight": self.target.dim}[self.posterior]
        log_sd = np.full(groups, np.log(check_positive("sd", sd)), self.target.dtype)
        return NetworkPoint(self.target.start, jnp.asarray(log_sd))

    def sd(self, point: NetworkPoint) -> Vector:
        """The standard deviation of each weight, (dim,)."""
        sd = jnp.exp(point.log_sd)
        match self.posterior:
            case "global":
                return jnp.broadcast_to(sd, point.mean.shape)
            case "tensor":
                return self.target.network.spread(sd)
            case _:
                return sd

    def divergence(self, point: NetworkPoint) -> Scalar:
        """KL(q || prior) in nats."""
        scale, sd = self.target.prior_sd, self.sd(point)
        return jnp.sum(((sd / scale) ** 2 + (point.mean / scale) ** 2 - 1) / 2 - jnp.log(sd / scale))

    def _batch(self, block: Count) -> tuple[Array, Array, Array]:
        """The rows of a block; the last may be repeated to fill it up and are then not real."""
        rows = self.target.num_terms
        places = block + self.num_terms * jnp.arange(-(-rows // self.num_terms))
        kept = jnp.minimum(places, rows - 1)
        return self._split(self.target.inputs[kept]), self._split(self.target.outputs[kept]), places < rows

    def _split(self, x: Array) -> Array:
        """Examples divided among the devices, where there are several and they divide evenly."""
        if self.mesh is None or x.shape[0] % self.mesh.size:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec("devices")))

    def block_nll(self, key: RandomKey, point: NetworkPoint, block: Count) -> Scalar:
        """The sum of -log p(y_n | x_n, w) over a block, for one draw of the weights."""
        x, y, real = self._batch(block)
        if self.augment is not None:
            key, own = jax.random.split(key)
            x = self._augmented(own, x)
        outputs = self.target.noisy_forward(key, point.mean, self.sd(point), x, self.noise)
        return jnp.sum(jnp.where(real, self.target.nll(outputs, y), 0))

    def _augmented(self, key: RandomKey, x: Array) -> Array:
        assert self.augment is not None
        new = jnp.asarray(self.augment(key, x), x.dtype)
        if new.shape != x.shape:
            raise ValueError(f"augment(key, x) must keep the shape of x, {x.shape}; it returns {new.shape}.")
        return new

    def block_objective(self, key: RandomKey, point: NetworkPoint, block: Count) -> Scalar:
        r"""$L_i(\theta)$ for one draw of the weights: nats per datum; its KL times `kl_weight`."""
        nll = self.num_terms * self.block_nll(key, point, block)
        return (nll + self.kl_weight * self.divergence(point)) / self.target.num_terms

    def draw(self, key: RandomKey, parameters: Any, rows: Indices, prepared: Any, chains: Any) -> tuple[Any, Any]:
        del prepared

        def one(block: Count) -> tuple[Scalar, NetworkPoint]:
            own = jax.random.fold_in(key, block)
            return jax.value_and_grad(self.block_objective, argnums=1)(own, parameters, block)

        if rows.shape[0] == 1:  # without a loop around it the network runs at full speed
            found = jax.tree.map(lambda x: x[None], one(rows[0]))
        else:
            found = jax.lax.map(one, rows)
        return Expansion(*found), chains

    def build(self, parameters, rows, prepared, summary):
        """As of all quadratics, but the block's value in the place of the constant.

        In float32 the constant of a quadratic with curvature 1/rate is a difference of large numbers: the mean
        surrogate was seen to be off by 10% of the -ELBO.
        """
        return QuadraticStatistics(super().build(parameters, rows, prepared, summary).centre, summary.value)

    def value(self, mean, parameters):
        """Not kept: see `build`."""
        del mean, parameters

    def latest_values(self, table):
        return table.constant

    @eqx.filter_jit
    def negative_elbo(self, key: RandomKey, point: NetworkPoint, num_draws: int = 1) -> tuple[Scalar, Scalar, Scalar]:
        """(-ELBO, its likelihood part, its KL part) in nats per datum: a pass over the data, without augmentation.

        Each block has its own `num_draws` draws, so the Monte-Carlo error is that of B x `num_draws` draws.
        """
        plain = dataclasses.replace(self, augment=None)

        def add(k: Count, total: Scalar) -> Scalar:
            block = k % self.num_terms
            return total + plain.block_nll(jax.random.fold_in(key, k), point, block)

        zero = jnp.zeros((), self.target.dtype)
        total = jax.lax.fori_loop(0, num_draws * self.num_terms, add, zero)
        nll, kl = total / num_draws / self.target.num_terms, self.divergence(point) / self.target.num_terms
        return nll + kl, nll, kl

    def arrange(self, table: Any) -> Any:
        """Rows (B, dim) divided among the devices along the weights; what does not divide evenly is kept whole."""
        return self._divided(table, 1)

    def arrange_mean(self, mean: Any) -> Any:
        """The mean row, divided like the rows."""
        return self._divided(mean, 0)

    def arrange_parameters(self, parameters: Any) -> Any:
        """Whole on every device, since each needs all weights for its examples."""
        return self._divided(parameters, None)

    def _divided(self, tree: Any, axis: int | None) -> Any:
        mesh = self.mesh
        if mesh is None:
            return tree

        def place(x: Array) -> Array:
            divides = axis is not None and x.ndim == axis + 1 and x.shape[axis] % mesh.size == 0
            spec = PartitionSpec(*[None] * (axis or 0), "devices") if divides else PartitionSpec()
            return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

        return jax.tree.map(place, tree)


@double_precision
def network_surrogate(
    target: BayesianNetwork,
    *,
    posterior: str = "weight",
    noise: str = "weights",
    block_size: int = 128,
    rate: float = 1.0,
    augment: Callable | None = None,
    kl_weight: float = 1.0,
    table_dtype: Any = None,
    devices: Sequence[Any] | int | None = None,
) -> NetworkSurrogate:
    r"""The surrogates of a Bayesian network, for `MISSO`, `PacedMISSO`, `SAG` and `BlockRule`.

    **Arguments:**

    - `posterior`: one $\sigma$ for all weights ("global", as the paper), one a "tensor", or one a "weight".
    - `noise`: "weights", "flipout" or "local", see `provi.nets.noise`.
    - `block_size`: rows of data a block; a table has one row of 2 x dim (at most) numbers for each block.
    - `rate`: 1/L; used by `MISSO` only.
    - `augment(key, x)`: changes the inputs of a batch in training. The objective is then another one: the ELBO of
      augmented data, which is not that of any fixed data set.
    - `kl_weight`: the KL is multiplied by it in training. Below 1 the posterior is tempered, of the likelihood to the
      power 1/`kl_weight`: wide networks learn then that would not otherwise. It is an array's number, which
      `eqx.tree_at` may change from pass to pass without compiling (annealing). `negative_elbo` is of weight 1 always.
    - `table_dtype`: "bfloat16" halves the table.
    - `devices`: the table and each block's examples are divided among them, or among the first so many of
      `jax.devices()`; None is one device.
    """
    if posterior not in POSTERIORS:
        raise ValueError(f"posterior must be one of {', '.join(POSTERIORS)}, not {posterior!r}.")
    if not isinstance(target, BayesianNetwork):
        raise ValueError(f"target must be a provi.targets.BayesianNetwork, not {type(target).__name__}.")
    rows = min(check_count("block_size", block_size), target.num_terms)
    count = -(-target.num_terms // rows)
    return NetworkSurrogate(
        target=target,
        posterior=posterior,
        noise=check_noise(noise, target),
        augment=augment,
        curvature=jnp.asarray(1 / check_positive("rate", rate), target.dtype),
        weights=jnp.ones(count, target.dtype),
        kl_weight=jnp.asarray(check_positive("kl_weight", kl_weight), target.dtype),
        num_terms=count,
        table_dtype=check_table_dtype(table_dtype),
        mesh=_mesh(devices),
    )


def _mesh(devices: Any) -> Mesh | None:
    """Of the devices, or of the first so many; None for one."""
    if isinstance(devices, int | np.integer):
        there = jax.devices()
        if not 1 <= devices <= len(there):
            raise ValueError(f"devices must be from 1 to {len(there)}, which JAX has here, not {devices}.")
        devices = there[:devices]
    return None if devices is None or len(devices) < 2 else Mesh(np.asarray(devices), ("devices",))
