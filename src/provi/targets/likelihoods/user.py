"""A likelihood that the user writes."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_positive, double_precision, floating_dtype
from provi.core.types import Scalar
from provi.targets.base import Status
from provi.targets.data import read_real
from provi.targets.likelihoods.base import AbstractLikelihood, Batch

_TRIED = (-2.0, 0.0, 2.0)


class UserLikelihood(AbstractLikelihood):
    """p(y | eta) = exp(log_prob(y, eta)).

    Its means come from quadrature that is dense around `centre(y)`, over `width`: good where log_prob is smooth on the
    scale of max(width, |eta - centre|). `moment_errors` compares two rules and cannot see what both step over.
    """

    log_prob: Callable = eqx.field(static=True)
    declared_log_concave: bool = eqx.field(static=True)
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
        centre: Callable | None = None,
        width: Any = 1.0,
    ):
        """**Arguments:**

        - `log_prob`: (y, eta) -> log p(y | eta), normalised over y, entry by entry on arrays of shape (n,), in
          `jax.numpy`. A function defined once: a new lambda each time is compiled each time.
        - `log_concave`: True if log_prob is concave in eta for every y. It is taken at your word.
        - `centre`: y -> where log_prob bends in eta, entry by entry; 0 if not given.
        - `width`: the scale in eta on which it bends.
        """
        if not callable(log_prob):
            raise ValueError("log_prob must be a function (y, eta) -> log p(y | eta).")
        self.log_prob, self.declared_log_concave, self.centre = log_prob, bool(log_concave), centre
        self.width = jnp.asarray(np.asarray(check_positive("width", width)), floating_dtype(width))

    def potential(self, eta: Batch, y: Batch) -> Batch:
        """-log_prob(y, eta)."""
        return -self.log_prob(y, eta)

    @property
    def curvature(self) -> tuple[float, float]:
        """(0, infinity) if declared log-concave, else (-infinity, infinity)."""
        return (0.0 if self.declared_log_concave else -np.inf), np.inf

    @property
    def grounds(self) -> tuple[Status, str]:
        """The user's word; the errors of its means are estimates too."""
        return "declared", "log_concave=True of the user's likelihood; errors of its quadrature estimated"

    @double_precision
    def read_response(self, y: Any, length: int) -> np.ndarray:
        """Real numbers at which `log_prob` has the right shape and is finite, at eta = -2, 0 and 2."""
        response = read_real(y, length)
        for eta in _TRIED:
            found = np.asarray(self.log_prob(jnp.asarray(response, float), jnp.asarray(np.full(length, eta))))
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
