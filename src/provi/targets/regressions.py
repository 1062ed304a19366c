"""Bayesian regressions: y_n ~ p(y | x_n' z) with z ~ N(m, S), for one likelihood each or for any log-concave one."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import cho_factor, cho_solve

from provi.core.arguments import check_positive, device_array, double_precision
from provi.core.limits import STREAM_MEMORY
from provi.core.types import Scalar
from provi.targets.data import read_design
from provi.targets.likelihoods.base import AbstractLikelihood
from provi.targets.likelihoods.bernoulli import BernoulliLogit, BernoulliProbit
from provi.targets.likelihoods.gaussian import GaussianNoise
from provi.targets.likelihoods.poisson import Poisson
from provi.targets.likelihoods.rows import RowLikelihood, of_responses, read_rows
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import GaussianPrior, gaussian_prior
from provi.targets.streaming import RowStream, block_stream, parquet_stream

_Model = TypeVar("_Model", bound="AbstractRegression")


class AbstractRegression(AbstractLinearModel):
    """A linear model of a table: its data and prior. A regression adds the `likelihood`, the last leaf.

    Strongly convex by its prior; smooth where the likelihood's second derivative is bounded for these responses.
    """

    design: Float[Array, "terms dim"] | RowStream
    response: Float[Array, " terms"]
    prior: GaussianPrior
    names: tuple[str, ...] | None = eqx.field(static=True)
    own_likelihood: ClassVar[Any] = None
    """Makes that of a regression which has one; others are told."""

    @classmethod
    @double_precision
    def from_parquet(
        cls: type[_Model],
        path: Any,
        target: str,
        columns: Sequence[str] | None = None,
        *,
        categorical: Sequence[str] = (),
        standardise: bool = False,
        intercept: bool = False,
        positive: str | None = None,
        dtype: Any = None,
        memory: int = STREAM_MEMORY,
        prefetch: bool = True,
        offset: Any = None,
        exposure: Any = None,
        weights: Any = None,
        **model: Any,
    ) -> _Model:
        """The model of a table in Parquet or Arrow files that may be larger than memory.

        The files are read once here, to count and check the rows and to learn levels, means and scales, and again in
        every pass of a fit or of a certificate, a block at a time.

        **Arguments:**

        - `path`: a file (.parquet, .pq, .arrow, .feather), a folder of them, a pattern such as `"part-*.parquet"`, or
            a list of these. Rows follow each other in the order of names, or of the list.
        - `target`: the column of the responses. Texts are labels of two classes, of which `positive`, or else the last
            in order, is 1.
        - `columns`: those to use, in this order; default all others. - `categorical`: columns of codes that are
            categories; texts and booleans are in any case. A category of k levels becomes k - 1 indicators.
        - `standardise`: bring numbers to mean 0 and standard deviation 1. - `intercept`: put a column of ones first.
        - `dtype`: float32 or float64; default float32 where all numbers of the files are, else float64.
        - `memory`: bytes of the data that may be in memory at once, 512 MiB unless told; a program with JAX and
            Arrow takes some 500 MiB besides. - `prefetch`: read the next block while one is computed with.
        - `offset`, `exposure`, `weights`: columns that hold, for each row, what the arguments of the class of these
            names do: what is added to the predictor, what counts are in proportion to, how often the row counts.
        - `model`: the other arguments of the class: `prior_scale=`, `noise_scale=`, `likelihood=`, ...
        """
        extras = {"offset": offset, "exposure": exposure, "weights": weights}
        likelihood, options = _streamed(cls, model), {"positive": positive, "ahead": prefetch, "memory": memory}
        options |= {"categorical": categorical, "standardise": standardise, "intercept": intercept, "dtype": dtype}
        make: Any = cls
        return make(parquet_stream(path, target, columns, likelihood, extras, **options), None, **model)

    @classmethod
    @double_precision
    def from_blocks(
        cls: type[_Model],
        X: Any,
        y: Any = None,
        *,
        names: Sequence[str] | None = None,
        standardise: bool = False,
        intercept: bool = False,
        dtype: Any = None,
        memory: int = STREAM_MEMORY,
        prefetch: bool = True,
        offset: Any = None,
        exposure: Any = None,
        weights: Any = None,
        **model: Any,
    ) -> _Model:
        """The model of arrays that are mapped from disk, or of blocks that a function yields.

        **Arguments:**

        - `X`, `y`: arrays such as `np.load("X.npy", mmap_mode="r")`, or paths of .npy files, which are mapped. Or `X`
            is a function without arguments, and each call of it yields the same pairs (X_block, y_block) from the
            beginning: a pass that gives other rows than the one before is an error.
            A third item of the tuples may be a dictionary with arrays for any of "offset", "exposure" and "weights".
        - `names`: of the columns. - `offset`, `exposure`, `weights`: one number for each row (an array or the path of a
            .npy file) or one for all, as for the class. - the others: as for `from_parquet`.
        """
        extras = {"offset": offset, "exposure": exposure, "weights": weights}
        likelihood, options = _streamed(cls, model), {"ahead": prefetch, "memory": memory, "dtype": dtype}
        options |= {"standardise": standardise, "intercept": intercept}
        make: Any = cls
        return make(block_stream(X, y, names, likelihood, extras, **options), None, **model)

    @property
    def offset(self) -> Any:
        """o: the predictor of row n is x_n' z + o_n; None for zero. Of rows read in blocks, the extreme ones."""
        return self.likelihood.offset if isinstance(self.likelihood, RowLikelihood) else None

    @property
    def weights(self) -> Any:
        """w: the term of row n counts w_n times; None for once. Of rows read in blocks, the extreme ones."""
        return self.likelihood.weights if isinstance(self.likelihood, RowLikelihood) else None


