r"""The best Gaussian of a latent Gaussian model given its hyperparameters: natural gradients with exact expectations.

The precision of the best Gaussian is $H(s) = Q + A'\mathrm{diag}(s)A$ with one number $s_i$ a datum, its site; so a
point is (m, s). With $v_i = a_i'H^{-1}a_i$ and the means $\alpha_i = E t'$, $\gamma_i = Et''$ of the link potential
under $N(a_i'm + o_i, v_i)$ the natural gradient step of size $\rho$ is

$$s \leftarrow s + \rho(\gamma - s), \qquad m \leftarrow m - \rho\,H(s)^{-1}(Qm + A'\alpha),$$

with the new s in the second: a Newton step on expected curvatures. And, as $\mathrm{tr}\,QH^{-1} = d - \sum s_iv_i$,

$$\mathrm{ELBO} = -\sum_iE\,t_i - \tfrac12m'Qm + \tfrac12\sum_is_iv_i + \tfrac12\log\det Q - \tfrac12\log\det H.$$

A step is taken if the ELBO does not fall, else halved. Under a constraint N'z = 0, with N orthonormal, everything is
conditioned on it (Rue and Held 2005, section 2.3.3): $S = H^{-1} - H^{-1}N(N'H^{-1}N)^{-1}N'H^{-1}$, and the
determinant of H on the subspace is $\det H\det N'H^{-1}N$.

One compiled program fits a batch of hyperparameters; it is called by `structures.nested`, not through `runtime`, since
its loop is inside a batch and takes a few steps only.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import available_bytes
from provi.families.conditional_gaussian import Constrained, constrained_factor
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.latent_gaussian import Conditional
from provi.targets.likelihoods.moments import LinkMoments

MOST_STEPS, _SMALLEST_STEP = 60, 1e-6
_MOST_AT_ONCE, _NUMBERS_AT_ONCE, _LARGEST_BATCHED = 16, 2**18, 8


class Point(eqx.Module):
    """A Gaussian by its mean, in the parts of the layout, and its sites; its ELBO and what the next step needs."""

    inner: Any
    outer: Any
    sites: Any
    elbo: Any
    slope: Any
    weight: Any
    variance: Any


class Fitted(eqx.Module):
    """The end of a conditional fit: the point, the decrement of its last step, and how many were taken."""

    point: Point
    decrement: Any
    steps: Any


def weighted_moments(given: Conditional, mean: Any, variance: Any) -> LinkMoments:
    """The means of the link potential, each times the weight of its datum."""
    found = given.likelihood.moments(mean, variance, given.response)
    if given.weights is None:
        return found
    return LinkMoments(*(given.weights * part for part in (found.value, found.slope, found.weight)))


def evaluate(given: Conditional, inner: Any, outer: Any, sites: Any, covariance: Constrained) -> Point:
    """The ELBO of a point and the means there."""
    variance = covariance.row_variances(given.index, given.values, given.border)
    found = weighted_moments(given, given.predictor(inner, outer), variance)
    top, bottom = given.prior.multiply(inner, outer)
    quadratic = jnp.sum(top * inner) + jnp.sum(bottom * outer)
    elbo = -jnp.sum(found.value) - 0.5 * quadratic + 0.5 * jnp.sum(sites * variance)
    elbo = elbo + 0.5 * (given.log_det - covariance.log_det) + given.constant
    return Point(inner, outer, sites, elbo, found.slope, found.weight, variance)


def cold_start(given: Conditional) -> Point:
    """Where to begin without a neighbour, not evaluated yet: the responses taken as Gaussian, or no effects at all.

    The slopes are such that the first step goes to the mean of that Gaussian model.
    """
    count, width = given.prior.diagonal.shape[:2]
    inner, outer = jnp.zeros((count, width)), jnp.zeros(given.border.shape[1])
    working = given.likelihood.working_response(given.response)
    if working is None:

        def slope_at(eta: Any) -> Any:
            return jax.grad(lambda x: jnp.sum(given.likelihood.potential(x, given.response)))(eta)

        ones = jnp.ones_like(given.offset)
        sites, slope = jax.jvp(slope_at, (given.offset,), (ones,))[1], 0 * ones
    else:
        sites, slope = working[1], -working[1] * (working[0] - given.offset)
    if given.weights is not None:
        sites, slope = sites * given.weights, slope * given.weights
    return unevaluated(inner, outer, jnp.maximum(sites, 0.0), slope)


def unevaluated(inner: Any, outer: Any, sites: Any, slope: Any) -> Point:
    """A point of which nothing is known: any step from it is accepted."""
    return Point(inner, outer, sites, jnp.asarray(-jnp.inf), slope, sites, jnp.zeros_like(sites))


def step(given: Conditional, point: Point, size: Any, still: Any) -> tuple[Point, Any]:
    """A trial step, and half the square of the mean's move in its own metric at size one; none where it is `still`."""
    sites = jnp.maximum(point.sites + size * (point.weight - point.sites), 0.0)
    covariance = constrained_factor(given, sites)
    top, bottom = given.prior.multiply(point.inner, point.outer)
    gradient = given.collect(point.slope)
    gradient = top + gradient[0], bottom + gradient[1]
    move = covariance.solve(*gradient)
    decrement = 0.5 * (jnp.sum(move[0] * gradient[0]) + jnp.sum(move[1] * gradient[1]))
    length = jnp.where(still, 0.0, size)
    trial = evaluate(given, point.inner - length * move[0], point.outer - length * move[1], sites, covariance)
    return trial, decrement


