r"""Proximal-gradient stochastic variational inference (papers 000 and 002): mini-batches, Monte Carlo, or both.

For the batch B of M data $\hat\alpha_n = (N/M)E\ell_n'$, $\hat\gamma_n = (N/M)E\ell_n''$ on B and zero elsewhere;
$r = 1/(1 + \beta)$. With the prior's part of the ELBO treated exactly,

$$V_+^{-1} = rV^{-1} + (1-r)(K^{-1} + \mathrm{diag}\,\hat\gamma), \qquad
  m_+ = m - (1-r)A^{-1}\bigl(K^{-1}(m - \mu) + \hat\alpha\bigr):$$

$A = V_+^{-1}$ is mirror descent in the mean parameters (m, V + mm'), the natural or A-form;
$A = (1-r)K^{-1} + rV^{-1}$ the exact KL-proximal step in (m, V), the B-form, which the papers' propositions analyse and
which is far worse from a wide prior. `pgsvi_spaces` has both in N-space and in D-space.

E t, E t' and E t'' of a data term by Monte Carlo, t = -log p(y | eta), eta = mean + sd e, e ~ N(0, 1): three ways.

| estimator | E t' | E t'' | |
| --- | --- | --- | --- |
| score | $E[te]/\sigma$ | $E[t(e^2 - 1)]/\sigma^2$ | papers 000 and 002: values of t only; the noisiest |
| price | $E t'$ | $E t''$ | Bonnet and Price; bad where t' bends over much less than $\sigma$ |
| reparameterised | $E t'$ | $E[t'e]/\sigma$ | in between |

All are unbiased. Those of E t'' but price's may be negative for a convex t.

The batches of mini-batch PG-SVI: which data, their moments, and the sums that a step needs.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.algorithms.base import AbstractAlgorithm, StepInfo
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.dual_natural_gradient import FORMS
from provi.algorithms.natural.pgsvi_spaces import AbstractSpace, StreamedSpace, space_of
from provi.core.arguments import check_count, check_positive, device_array
from provi.core.compilation import program_jit
from provi.core.tree import select, squared_norm
from provi.core.types import Count, RandomKey, Scalar
from provi.families.bases import Normal
from provi.families.dual_gaussian import DualGaussian
from provi.families.location_scale import LocationScale
from provi.schedules.batch_sizes import NoiseBatch
from provi.schedules.sampling import AbstractSampling, ReshuffledSampling, UniformSampling
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.likelihoods.base import AbstractLikelihood
from provi.targets.likelihoods.moments import LinkMoments
from provi.targets.linear_model import AbstractLinearModel

ESTIMATORS = ("score", "price", "reparameterised")

Batch = Float[Array, " batch"]


def drawn_moments(
    key: RandomKey, likelihood: AbstractLikelihood, mean: Batch, variance: Batch, y: Any, num: int, estimator: str
) -> LinkMoments:
    """Means over `num` draws, fresh ones for each datum; `estimator` is one of `ESTIMATORS`."""
    noise = jax.random.normal(key, (num, *mean.shape), mean.dtype)
    spread = jnp.sqrt(variance)
    eta = mean[None, :] + spread[None, :] * noise
    responses = jax.tree.map(lambda x: jnp.tile(x, num), y)

    def potential(flat: Any) -> Any:
        return likelihood.potential(flat, responses)

    def slope(flat: Any) -> Any:
        values, pull = jax.vjp(potential, flat)
        return pull(jnp.ones_like(values))[0]

    def average(flat: Any, weights: Any = None) -> Any:
        table = flat.reshape(noise.shape)
        return jnp.mean(table if weights is None else table * weights, axis=0)

    flat = eta.reshape(-1)
    # Where the variance is zero there is no noise to divide by.
    safe = jnp.where(spread > 0, spread, jnp.ones_like(spread))
    values = potential(flat)
    if estimator == "score":
        return LinkMoments(average(values), average(values, noise) / safe, average(values, noise**2 - 1) / safe**2)
    if estimator == "reparameterised":
        slopes = slope(flat)
        return LinkMoments(average(values), average(slopes), average(slopes, noise) / safe)
    slopes, bends = jax.jvp(slope, (flat,), (jnp.ones_like(flat),))
    return LinkMoments(average(values), average(slopes), average(bends))


SAMPLINGS = {"reshuffled": ReshuffledSampling, "uniform": UniformSampling}
_CHUNK = 64
"""Data looked at together when the batch size may change."""


class FixedBatch(eqx.Module):
    """The same number of data in every step: a size, so another one compiles again."""

    size: int = eqx.field(static=True)


def as_batch(value: Any) -> Any:
    """A rule, or a whole number taken as a fixed size."""
    if isinstance(value, NoiseBatch | FixedBatch):
        return value
    return FixedBatch(check_count("batch_size", value))


class BatchSums(eqx.Module):
    r"""$\hat\alpha$ and $\hat\gamma$ as their space keeps them, $\sum_B(E\ell_n')^2v_n$, and what was clipped."""

    slope: Any
    weight: Any
    squares: Scalar
    clipped: Count


class BatchPlan(eqx.Module):
    """How a step reads its batch; the arguments are those of `PGSVI`."""

    rule: NoiseBatch | FixedBatch
    sampling: str = eqx.field(static=True)
    num_samples: int | None = eqx.field(static=True)
    estimator: str = eqx.field(static=True)

    def sums(self, key: RandomKey, state: Any, space: AbstractSpace, scale: Scalar) -> BatchSums:
        """Those of the next batch after `state`, times `scale` = N/M; of changing size, in chunks."""
        rule = self.rule
        if isinstance(rule, FixedBatch):
            return self._chunk(key, state, space, scale, jnp.zeros((), int), rule.size)
        chunk = min(_CHUNK, space.target.num_terms)

        def more(carry: Any) -> Any:
            start, sums = carry
            return start + chunk, jax.tree.map(jnp.add, sums, self._chunk(key, state, space, scale, start, chunk))

        start = jnp.zeros((), int)
        shapes = jax.eval_shape(lambda start: self._chunk(key, state, space, scale, start, chunk), start)
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.while_loop(lambda carry: carry[0] < state.batch, more, (start, zero))[1]

    def _chunk(
        self, key: RandomKey, state: Any, space: AbstractSpace, scale: Scalar, start: Count, chunk: int
    ) -> BatchSums:
        target = space.target
        order, noise = jax.random.split(key)
        places = start + jnp.arange(chunk)
        real = places < state.batch
        one: AbstractSampling = SAMPLINGS[self.sampling](1)
        indices = jax.vmap(lambda place: one.indices(order, place, target.num_terms)[0])(state.place + places)
        mean, variance, response = space.marginals(state.point, state.cache, indices)
        if self.num_samples is None:
            moments = target.likelihood.moments(mean, variance, response)
        else:
            noise = jax.random.fold_in(jax.random.fold_in(noise, state.step), start)
            moments = drawn_moments(
                noise, target.likelihood, mean, variance, response, self.num_samples, self.estimator
            )
        slopes, weights = (jnp.where(real, x, jnp.zeros_like(x)) for x in (moments.slope, moments.weight))
        slope, weight, clipped = space.gather(indices, scale * slopes, scale * weights)
        return BatchSums(slope, weight, jnp.sum(slopes**2 * variance), clipped)


class Record(eqx.Module):
    """The best point at the end of a pass so far, and its negative ELBO (infinite before the first)."""

    point: Any
    negative_elbo: Scalar


class PGSVIState(eqx.Module):
    """q, the matrix the next step starts from, and counters.

    - `place`: of the next batch in the endless row of passes, N places each. - `batch`: its size.
    - `halving`: what beta is multiplied by. - `clipped`: negative site precisions set to zero so far.
    """

    point: Any
    cache: Any
    step: Count
    place: Count
    batch: Count
    halving: Scalar
    clipped: Count
    record: Record | None


def _step_number(name: str):
    def convert(value: Any) -> Any:
        if isinstance(value, int | float | np.generic):
            return np.asarray(check_positive(name, value), np.float64)
        return value

    return convert


class PGSVI(AbstractAlgorithm):
    r"""The iteration above.

    **Arguments:**

    - `step_size`: beta; or `rho` = beta N/M, which has the same meaning whatever the batch. The papers' are 0.02-0.4;
      0.2 is a good first try, the noise floor grows about like rho.
    - `batch_size`: M; or a `provi.schedules.NoiseBatch`, which lets the batch grow with the measured noise of the
      gradient in m (in the metric V) and compiles once.
    - `num_samples`: None for exact moments; else draws a datum. - `estimator`: with draws, see `drawn_moments`.
    - `form`: "natural" (A) or "proximal" (B).
    - `halve_on_stall`: evaluate the exact ELBO after each pass, halve the step when it is not the best so far, and
      return the best.
    - `sampling`: "reshuffled", a new order each pass, of which the last N mod M data are left out so that all batches
      are whole; or "uniform", with replacement, which Proposition 3 is about.

    **Requires** a Gaussian process or a linear model with the family `dual_gaussian(target)`, or a linear model with a
    Gaussian of full covariance.
    **Guarantee**: the B-form with uniform sampling has Proposition 3 of paper 002 (`theory.pgsvi`): the mean squared
    gradient mapping falls to a neighbourhood of size O(sigma^2/M), not to zero, for steps so short that they are of no
    use here. The A-form with fixed steps has none. With `halve_on_stall` the recorded ELBO is exact and never falls;
    nothing is promised about its limit. `provi.fit` certifies what is returned, whatever the way to it.
    **Cost per step** N-space N^3/3 + N^2 M (the B-form twice the first), D-space D^3 + M D^2; memory O(N^2) or O(D^2).
    With `GaussianProcess(..., stream=True)` memory is O(N (r + M)), r <= 512, and a step is conjugate gradients with M
    columns, then with one: N^2 covariances computed anew and 2N^2 M operations a product, none of the former kind for M
    columns where the low rank r suffices. No ELBO is recorded on the way; that of the end is an estimate.
    Of rows that are read in blocks batches come from shuffled passes, by the host (docs/large-data.md).
    `gradient_evaluations` counts data looked at. A negative Monte-Carlo $\hat\gamma$ may push a site below
    zero: it is clipped there and counted in `state.clipped`.
    """

    step_size: Any = eqx.field(default=None, converter=_step_number("step_size"))
    rho: Any = eqx.field(default=None, converter=_step_number("rho"))
    batch_size: Any = eqx.field(default=20, converter=as_batch)
    num_samples: int | None = eqx.field(static=True, default=None)
    estimator: str = eqx.field(static=True, default="score")
    form: str = eqx.field(static=True, default="natural")
    halve_on_stall: bool = eqx.field(static=True, default=False)
    sampling: str = eqx.field(static=True, default="reshuffled")
    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    space: AbstractSpace | None = None

    quantities: ClassVar[tuple[str, str, str]] = ("the gradient of the mean", "", "the new parameters")

    def __check_init__(self):
        if (self.step_size is None) == (self.rho is None):
            raise ValueError("Give exactly one of step_size (beta) and rho (beta N/M); PGSVI(rho=0.2) is a start.")
        if self.num_samples is not None:
            check_count("num_samples", self.num_samples)
        for name, options in (("estimator", ESTIMATORS), ("form", FORMS), ("sampling", tuple(SAMPLINGS))):
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {', '.join(options)}, not {getattr(self, name)!r}.")

    def resolve(self, target: Any, family):
        _check_parts(target, family)
        rule, terms = self.batch_size, target.num_terms
        largest = rule.size if isinstance(rule, FixedBatch) else int(rule.largest)
        if largest > terms:
            name = "batch_size" if isinstance(rule, FixedBatch) else "batch_size.largest"
            raise ValueError(f"{name} is {largest}, but there are {terms} data. Take at most {terms}.")
        space = space_of(target, family)
        if self.halve_on_stall and isinstance(space, StreamedSpace):
            raise ValueError(
                "halve_on_stall=True looks at the exact ELBO after each pass, which takes a factor of the kernel "
                "matrix: leave it out with stream=True, or make the target with stream=False."
            )
        return dataclasses.replace(self, space=space)

    def init(self, point):
        assert self.space is not None
        # Made on the host: outside a compiled function every operation of JAX is compiled by itself.
        dtype, none = jax.tree.leaves(point)[0].dtype, device_array(np.asarray(0))
        infinite, one = device_array(np.asarray(np.inf, dtype)), device_array(np.ones((), dtype))
        rule = self.batch_size
        size = device_array(np.asarray(rule.size if isinstance(rule, FixedBatch) else rule.smallest, np.int32))
        record = Record(point, infinite) if self.halve_on_stall else None
        return PGSVIState(point, self.space.cache(point), none, none, size, one, none, record)

    def step(self, key, state, target: Any, family, shrink):
        space, terms = space_of(target, family, self.space), target.num_terms
        dtype = state.halving.dtype
        size = state.batch.astype(dtype)
        plan = BatchPlan(self.batch_size, self.sampling, self.num_samples, self.estimator)
        sums = plan.sums(key, state, space, terms / size)
        beta = self._beta(size / terms, dtype) * state.halving * shrink.astype(dtype)
        of_batch, whole = space.gradient_norms(state.point, state.cache, sums.slope)
        moved = space.move(state.point, state.cache, sums.slope, sums.weight, beta, self.form)
        point, cache, clipped = moved
        batch = state.batch
        if isinstance(self.batch_size, NoiseBatch):
            scatter = terms**2 * sums.squares - size * of_batch
            noise = jnp.maximum(scatter, jnp.zeros_like(scatter)) / jnp.maximum(size - 1, jnp.ones_like(size))
            batch = self.batch_size.next_size(batch, noise, whole)
        # A batch that does not fit into the pass begins the next: all are whole, and no datum is in one twice.
        place = state.place + state.batch
        place = jnp.where(place % terms + batch > terms, (place // terms + 1) * terms, place)
        halving, record = self._judged(space, state, point, place // terms > state.place // terms)
        clipped = state.clipped + sums.clipped + clipped
        new = PGSVIState(point, cache, state.step + 1, place, batch, halving, clipped, record)
        norm = jnp.sqrt(jnp.maximum(whole, jnp.zeros_like(whole)))
        norms = (norm, jnp.zeros_like(norm), jnp.sqrt(squared_norm(point)))
        return new, StepInfo(beta, state.batch.astype(jnp.int32), norms)

    def _beta(self, share: Scalar, dtype: Any) -> Scalar:
        if self.step_size is not None:
            return jnp.asarray(self.step_size, dtype)
        return jnp.asarray(self.rho, dtype) * share

    def _judged(self, space: AbstractSpace, state: PGSVIState, point: Any, ended: Any) -> tuple[Scalar, Any]:
        """The halving and the record, after the exact ELBO has been looked at if a pass has ended.

        Not a trial as in `natural.trial`: it is the iterates of a whole pass that are judged, and a bad one is not
        taken back but left out of the record, since the noise of a batch would reject good steps.
        """
        if state.record is None:
            return state.halving, None
        best = state.record.negative_elbo
        value = jax.lax.cond(ended, lambda q: space.negative_elbo(q), lambda _: jnp.full_like(best, jnp.inf), point)
        better = value < best
        record = select(better, Record(point, value), state.record)
        return jnp.where(ended & ~better, state.halving / 2, state.halving), record

    def cost_at(self, step):
        """The data of a batch, the largest that there can be."""
        del step
        rule = self.batch_size
        return jnp.asarray(rule.size if isinstance(rule, FixedBatch) else rule.largest, jnp.int32)

    def output(self, state):
        if state.record is None:
            return state.point
        return select(jnp.isfinite(state.record.negative_elbo), state.record.point, state.point)

    def recorded_elbo(self, state):
        """Exact: of the record, or of the present point where there is none; not known where K is not stored."""
        if state.record is not None and np.isfinite(state.record.negative_elbo):
            return -np.asarray(state.record.negative_elbo), 0.0
        assert self.space is not None
        if isinstance(self.space, StreamedSpace):  # it would take all N variances, every time
            return np.nan, np.nan
        return -np.asarray(_negative_elbo(self.space, state.point)), 0.0


@program_jit
def _negative_elbo(space: AbstractSpace, point: Any) -> Scalar:
    return space.negative_elbo(point)


def _check_parts(target: Any, family: Any) -> None:
    if isinstance(family, DualGaussian):
        fits = isinstance(target, GaussianProcess | AbstractLinearModel) and family.num_sites == target.num_terms
    else:
        full = isinstance(family, LocationScale) and isinstance(family.base, Normal)
        fits = full and isinstance(target, AbstractLinearModel) and family.scale in ("triangular", "symmetric")
        fits = fits and family.dim == target.dim
    if not fits:
        raise ValueError(
            f"PGSVI needs a Gaussian process or a linear model with family=provi.families.dual_gaussian(target), or a "
            f"linear model with a Gaussian of full covariance; not {type(target).__name__} with "
            f"{type(family).__name__}."
        )
