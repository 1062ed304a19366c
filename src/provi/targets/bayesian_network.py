"""Bayesian neural networks: a Gaussian prior on the weights, a categorical or Gaussian likelihood of the outputs."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import as_array, check_length, check_positive, device_array, double_precision
from provi.core.types import Indices, RandomKey, Vector
from provi.nets.flat_network import FlatNetwork, flatten_network
from provi.nets.noise import NOISES, noisy_outputs
from provi.targets.base import AbstractFiniteSum, Constants, read_points, unknown

LIKELIHOODS = ("auto", "categorical", "gaussian")


class BayesianNetwork(AbstractFiniteSum):
    r"""The posterior of the weights w of a network $f_w$ given data $(x_n, y_n)$:

    $$-\log p(w) = \frac{|w|^2}{2s^2}+\frac d2\log(2\pi s^2)+\sum_n t_n(w),\qquad
      t_n = -\log\mathrm{softmax}(f_w(x_n))_{y_n}\ \text{ or }\
      \tfrac1{2\varsigma^2}|y_n-f_w(x_n)|^2+\tfrac k2\log(2\pi\varsigma^2).$$

    **Arguments:**

    - `network`: an Equinox module, called on one example; or a function `apply(params, x)` of a batch.
    - `X`: the inputs, (N, ...). - `y`: class numbers 0, 1, ... (N,), or real responses (N,) or (N, outputs).
    - `params`: the initial parameters when `network` is a function.
    - `likelihood`: "categorical", "gaussian", or "auto": categorical for `y` of integers or of booleans.
    - `noise_sd`: the sd of a Gaussian likelihood. - `prior_sd`: s.
    - `dtype`: of the weights, the data and all arithmetic; float32 as is usual for networks.

    Not log-concave, and without known constants, so a fit of it has no certificate. `provi.fit(target,
    provi.families.Gaussian(target.dim, scale="diagonal"), algorithm)` works for small networks;
    `provi.models.BayesianNetwork` trains large ones (paper 001, example 2).
    """

    inputs: Array
    outputs: Array
    network: FlatNetwork
    start: Vector
    prior_sd: Float[Array, ""]
    noise_sd: Float[Array, ""]
    categorical: bool = eqx.field(static=True)

    variable: ClassVar[str] = "weights"

    @double_precision
    def __init__(
        self,
        network: Any,
        X: Any,
        y: Any,
        *,
        params: Any = None,
        likelihood: str = "auto",
        noise_sd: float = 1.0,
        prior_sd: float = 1.0,
        dtype: Any = np.float32,
    ) -> None:
        inputs = as_array("X", X)
        if inputs.ndim < 2:
            raise ValueError(f"X must have one row an example, so at least two axes; its shape is {inputs.shape}.")
        if likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, not {likelihood!r}.")
        response = as_array("y", y)
        check_length("y", response, inputs.shape[0], "one response for each row of X")
        whole = response.ndim == 1 and (np.issubdtype(response.dtype, np.integer) or response.dtype == bool)
        self.categorical = likelihood == "categorical" or (likelihood == "auto" and whole)
        self.network, weights = flatten_network(network, params)
        self.start = jnp.asarray(weights, dtype)
        self.inputs = jnp.asarray(inputs, dtype)
        self.prior_sd = jnp.asarray(check_positive("prior_sd", prior_sd), dtype)
        self.noise_sd = jnp.asarray(check_positive("noise_sd", noise_sd), dtype)
        count = _count_outputs(self.network, self.start, self.inputs)
        self.outputs = (
            jnp.asarray(_read_classes(response, count), jnp.int32)
            if self.categorical
            else jnp.asarray(_read_responses(response, count), dtype)
        )

    @property
    def dim(self) -> int:
        return self.network.dim

    @property
    def dtype(self) -> Any:
        return self.start.dtype

    @property
    def num_terms(self) -> int:
        return self.inputs.shape[0]

    @property
    def num_tensors(self) -> int:
        """The number of weight arrays."""
        return len(self.network.shapes)

    @property
    def tensor_of(self) -> np.ndarray:
        """The number of the array that each weight belongs to, (dim,)."""
        return np.repeat(np.arange(self.num_tensors), self.network.sizes)

    @property
    def constants(self) -> Constants:
        reason = "a network's log density is not concave in its weights in general"
        return Constants(unknown(reason), unknown(reason), unknown(reason))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(
            f"{name}[{','.join(map(str, place))}]" if place else name
            for name, shape in zip(self.network.names, self.network.shapes, strict=True)
            for place in np.ndindex(*shape)
        )

    @property
    def default_location(self) -> np.ndarray:
        """The weights that the network came with: at zero all units are alike and the gradient of most is 0."""
        return np.asarray(self.start)

    @property
    def observed_data(self) -> dict[str, np.ndarray]:
        return {"y": np.asarray(self.outputs)}

    def prior_potential(self, z):
        scale = self.dim * (jnp.log(2 * jnp.pi) / 2 + jnp.log(self.prior_sd))
        return jnp.sum((z / self.prior_sd) ** 2) / 2 + scale.astype(z.dtype)

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        return self.nll(self.forward(z, self.inputs[indices]), self.outputs[indices])

    def forward(self, z: Vector, inputs: Array) -> Float[Array, "batch outputs"]:
        """f_z on a batch."""
        return self.network.outputs(z, inputs)

    def noisy_forward(
        self, key: RandomKey, mean: Vector, sd: Vector, inputs: Array, noise: str
    ) -> Float[Array, "batch outputs"]:
        """f_w on a batch for w from N(mean, diag(sd^2)), see `provi.nets.noise`."""
        return noisy_outputs(self.network, key, mean, sd, inputs, noise)

    def nll(self, outputs: Float[Array, "batch outputs"], y: Array) -> Float[Array, " batch"]:
        """-log p(y_n | outputs of the network)."""
        if self.categorical:
            return -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1)[:, 0]
        misfit = jnp.sum(((y - outputs) / self.noise_sd) ** 2, axis=1) / 2
        constant = y.shape[1] * (jnp.log(2 * jnp.pi) / 2 + jnp.log(self.noise_sd))
        return misfit + constant.astype(misfit.dtype)

    @double_precision
    def log_likelihood(self, z):
        points = read_points(z, self.dim)
        found = jax.lax.map(
            lambda z: -self.term_potentials(z, slice(None)), device_array(np.atleast_2d(points), self.dtype)
        )
        return {"y": np.asarray(found).reshape(*points.shape[:-1], -1)}


def check_noise(noise: str, target: BayesianNetwork) -> str:
    """One of the known noises, tried out; a function's layers are not known, so it has plain weights only."""
    network = target.network
    if noise not in NOISES:
        raise ValueError(f"noise must be one of {', '.join(NOISES)}, not {noise!r}.")
    if noise != "weights" and network.apply is not None:
        raise ValueError(
            f"noise={noise!r} needs an Equinox module, whose layers can be seen; for a function use noise='weights'."
        )
    try:
        eqx.filter_eval_shape(
            target.noisy_forward, jax.random.key(0), target.start, target.start, target.inputs[:1], noise
        )
    except Exception as error:  # whatever a user's network may raise
        raise ValueError(
            f"noise={noise!r} replaces the layers of the network by noisy ones, but it does more with them than call "
            f"them ({_first_line(error)}): use noise='weights'."
        ) from error
    return noise


