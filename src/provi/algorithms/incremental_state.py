"""The state of MISO and MISSO, the arguments they have in common, and what a visit reports."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import StepInfo
from provi.core.checks import check_count
from provi.core.types import Count, Flag, Scalar
from provi.schedules.sampling import AbstractSampling, ReshuffledSampling

_NEVER = 2**30


class MISSOState(eqx.Module):
    """The parameters, the statistics of all n surrogates, their mean, the Markov chains, the number of visits made.

    A visit with something non-finite in it leaves all this as it was: `rejected` counts such visits,
    `rejected_in_a_row` those since the last good one, and `first_rejected` is the number of the first, or -1.
    """

    parameters: Any
    table: Any
    mean: Any
    chains: Any
    step: Count
    rejected: Count
    rejected_in_a_row: Count
    first_rejected: Count

    @property
    def point(self) -> Any:
        """The parameters, under the name that the loop uses."""
        return self.parameters


def as_sampling(value: Any) -> AbstractSampling | None:
    """A rule, or a whole number taken as the size of batches in reshuffled order."""
    return value if value is None or isinstance(value, AbstractSampling) else ReshuffledSampling(value)


def as_refresh(value: Any) -> Any:
    """The number of passes between two sums of the table; None is never."""
    if value is None or isinstance(value, int | float):
        return np.asarray(_NEVER if value is None else check_count("refresh_every", value))
    return value


def _largest(tree: Any) -> Scalar:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0).astype(float) for leaf in jax.tree.leaves(tree)]))


def step_info(old: Any, new: Any, built: Flag, accepted: Flag, num_draws: Count) -> StepInfo:
    """What a visit tells: how far the parameters moved and how large they are, NaN for what was not finite.

    Both in the largest entry, which is finite when all entries are.
    """
    dtype = jax.tree.leaves(old)[0].dtype
    one = jnp.ones((), dtype)
    moved = _largest(jax.tree.map(jnp.subtract, new, old)).astype(dtype)
    size = _largest(new).astype(dtype)
    return StepInfo(
        one,
        num_draws.astype(jnp.int32),
        jnp.where(built, jnp.where(accepted, moved, 0), jnp.nan),
        0 * one,
        jnp.where(accepted | ~built, size, jnp.nan),
    )


def check_minimiser(shapes: Any, parameters: Any) -> None:
    """`ValueError` unless what `minimise` returns has the structure and the shapes of the parameters."""

    def described(tree: Any) -> tuple[Any, list[Any]]:
        return jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]

    if described(shapes) != described(parameters):
        raise ValueError(
            f"minimise must return parameters like those it is given: {parameters!r}; it returns {shapes!r}."
        )


def latest_elbo(values: Any) -> tuple[float, float]:
    r"""Minus the mean of the terms' latest values, and a standard error of it; NaN until all were visited.

    The error is $s/\sqrt n$, with $s^2$ the values' sample variance. Independent noise of variances $v_i$ in the values
    makes $E s^2 = \bar v$ plus the variance of the terms' means, so it is at least that of the mean on average. It does
    not count that the values belong to parameters of up to a pass ago. Infinite for a single term.
    """
    values = np.asarray(values, dtype=np.float64)
    if np.isnan(values).any():
        return np.nan, np.nan
    error = float(values.std(ddof=1)) / values.size**0.5 if values.size > 1 else np.inf
    return -float(values.mean()), error