def fit_conditional(
    target: AbstractLatentGaussian, theta: Any, warm: tuple[Any, Any, Any], cold: Any, tol: Any, most_steps: Any
) -> Fitted:
    """The best Gaussian given theta, to about `tol` nats; `warm` is (inner, outer, sites), unless `cold`.

    One factorisation and one pass over the data a step; the first step only evaluates where it begins.
    """
    given = target.conditional(theta)
    first = jax.tree.map(
        lambda a, b: jnp.where(cold, a, b), cold_start(given), unevaluated(*warm, jnp.zeros_like(warm[2]))
    )

    def going(carry: Any) -> Any:
        _, size, change, count = carry
        return (count < most_steps) & (size > _SMALLEST_STEP) & (change > tol)

    def body(carry: Any) -> Any:
        point, size, change, count = carry
        trial, decrement = step(given, point, size, ~cold & (count == 0))
        good = (trial.elbo >= point.elbo - 1e-11 * (1 + jnp.abs(point.elbo))) & jnp.isfinite(trial.elbo)
        moved = jnp.abs(trial.sites - point.sites) * point.variance
        # What the covariance still gains, as the mean's decrement, to second order; over the size, for a whole step.
        spread = 0.25 * jnp.sum(moved**2) / size**2
        change = jnp.where(good & (count > 0), decrement + spread, change)
        point = jax.tree.map(lambda new, old: jnp.where(good, new, old), trial, point)
        return point, jnp.where(good, jnp.minimum(1.0, 2 * size), size / 4), change, count + 1

    point, _, change, count = jax.lax.while_loop(going, body, (first, jnp.asarray(1.0), jnp.asarray(jnp.inf), 0))
    return Fitted(point, change, count)


def batch_of(target: AbstractLatentGaussian) -> int:
    """How many nodes are fitted together: many where programs are small, whose calls cost more than what they do."""
    # Batches of larger triangular systems leave LAPACK for a slow program of XLA's.
    if target.layout.border > _LARGEST_BATCHED or target.layout.chained or target.layout.width > 3:
        return 1
    size = target.num_rows * max(target.layout.border, 4) + target.num_effects * 4
    return int(np.clip(2 ** int(math.log2(max(_NUMBERS_AT_ONCE // size, 1))), 1, _MOST_AT_ONCE))


def check_memory(target: AbstractLatentGaussian) -> None:
    """`ValueError` where the run would not fit, with its size."""
    needed = memory_of(target)
    if needed > available_bytes():
        raise ValueError(
            f"The nested fit of {target.num_rows} rows and {target.num_effects} effects takes about "
            f"{needed / 2**30:.1f} GiB, more than is free: {target.layout.border} of the effects are kept dense "
            f"(in the border); take fewer crossed effects or fewer rows."
        )


def memory_of(target: AbstractLatentGaussian) -> int:
    """Bytes of a run at its peak, about: designs and factors of a batch, and what is kept of the nodes."""
    layout = target.layout
    blocks = layout.count * layout.width * (layout.width * (6 if layout.chained else 3) + 3 * layout.border)
    batch = 6 * target.num_rows * (layout.border + 6) + blocks + 4 * layout.border**2
    kept = 64 * (target.num_rows + 3 * target.num_effects)
    return 8 * (batch + kept)
