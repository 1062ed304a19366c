"""A likelihood with one latent number for each datum: what data terms, Gaussian processes and GLMs share."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.types import RandomKey
from provi.targets.base import Status
from provi.targets.likelihoods.moments import (
    LinkMoments,
    MomentErrors,
    Strip,
    graded_nodes,
    over_nodes,
    spread_of,
    strip_errors,
    wide_errors,
    wide_moments,
)

Batch: TypeAlias = Float[Array, " batch"]
"""One number for each datum."""

_REACH, _LARGEST_SHIFT, _NUM_NODES = 9.0, 60.0, 512
_DOUBLINGS, _HALVINGS = 50, 50


def rounded(value: Batch, sign: int) -> Batch:
    """`value`, a positive number off by at most thousands of units in its last place, moved up (1) or down (-1)."""
    numbers = jnp.finfo(value.dtype)
    return value * (1 + sign * 4096 * float(numbers.eps)) + (float(numbers.tiny) if sign > 0 else 0.0)


class AbstractLikelihood(eqx.Module):
    r"""p(y | eta), one number eta a datum; t(eta) = -log p(y | eta) is its potential.

    Every method acts entry by entry on arrays of shape (n,). Numbers such as a noise scale are array leaves, so
    changing them compiles nothing again.
    """

    name: eqx.AbstractClassVar[str]
    second_derivative: eqx.AbstractClassVar[str]
    """The formula of t'' in `eta`, for people."""

    @abc.abstractmethod
    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log p(y | eta), normalised over y."""

    @property
    @abc.abstractmethod
    def curvature(self) -> tuple[float, float]:
        """(t0, t1): the range of t'' over all eta and y; t0 may be negative or -inf, t1 infinite."""

    @abc.abstractmethod
    def read_response(self, y: Any, length: int) -> np.ndarray:
        """The user's responses, checked on the host; a `ValueError` names y and the remedy."""

    @abc.abstractmethod
    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """E[y] for eta ~ N(mean, variance): the probability of a one for a Bernoulli likelihood."""

    def least_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """A lower bound on t'' over [low, high], entry by entry, rounding included; the ends may be infinite."""
        del high, y
        return jnp.full_like(low, self.curvature[0])

    def most_curvature(self, low: Batch, high: Batch, y: Batch) -> Batch:
        """An upper bound on t'' over [low, high], likewise; infinite where there is none."""
        del high, y
        return jnp.full_like(low, self.curvature[1])

    def curvature_given(self, y: Any) -> tuple[float, float]:
        """The range of t'' over all eta for these responses: within `curvature`."""
        del y
        return self.curvature

    @property
    def log_concave(self) -> bool:
        """Whether t is convex for every y."""
        return self.curvature[0] >= 0

    @property
    def grounds(self) -> tuple[Status, str]:
        """The status of `log_concave` and of what follows from it, and the reason."""
        return "proven", f"the {self.name} likelihood is log-concave"

    curvature_decay: ClassVar[float | None] = None
    """kappa >= 0 such that the second derivative of log t'' is at least -kappa; None where there is no such number."""

    @property
    def self_concordance(self) -> float | None:
        """M with |t'''| <= M t'' for every y, where `curvature_moments` are known; None where there is no such M."""
        return None

    @property
    def value_error(self) -> float:
        """A bound on the error of a mean E t in float64, relative to 1 + |E t|: for deviations up to 100 link widths.

        Measured in tests/targets/test_likelihoods.py; `moment_errors` bounds each datum's own error.
        """
        return 1e-11

    def value_error_given(self, y: Any) -> float:
        """`value_error` for these responses: larger where large counts leave fewer digits."""
        del y
        return self.value_error

    def working_response(self, y: Batch) -> tuple[Batch, Batch] | None:
        """An eta that y speaks for, and its weight: where to begin if the prior mean may be hopeless; else None."""
        del y
        return None

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """Where t bends and over which width: there the quadrature of `moments` puts its nodes."""
        return jnp.zeros_like(y), jnp.ones_like(y)

    def likelihood_bend(self, y: Batch) -> tuple[Batch, Batch]:
        """The same for exp(-t), for `log_predictive`."""
        return self.bend(y)

    def moments(self, mean: Batch, variance: Batch, y: Batch) -> LinkMoments:
        """E t, E t' and E t'' for eta ~ N(mean, variance): by quadrature, or in closed form."""
        return wide_moments(lambda eta: self.potential(eta, y), mean, variance, self.bend(y))

    def strip(self, y: Batch) -> Strip | None:
        """What is proven of t in the complex plane, for proven errors of the quadrature; None where nothing is."""
        del y
        return None

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """Bounds on the errors of `moments` where `errors_proven`, else estimates; infinite where nothing is known."""
        strip, bend = self.strip(y), self.bend(y)
        if strip is None:
            return wide_errors(lambda eta: self.potential(eta, y), mean, variance, bend)
        return strip_errors(lambda eta: self.potential(eta, y), mean, variance, bend, strip)

    @property
    def errors_proven(self) -> bool:
        """Whether `moment_errors` are bounds. Where not, no bound on the gap that rests on them is called proven."""
        return False

    def curvature_moments(self, mean: Batch, deviation: Batch, y: Any = None) -> tuple[Batch, Batch, Batch, Any]:
        """E[u^j t''(mean + deviation u)] for j = 0, 1, 2 and u ~ N(0, 1), and a bound on their errors.

        Only for self-concordant links; `y` where t'' depends on it.
        """
        raise ValueError(f"{type(self).__name__} is not self-concordant: its curvature has no such moments.")

    def draw(self, key: RandomKey, eta: Batch) -> Any:
        """y ~ p(y | eta), one for each entry, as floats; None where the likelihood does not say how."""
        del key, eta
        return None

    # What a likelihood with numbers of its own for each row (`rows`) answers differently.

    def draw_rows(self, key: RandomKey, eta: Batch, y: Batch) -> Any:
        """`draw`, for the rows that have the responses y."""
        del y
        return self.draw(key, eta)

    def shift_error(self, mean: Any, y: Any) -> Any:
        """A bound on the rounding of the argument of t, where an offset is added to eta first: zero here."""
        del mean, y
        return 0.0

    def observed(self, y: Any) -> Any:
        """The data whose responses are y, of all rows: y itself."""
        return y

    def seen(self, mean: Any, y: Any) -> tuple["AbstractLikelihood", Any, Any]:
        """The likelihood without offsets and weights, and its arguments for these rows: itself, `mean` and y."""
        return self, mean, y

    def seen_by_all(self, eta: np.ndarray) -> tuple["AbstractLikelihood", np.ndarray] | None:
        """The likelihood without offsets, and its arguments for draws (n, rows) of all eta; None for weighted rows."""
        return self, eta

    @property
    def plain(self) -> "AbstractLikelihood":
        """Without offsets and weights: itself."""
        return self

    @property
    def largest_weight(self) -> Any:
        """The largest factor of a term, 1 at least."""
        return 1.0

    def log_predictive(self, mean: Batch, variance: Batch, y: Batch) -> Batch:
        """log E p(y | eta) for eta ~ N(mean, variance), accurate also where the probability is tiny."""
        return _log_gaussian_mean(
            lambda eta: self.potential(eta, y), mean, variance, self.likelihood_bend(y), self.log_concave
        )


