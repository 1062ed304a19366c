"""Models in which each datum sees the parameters through one number, and those where it is an inner product.

A pass over the data takes the rows a block at a time (`targets.row_sums`), which bounds what it holds in memory; so do
log-likelihoods and replicated data.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import check_count, device_array, double_precision
from provi.core.compilation import program_jit
from provi.core.devices import counted, local, undivided
from provi.core.interpreter import instant_jit
from provi.core.randomness import folded, key_of, split_keys
from provi.core.types import Draws, Indices, RandomKey, Scalar, Vector
from provi.targets.base import (
    AbstractFiniteSum,
    Constant,
    Constants,
    in_double,
    outer_spectrum,
    proven,
    read_points,
    unknown,
)
from provi.targets.data import default_names
from provi.targets.likelihoods.base import AbstractLikelihood, Batch
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors
from provi.targets.likelihoods.rows import RowLikelihood
from provi.targets.priors import GaussianPrior
from provi.targets.row_sums import RowNumbers, Rows, block_size, real_gram, sum_over_rows
from provi.targets.streaming import RowStream

_STREAM = 2**31 - 3  # of the seed: not the one that drew the parameters


class AbstractRowModel(AbstractFiniteSum):
    """A model whose terms are those of a likelihood, each of one number eta_n = `predictor` of its row."""

    response: eqx.AbstractVar[Float[Array, " terms"]]
    likelihood: eqx.AbstractVar[AbstractLikelihood]

    @abc.abstractmethod
    def row_data(self) -> Any:
        """Arrays with one entry a row, from whose parts `rows` makes the rows."""

    @abc.abstractmethod
    def predictor(self, rows: Rows, z: Vector) -> Batch:
        """eta_n of these rows, without their noise."""

    def rows(self, data: Any) -> Rows:
        """The rows that a part of `row_data` stands for: here the part itself."""
        return Rows(*data)

    @property
    def stream(self) -> RowStream | None:
        """What reads the rows a tile at a time; None where they are in memory."""
        design = getattr(self, "design", None)
        return design if isinstance(design, RowStream) else None

    @property
    def observed_data(self) -> dict[str, np.ndarray]:
        """The responses, as "y"; empty where they are never all in memory."""
        if self.stream is not None:
            return {}
        return {"y": np.asarray(self.likelihood.observed(self.response))}

    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y_n | z) of each row; for draws (n, dim), n in front."""
        return _pointwise_log_likelihood(self, z)

    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Responses drawn from p(y | z), one replicate of all rows for each row of z."""
        return _replicated_responses(self, z, seed)


class AbstractLinearModel(AbstractRowModel):
    """A Gaussian prior N(m, S) and terms t(x_n' z, y_n) with second derivative in [t0, t1], t0 >= 0.

    The Hessian of the potential is S^-1 + X' diag(t'') X, so it lies between S^-1 + t0 X'X and
    S^-1 + t1 X'X (Theorem 24 of paper 003): the extreme eigenvalues of these two are the strong
    convexity and the smoothness.
    """

    variable: ClassVar[str] = "coefficients"
    design: eqx.AbstractVar[Float[Array, "terms dim"] | RowStream]
    prior: eqx.AbstractVar[GaussianPrior]
    names: eqx.AbstractVar[tuple[str, ...] | None]

    def link_potential(self, eta: Batch, y: Any) -> Batch:
        """-log p(y | eta), entry by entry, normalised over y."""
        return self.likelihood.potential(eta, y)

    @property
    def curvature(self) -> tuple[float, float]:
        """(t0, t1): the range of the second derivative of `link_potential` in `eta`; t1 may be infinite."""
        return self.likelihood.curvature_given(self.response)

    @property
    def self_concordance(self) -> float | None:
        """M such that the derivative of t'' is at most M t'' in absolute value; None where there is no such M."""
        return self.likelihood.self_concordance

    @property
    def value_error(self) -> float:
        """A bound on the error of one term's mean, as `gaussian_moments` computes it."""
        return self.likelihood.value_error_given(self.response)

    def gaussian_moments(self, mean: Batch, variance: Batch, y: Any) -> LinkMoments:
        """E t, E t' and E t'' for eta ~ N(mean, variance), one a data term."""
        return self.likelihood.moments(mean, variance, y)

    def moment_errors(self, mean: Batch, variance: Batch, y: Any) -> MomentErrors:
        """Bounds on the errors of `gaussian_moments`."""
        return self.likelihood.moment_errors(mean, variance, y)

    def curvature_moments(self, mean: Batch, deviation: Batch, y: Any = None) -> tuple[Batch, Batch, Batch, Any]:
        """E[u^j t''(mean + deviation u)] for j = 0, 1, 2 and u ~ N(0, 1), and a bound on their errors.

        Only for self-concordant links; `y` where t'' depends on the row.
        """
        if self.self_concordance is None:
            raise ValueError(f"{type(self).__name__} is not self-concordant: its curvature has no such moments.")
        return self.likelihood.curvature_moments(mean, deviation, y)

    @property
    def dim(self) -> int:
        """The number of coefficients, the intercept included."""
        return self.design.shape[1]

    @property
    def dtype(self) -> Any:
        """The floating type of the design matrix."""
        return self.design.dtype

    @property
    def num_terms(self) -> int:
        """The number of rows."""
        return counted(self.division, self.design.shape[0])

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The columns' names, or `coefficient[0]`, `coefficient[1]`, ..."""
        return default_names("coefficient", self.dim) if self.names is None else self.names

    def prior_potential(self, z: Vector) -> Scalar:
        """-log N(z; m, S)."""
        return self.prior.potential(z)

    def potential(self, z: Vector) -> Scalar:
        """-log p(z, y): the prior and all terms."""
        if self.stream is None:
            return super().potential(z)
        return self.prior_potential(z) + _streamed_terms(self, z)

    def widened(self) -> "AbstractLinearModel":
        """The same density computed in float64, of the same data."""
        wide: Any = in_double(self)
        return wide if self.stream is None else eqx.tree_at(lambda t: t.design, wide, self.stream.widened())

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Batch:
        """-log p(y_n | x_n' z) for n in `indices`; its mean over the noise where there is a variance offset."""
        rows = self.rows(jax.tree.map(lambda x: x[indices], self.row_data()))
        return self.smoothed_link(rows.design @ z, rows)

    @property
    def variance_offset(self) -> Batch | None:
        """kappa: row n sees x_n' z + sqrt(kappa_n) e with independent e ~ N(0, 1), averaged in its term; or `None`."""
        return None

    @property
    def has_variance_offset(self) -> bool:
        """Whether the rows have offsets, be they stored or computed with the rows."""
        return self.variance_offset is not None

    def row_data(self) -> Any:
        """Arrays with one entry a row, from whose parts `rows` makes the rows."""
        return self.design, self.response, self.variance_offset

    def smoothed_link(self, eta: Any, rows: Rows) -> Any:
        """E t(eta + sqrt(kappa) e, y), each row's term as a function of its inner product: as convex as t."""
        if rows.variance_offset is None:
            return self.link_potential(eta, rows.response)
        return self.gaussian_moments(eta, rows.variance_offset, rows.response).value

    def value_and_gradient(self, z: Vector) -> tuple[Scalar, Vector]:
        """The potential and its gradient; a large float32 table on a GPU is read once, not twice."""
        own = isinstance(self.response, RowNumbers)
        if own or self.has_variance_offset or self.division is not None or not fast_products(self):
            return super().value_and_gradient(z)
        from provi.core.row_kernels import compiles, gradient_sums  # for a GPU only

        if not compiles(self.link_potential, self.dtype):
            return super().value_and_gradient(z)
        value, gradient = jax.value_and_grad(self.prior_potential)(z)
        rows, slope = gradient_sums(self.design, self.response, z, self.link_potential)
        return value + rows.astype(value.dtype), gradient + slope.astype(gradient.dtype)

    def predictor(self, rows: Rows, z: Vector) -> Batch:
        """eta_n = x_n' z of these rows, without their noise."""
        return rows.design @ z

    def response_law(self, z: Any) -> tuple[AbstractLikelihood, np.ndarray] | None:
        """The likelihood and x_n' z of each row, with its offset; None where rows have noise of their own."""
        if self.has_variance_offset:
            return None
        return self.likelihood.seen_by_all(np.asarray(z, np.float64) @ np.asarray(self.design, np.float64).T)

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[str]]]:
        """The columns' names, where there are any."""
        return {} if self.names is None else {self.variable: {"parameter": self.names}}

    def linear_model(self) -> "AbstractLinearModel":
        """Itself."""
        return self

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None]:
        """(S^-1 + t0 X'X, S^-1 + t1 X'X), moved apart by the rounding of their computation."""
        lower, upper = self.curvature
        precision, identity = self.prior.precision_matrix(), np.eye(self.dim)
        rounding = self.prior.precision_rounding()
        low, high = precision - rounding * identity, precision + rounding * identity
        if upper == 0.0:
            return low, high
        gram = np.asarray(double_precision(_gram)(self))
        # An inner product of length N is off by at most N eps |x||y|; |X|_F^2 bounds the matrix of these.
        error = 2 * self.num_terms * np.finfo(np.float64).eps * np.trace(gram) * identity
        low = low + lower * (gram - error) if lower > 0 else low
        return low, (high + upper * (gram + error) if np.isfinite(upper) else None)

    def thinned(self, stride: int, seed: int) -> "AbstractLinearModel | None":
        """The same model of one row, by chance, of every `stride` in order; None where the rows are not a stored table.

        One of every few in order and not a plain sample: whatever the order of the rows stands for is all there.
        """
        data, stream = self.row_data(), self.stream
        if self.has_variance_offset or not isinstance(self.design, jax.Array | RowStream) or len(data) != 3:
            return None
        count = self.num_terms // stride
        places = stride * np.arange(count) + np.random.default_rng(seed).integers(stride, size=count)
        if stream is not None:
            design, numbers = (device_array(x, self.dtype) for x in stream.rows.sample(places))
            return with_rows(self, design, stream.responses(numbers))
        design, response = (_chosen(x, device_array(places)) for x in data[:2])
        sample = eqx.tree_at(lambda model: (model.design, model.response), self, (design, response))
        return sample if self.division is None else local(undivided(sample)[0])  # small enough for one device

    def curvature_lower_bound(self) -> np.ndarray:
        """Without a pass over the data where the terms promise no curvature."""
        if self.curvature[0] > 0:
            return self.curvature_bounds()[0]
        return self.prior.precision_matrix() - self.prior.precision_rounding() * np.eye(self.dim)

    @property
    def constants(self) -> Constants:
        """A log-concave likelihood under a Gaussian prior: proven, or as the user declared of the likelihood."""
        low, high = self.curvature_bounds()
        strong_convexity = max(outer_spectrum(low)[0], self.prior.strong_convexity())
        smoothness = (
            unknown(f"not smooth: the second derivative {self.likelihood.second_derivative} is unbounded")
            if high is None
            else proven(outer_spectrum(high)[1], "lambda_max(S^-1 + t1 X'X), rounded up")
        )
        return self._constants(strong_convexity, "lambda_min(S^-1 + t0 X'X), rounded down", smoothness)

    def constants_of_prior(self) -> Constants:
        """What is known without a pass over the data."""
        later = unknown("no bound above needs it, and it takes a pass over the data: target.constants has it")
        return self._constants(self.prior.strong_convexity(), "lambda_min(S^-1) of the prior, rounded down", later)

    def _constants(self, strong_convexity: float, why: str, smoothness: Constant) -> Constants:
        status, reason = self.likelihood.grounds
        concave = "Gaussian prior and log-concave likelihood" if status == "proven" else f"Gaussian prior; {reason}"
        return Constants(
            log_concave=Constant(True, status, concave),
            strong_convexity=Constant(strong_convexity, status, why),
            smoothness=smoothness,
        )


