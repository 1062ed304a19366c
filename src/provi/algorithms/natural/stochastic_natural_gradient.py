"""Stochastic natural gradient for Gaussians with full covariance: the fast method for any log density.

`SignalFilter` says how much of a gradient is signal: the step size that gives every draw so far the same weight.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.algorithms.base import AbstractAlgorithm, Progress, StepInfo, check_parts
from provi.algorithms.guarantee import Guarantee
from provi.algorithms.natural.trial import StepRule
from provi.core.arguments import check_positive, device_array
from provi.core.tree import inner, select, squared_norm
from provi.core.types import Count, Flag, Matrix, Scalar, Vector
from provi.estimators.whitened_residuals import ResidualMoments, residual_moments, whole_draws
from provi.families.bases import Normal
from provi.families.location_scale import Point
from provi.families.scales import Symmetric, Triangular
from provi.schedules.batch_sizes import AbstractBatchSize, PolynomialBatch, as_batch_size

LARGEST_CORRECTION = 0.3
"""Largest weight of one measurement against the prediction."""

FIRST_SHARE = 0.25
"""Of the noise, which the signal is taken to be at first if it is measured smaller: as if four steps had been taken."""


class SignalFilter(eqx.Module):
    r"""The squared norm V of the expected gradient at the current point, and the part P of it that noise has left.

    In coordinates in which the objective is round, a step x <- x - b (x + noise), noise of variance s, takes
    V to $(1-b)^2 V + b^2 s$. The best step is $b = V/(V+s)$, and then $1/V_{k+1} = 1/V_k + 1/s$: Kalman's filter,
    b = 1/(k + constant), which weighs all draws alike whatever their number a step, and leaves no noise floor. V is
    predicted by that formula and corrected by the inner product of two independent estimates of the gradient, which
    has mean V. P is what V would be had the start been the optimum: V does not fall below it. Before the first
    measurement V is infinite and P is 0; that measurement may be negative by chance, and a V of zero would never be
    corrected, as measurements count in proportion to it: so V starts at a quarter of the noise at least.
    """

    signal: Scalar
    noise_left: Scalar

    def correct(self, measured: Scalar, noise: Scalar) -> "SignalFilter":
        """The filter after `measured`, an unbiased estimate of V from a gradient with noise of variance `noise`."""
        # V changes by half within about 1/b steps, so that is the time over which measurements are averaged.
        weight = jnp.minimum(LARGEST_CORRECTION, best_step(self.signal, noise) / 2)
        corrected = self.signal + weight * (measured - self.signal)
        first = jnp.maximum(measured, FIRST_SHARE * noise)
        signal = jnp.where(jnp.isinf(self.signal), first, corrected)
        return SignalFilter(jnp.maximum(signal, self.noise_left), self.noise_left)

    def advance(self, step_size: Scalar, noise: Scalar) -> "SignalFilter":
        """The prediction after a step."""
        keep, added = (1 - step_size) ** 2, step_size**2 * noise
        return SignalFilter(keep * self.signal + added, keep * self.noise_left + added)


def best_step(signal: Scalar, noise: Scalar) -> Scalar:
    """V / (V + s), and 0 where both vanish."""
    return jnp.where(jnp.isinf(signal), 1, signal / jnp.maximum(signal + noise, jnp.finfo(noise.dtype).tiny))


RECOVERY = 1.25
"""Growth per step of a largest step size that was halved."""

ALARM = 3.0
"""Standard errors by which the negative ELBO may seem to rise before a step is taken back."""

_POWER_ITERATIONS = 5


class NaturalGradientState(eqx.Module):
    """The iterate, the filters of its gradients, and the last point whose loss is known.

    `gap` estimates the excess of the current point's negative ELBO over a local optimum. `loss`, `loss_error` are the
    Monte-Carlo negative ELBO of `known_point`, the point before the last step, and its standard error.
    """

    point: Point
    step: Count
    loc_filter: SignalFilter
    scale_filter: SignalFilter
    largest_step: Scalar
    known_point: Point
    can_return: Flag
    loss: Scalar
    loss_error: Scalar

    @property
    def gap(self) -> Scalar:
        """|g|^2/2 + |G|^2/4, free of the noise of its estimate: the gap to second order; infinite before a step."""
        return self.loc_filter.signal / 2 + self.scale_filter.signal / 4

    @property
    def noise(self) -> Scalar:
        """The part of `gap` that the noise of the steps has left; it falls like 1 / (draws so far)."""
        return self.loc_filter.noise_left / 2 + self.scale_filter.noise_left / 4


class WholeBatch(AbstractBatchSize):
    """Another schedule, rounded up to the numbers of draws that are taken, so that budgets are kept exactly."""

    planned: AbstractBatchSize

    def __call__(self, step):
        return whole_draws(self.planned(step))


def _step_limit(value: Any) -> Any:
    if isinstance(value, int | float | np.ndarray | np.generic):
        return np.asarray(check_positive("largest_step", value), dtype=np.float64)
    return value


class StochasticNaturalGradient(AbstractAlgorithm):
    r"""Minimises f(w) = E_q[potential] - log det C by natural gradients from gradients of the potential only.

    With the residual s(u) = C' grad potential(m + Cu) - u, g = mean s, G = sym mean s u' over N antithetic draws,

    K = I + bG + b^2 G^2/2,   precision <- C^-T K C^-1,   m <- m - a C K^-1 g.

    K >= I/2, so the covariance is positive definite whatever the noise. The steps a and b are the shares of signal in
    g and G (`SignalFilter`), at most `largest_step`, with b|G| <= 1 and |a K^-1 g| <= max(1, sqrt(d)/2).
    When the Monte-Carlo negative ELBO rises by more than 3 standard errors, or is not finite, the step is taken back
    and the largest step halved. This is not the trial of `natural.trial`: values are noisy, so that a test takes the
    place of a promised descent, and the draws that judge a step are those of the next one.

    **Requires** a Gaussian family with a triangular or symmetric scale, and a start that is not far off:
    `laplace_approximation`. The number of draws is rounded up to a multiple of 128.
    **Guarantee**: none. `state.gap` and `state.noise` estimate the gap left.
    **Cost per step** on top of the N gradients: N matrix-vector products and O(dim^3).
    Reference: Khan and Rue (2023), the Bayesian learning rule; the update of Lin, Schmidt and Khan (2020); the
    Stein estimate with the residuals of Roeder, Wu and Duvenaud (2017).
    """

    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=PolynomialBatch(128, 0.5))
    largest_step: Any = eqx.field(converter=_step_limit, default=0.5)
    guarantee: Guarantee | None = None
    some_steps: ClassVar[bool] = True

    def resolve(self, target, family):
        check_parts(target, family, None)
        if not isinstance(family.base, Normal) or family.scale not in ("triangular", "symmetric"):
            raise ValueError(
                f"StochasticNaturalGradient needs a Gaussian family with a triangular or symmetric scale, not base "
                f"{family.base.name} with scale {family.scale!r}. Use provi.families.Gaussian({family.dim}), or MPSGD."
            )
        if isinstance(self.num_draws, WholeBatch):
            return self
        return dataclasses.replace(self, num_draws=WholeBatch(self.num_draws))

    def init(self, point):
        # Made on the host: outside a compiled function every operation of JAX is compiled by itself.
        dtype = point.loc.dtype
        zero, limit = device_array(np.zeros((), dtype)), jnp.asarray(self.largest_step, dtype)
        step, no = device_array(np.asarray(0)), device_array(np.asarray(False))
        unknown = SignalFilter(device_array(np.asarray(np.inf, dtype)), zero)
        return NaturalGradientState(point, step, unknown, unknown, limit, point, no, zero, zero)

    def step(self, key, state, target, family, shrink):
        point, dtype = state.point, state.point.loc.dtype
        draws = whole_draws(self.num_draws(state.step))
        moments = residual_moments(jax.random.fold_in(key, state.step), target, family, point, draws)
        error = jnp.sqrt(moments.loss_variance / (draws // 2).astype(dtype))
        retreat = state.can_return & ~_acceptable(state, moments, error)
        limit = (state.largest_step * shrink).astype(dtype)
        moved, (_, size), (loc_filter, scale_filter) = _natural_step(state, moments, limit)
        rule = StepRule(RECOVERY, jnp.asarray(self.largest_step, dtype), 2.0)
        after, yes, no = state.step + 1, jnp.ones((), bool), jnp.zeros((), bool)
        grown, cut = rule.grown(state.largest_step), rule.cut_back(state.largest_step)
        forward = NaturalGradientState(moved, after, loc_filter, scale_filter, grown, point, yes, moments.loss, error)
        # Back to the point before, where the filters were right but for one step.
        known = state.known_point
        back = NaturalGradientState(
            known, after, state.loc_filter, state.scale_filter, cut, known, no, state.loss, state.loss_error
        )
        new = select(retreat, back, forward)
        # A step taken back is a good step, even if what it met was not finite.
        g_norm, G_norm = (jnp.sqrt(squared_norm(jnp.mean(pair, axis=0))) for pair in moments.estimates)
        size, g_norm, G_norm = (jnp.where(retreat, 0, x) for x in (size, g_norm, G_norm))
        return new, StepInfo(size, draws.astype(jnp.int32), (g_norm, G_norm, jnp.sqrt(squared_norm(new.point))))

    def cost_at(self, step):
        return self.num_draws(step)

    def output(self, state):
        return state.point

    def recorded_elbo(self, state):
        """That of the last point at which gradients were taken, from the same draws."""
        return -np.asarray(state.loss), np.asarray(state.loss_error)

    def progress(self, state):
        """None before the first measurement."""
        # On the host: outside a compiled function every operation of JAX is compiled by itself.
        gap = float(state.loc_filter.signal) / 2 + float(state.scale_filter.signal) / 4
        return None if gap == float("inf") else Progress(gap, float(state.loss))


def _acceptable(state: NaturalGradientState, moments: ResidualMoments, error: Scalar) -> Flag:
    finite = jnp.isfinite(moments.loss) & jnp.isfinite(squared_norm(moments.estimates))
    rounding = 8 * jnp.finfo(error.dtype).eps * jnp.abs(state.loss)
    return finite & (moments.loss <= state.loss + ALARM * jnp.hypot(error, state.loss_error) + rounding)


def _natural_step(
    state: NaturalGradientState, moments: ResidualMoments, limit: Scalar
) -> tuple[Point, tuple[Scalar, Scalar], tuple[SignalFilter, SignalFilter]]:
    """The moved point, the steps a and b, and the filters after them."""
    (g, loc_noise, loc_filter), (G, scale_noise, scale_filter) = (
        (jnp.mean(pair, axis=0), noise, old.correct(inner(pair[0], pair[1]), noise))
        for pair, old in zip(moments.estimates, (state.loc_filter, state.scale_filter), strict=True)
        for noise in [squared_norm(pair[0] - pair[1]) / 4]
    )
    dim, tiny = g.shape[0], jnp.finfo(g.dtype).tiny
    square = G @ G
    b = jnp.minimum(limit, best_step(scale_filter.signal, scale_noise))
    b = jnp.minimum(b, 1 / jnp.maximum(_spectral_norm(square), tiny))
    root, direction = _whiten(state.point.scale, jnp.eye(dim, dtype=g.dtype) + b * G + b**2 / 2 * square, g)
    a = jnp.minimum(limit, best_step(loc_filter.signal, loc_noise))
    radius = max(1.0, dim**0.5 / 2)
    a = jnp.minimum(a, radius / jnp.maximum(jnp.sqrt(squared_norm(direction)), tiny))
    moved = Point(state.point.loc - a * (root @ direction), _as_scale(root, state.point.scale))
    return moved, (a, b), (loc_filter.advance(a, loc_noise), scale_filter.advance(b, scale_noise))


def _whiten(scale: Any, K: Matrix, g: Vector) -> tuple[Matrix, Vector]:
    """C L^-1 and L^-T g, with K = L'L and L lower triangular: triangular if C is, and covariance C K^-1 C'."""
    # The Cholesky factor of K with rows and columns reversed, reversed back, is upper triangular.
    upper = jnp.flip(jnp.linalg.cholesky(jnp.flip(K)))
    return solve_triangular(upper, scale.matrix.T).T, solve_triangular(upper, g)


def _as_scale(root: Matrix, like: Any) -> Any:
    """A scale of the kind of `like` with covariance root root'."""
    if isinstance(like, Triangular):
        return Triangular(jnp.tril(root))
    vectors, values, _ = jnp.linalg.svd(root)
    matrix = (vectors * values[None, :]) @ vectors.T
    return Symmetric((matrix + matrix.T) / 2)


def _spectral_norm(square: Matrix) -> Scalar:
    """The largest absolute eigenvalue of G from G^2, by power iterations: from below, within a few per cent."""
    start = square[:, jnp.argmax(jnp.diagonal(square))]

    def multiply(_: Any, x: Vector) -> Vector:
        return square @ (x / jnp.maximum(jnp.max(jnp.abs(x)), jnp.finfo(x.dtype).tiny))

    last = jax.lax.fori_loop(0, _POWER_ITERATIONS, multiply, start)
    previous = last / jnp.maximum(jnp.sqrt(squared_norm(last)), jnp.finfo(last.dtype).tiny)
    return jnp.sqrt(jnp.sqrt(squared_norm(square @ previous)))
