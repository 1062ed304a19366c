r"""Natural-gradient variational inference in conditionally conjugate models (Hoffman et al. 2013).

The model is $p(\beta)\prod_n p(x_n, z_n\mid\beta)$ where $p(\beta)$ is conjugate with natural parameter $\lambda_0$ and
the complete data have sufficient statistics $t(x_n, z_n)$; $q(\beta)$ has natural parameter $\lambda$. With the local
factors $q(z_n)$ at their best for $\lambda$, the mean-field optimum given these factors is

$$\hat\lambda = \lambda_0 + \sum_n E\,t(x_n, z_n) \approx \lambda_0 + \frac NM\sum_{n\in B}E\,t(x_n, z_n),$$

and the gradient of the ELBO in $\lambda$ is $\nabla^2A(\lambda)(\hat\lambda - \lambda)$ (errata 2 of paper 002). So the
iteration of PG-SVI with $h = 0$ and the symmetric KL to second order, whose metric is the Fisher matrix
$\nabla^2A$, is

$$\lambda \leftarrow r\lambda + (1-r)\hat\lambda,\qquad r = \frac1{1+\beta}:$$

Hoffman's SVI with rate $1-r$. All rows and $r = 0$ is coordinate ascent, under which the ELBO never falls.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Scalar

BLOCK = 32
"""Passes of coordinate ascent between two looks of the host; the number of passes asked for is not compiled in."""

PATIENCE = 3
"""Passes in a row with less gain than the tolerance after which a stochastic run ends."""

FIRST_MEMORY = 0.2
"""The automatic step starts with a rate that forgets after this part of a pass; the rate is at most 1/2."""


class LocalAnswer(NamedTuple):
    r"""Sums over rows at the best local factors: $\sum_nE\,t(x_n,z_n)$, a pytree like $\lambda$, and the local ELBO
    $\sum_nE\log p(x_n,z_n\mid\beta) - E\log q(z_n)$."""

    statistics: Any
    bound: Any


class AbstractConjugateModel(eqx.Module):
    r"""The prior's natural parameter $\lambda_0$ (a pytree), the local step, and $KL(q(\beta)\,\|\,p(\beta))$."""

    prior: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def local_step(self, natural: Any, rows: Any) -> LocalAnswer:
        """The sums over `rows`, a pytree with the rows along the first axis of each leaf. A padded row adds zero."""

    @abc.abstractmethod
    def divergence(self, natural: Any) -> Scalar:
        """The KL divergence of q with natural parameter `natural` from the prior."""


class Ascent(NamedTuple):
    """Natural parameter, ELBO at the start and after each pass (the last is that of `natural`), how it ended."""

    natural: Any
    elbo: np.ndarray
    converged: bool


def natural_gradient_step(model: AbstractConjugateModel, natural: Any, statistics: Any, rate: Any) -> Any:
    r"""$r\lambda + (1-r)(\lambda_0 + \hat t)$ for the rate $1 - r = \beta/(1+\beta)$.

    `statistics` is $\hat t$, an unbiased estimate of the sum over all rows: the batch's sum times N/M.
    """
    return jax.tree.map(
        lambda old, start, sum_of_rows: (1 - rate) * old + rate * (start + sum_of_rows),
        natural,
        model.prior,
        statistics,
    )


def forgetting_rate(step: Any, offset: float | int, decay: float | int) -> Any:
    r"""$\rho_k = (k_0 + k)^{-\kappa}$ for the batches k = 1, 2, ...: Robbins-Monro for $1/2 < \kappa\le1$."""
    return (offset + step) ** (-decay)


def full_answer(model: AbstractConjugateModel, natural: Any, strata: tuple) -> LocalAnswer:
    """The local step over all rows, stratum by stratum; `strata` is a tuple of pytrees of rows."""
    answers = [model.local_step(natural, rows) for rows in strata]
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *answers)


@eqx.filter_jit
def elbo(model: AbstractConjugateModel, natural: Any, strata: tuple) -> Scalar:
    r"""The ELBO with the local factors at their best for `natural`: local bound minus $KL(q(\beta)\|p(\beta))$."""
    return full_answer(model, natural, strata).bound - model.divergence(natural)


@eqx.filter_jit
def answer_batch(model: AbstractConjugateModel, natural: Any, rows: Any, scale: Any, rate: Any) -> Any:
    """One natural-gradient step from one batch, whose sums stand for `scale` = N/M times as many rows."""
    statistics = jax.tree.map(lambda leaf: scale * leaf, full_answer(model, natural, rows).statistics)
    return natural_gradient_step(model, natural, statistics, rate)


@eqx.filter_jit
def _ascend(model, natural, strata, limit, tolerance):
    """At most `limit` <= BLOCK passes of coordinate ascent from `natural`; the ELBO is measured before each update.

    Ends at a parameter whose ELBO is known: the update of the last measurement is not made.
    """

    def unfinished(carry):
        measured, finished = carry[:2]
        return (measured <= limit) & ~finished

    def one_pass(carry):
        measured, _, natural, last, history = carry
        answer = full_answer(model, natural, strata)
        value = answer.bound - model.divergence(natural)
        # A bound that is not finite must end the run as well: hence "not (gain > tolerance)".
        finished = ~(value - last > tolerance)
        updated = natural_gradient_step(model, natural, answer.statistics, jnp.ones_like(value))
        stop = finished | (measured == limit)
        natural = jax.tree.map(lambda old, new: jnp.where(stop, old, new), natural, updated)
        return measured + 1, finished, natural, value, history.at[measured].set(value)

    nothing = jnp.full(BLOCK + 1, -jnp.inf, tolerance.dtype)
    start = (jnp.zeros((), limit.dtype), jnp.zeros((), bool), natural, nothing[0], nothing)
    measured, finished, natural, _, history = jax.lax.while_loop(unfinished, one_pass, start)
    return natural, history, measured, finished