def fast_products(target: AbstractLinearModel) -> bool:
    """Whether steps may take the kernels of `core.row_kernels`: a large table in float32 on a GPU."""
    if jax.default_backend() != "gpu" or not isinstance(target.design, jax.Array):
        return False
    from provi.core.row_kernels import supported  # brings a compiler of its own

    return supported(target.design)


def with_rows(target: AbstractLinearModel, design: Any, response: Any) -> AbstractLinearModel:
    """The model of a stream with some of its rows, in memory, instead."""
    return eqx.tree_at(lambda model: (model.design, model.response), target, (design, response), is_leaf=_is_stream)


class BatchFeed:
    r"""Before each step, the model in memory of M rows of a stream of N, each of which counts N/M times.

    Its potential is the prior's and $(N/M)\sum_B$ of the terms. `place`: where in the endless row of passes over the
    shuffled rows (`data.encoded_rows.ShuffledRows`) the batch of a step begins.
    """

    def __init__(self, target: AbstractLinearModel, size: int, seed: int, place: Callable[[int], int]) -> None:
        from provi.data.encoded_rows import ShuffledRows  # models of arrays do without what reads tables

        stream: Any = target.stream
        self.shuffled, self.size, self.place = ShuffledRows(stream.rows, seed), size, place
        self.share = np.asarray(target.num_terms / size, target.dtype)
        known: Any = target.likelihood
        make: Any = RowLikelihood
        ends = stream.rows.weights or (1.0, 1.0)
        likelihood = make(
            known.plain,
            target.response,
            None if stream.rows.offset is None else known.offset,
            device_array(self.share * np.asarray(ends, target.dtype)),
        )
        self.target = eqx.tree_at(lambda model: model.likelihood, target, likelihood)

    def __call__(self, target: Any, step: int) -> AbstractLinearModel:
        """The batch of this step; `target` is the whole, and not looked at."""
        del target
        design, numbers = self.shuffled.take(self.place(step), self.size)
        given = self.target.stream.responses(numbers)  # pyright: ignore[reportOptionalMemberAccess]
        given = given if isinstance(given, RowNumbers) else RowNumbers(given)
        weight = self.share * (np.ones_like(given.value) if given.weight is None else given.weight)
        whole = RowNumbers(*(None if x is None else device_array(x) for x in (given.value, given.offset, weight)))
        return with_rows(self.target, device_array(design), whole)


