"""How much of a stochastic gradient is signal: the step size that gives every draw so far the same weight."""

import equinox as eqx
import jax.numpy as jnp

from provi.core.types import Scalar

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
