"""The covariance of a Gaussian over the effects of a latent Gaussian model, given its sites, under its constraints."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from provi.core.bordered import Factor, factorise
from provi.targets.latent_gaussian import Conditional


class Constrained(eqx.Module):
    """The factor of a precision, and what conditions on a constraint: `crossed` = H^-1 N, `middle` = N'H^-1 N."""

    factor: Factor
    null: tuple[Any, Any] | None
    crossed: tuple[Any, Any] | None
    middle: Any
    log_det: Any

    def solve(self, inner: Any, outer: Any) -> tuple[Any, Any]:
        """S times a vector."""
        return self.project(*self.factor.solve(inner, outer))

    def project(self, inner: Any, outer: Any) -> tuple[Any, Any]:
        """x - H^-1 N (N'H^-1 N)^-1 N'x: a draw of N(0, H^-1) becomes one of N(0, S)."""
        if self.null is None or self.crossed is None:
            return inner, outer
        along = jnp.einsum("kbc,kb->c", self.null[0], inner) + self.null[1].T @ outer
        weights = jnp.linalg.solve(self.middle, along)
        return inner - self.crossed[0] @ weights, outer - self.crossed[1] @ weights

    def row_variances(self, index: Any, values: Any, border: Any) -> Any:
        """a'Sa of such rows."""
        found = self.factor.row_variances(index, values, border)
        if self.crossed is None:
            return found
        seen = border @ self.crossed[1]
        if index.shape[1]:
            flat = self.crossed[0].reshape(-1, seen.shape[1])
            seen = seen + jnp.sum(values[:, :, None] * flat[index], axis=1)
        return jnp.maximum(found - jnp.sum(seen * jnp.linalg.solve(self.middle, seen.T).T, axis=1), 0.0)

    def draw(self, inner: Any, outer: Any) -> tuple[Any, Any]:
        """A draw of N(0, S) from standard normal numbers."""
        return self.project(*self.factor.root(inner, outer))


def constrained_factor(given: Conditional, sites: Any) -> Constrained:
    """The covariance of the point with these sites."""
    factor = factorise(given.precision(sites))
    if given.null is None:
        return Constrained(factor, None, None, None, factor.log_det)
    crossed = factor.solve(*given.null)
    middle = jnp.einsum("kbc,kbe->ce", given.null[0], crossed[0]) + given.null[1].T @ crossed[1]
    log_det = factor.log_det + jnp.linalg.slogdet(middle)[1]
    return Constrained(factor, given.null, crossed, middle, log_det)
