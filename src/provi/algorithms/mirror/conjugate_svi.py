r"""Natural-gradient variational inference in conditionally conjugate models (Hoffman et al. 2013).

The model is $p(\beta)\prod_n p(x_n, z_n\mid\beta)$ where $p(\beta)$ is conjugate with natural parameter $\lambda_0$ and
the complete data have sufficient statistics $t(x_n, z_n)$; $q(\beta)$ has natural parameter $\lambda$. With the local
factors $q(z_n)$ at their best for $\lambda$, the mean-field optimum given these factors is

$$\hat\lambda = \lambda_0 + \sum_n E\,t(x_n, z_n) \approx \lambda_0 + \frac NM\sum_{n\in B}E\,t(x_n, z_n),$$

so in the mean parameter, f = -E log p(data | beta) has the gradient $-\sum_nE\,t(x_n, z_n)$ (the local factors are at
their optimum and do not move it), and the one step with $h = KL(q\|p)$ and D = KL, row four of `step`, is

$$\lambda \leftarrow r\lambda + (1-r)\hat\lambda,\qquad r = \frac1{1+\beta}:$$

Hoffman's SVI with rate $1-r$, the natural gradient (errata 2 of paper 002). All rows and an infinite step, $r = 0$, is
coordinate ascent, under which the ELBO never falls: `ProximalGradient(KL(), inf)` on a `ConjugateSplit`. Mini-batches
are `StochasticMirrorDescent`. Both are run by `provi.runtime`.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.mirror.split import AbstractSplit, KLToPrior
from provi.algorithms.mirror.step import towards
from provi.core.arguments import device_array
from provi.core.tree import select, squared_norm, zeros_like
from provi.core.types import Count, Flag, Scalar
from provi.families.base import AnyParameters

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
    """One natural-gradient step from one batch, whose sums stand for `scale` = N/M times as many rows.

    Not through `runtime`: in a stream (`partial_fit`) the loop is the caller's, who hands over one batch at a time.
    """
    gradient = jax.tree.map(lambda leaf: -(scale * leaf), full_answer(model, natural, rows).statistics)
    return towards(natural, model.prior, gradient, rate)


class Visits(NamedTuple):
    """The batches of one pass, drawn on the host: for each stratum (B, M) row numbers and N/M, and the B rates."""

    indices: tuple
    scales: tuple
    rates: Any


class ConjugateSplit(AbstractSplit):
    """-ELBO of a conditionally conjugate model over all rows, `strata` a tuple of pytrees of rows, each with its own
    shapes; `visits` are the batches of the pass at hand, for `StochasticMirrorDescent`."""

    model: AbstractConjugateModel
    strata: tuple
    visits: Visits | None = None

    def exact_part(self):
        return KLToPrior(self.model.prior)

    @property
    def knows_objective(self):
        return True

    def measure(self, space, point, key):
        del space, key
        answer = full_answer(self.model, point, self.strata)
        return self.model.divergence(point) - answer.bound, jax.tree.map(jnp.negative, answer.statistics)


class _PassState(eqx.Module):
    """The point and the ELBO there; how often the rate was halved; passes in a row without gain."""

    point: Any
    elbo: Scalar
    elbo_error: Scalar
    halvings: Count
    idle: Count
    step: Count


class StochasticMirrorDescent(AbstractAlgorithm):
    r"""$\lambda\leftarrow(1-\rho)\lambda + \rho(\lambda_0 + \frac NM\sum_{n\in B}E\,t(x_n, z_n))$, batch by batch.

    Minimises the -ELBO of a conditionally conjugate model, a `ConjugateSplit` whose `visits` are fed by the host. A
    step of the loop is a *pass*, after which the ELBO over all rows is measured, since only there a rate can be judged;
    the first only measures the start.

    **Arguments:**

    - `tolerance`: a pass that gains no more, in nats, is idle.
    - `automatic`: a pass that brings no gain is undone and the rates halved, so that the ELBO never falls. Otherwise
      the rates are those of `visits`.

    **Requires** unbiased batches and, for convergence, $\sum\rho_k = \infty$, $\sum\rho_k^2 < \infty$. **Guarantee**:
    Robbins and Monro's, to a stationary point; automatic: none but descent. **Cost per step** two local steps for each
    row. **Reference**: Hoffman, Blei, Wang and Paisley, Stochastic variational inference, JMLR 14, 2013.
    """

    tolerance: Scalar
    automatic: Flag
    guarantee: Guarantee | None = eqx.field(static=True, default=None)

    quantities: ClassVar[tuple[str, str, str]] = ("the natural parameter", "the ELBO", "the new parameters")

    def resolve(self, target, family):
        if not isinstance(target, ConjugateSplit) or not isinstance(family, AnyParameters):
            raise ValueError("StochasticMirrorDescent needs a ConjugateSplit and AnyParameters.")
        return self

    def init(self, point):
        dtype = jax.tree.leaves(point)[0].dtype
        never, nothing = (device_array(np.asarray(x, dtype)) for x in (-np.inf, np.nan))
        zero = device_array(np.asarray(0))
        return _PassState(point, never, nothing, zero, zero, zero)

    def step(self, key, state, target, family, shrink):
        del key, family
        model, strata, visits = target.model, target.strata, target.visits
        share = shrink * 2.0 ** -state.halvings.astype(shrink.dtype)
        trial = jax.lax.cond(
            state.step == 0, lambda: state.point, lambda: _go_through(model, state.point, strata, visits, share)
        )
        elbo = full_answer(model, trial, strata).bound - model.divergence(trial)
        gain = elbo - state.elbo
        undone = self.automatic & ~(gain > 0) & (state.step > 0)
        # A pass lost to a rate with less memory than a pass says that the rate is too large, not that the end is near.
        remembers = share * visits.rates[0] * visits.rates.size <= 1
        idle = jnp.where(gain > self.tolerance, 0, state.idle + (~undone | remembers))
        point, elbo = select(undone, (state.point, state.elbo), (trial, elbo))
        error = jnp.where(jnp.isfinite(elbo), 0, jnp.nan).astype(elbo.dtype)
        new = _PassState(point, elbo, error, state.halvings + undone, idle, state.step + 1)
        norm = jnp.sqrt(squared_norm(point))
        # What is undone is finite; the loop rejects what is not.
        return new, StepInfo(share * visits.rates[-1], jnp.asarray(1, jnp.int32), (norm * 0, elbo - elbo, norm))

    def cost_at(self, step):
        """One: a look at the objective."""
        return jnp.ones_like(step)

    def output(self, state):
        return state.point

    def recorded_elbo(self, state):
        return state.elbo, state.elbo_error


def _go_through(model, natural, strata, visits, share):
    """One step for each batch, all with `share` of their rates."""

    def visit(natural, now):
        indices, rate = now
        total = zeros_like(natural)
        for rows, index, scale in zip(strata, indices, visits.scales, strict=True):
            batch = jax.tree.map(lambda leaf, index=index: leaf[index], rows)
            sums = model.local_step(natural, batch).statistics
            total = jax.tree.map(lambda whole, part, scale=scale: whole + scale * part, total, sums)
        return towards(natural, model.prior, jax.tree.map(jnp.negative, total), rate), None

    return jax.lax.scan(visit, natural, (visits.indices, share * visits.rates))[0]


def batch_shapes(sizes: tuple[int, ...], batch_size: int) -> list[tuple[int, int]]:
    r"""(B, $M_s$) for each stratum s: B batches a pass, of $M_s\approx M N_s/N$ of its rows each."""
    num_batches = max(1, min(sum(sizes) // batch_size, *sizes)) if sizes else 1
    return [(num_batches, size // num_batches) for size in sizes]


def draw_batches(generator: Any, sizes: tuple[int, ...], batch_size: int) -> tuple[np.ndarray, ...]:
    r"""Batches of one pass, stratified: (B, $M_s$) row numbers for each stratum s.

    Each batch has $M_s$ rows of every stratum, which stand for $N_s/M_s$ as many: unbiased, with no more noise than
    plain sampling. The few rows that do not fill the last batch wait for the next pass, since a short batch would
    weigh more than the others.
    """
    return tuple(
        generator.permutation(size)[: shape[0] * shape[1]].reshape(shape).astype(np.int32)
        for size, shape in zip(sizes, batch_shapes(sizes, batch_size), strict=True)
    )
