"""A likelihood that the user writes."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_positive, device_array, double_precision, floating_dtype
from provi.core.types import Scalar
from provi.targets.base import Status
from provi.targets.data import read_real
from provi.targets.likelihoods.base import AbstractLikelihood, Batch
from provi.targets.likelihoods.moments import MomentErrors, convex_errors, least_rise

_TRIED = (-2.0, 0.0, 2.0)


class UserLikelihood(AbstractLikelihood):
    """p(y | eta) = exp(log_prob(y, eta)).

    Its means come from quadrature that is dense around `centre(y)`, over `width`: good where log_prob is smooth on the
    scale of max(width, |eta - centre|). Where log_prob is concave, chords and tangents between 1,537 nodes bracket the
    means; beyond the nodes only `curvature` bounds them. Without it a certificate is conditional: a concave log_prob
    may fall like -exp(eta), and a wall beyond the nodes, at 12 standard deviations, is not seen.

    What is declared is tested at the nodes; slopes that contradict it are a counterexample.
    """

    log_prob: Callable = eqx.field(static=True)
    declared_log_concave: bool = eqx.field(static=True)
    declared_curvature: tuple[float, float] | None = eqx.field(static=True)
    centre: Callable | None = eqx.field(static=True)
    width: Scalar
    name: ClassVar[str] = "user-written"
    second_derivative: ClassVar[str] = "of -log_prob in eta"

    @double_precision
    def __init__(
        self,
        log_prob: Any,
        log_concave: bool | None = None,
        *,
        curvature: Sequence[Any] | None = None,
        centre: Callable | None = None,
        width: Any = 1.0,
    ):
        """**Arguments:**

        - `log_prob`: (y, eta) -> log p(y | eta), normalised over y, entry by entry on arrays of shape (n,), in
          `jax.numpy`. A function defined once: a new lambda each time is compiled each time.
        - `log_concave`: True if log_prob is concave in eta for every y; follows from `curvature` where that says so.
        - `curvature`: (t0, t1), the range of the second derivative of -log_prob in eta, over all eta and y. With it the
          certificate is proven, given that it is right.
        - `centre`: y -> where log_prob bends in eta, entry by entry; 0 if not given.
        - `width`: the scale in eta on which it bends.
        """
        if not callable(log_prob):
            raise ValueError("log_prob must be a function (y, eta) -> log p(y | eta).")
        declared = None
        if curvature is not None:
            declared = low, high = float(curvature[0]), float(curvature[1])
            if not low <= high < np.inf:
                raise ValueError(f"curvature must be (t0, t1) with t0 <= t1 and t1 finite, got {curvature}.")
            if log_concave is not None and bool(log_concave) != (low >= 0):
                raise ValueError(f"curvature = {curvature} contradicts log_concave = {log_concave}.")
            log_concave = low >= 0
        self.declared_curvature = declared
        self.log_prob, self.declared_log_concave, self.centre = log_prob, bool(log_concave), centre
        self.width = device_array(np.asarray(check_positive("width", width)), floating_dtype(width))

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log_prob(y, eta)."""
        return -self.log_prob(y, eta)

    @property
    def curvature(self) -> tuple[float, float]:
        """As declared; else (0, infinity) if declared log-concave, else (-infinity, infinity)."""
        if self.declared_curvature is not None:
            return self.declared_curvature
        return (0.0 if self.declared_log_concave else -np.inf), np.inf

    @property
    def grounds(self) -> tuple[Status, str]:
        """The user's word."""
        if self.declared_curvature is not None:
            return "declared", "curvature of the user's likelihood"
        return "declared", "log_concave=True of the user's likelihood; errors of its quadrature estimated"

    def moment_errors(self, mean: Batch, variance: Batch, y: Batch) -> MomentErrors:
        """By convexity, if that is declared; else estimates."""
        if not self.log_concave:
            return super().moment_errors(mean, variance, y)
        most = jnp.full_like(mean, self.curvature[1])
        return convex_errors(lambda eta: self.potential(eta, y), mean, variance, self.bend(y), most)

    @property
    def errors_proven(self) -> bool:
        """From the declared curvature."""
        return self.log_concave and self.declared_curvature is not None

    def contradiction(self, mean: Batch, variance: Batch, y: Batch) -> tuple[Batch, Batch, Batch]:
        """Where `curvature` fails within 12 standard deviations: eta, the second derivative found there, and the limit
        that it is beyond; the two are equal where nothing was found."""
        low, high = self.curvature

        def below(eta):
            return self.potential(eta, y) - 0.5 * low * eta**2

        place, found = least_rise(below, mean, variance, self.bend(y))
        if not np.isfinite(high):
            return place, low + found, jnp.full_like(found, low)

        def above(eta):
            return 0.5 * high * eta**2 - self.potential(eta, y)

        other, excess = least_rise(above, mean, variance, self.bend(y))
        first = found < 0
        limit = jnp.where(first, low, high)
        return jnp.where(first, place, other), limit + jnp.where(first, found, -excess), limit

    @double_precision
    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Real numbers at which `log_prob` has the right shape and is finite, at eta = -2, 0 and 2."""
        response = read_real(y, length)
        for eta in _TRIED:
            found = np.asarray(self.log_prob(jnp.asarray(response, float), device_array(np.full(length, eta))))
            if found.shape != (length,):
                raise ValueError(
                    f"log_prob returns shape {found.shape} for y and eta of shape ({length},); "
                    f"it must act entry by entry and sum nothing."
                )
            if not np.isfinite(found).all():
                first = int(np.argmin(np.isfinite(found)))
                raise ValueError(
                    f"log_prob(y = {response[first]}, eta = {eta:g}) is {found[first]}; y[{first}] must be a value "
                    f"that the likelihood can produce. Check y, or log_prob."
                )
        return response

    def bend(self, y: Batch) -> tuple[Batch, Batch]:
        """As the user said."""
        centre = jnp.zeros_like(y) if self.centre is None else self.centre(y)
        return centre, self.width.astype(y.dtype) * jnp.ones_like(y)

    def mean_response(self, mean: Batch, variance: Batch) -> Batch:
        """Not known from log_prob alone."""
        raise ValueError("UserLikelihood has no mean_response: log_prob does not say which y are possible.")
