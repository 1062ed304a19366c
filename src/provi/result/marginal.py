"""The posterior of one number: what a table of coefficients or of hyperparameters has in a row."""

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

_BISECTIONS, _KERNEL = 60, 0.2


@dataclasses.dataclass(frozen=True)
class Marginal:
    """One number's posterior: a mixture of Gaussians, or values on a fine rule with the weights of `weights`.

    `spreads`: of the Gaussians; None for values on a rule.
    """

    name: str
    mean: float
    sd: float
    weights: np.ndarray
    centres: np.ndarray
    spreads: np.ndarray | None = None

    def quantile(self, probability: Any) -> Any:
        """The value below which this share of the posterior lies."""
        levels = np.atleast_1d(np.asarray(probability, float))
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        found = self._on_rule(levels) if self.spreads is None else self._of_mixture(levels, self.spreads)
        return found if np.ndim(probability) else float(found[0])

    def interval(self, probability: float = 0.94) -> tuple[float, float]:
        """The central one."""
        low, high = self.quantile([(1 - probability) / 2, (1 + probability) / 2])
        return float(low), float(high)

    def density(self, x: Any) -> np.ndarray:
        """At each of these; for values on a rule by kernels a fifth of a deviation wide, cut off at the ends."""
        values = np.atleast_1d(np.asarray(x, float))
        if self.spreads is not None:
            z = (values[:, None] - self.centres) / self.spreads
            return np.exp(-0.5 * z**2) @ (self.weights / self.spreads) / math.sqrt(2 * math.pi)
        width = max(_KERNEL * self.sd, 1e-300)
        low, high = float(self.centres.min()), float(self.centres.max())
        total = np.zeros(len(values))
        # What a kernel puts beyond an end is put back inside.
        for centres in (self.centres, 2 * low - self.centres, 2 * high - self.centres):
            total += np.exp(-0.5 * ((values[:, None] - centres) / width) ** 2) @ self.weights
        return np.where((values >= low) & (values <= high), total / (width * math.sqrt(2 * math.pi)), 0.0)

    def _on_rule(self, levels: np.ndarray) -> np.ndarray:
        order = np.argsort(self.centres, kind="stable")
        values, weights = self.centres[order], self.weights[order]
        return np.interp(levels, np.cumsum(weights) - 0.5 * weights, values)

    def _of_mixture(self, levels: np.ndarray, spreads: np.ndarray) -> np.ndarray:
        low = np.full(len(levels), float(np.min(self.centres - 12 * spreads)))
        high = np.full(len(levels), float(np.max(self.centres + 12 * spreads)))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            below = special.ndtr((middle[:, None] - self.centres) / spreads) @ self.weights < levels
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.name}: {self.mean:.4g} (sd {self.sd:.3g}, 94% in [{low:.4g}, {high:.4g}])"
