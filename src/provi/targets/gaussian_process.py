"""Gaussian-process models: a function drawn from a Gaussian process, one datum a function value."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import as_array, available_bytes, check_length, device_array, double_precision, floating_dtype
from provi.core.frames import frame_names, is_frame
from provi.core.interpreter import instant_jit
from provi.core.types import Indices, Matrix, Scalar, Vector
from provi.kernels import AbstractKernel, SquaredExponential
from provi.kernels.rows import Gram, KernelRows, absolute_row_sums, in_full, is_streamed
from provi.targets.base import Constant, Constants, unknown
from provi.targets.data import default_names
from provi.targets.likelihoods import AbstractLikelihood, BernoulliLogit
from provi.targets.linear_model import AbstractRowModel
from provi.targets.priors import GaussianPrior
from provi.targets.regressions import GeneralisedLinearModel
from provi.targets.row_sums import Rows

LARGEST_DENSE = 2000
"""Number of data up to which the model can be seen as a linear one."""


class GaussianProcess(AbstractRowModel):
    r"""$y_n \sim p(y_n|z_n)$, $z = f(X) \sim N(\mu, K)$, $K = k(X, X) + \text{jitter}\,I$.

    The latent function values z are the parameters. `provi.fit(target)` finds the best Gaussian of all, kept as two
    vectors of length N, by natural gradients; for log-concave likelihoods with a deterministic certificate.

    With `stream=True` the kernel matrix is never made: memory O(N), entries computed anew in every product
    (`provi.kernels.rows`). The default fit then needs conjugate gradients for all N variances at each step;
    `provi.algorithms.PGSVI` needs them for a batch. Log-concave likelihoods only: their sites are not negative.
    """

    variable: ClassVar[str] = "f"
    inputs: Float[Array, "terms columns"]
    response: Float[Array, " terms"]
    kernel: AbstractKernel
    likelihood: AbstractLikelihood
    jitter: Scalar
    mean: Scalar
    gram: Gram
    columns: tuple[str, ...] | None = eqx.field(static=True)

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        kernel: AbstractKernel | None = None,
        likelihood: AbstractLikelihood | None = None,
        *,
        jitter: float = 1e-6,
        mean: float = 0.0,
        dtype: Any = None,
        stream: bool = False,
    ):
        """**Arguments:**

        - `X`: (N, d) inputs, an array or a data frame. - `y`: (N,) responses, as the likelihood wants them.
        - `kernel`: of `provi.kernels`; default `SquaredExponential()`.
        - `likelihood`: of `provi.targets.likelihoods`; default `BernoulliLogit()`.
        - `jitter`: added to the diagonal of the kernel matrix: part of the model, and of its ELBO. Zero is allowed.
        - `mean`: the prior mean of every function value. - `dtype`: default that of `X`.
        - `stream`: do not store the (N, N) kernel matrix.
        """
        inputs = as_array("X", X, ndim=2)
        self.columns = frame_names(X) if not isinstance(X, np.ndarray) and is_frame(X) else None
        self.kernel = SquaredExponential() if kernel is None else kernel
        self.likelihood = BernoulliLogit() if likelihood is None else likelihood
        if not isinstance(self.kernel, AbstractKernel):
            raise TypeError(f"kernel must be a kernel such as provi.kernels.SquaredExponential(), not {kernel!r}.")
        if not isinstance(self.likelihood, AbstractLikelihood):
            raise TypeError(f"likelihood must be e.g. provi.targets.likelihoods.BernoulliLogit(), not {likelihood!r}.")
        if not (_is_number(jitter) and jitter >= 0):
            raise ValueError(f"jitter must be a number of at least 0, not {jitter}.")
        if not _is_number(mean):
            raise ValueError(f"mean must be a finite number, not {mean}.")
        dtype = floating_dtype(inputs if getattr(X, "dtype", None) is None else X) if dtype is None else dtype
        if stream:
            _check_streamed(self.likelihood)
        else:
            _check_memory(inputs.shape[0], np.dtype(dtype).itemsize)
        response = self.likelihood.read_response(y, inputs.shape[0])
        check_length("y", response, inputs.shape[0], "one response for each row of X")
        self.inputs = device_array(inputs, dtype)
        self.response = device_array(response, dtype)
        self.jitter, self.mean = device_array(np.asarray(jitter, dtype)), device_array(np.asarray(mean, dtype))
        if stream:
            self.gram = KernelRows(self.kernel, self.inputs, self.jitter)
            _check_rows(self.gram)
        else:
            self.gram = kernel_matrix(self.kernel, self.inputs, self.jitter)
            _check_gram(np.asarray(self.gram))

    @property
    def dim(self) -> int:
        """The number of function values: one a datum."""
        return self.inputs.shape[0]

    @property
    def num_terms(self) -> int:
        """The number of data."""
        return self.inputs.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the kernel matrix."""
        return self.gram.dtype

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """`f[0]`, `f[1]`, ..."""
        return default_names("f", self.dim)

    def prior_potential(self, z: Vector) -> Scalar:
        """-log N(z; mean, K), by a Cholesky factor of K at every call; K must not be singular."""
        prior = GaussianPrior(jnp.full_like(z, 1) * self.mean, jnp.linalg.cholesky(in_full(self.gram)))
        return prior.potential(z)

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Any:
        """-log p(y_n | z_n) for n in `indices`."""
        return self.likelihood.potential(z[indices], self.response[indices])

    def row_data(self) -> tuple[Any, Any]:
        """Which function value each datum sees, in place of a design, and the datum."""
        return jnp.arange(self.num_terms), self.response

    def predictor(self, rows: Rows, z: Vector) -> Any:
        """eta_n = z_n."""
        return z[rows.design]

    def response_law(self, z: Any) -> tuple[AbstractLikelihood, np.ndarray]:
        """The likelihood and the function values themselves."""
        return self.likelihood, np.asarray(z, np.float64)

    @property
    def constants(self) -> Constants:
        """A Gaussian prior: strongly convex by 1 / lambda_max(K) where the likelihood is log-concave."""
        if not self.likelihood.log_concave:
            reason = f"the {self.likelihood.name} likelihood is not log-concave"
            # A user's may be, unless its curvature is known.
            known = np.isfinite(self.likelihood.curvature[0])
            concave = Constant(False, "violated", reason) if known else unknown("log_concave=True was not declared")
            return Constants(concave, unknown(reason), unknown(reason))
        # The largest row sum bounds the largest eigenvalue, for a pass over K instead of its spectrum.
        if isinstance(self.gram, KernelRows):
            sums = np.asarray(_row_sums(self.gram))
        else:
            sums = np.abs(np.asarray(self.gram, np.float64)).sum(axis=1)
        largest = float(sums.max()) * (1 + 1e-10)
        status, reason = self.likelihood.grounds
        return Constants(
            log_concave=Constant(True, status, f"Gaussian prior; {reason}"),
            strong_convexity=Constant(1 / largest, status, "1 / (largest row sum of |K|)"),
            smoothness=unknown("not computed: no bound on the gap needs it"),
        )

    def linear_model(self) -> GeneralisedLinearModel | None:
        """With the identity as design, for families other than the dual one; None where that is not possible."""
        if not self.likelihood.log_concave or self.dim > LARGEST_DENSE:
            return None
        gram = np.asarray(in_full(self.gram))
        try:
            np.linalg.cholesky(gram.astype(np.float64))
        except np.linalg.LinAlgError:
            raise ValueError(
                "the kernel matrix is singular, and only the dual form holds its Gaussians: leave family at None, or "
                "make the target with jitter=1e-6."
            ) from None
        identity = device_array(np.eye(self.dim, dtype=self.dtype))
        return GeneralisedLinearModel(
            identity,
            self.response,
            self.likelihood,
            prior_covariance=gram,
            prior_mean=np.full(self.dim, np.asarray(self.mean)),
            names=self.parameter_names,
        )

    def with_kernel(self, kernel: AbstractKernel) -> "GaussianProcess":
        """The same data under another kernel."""
        stored = not is_streamed(self.gram)
        make = kernel_matrix if stored else KernelRows
        gram = make(kernel, self.inputs, self.jitter)
        return eqx.tree_at(lambda t: (t.kernel, t.gram), self, (kernel, gram))


