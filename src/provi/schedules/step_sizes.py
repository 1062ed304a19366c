"""Step sizes as functions of the step number t = 0, 1, 2, ...; every number is an array leaf."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_positive
from provi.core.types import Count, Scalar


def _positive(name: str):
    def convert(value: Any) -> Any:
        # Traced or batched leaves pass through: a schedule is rebuilt from its leaves inside jit and vmap.
        if isinstance(value, int | float | np.ndarray | np.generic):
            return np.asarray(check_positive(name, value), dtype=np.float64)
        return value

    return convert


class AbstractStepSize(eqx.Module):
    """A schedule gamma_t."""

    @abstractmethod
    def __call__(self, step: Count) -> Scalar:
        """gamma at step number `step`."""


class ConstantStep(AbstractStepSize):
    """gamma_t = value."""

    value: Any = eqx.field(converter=_positive("step_size"))

    def __call__(self, step):
        del step
        return jnp.asarray(self.value)


class PolynomialStep(AbstractStepSize):
    """gamma_t = initial (t + 1)^-exponent (paper 004, dynamic strategies 1 and 2)."""

    initial: Any = eqx.field(converter=_positive("initial"))
    exponent: Any = eqx.field(converter=_positive("exponent"), default=0.5)

    def __call__(self, step):
        return self.initial * (step + 1.0) ** (-self.exponent)


class StronglyConvexStep(AbstractStepSize):
    r"""gamma_t = min(largest, (2t + 1) / (mu (t + 1)^2)): the anytime schedule of paper 003, Theorems 7 and 10.

    Prox-SGD takes the strong convexity itself as `strong_convexity`, Proj-SGD half of it.
    """

    largest: Any = eqx.field(converter=_positive("largest"))
    strong_convexity: Any = eqx.field(converter=_positive("strong_convexity"))

    def __call__(self, step):
        decaying = (2.0 * step + 1.0) / (self.strong_convexity * (step + 1.0) ** 2)
        return jnp.minimum(self.largest, decaying)


def as_step_size(value: Any) -> AbstractStepSize:
    """A schedule, or a number taken as a constant one."""
    return value if isinstance(value, AbstractStepSize) else ConstantStep(value)