def _is_stream(node: Any) -> bool:
    return isinstance(node, RowStream)


@jax.custom_jvp
def _streamed_terms(target: AbstractLinearModel, z: Any) -> Any:
    """The sum of the terms at z. Derivatives come from the same pass: to go back through it would hold all rows."""
    return sum_over_rows(target, lambda rows, real: jnp.sum(_terms(target, rows, real, z)))


@_streamed_terms.defjvp
def _streamed_terms_jvp(primals: Any, tangents: Any) -> Any:
    target, z = primals

    def sums(rows: Rows, real: Any) -> Any:
        return jax.value_and_grad(lambda at: jnp.sum(_terms(target, rows, real, at)))(z)

    value, slope = sum_over_rows(target, sums)
    return value, jnp.dot(slope, tangents[1])


def _terms(target: AbstractLinearModel, rows: Rows, real: Any, z: Any) -> Any:
    return jnp.where(real, target.smoothed_link(rows.design @ z, rows), 0)


@program_jit
def _chosen(rows: Any, places: Any) -> Any:
    return rows[places]


@instant_jit
def _gram(target: AbstractLinearModel) -> Any:
    """X'X in float64."""
    return sum_over_rows(target, lambda rows, real: real_gram(rows.design, real), dtype=jnp.float64)