@instant_jit
def kernel_matrix(kernel: AbstractKernel, inputs: Any, jitter: Any) -> Matrix:
    """K = k(X, X) + jitter I."""
    gram = kernel.matrix(inputs)
    return gram + jitter * jnp.eye(gram.shape[0], dtype=gram.dtype)


def _check_memory(size: int, itemsize: int) -> None:
    """K and one matrix of work to make it."""
    needed, available = 2 * itemsize * size**2, available_bytes()
    if needed > available:
        raise ValueError(
            f"X has {size} rows: the kernel matrix and the work on it take {needed / 2**30:.1f} GiB, but only "
            f"{available / 2**30:.1f} GiB are free. Use inducing points, provi.targets.SparseGaussianProcess(X, y, "
            f"inducing=500), or fewer rows; or stream=True, which computes its entries when they are needed."
        )


def _check_streamed(likelihood: AbstractLikelihood) -> None:
    if not likelihood.log_concave:
        raise ValueError(
            f"stream=True needs a log-concave likelihood, and {likelihood.name} is not: its sites may be negative, "
            f"which takes a root of the kernel matrix. Leave stream=False."
        )


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.shape == () and array.dtype.kind in "biuf" and bool(np.isfinite(array))


def _row_sums(gram: KernelRows) -> Any:
    return double_precision(lambda: absolute_row_sums(gram.astype(np.float64)))()


def _check_rows(gram: KernelRows) -> None:
    """As `_check_gram`, by a pass over the rows that are not kept."""
    sums, variances = np.asarray(absolute_row_sums(gram)), np.asarray(gram.diagonal())
    if not np.isfinite(sums).all():
        row = int(np.argmin(np.isfinite(sums)))
        raise ValueError(
            f"kernel gives numbers that are not finite in row {row} of X: scale the columns of X, or check the "
            f"kernel's hyperparameters."
        )
    if not (variances > 0).all():
        first = int(np.argmin(variances))
        raise ValueError(f"kernel gives row {first} of X the variance {variances[first]}: add jitter=1e-6.")


def _check_gram(gram: np.ndarray) -> None:
    """Before any long work: finite, and no variance of zero or less."""
    if not np.isfinite(gram).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(gram))[0])
        raise ValueError(
            f"kernel gives {gram[row, column]} between rows {row} and {column} of X: scale the columns of X, or check "
            f"the kernel's hyperparameters."
        )
    if not (np.diagonal(gram) > 0).all():
        first = int(np.argmin(np.diagonal(gram)))
        raise ValueError(f"kernel gives row {first} of X the variance {gram[first, first]}: add jitter=1e-6.")
