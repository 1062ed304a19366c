"""Bijections onto simplices, ordered vectors and correlation matrices."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Scalar
from provi.targets.transforms.scalar import AbstractBijection, Leaf

_SLACK = 1e-6  # how far a simplex may sum from one, or a row's norm lie from it: users' numbers may be float32


class Simplex(AbstractBijection):
    r"""K positive numbers with the sum one, along the last axis, by K - 1 breaks of a stick.

    $y_k = s_k \prod_{j<k} (1 - s_j)$ with $s_k = \sigma(x_k - \log(K - 1 - k))$, $k = 0, \ldots, K - 2$; the rest of
    the stick is $y_{K-1}$, and x = 0 is the centre. Against the first K - 1 entries of y,
    $\log|\det| = \sum_k (\log y_k + \log(1 - s_k))$. All products are sums of logarithms, so that no share rounds to
    zero before the smallest float.
    """

    label: ClassVar[str] = "sticks"

    @property
    def description(self) -> str:
        """In words."""
        return "positive, with the sum 1 along the last axis"

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One less along the last axis."""
        if not shape or shape[-1] < 2:
            raise ValueError(f"a simplex needs a last axis of at least 2, not the shape {shape}")
        return (*shape[:-1], shape[-1] - 1)

    def forward(self, x: Leaf) -> Leaf:
        """exp of `_log_shares`."""
        return jnp.exp(self._log_shares(x))

    def log_det(self, x: Leaf) -> Scalar:
        """sum_k log y_k + log(1 - s_k)."""
        return jnp.sum(self._log_shares(x)[..., :-1]) + jnp.sum(jax.nn.log_sigmoid(-self._breaks(x)))

    def inverse(self, y: Leaf) -> Leaf:
        """log(y_k / sum_{j>k} y_j) + log(K - 1 - k)."""
        rest = jnp.flip(jnp.cumsum(jnp.flip(y[..., 1:], -1), -1), -1)
        return jnp.log(y[..., :-1]) - jnp.log(rest) + _log_remaining(y[..., :-1])

    def contains(self, y: np.ndarray) -> bool:
        """Positive, and the sum one up to rounding."""
        return bool((y > 0).all() and (np.abs(y.sum(-1) - 1) <= _SLACK).all())

    def _breaks(self, x: Leaf) -> Leaf:
        return x - _log_remaining(x)

    def _log_shares(self, x: Leaf) -> Leaf:
        breaks = self._breaks(x)
        left = jnp.cumsum(jax.nn.log_sigmoid(-breaks), -1)
        return jnp.concatenate([jax.nn.log_sigmoid(breaks), jnp.zeros_like(x[..., :1])], -1) + jnp.concatenate(
            [jnp.zeros_like(x[..., :1]), left], -1
        )


def _log_remaining(x: Leaf) -> Leaf:
    """log(K - 1 - k) for k = 0, ..., K - 2, with leading axes of x."""
    return jnp.broadcast_to(jnp.log(jnp.arange(x.shape[-1], 0, -1, dtype=x.dtype)), x.shape)