def _count_outputs(network: FlatNetwork, start: Vector, inputs: Array) -> int:
    try:
        shape = eqx.filter_eval_shape(network.outputs, start, inputs[:2]).shape
    except Exception as error:  # whatever a user's network may raise
        raise ValueError(
            f"network cannot be called on the rows of X, which have shape {inputs.shape[1:]}: {_first_line(error)}"
        ) from error
    if len(shape) != 2 or shape[0] != min(2, inputs.shape[0]):
        raise ValueError(
            f"network must return one vector for each example; for a batch of {min(2, inputs.shape[0])} it returns "
            f"shape {shape}."
        )
    return shape[1]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _read_classes(y: np.ndarray, count: int) -> np.ndarray:
    if y.ndim != 1 or (y != np.round(y)).any() or y.min() < 0 or y.max() >= count:
        raise ValueError(
            f"y must hold class numbers from 0 to {count - 1}, as many as the network has outputs, in one axis; it has "
            f"shape {y.shape} and values from {y.min()} to {y.max()}."
        )
    return y


def _read_responses(y: np.ndarray, count: int) -> np.ndarray:
    table = y[:, None] if y.ndim == 1 else y
    if table.shape != (y.shape[0], count):
        raise ValueError(f"y must have one response for each of the {count} outputs of the network, not {y.shape}.")
    return table