class LogisticRegression(AbstractRegression):
    """y_n ~ Bernoulli(sigmoid(x_n' z)) with z ~ N(m, S).

    Strongly convex by its prior (t0 = 0), smooth with t1 = 1/4.
    """

    likelihood: BernoulliLogit | RowLikelihood
    own_likelihood = BernoulliLogit

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
        offset: Any = None,
        weights: Any = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame.
        - `y`: (N,) labels 0 and 1, or booleans.
        - `prior_scale`: a standard deviation for all coefficients, one for each, or some by name, `{"x1": 0.5}`; those
            that are not named have 1.
        - `prior_covariance`: instead of `prior_scale`, variances or a covariance matrix.
        - `prior_mean`: the prior mean, a number, one for each or some by name; zero if not given.
        - `intercept`: put a column of ones first.
        - `names`: a name for each column of `X`.
        - `offset`: (N,) numbers o_n, or one: the predictor is x_n' z + o_n.
        - `weights`: (N,) numbers w_n >= 0: the log-likelihood of row n counts w_n times. Then y may hold shares of
            successes, whose weights are the trials: the binomial likelihood, but for its coefficients.
        """
        self.design, self.names = read_design(X, names, intercept)
        rows = _Rows(y, offset, weights)
        self.likelihood, self.response = rows.read(self, BernoulliLogit())
        self.prior = read_prior(self, prior_scale, prior_covariance, prior_mean)


class ProbitRegression(AbstractRegression):
    """y_n ~ Bernoulli(Phi(x_n' z)) with z ~ N(m, S), Phi the standard normal distribution function.

    Strongly convex by its prior (t0 = 0), smooth with t1 = 1. The second derivative of -log Phi at t is
    1 - Var(Z | Z < t) for a standard normal Z. The variance is positive; and it is below 1, because a density
    proportional to exp(-z^2/2) on a half-line is 1-strongly log-concave (Brascamp-Lieb).
    """

    likelihood: BernoulliProbit | RowLikelihood
    own_likelihood = BernoulliProbit

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
        offset: Any = None,
        weights: Any = None,
    ):
        """**Arguments:** as for `LogisticRegression`."""
        self.design, self.names = read_design(X, names, intercept)
        rows = _Rows(y, offset, weights)
        self.likelihood, self.response = rows.read(self, BernoulliProbit())
        self.prior = read_prior(self, prior_scale, prior_covariance, prior_mean)


class PoissonRegression(AbstractRegression):
    """y_n ~ Poisson(exp(x_n' z)) with z ~ N(m, S). Strongly convex by its prior; not smooth."""

    likelihood: Poisson | RowLikelihood
    own_likelihood = Poisson

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
        offset: Any = None,
        exposure: Any = None,
        weights: Any = None,
    ):
        """**Arguments:** as for `LogisticRegression`, but `y` are counts 0, 1, 2, ...

        - `exposure`: (N,) positive numbers E_n: the mean of y_n is E_n exp(x_n' z), an offset of log E_n.
        """
        self.design, self.names = read_design(X, names, intercept)
        rows = _Rows(y, offset, weights, exposure)
        self.likelihood, self.response = rows.read(self, Poisson())
        self.prior = read_prior(self, prior_scale, prior_covariance, prior_mean)


class GeneralisedLinearModel(AbstractRegression):
    """y_n ~ p(y | eta = x_n' z) with z ~ N(m, S), for a log-concave likelihood.

    Strongly convex by its prior; smooth where the likelihood's second derivative is bounded for these responses.
    """

    likelihood: AbstractLikelihood

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        likelihood: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
        offset: Any = None,
        exposure: Any = None,
        weights: Any = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame.
        - `y`: (N,) responses of the kind that the likelihood is for.
        - `likelihood`: one of `provi.targets.likelihoods`, for instance `NegativeBinomial(2.0)`.
        - `prior_scale`, `prior_covariance`, `prior_mean`, `intercept`, `names`, `offset`, `weights`: as for
            `LogisticRegression`. - `exposure`: as for `PoissonRegression`; of counts with the log link.
        """
        if not isinstance(likelihood, AbstractLikelihood):
            raise ValueError(f"likelihood must be one of provi.targets.likelihoods, not {likelihood!r}.")
        if not likelihood.log_concave:
            raise ValueError(
                f"likelihood {type(likelihood).__name__} is not log-concave, and what is proven about linear models "
                f"rests on convexity. Use a LogDensity target; or, for a UserLikelihood whose log_prob is concave in "
                f"eta, say so with log_concave=True."
            )
        self.design, self.names = read_design(X, names, intercept)
        rows = _Rows(y, offset, weights, exposure)
        self.likelihood, self.response = rows.read(self, likelihood)
        self.prior = read_prior(self, prior_scale, prior_covariance, prior_mean)


class LinearRegression(AbstractRegression):
    """y_n ~ N(x_n' z, noise_scale^2) with z ~ N(m, S): the model whose posterior is known exactly.

    Strongly convex and smooth: t0 = t1 = 1/noise_scale^2, so both constants are tight.
    """

    likelihood: GaussianNoise | RowLikelihood
    own_likelihood = staticmethod(lambda: GaussianNoise(1.0))

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        noise_scale: Any = 1.0,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
        offset: Any = None,
        weights: Any = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame.
        - `y`: (N,) real responses.
        - `noise_scale`: the standard deviation of the noise.
        - `prior_scale`, `prior_covariance`, `prior_mean`, `intercept`, `names`, `offset`, `weights`: as for
            `LogisticRegression`.
        """
        self.design, self.names = read_design(X, names, intercept)
        noise = GaussianNoise(np.asarray(check_positive("noise_scale", noise_scale), self.design.dtype))
        rows = _Rows(y, offset, weights)
        self.likelihood, self.response = rows.read(self, noise)
        self.prior = read_prior(self, prior_scale, prior_covariance, prior_mean)

    @property
    def noise_scale(self) -> Scalar:
        """The standard deviation of the noise."""
        plain: Any = self.likelihood.plain
        return plain.scale

    def exact_posterior(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the covariance of the Gaussian posterior, on the host in float64."""
        mean, factor = self._solve()
        return mean, cho_solve(factor, np.eye(self.dim))

    def log_evidence(self) -> float:
        """log p(y | X): the largest value an ELBO can take.

        log p(y) = log p(y, z) - log p(z | y) at any z; the posterior mean is the best conditioned.
        """
        mean, factor = self._solve()
        design, response, weights = self._rows()
        noise, prior_factor = float(self.noise_scale), self.prior.covariance_factor()
        residual = (response - design @ mean) / noise
        white = np.linalg.solve(prior_factor, mean - np.asarray(self.prior.mean, np.float64))
        log_det = np.log(np.diagonal(factor[0])).sum() + np.log(np.diagonal(prior_factor)).sum()
        constant = weights.sum() * (np.log(noise) + 0.5 * math.log(2 * math.pi))
        return float(-0.5 * residual @ (weights * residual) - 0.5 * white @ white - log_det - constant)

    def _solve(self) -> tuple[np.ndarray, Any]:
        design, response, weights = self._rows()
        scaled = design * (weights * float(self.noise_scale) ** -2.0)[:, None]
        prior_precision = self.prior.precision_matrix()
        factor = cho_factor(prior_precision + scaled.T @ design)
        prior_mean = np.asarray(self.prior.mean, np.float64)
        return cho_solve(factor, prior_precision @ prior_mean + scaled.T @ response), factor

    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X, y less the offset, and the weights, in float64."""
        design, response = np.asarray(self.design, np.float64), np.asarray(self.observed_data["y"], np.float64)
        offset, weights = self.offset, self.weights
        if offset is not None:
            response = response - np.asarray(offset, np.float64)
        return design, response, np.ones(len(response)) if weights is None else np.asarray(weights, np.float64)


class _Rows(NamedTuple):
    """What is given of each row besides X."""

    y: Any
    offset: Any
    weights: Any
    exposure: Any = None

    def read(self, model: AbstractRegression, likelihood: AbstractLikelihood) -> tuple[Any, Float[Array, " terms"]]:
        """The likelihood of the rows and their responses, once the design is there."""
        if model.stream is not None:
            return self._of_stream(model, likelihood)
        found, response = read_rows(
            likelihood, self.y, model.num_terms, self.offset, self.exposure, self.weights, model.dtype
        )
        return found, device_array(np.asarray(response, model.dtype))

    def _of_stream(self, model: AbstractRegression, likelihood: Any) -> tuple[Any, Float[Array, " values"]]:
        """The likelihood of rows that are read in blocks, and the extreme responses."""
        if not (self.offset is self.weights is self.exposure is None):
            raise ValueError("offset=, exposure= and weights= are those of the stream: give them where it is made.")
        rows = model.stream.rows  # pyright: ignore[reportOptionalMemberAccess]
        response = device_array(np.asarray(rows.responses, model.dtype))
        if rows.num_numbers == 1:
            return likelihood, response
        likelihood = of_responses(likelihood, rows.responses, rows.weights is not None)
        ends = (None if x is None else device_array(np.asarray(x, model.dtype)) for x in (rows.offset, rows.weights))
        make: Any = RowLikelihood
        return make(likelihood, response, *ends), response


def _streamed(model: type[AbstractRegression], arguments: Mapping[str, Any]) -> AbstractLikelihood:
    """The likelihood of a streamed model, whose other arguments must be of use."""
    if arguments.get("names") is not None:
        raise ValueError("names= is not for files, whose columns have names.")
    likelihood = arguments.get("likelihood") if model.own_likelihood is None else model.own_likelihood()
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(f"likelihood must be one of provi.targets.likelihoods, not {likelihood!r}.")
    if likelihood.grounds[0] != "proven":
        raise ValueError(
            f"likelihood {type(likelihood).__name__} is log-concave on your word, which certificates test at every "
            f"row: make the target of arrays."
        )
    return likelihood


def read_prior(model: AbstractRegression, scale: Any, covariance: Any, mean: Any) -> GaussianPrior:
    """The prior, once the design is there; numbers may be given by the names of the coefficients."""
    scale = by_name("prior_scale", scale, model.parameter_names, 1.0)
    mean = by_name("prior_mean", mean, model.parameter_names, 0.0)
    return gaussian_prior(model.dim, scale, covariance, mean, model.dtype)


def by_name(argument: str, given: Any, names: Sequence[str], usual: float) -> Any:
    """A dictionary of numbers by name as a vector, with `usual` for the others; anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    for name in given:
        if name not in names:
            raise ValueError(f"{argument} names {name!r}; the coefficients are {', '.join(map(repr, names))}.")
    return np.array([float(given.get(name, usual)) for name in names])
