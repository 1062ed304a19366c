"""Numbers of Monte-Carlo draws per step, as functions of the step number."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.core.types import Count

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
