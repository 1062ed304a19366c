r"""Numbers of draws per step: functions of the step number, or from the measured noise of the gradient.

**The norm test** (`NoiseBatch`). A batch of M draws $x_i$ (each an unbiased estimate of the whole gradient, e.g. N
times one datum's) has the mean g, with noise $E|g-\nabla f|^2 = s^2/M$. Wanted: $s^2/M \le \theta^2|\nabla f|^2$. Both
sides are measured on the batch: $\hat s^2 = \sum|x_i-g|^2/(M-1)$, and $|g|^2-\hat s^2/M$, which has mean $|\nabla f|^2$
exactly ($|g|^2$ alone is too large by the noise and would keep a batch too small for ever). The *next* batch is

$$M_+ = \hat s^2/(\theta^2\,(|g|^2-\hat s^2/M)),$$

never smaller than M, at most 4 M, at most N. Chosen from this batch for the next one, it leaves the next gradient
unbiased given the past. Where the signal is not seen at all (difference at most 0) it is 4 M.

**Guarantee** (`theory.strong_growth`): if the test held in truth at every step, gradient descent with step
$1/(L(1+\theta^2))$ would contract like the exact one with $L(1+\theta^2)$ for L, without a noise floor. The test is
on estimates, so this is not a theorem about the rule; that batches never shrink errs on the safe side.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from provi.core.arguments import check_count, check_positive
from provi.core.types import Count, Scalar

NO_LIMIT = 2**30
"""The default of `largest`: what 32-bit counts hold. A schedule that comes to it would not end anyway."""


def _count(name: str):
    def convert(value: Any) -> Any:
        if isinstance(value, int | float | np.ndarray | np.generic):
            return np.asarray(check_count(name, value), dtype=np.int32)
        return value

    return convert


def _exponent(value: Any) -> Any:
    # A negative exponent would end in steps without draws.
    if isinstance(value, int | float | np.ndarray | np.generic):
        return np.asarray(check_positive("exponent", value), dtype=np.float64)
    return value


def _factor(value: Any) -> Any:
    if isinstance(value, int | float | np.ndarray | np.generic):
        return np.asarray(check_positive("factor", value), dtype=np.float64)
    return value


def _cap(largest: Any) -> int | None:
    return None if int(largest) >= NO_LIMIT else int(largest)


class AbstractBatchSize(eqx.Module):
    """A schedule N_t of whole numbers >= 1."""

    @abstractmethod
    def __call__(self, step: Count) -> Count:
        """N at step number `step`."""

    @property
    def growth(self) -> tuple[float, int | None] | None:
        """(a, cap): N_t grows like t^a until it comes to the cap (None: never); None where it is not known.

        a is NaN where only the cap is known, which is enough to say that N_t does not grow for ever.
        """
        return None


class ConstantBatch(AbstractBatchSize):
    """N_t = value."""

    value: Any = eqx.field(converter=_count("num_draws"))

    def __call__(self, step):
        del step
        return jnp.asarray(self.value)

    @property
    def growth(self):
        return 0.0, None


class PolynomialBatch(AbstractBatchSize):
    """N_t = min(ceil(initial (t + 1)^exponent), largest) (paper 004, dynamic strategies 2 and 3).

    `PolynomialBatch(1, 1)` is paper 001's M_k = k, counted from 1. A `largest` that is reached makes the tail constant,
    which ends the summability the theorems use: leave it at its default to keep the guarantee.
    """

    initial: Any = eqx.field(converter=_count("initial"))
    exponent: Any = eqx.field(converter=_exponent)
    largest: Any = eqx.field(converter=_count("largest"), default=NO_LIMIT)

    def __call__(self, step):
        # The small offset keeps exact powers from being rounded up by one.
        grown = jnp.ceil(self.initial * (step + 1.0) ** self.exponent - 1e-9)
        return jnp.minimum(grown, self.largest).astype(jnp.int32)

    @property
    def growth(self):
        return float(self.exponent), _cap(self.largest)


class OffsetPolynomialBatch(AbstractBatchSize):
    """N_t = min(offset + ceil(factor t^exponent), largest), from N_0 = offset on.

    `OffsetPolynomialBatch(10, 2)` is paper 001's 10 + k^2, `OffsetPolynomialBatch(10, 2, largest=100)` the same up to
    100 draws, `OffsetPolynomialBatch(1, 1, factor=5)` a straight line.
    """

    offset: Any = eqx.field(converter=_count("offset"))
    exponent: Any = eqx.field(converter=_exponent)
    factor: Any = eqx.field(converter=_factor, default=1.0)
    largest: Any = eqx.field(converter=_count("largest"), default=NO_LIMIT)

    def __call__(self, step):
        grown = self.offset + jnp.ceil(self.factor * (step + 0.0) ** self.exponent - 1e-9)
        return jnp.minimum(grown, self.largest).astype(jnp.int32)

    @property
    def growth(self):
        return float(self.exponent), _cap(self.largest)


class FunctionBatch(AbstractBatchSize):
    """N_t = function(t), rounded up, at least 1 and at most `largest`: a schedule of the user's own.

    `function` maps the step number, a traced integer, to a number; it must be written with `jax.numpy` where it
    branches. Numbers that it should take without recompilation belong in the fields of an `eqx.Module` with `__call__`.
    """

    function: Any
    largest: Any = eqx.field(converter=_count("largest"), default=NO_LIMIT)

    def __check_init__(self):
        if not callable(self.function):
            raise ValueError(f"function must map a step number to a number of draws, not be {self.function!r}.")

    def __call__(self, step):
        value = jnp.asarray(self.function(step), dtype=float)
        if value.shape != jnp.shape(step):
            raise ValueError(f"function must return one number; the shape of what it returned is {value.shape}.")
        return jnp.clip(jnp.ceil(value - 1e-9), 1, self.largest).astype(jnp.int32)

    @property
    def growth(self):
        cap = _cap(self.largest)
        return None if cap is None else (float("nan"), cap)


def as_batch_size(value: Any) -> AbstractBatchSize:
    """A schedule, or a whole number taken as a constant one."""
    return value if isinstance(value, AbstractBatchSize) else ConstantBatch(value)


Metric = Float[Array, " dim"] | Float[Array, "dim dim"] | None
"""P of $|x|_P^2 = x^\top Px$: None is the Euclidean norm, a vector a diagonal, e.g. the inverse Fisher matrix."""


def squared_length(vectors: Float[Array, "... dim"], metric: Metric = None) -> Float[Array, "..."]:
    r"""$x^\top Px$ along the last axis."""
    if metric is None:
        return jnp.sum(vectors * vectors, axis=-1)
    if metric.ndim == 1:
        return jnp.einsum("...i,i,...i->...", vectors, metric, vectors)
    return jnp.einsum("...i,ij,...j->...", vectors, metric, vectors)


class GradientMoments(eqx.Module):
    r"""Mean, $\sum|x_i-g|_P^2$ and number of the draws seen so far; chunks may be added in any order.

    Differences from the mean are summed, never $\sum|x|^2-M|g|^2$, whose digits cancel.
    """

    mean: Float[Array, " dim"]
    scatter: Scalar
    count: Count

    @classmethod
    def empty(cls, dim: int, dtype: Any) -> "GradientMoments":
        """Before the first draw."""
        return cls(jnp.zeros(dim, dtype), jnp.zeros((), dtype), jnp.zeros((), jnp.int32))

    def add(
        self, rows: Float[Array, "chunk dim"], valid: Bool[Array, " chunk"], metric: Metric = None
    ) -> "GradientMoments":
        """With the rows marked `valid`; the others may hold anything."""
        number, rows = jnp.sum(valid, dtype=jnp.int32), jnp.where(valid[:, None], rows, 0)
        # JAX divides int32 by int32 in single precision, even with x64 on.
        added, before = number.astype(rows.dtype), self.count.astype(rows.dtype)
        mean = jnp.sum(rows, axis=0) / jnp.maximum(added, 1)
        scatter = jnp.sum(jnp.where(valid, squared_length(rows - mean[None, :], metric), 0))
        shift, share = mean - self.mean, added / jnp.maximum(before + added, 1)
        between = squared_length(shift, metric) * (before * share)
        return GradientMoments(self.mean + shift * share, self.scatter + scatter + between, self.count + number)

    @property
    def noise_per_draw(self) -> Scalar:
        r"""$\hat s^2$, unbiased; 0 with fewer than two draws (nothing is seen of the noise then)."""
        return self.scatter / jnp.maximum(self.count - 1, 1).astype(self.scatter.dtype)


def accumulate_chunks(
    rows: Callable[[Any], Float[Array, "chunk dim"]],
    size: Count,
    chunk: int,
    dim: int,
    dtype: Any,
    metric: Metric = None,
) -> GradientMoments:
    """The moments of `size` draws, a number that may change without recompilation.

    `rows(start)` returns the draws start, ..., start + chunk - 1, the last chunk padded with anything.
    """

    def body(start_and_moments):
        start, moments = start_and_moments
        return start + chunk, moments.add(rows(start), start + jnp.arange(chunk) < size, metric)

    first = (jnp.zeros((), jnp.int32), GradientMoments.empty(dim, dtype))
    return jax.lax.while_loop(lambda carry: carry[0] < size, body, first)[1]


def half_batch_noise(
    first: Float[Array, " dim"], second: Float[Array, " dim"], metric: Metric = None
) -> tuple[Scalar, Scalar]:
    r"""$|g|^2$ and the noise of $g = (g_1+g_2)/2$, from two independent halves: $|g_1-g_2|^2/4$.

    Their difference, the signal, is $\langle g_1, g_2\rangle$. For gradients whose single draws are not at hand; a far
    noisier measurement than `GradientMoments`. Multiply the noise by M for `noise_per_draw`.
    """
    return squared_length((first + second) / 2, metric), squared_length(first - second, metric) / 4


def _number(name: str, check: Callable[[str, Any], Any], dtype: Any):
    def convert(value: Any) -> Any:
        return np.asarray(check(name, value), dtype) if isinstance(value, int | float | np.generic) else value

    return convert


def _check_growth(name: str, value: Any) -> float:
    if not check_positive(name, value) > 1:
        raise ValueError(f"{name} must be above 1, not {value}: the batch could never grow. Take 4.")
    return float(value)


class NoiseBatch(eqx.Module):
    r"""The rule above: the next batch size after one of `size` draws.

    - `largest`: N, all data. - `ratio`: $\theta$, noise over signal; 0.5 makes 1.25 times the exact method's steps.
    - `smallest`: 2 or more, or no noise is seen. - `growth`: the most a batch may grow by in one step.
    - `replacement`: False for draws without replacement from the N terms, whose noise is
      $\hat s^2(1/M-1/N)$: exact at M = N. With replacement, take the exact gradient once M reaches N.
    """

    largest: Any = eqx.field(converter=_number("largest", lambda name, value: check_count(name, value, 2), np.int32))
    ratio: Any = eqx.field(default=0.5, converter=_number("ratio", check_positive, np.float64))
    smallest: Any = eqx.field(
        default=2, converter=_number("smallest", lambda name, value: check_count(name, value, 2), np.int32)
    )
    growth: Any = eqx.field(default=4.0, converter=_number("growth", _check_growth, np.float64))
    replacement: bool = eqx.field(default=True, static=True)

    def next_size(self, size: Count, noise_per_draw: Scalar, squared_norm: Scalar) -> Count:
        r"""$M_+$ as an int32 array; `squared_norm` is $|g|^2$ in the same metric. NaN measurements leave M as it is."""
        dtype = jnp.result_type(noise_per_draw, jnp.float32)
        batch, data = jnp.asarray(size, dtype), jnp.asarray(self.largest, dtype)
        spared = jnp.where(self.replacement, 0, 1 / data)
        signal = squared_norm - noise_per_draw * (1 / batch - spared)
        # 1/M - spared <= theta^2 signal / s^2, and no draw more when there is no noise.
        allowed = jnp.asarray(self.ratio, dtype) ** 2 * jnp.maximum(signal, 0) / noise_per_draw + spared
        wanted = jnp.where(noise_per_draw > 0, 1 / allowed, 0)
        ceiling = jnp.minimum(jnp.ceil(batch * jnp.asarray(self.growth, dtype)), data)
        # The offset keeps a whole number from being rounded up by one.
        grown = jnp.ceil(jnp.where(jnp.isnan(wanted), batch, wanted) * (1 - 16 * jnp.finfo(dtype).eps))
        chosen = jnp.maximum(jnp.clip(grown, batch, jnp.maximum(ceiling, batch)), jnp.asarray(self.smallest, dtype))
        return jnp.minimum(chosen, data).astype(jnp.int32)