def _log_gaussian_mean(link: Callable, mean: Any, variance: Any, bend: tuple[Any, Any], convex: bool) -> Any:
    r"""$\log E\,e^{-\ell(\eta)}$ for $\eta \sim N(\mu, s^2)$, to all digits also where the mean is $10^{-1000}$.

    The integrand is $e^{-\ell(\eta) - (\eta - \mu)^2/2s^2}$. For a convex $\ell$ it has one peak $\eta_*$, and falls
    off it at least as fast as $e^{-(\eta - \eta_*)^2/2s^2}$: nodes within nine s of the peak see all but $10^{-18}$ of
    it, wherever the peak is. `bend` says where exp(-link) bends and over which width.

    Where the link is not convex there may be two peaks, between the mean and the bend: both ends are covered, up to 60
    standard deviations away.
    """
    centre, width = bend
    spread = spread_of(variance, width)
    peak = jax.lax.stop_gradient(_peak(link, mean, spread))
    shift = (centre - mean) / spread
    low, high = peak, peak
    if not convex:
        low = jnp.clip(jnp.minimum(shift, 0), peak - _LARGEST_SHIFT, peak)
        high = jnp.clip(jnp.maximum(shift, 0), peak, peak + _LARGEST_SHIFT)
    low, high = low - _REACH, high + _REACH
    node = graded_nodes(low, high, jnp.clip(shift, low, high), spread / width, _NUM_NODES)

    def exponent(t):
        return -link(mean + spread * t) - 0.5 * t * t

    # The sum is taken relative to about its largest term: the logarithm itself may be -1e6.
    every = np.arange(_NUM_NODES)
    highest = over_nodes(lambda k: exponent(node(k)[0]), every[::8], mean, jnp.maximum)
    top = jax.lax.stop_gradient(jnp.maximum(exponent(peak), highest))

    def term(k):
        t, step = node(k)
        return step * jnp.exp(exponent(t) - top)

    total = over_nodes(term, every, mean)
    return jnp.log(total) + top - 0.5 * float(np.log(2 * np.pi))


def _peak(link: Callable, mean: Any, spread: Any) -> Any:
    r"""A root u of $u + s\,\ell'(\mu + su)$, the peak in standard deviations from the mean: bracketed, then halved."""

    def slope(u):
        values, pull = jax.vjp(link, mean + spread * u)
        return u + spread * pull(jnp.ones_like(values))[0]

    side = -jnp.sign(slope(jnp.zeros_like(mean)))

    def double(_, size):
        return jnp.where(side * slope(side * size) < 0, 2 * size, size)

    def halve(_, ends):
        near, far = ends
        middle = 0.5 * (near + far)
        before = side * slope(side * middle) < 0
        return jnp.where(before, middle, near), jnp.where(before, far, middle)

    far = jax.lax.fori_loop(0, _DOUBLINGS, double, jnp.ones_like(mean))
    near, far = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(mean), far))
    return side * 0.5 * (near + far)