@double_precision
def _pointwise_log_likelihood(target: Any, z: Any) -> dict[str, np.ndarray]:
    """log p(y_n | z) of each row of `target.row_data()`, for one point or for draws (n, dim)."""
    return {"y": _over_rows(target, z, lambda part, points, _: _log_likelihood(target, part, points))}


@double_precision
def _replicated_responses(target: Any, z: Any, seed: int) -> dict[str, np.ndarray]:
    """y_n ~ p(y | eta_n) for each row, one replicate for each row of z; empty where the likelihood cannot draw."""
    key = folded(key_of(check_count("seed", seed, minimum=0)), _STREAM)
    zero = np.zeros(1, target.dtype)
    if jax.eval_shape(lambda x: target.likelihood.draw_rows(key, x, x), zero) is None:
        return {}

    def draw(part: Any, points: Draws, block: int) -> Any:
        return _responses(target, part, points, split_keys(folded(key, block), points.shape[0]))

    return {"y": _over_rows(target, z, draw)}


def _over_rows(target: Any, z: Any, function: Callable[[Any, Draws, int], Any]) -> np.ndarray:
    """`function` of a block of rows at a time, so that features that are not stored need not be all at once."""
    points = read_points(z, target.dim)
    rows, data = device_array(np.atleast_2d(points), target.dtype), target.row_data()
    size, parts = block_size(target), []
    for block, start in enumerate(range(0, target.num_terms, size)):
        # An index, so that it means a run of rows without a copy.
        part = jax.tree.map(lambda x, start=start: x[start : start + size], data)
        parts.append(np.asarray(function(part, rows, block)))
    values = np.concatenate(parts, axis=1)
    return values if points.ndim == 2 else values[0]


@instant_jit
def _log_likelihood(target: Any, part: Any, points: Draws) -> Any:
    rows = target.rows(part)

    def at(point: Any) -> Any:
        eta = target.predictor(rows, point)
        if rows.variance_offset is None:
            return -target.likelihood.potential(eta, rows.response)
        return target.likelihood.log_predictive(eta, rows.variance_offset, rows.response)

    return jax.vmap(at)(points)


@instant_jit
def _responses(target: Any, part: Any, points: Draws, keys: Any) -> Any:
    rows = target.rows(part)

    def at(point: Any, key: RandomKey) -> Any:
        noise_key, response_key = jax.random.split(key)
        eta = target.predictor(rows, point)
        if rows.variance_offset is not None:
            eta = eta + jnp.sqrt(rows.variance_offset) * jax.random.normal(noise_key, eta.shape, eta.dtype)
        return target.likelihood.draw_rows(response_key, eta, rows.response)

    return jax.vmap(at)(points, keys)