def coordinate_ascent(
    model: AbstractConjugateModel, natural: Any, strata: tuple, max_passes: int, tolerance: float
) -> Ascent:
    """Full-batch steps with r = 0 until a pass gains no more than `tolerance` nats: the ELBO never falls.

    **Returns:** an `Ascent` with one ELBO more than there were updates.
    """
    smallest_gain = jnp.asarray(np.asarray(tolerance, jax.tree.leaves(natural)[0].dtype))
    values, updates, finished = [], 0, False
    while not values or (updates < max_passes and not finished):
        limit = jnp.asarray(np.asarray(min(BLOCK, max_passes - updates)))
        natural, history, measured, finished = _ascend(model, natural, strata, limit, smallest_gain)
        # A block measures the parameter it starts from, which the block before has measured too.
        values.extend(np.asarray(history, np.float64)[min(len(values), 1) : int(measured)])
        updates = len(values) - 1
    return Ascent(natural, np.asarray(values), bool(finished))


@eqx.filter_jit
def _stochastic_pass(model, natural, strata, batches, scales, rates):
    """One step for each batch; `batches` has for each stratum the (B, M) row numbers, `scales` its N/M."""

    def visit(natural, now):
        indices, rate = now
        total = jax.tree.map(jnp.zeros_like, natural)
        for rows, index, scale in zip(strata, indices, scales, strict=True):
            batch = jax.tree.map(lambda leaf, index=index: leaf[index], rows)
            sums = model.local_step(natural, batch).statistics
            total = jax.tree.map(lambda whole, part, scale=scale: whole + scale * part, total, sums)
        return natural_gradient_step(model, natural, total, rate), None

    natural, _ = jax.lax.scan(visit, natural, (batches, rates))
    return natural


def draw_batches(generator: Any, sizes: tuple[int, ...], batch_size: int) -> tuple[np.ndarray, ...]:
    r"""Batches of one pass, stratified: (B, $M_s$) row numbers for each stratum s, $M_s\approx M N_s/N$.

    Each batch has $M_s$ rows of every stratum, which stand for $N_s/M_s$ as many: unbiased, with no more noise than
    plain sampling. The few rows that do not fill the last batch wait for the next pass, since a short batch would
    weigh more than the others.
    """
    num_batches = max(1, min(sum(sizes) // batch_size, *sizes)) if sizes else 1
    batches = []
    for size in sizes:
        each = size // num_batches
        batches.append(generator.permutation(size)[: num_batches * each].reshape(num_batches, each).astype(np.int32))
    return tuple(batches)


def stochastic_ascent(
    model: AbstractConjugateModel,
    natural: Any,
    strata: tuple,
    sizes: tuple[int, ...],
    generator: Any,
    batch_size: int,
    max_passes: int,
    tolerance: float,
    forgetting: tuple[float, float] | None = None,
) -> Ascent:
    r"""Mini-batch steps; the ELBO over all rows is measured after each pass.

    **Arguments:**

    - `sizes`: number of rows of each stratum; what lies beyond in `strata` is padding and is never drawn.
    - `generator`: NumPy random state, for the order of the rows.
    - `tolerance`: ends after three passes in a row with no more gain than this, in nats.
    - `forgetting`: $(k_0, \kappa)$ of `forgetting_rate`. If None the step is automatic: it starts with the memory of a
      fifth of a pass, and a pass that brings no gain is undone and the rate halved, so that the ELBO never falls.
    """
    dtype = jax.tree.leaves(natural)[0].dtype
    values, steps, halvings, idle = [float(elbo(model, natural, strata))], 0, 0, 0
    while len(values) <= max_passes and idle < PATIENCE:
        batches = draw_batches(generator, sizes, batch_size)
        count = len(batches[0])
        rate = min(0.5, 1 / (FIRST_MEMORY * count)) / 2**halvings
        rates = np.full(count, rate)
        if forgetting is not None:
            rates = forgetting_rate(steps + 1 + np.arange(count), *forgetting)
        scales = tuple(jnp.asarray(np.asarray(s / b.shape[1], dtype)) for s, b in zip(sizes, batches, strict=True))
        index = tuple(jnp.asarray(b) for b in batches)
        trial = _stochastic_pass(model, natural, strata, index, scales, jnp.asarray(rates.astype(dtype)))
        value, steps = float(elbo(model, trial, strata)), steps + count
        gain = value - values[-1]
        undone = forgetting is None and not gain > 0
        if undone:
            halvings += 1
        else:
            natural = trial
        values.append(values[-1] if undone else value)
        # A pass lost to a rate with less memory than a pass says that the rate is too large, not that the end is near.
        if gain > tolerance:
            idle = 0
        elif not undone or rate * count <= 1:
            idle += 1
    return Ascent(natural, np.asarray(values), idle == PATIENCE)