class Ordered(AbstractBijection):
    """Increasing numbers along the last axis: y_0 = x_0, y_k = y_(k-1) + exp(x_k); log |det| = sum_(k>0) x_k."""

    label: ClassVar[str] = "steps"

    @property
    def description(self) -> str:
        """In words."""
        return "strictly increasing along the last axis"

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same."""
        if not shape:
            raise ValueError("an ordered parameter needs at least one axis")
        return shape

    def forward(self, x: Leaf) -> Leaf:
        """Cumulative sums."""
        return jnp.cumsum(jnp.concatenate([x[..., :1], jnp.exp(x[..., 1:])], -1), -1)

    def log_det(self, x: Leaf) -> Scalar:
        """sum of x but the first."""
        return jnp.sum(x[..., 1:])

    def inverse(self, y: Leaf) -> Leaf:
        """Logarithms of the differences."""
        return jnp.concatenate([y[..., :1], jnp.log(jnp.diff(y, axis=-1))], -1)

    def contains(self, y: np.ndarray) -> bool:
        """Positive differences."""
        return bool((np.diff(y, axis=-1) > 0).all())


class CorrelationCholesky(AbstractBijection):
    r"""Lower Cholesky factors L of d x d correlation matrices, over the last two axes, from d(d - 1)/2 numbers.

    Row i is a unit vector by signed breaks of a stick: with x filled in row by row below the diagonal,
    $L_{ij} = \tanh(x_{ij}) \prod_{k<j} \mathrm{sech}(x_{ik})$ for j < i and
    $L_{ii} = \prod_{k<i} \mathrm{sech}(x_{ik})$ (Lewandowski, Kurowicka and Joe 2009). Against the entries of L below
    the diagonal,
    $\log|\det| = \sum_{j<i} (2 \log\mathrm{sech}\,x_{ij} + \sum_{k<j} \log\mathrm{sech}\,x_{ik})$.
    """

    label: ClassVar[str] = "partial"

    @property
    def description(self) -> str:
        """In words."""
        return "the lower Cholesky factor of a correlation matrix (positive diagonal, rows of norm 1)"

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """d(d - 1)/2 in place of the last two axes."""
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 2:
            raise ValueError(f"a correlation matrix needs two last axes of one length >= 2, not the shape {shape}")
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)

    def forward(self, x: Leaf) -> Leaf:
        """L."""
        square = _fill(x)
        dim = square.shape[-1]
        signed = jnp.tril(jnp.tanh(square), -1) + jnp.broadcast_to(jnp.eye(dim, dtype=x.dtype), square.shape)
        return signed * jnp.exp(_log_left(square))

    def log_det(self, x: Leaf) -> Scalar:
        """sum over the entries below the diagonal."""
        square = _fill(x)
        return jnp.sum(jnp.tril(2 * _log_sech(square) + _log_left(square), -1))

    def inverse(self, y: Leaf) -> Leaf:
        """x_ij = asinh(L_ij / |(L_i,j+1, ..., L_ii)|): tanh and sech of the same number, and nothing cancels."""
        after = jnp.flip(jnp.cumsum(jnp.flip(y**2, -1), -1), -1)
        rows, columns = np.tril_indices(y.shape[-1], -1)
        return jnp.arcsinh(y[..., rows, columns] / jnp.sqrt(after[..., rows, columns + 1]))

    def contains(self, y: np.ndarray) -> bool:
        """Lower triangular, positive on the diagonal, rows of norm one up to rounding."""
        positive = (np.diagonal(y, axis1=-2, axis2=-1) > 0).all()
        return bool(positive and not np.triu(y, 1).any() and (np.abs(np.sum(y**2, -1) - 1) <= _SLACK).all())


class CorrelationMatrix(AbstractBijection):
    r"""d x d correlation matrices R = L L', over the last two axes, through `CorrelationCholesky`.

    Against the entries of R below the diagonal, $\log|\det|$ gains $\sum_i (d - 1 - i) \log L_{ii}$, i = 0, 1, ....
    """

    label: ClassVar[str] = "partial"

    @property
    def description(self) -> str:
        """In words."""
        return "a correlation matrix (symmetric, positive definite, ones on the diagonal; numpy.eye to start with)"

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """d(d - 1)/2 in place of the last two axes."""
        return CorrelationCholesky().free_shape(shape)

    def forward(self, x: Leaf) -> Leaf:
        """L L'."""
        factor = CorrelationCholesky().forward(x)
        product = factor @ jnp.swapaxes(factor, -1, -2)
        dim = product.shape[-1]
        # Exact ones, so that a density that checks for a unit diagonal is content.
        identity = jnp.broadcast_to(jnp.eye(dim, dtype=x.dtype), product.shape)
        return product * (1 - identity) + identity

    def log_det(self, x: Leaf) -> Scalar:
        """That of the factor, and sum_i (d - 1 - i) log L_ii."""
        log_diagonal = jnp.diagonal(_log_left(_fill(x)), axis1=-2, axis2=-1)
        powers = jnp.arange(log_diagonal.shape[-1] - 1, -1, -1, dtype=x.dtype)
        return CorrelationCholesky().log_det(x) + jnp.sum(jnp.broadcast_to(powers, log_diagonal.shape) * log_diagonal)

    def inverse(self, y: Leaf) -> Leaf:
        """Through the Cholesky factor."""
        return CorrelationCholesky().inverse(jnp.linalg.cholesky(y))

    def contains(self, y: np.ndarray) -> bool:
        """Symmetric and ones on the diagonal up to rounding, positive eigenvalues."""
        ones = np.abs(np.diagonal(y, axis1=-2, axis2=-1) - 1) <= _SLACK
        symmetric = np.abs(y - np.swapaxes(y, -1, -2)) <= _SLACK
        return bool(ones.all() and symmetric.all() and (np.linalg.eigvalsh(y) > 0).all())


def _fill(x: Leaf) -> Leaf:
    """The numbers row by row below the diagonal of a matrix of zeros."""
    dim = (1 + round((1 + 8 * x.shape[-1]) ** 0.5)) // 2
    return jnp.zeros((*x.shape[:-1], dim, dim), x.dtype).at[(..., *np.tril_indices(dim, -1))].set(x)


def _log_sech(x: Leaf) -> Leaf:
    """log sech x = log 2 - log(e^x + e^-x), without overflow, and smooth at 0."""
    return np.log(2.0) - jnp.logaddexp(x, -x)


def _log_left(square: Leaf) -> Leaf:
    """sum_(k<j) log sech x_ik: the logarithm of the norm that is left for entry j of row i, up to the diagonal."""
    below = jnp.tril(_log_sech(square), -1)
    return jnp.cumsum(below, -1) - below
