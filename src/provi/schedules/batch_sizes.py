"""Numbers of Monte-Carlo draws per step, as functions of the step number."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.checks import check_count, check_positive
from provi.core.types import Count


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


class AbstractBatchSize(eqx.Module):
    """A schedule N_t of whole numbers >= 1."""

    @abstractmethod
    def __call__(self, step: Count) -> Count:
        """N at step number `step`."""


class ConstantBatch(AbstractBatchSize):
    """N_t = value."""

    value: Any = eqx.field(converter=_count("num_draws"))

    def __call__(self, step):
        del step
        return jnp.asarray(self.value)


class PolynomialBatch(AbstractBatchSize):
    """N_t = min(ceil(initial (t + 1)^exponent), largest) (paper 004, dynamic strategies 2 and 3).

    A `largest` that is reached makes the tail constant, which ends the summability the theorems use: leave it
    at its default to keep the guarantee.
    """

    initial: Any = eqx.field(converter=_count("initial"))
    exponent: Any = eqx.field(converter=_exponent)
    largest: Any = eqx.field(converter=_count("largest"), default=2**30)

    def __call__(self, step):
        # The small offset keeps exact powers from being rounded up by one.
        grown = jnp.ceil(self.initial * (step + 1.0) ** self.exponent - 1e-9)
        return jnp.minimum(grown, self.largest).astype(jnp.int32)


def as_batch_size(value: Any) -> AbstractBatchSize:
    """A schedule, or a whole number taken as a constant one."""
    return value if isinstance(value, AbstractBatchSize) else ConstantBatch(value)
