"""The posterior of a latent Gaussian model as people read it: marginals of scales, fixed and random effects by name."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from provi.core.arguments import double_precision
from provi.families.nested import NestedGaussian, NestedPoint, effect_rows
from provi.result.posterior import Posterior
from provi.result.summary import Summary, content_note
from provi.targets.latent_gaussian import LatentGaussian

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


@dataclasses.dataclass(frozen=True)
class Effects:
    """Means and standard deviations of a block's effects, (levels,) or (levels, coefficients)."""

    mean: np.ndarray
    sd: np.ndarray
    levels: tuple[str, ...]
    coefficients: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class NestedPosterior(Posterior):
    """A mixture over the nodes of the hyperparameters, with marginals by name."""

    family: NestedGaussian
    point: NestedPoint

    @property
    def hyperparameters(self) -> dict[str, Marginal]:
        """Marginals of the scales, correlations and other hyperparameters, by name."""
        return self._kept("hyperparameters", self._hyperparameters)

    @property
    def fixed(self) -> dict[str, Marginal]:
        """Marginals of the fixed effects, by name."""
        return self._kept("fixed", self._fixed)

    @property
    def effects(self) -> dict[str, Effects]:
        """Means and standard deviations of the effects of each block, in their own space."""
        return self._kept("effects", self._block_effects)

    def _kept(self, name: str, compute: Any) -> Any:
        if name not in self._found_marginals:
            self._found_marginals[name] = double_precision(compute)()
        return self._found_marginals[name]

    _found_marginals: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def weights(self) -> np.ndarray:
        """Of the nodes."""
        return self.point.weights

    def effect_marginal(self, block: str, level: int, coefficient: int = 0) -> Marginal:
        """The marginal of one effect of a block."""
        start = len(self.target.fixed_names)
        for part in self.target.blocks:
            width = 1 if len(part.effect_shape) == 1 else part.effect_shape[1]
            if part.name == block:
                return self._gaussian_mixture(f"{block}[{level}]", start + level * width + coefficient)
            start += int(np.prod(part.effect_shape))
        raise ValueError(f"There is no block {block!r}: there are {[part.name for part in self.target.blocks]}.")

    def summary(self, probability: float = 0.94, *, unconstrained: bool = False) -> Summary:
        """Mean, standard deviation and central interval of fixed effects and hyperparameters.

        Those of the many effects are in `effects`; with `unconstrained` all free coordinates are listed.
        """
        if unconstrained:
            return super().summary(probability, unconstrained=True)
        rows = [*self.fixed.values(), *self.hyperparameters.values()]
        names = tuple(row.name for row in rows)
        mean, sd = np.array([row.mean for row in rows]), np.array([row.sd for row in rows])
        interval = np.array([row.interval(probability) for row in rows]).reshape(-1, 2)
        listed = ", ".join(f"{name} {effects.mean.shape}" for name, effects in self.effects.items())
        notes = (f"Random effects are in posterior.effects: {listed}.",) if listed else ()
        return Summary(names, mean, sd, interval, probability, (*notes, *content_note(self, probability)))

    def interval(self, probability: float = 0.94) -> np.ndarray:
        """Of the free coordinates, taken as Gaussian; marginals by name have exact ones."""
        return super().interval(probability)

    def diagnose(self, num_draws: int = 10_000, seed: int = 0) -> Any:
        """Not for mixtures on nodes: their evidence is bracketed."""
        raise ValueError(
            "diagnose weighs draws by densities, which a nested fit does not have over its hyperparameters: "
            "fit.evidence brackets the evidence, and fit.certificate says how far the posterior is."
        )

    def _hyperparameters(self) -> dict[str, Marginal]:
        fine, weights = np.asarray(self.point.fine_nodes), np.asarray(self.point.fine_weights)
        if not fine.shape[1]:
            return {}
        size = 2 ** math.ceil(math.log2(len(fine)))  # one program for many sizes
        padded = np.concatenate([fine, np.repeat(fine[-1:], size - len(fine), axis=0)])
        found = {}
        for name, value in _reported(self.target, padded).items():
            x = np.asarray(value)[: len(fine)]
            mean = float(weights @ x)
            found[name] = Marginal(name, mean, math.sqrt(max(float(weights @ (x - mean) ** 2), 0.0)), weights, x)
        return {name: found[name] for name in self.target.reported_names}

    def _fixed(self) -> dict[str, Marginal]:
        return {name: self._gaussian_mixture(name, j) for j, name in enumerate(self.target.fixed_names)}

    def _gaussian_mixture(self, name: str, place: int) -> Marginal:
        means, spreads = self._effect_moments()
        weights = self.weights
        mean = float(weights @ means[:, place])
        variance = float(weights @ (spreads[:, place] ** 2 + (means[:, place] - mean) ** 2))
        floor = np.maximum(spreads[:, place], 1e-12 * (1 + abs(mean)))
        return Marginal(name, mean, math.sqrt(variance), weights, means[:, place], floor)

    def _block_effects(self) -> dict[str, Effects]:
        means, spreads = self._effect_moments()
        weights, start, found = self.weights, len(self.target.fixed_names), {}
        mean = weights @ means
        sd = np.sqrt(weights @ (spreads**2 + (means - mean) ** 2))
        for block in self.target.blocks:
            here = slice(start, start + int(np.prod(block.effect_shape)))
            shape = block.effect_shape
            found[block.name] = Effects(mean[here].reshape(shape), sd[here].reshape(shape), block.levels, block.coefficients)
            start = here.stop
        return found

    def _effect_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations of every effect in its own space at each node, (K, M)."""

        def compute() -> tuple[np.ndarray, np.ndarray]:
            target, latent = self.target, self.family.conditional_means(self.point)
            means = _effect_means(target, np.asarray(self.point.nodes), latent)
            return np.asarray(means), np.asarray(self.family.conditional_deviations(self.point, effect_rows))

        return self._kept("moments", compute)


@eqx.filter_jit
def _effect_means(target: LatentGaussian, nodes: Any, latent: Any) -> Any:
    def one(pair: Any) -> Any:
        rows = effect_rows(target, pair[0])
        return jnp.sum(rows.values * pair[1][rows.index], axis=1)

    return jax.lax.map(one, (nodes, latent))


@eqx.filter_jit
def _reported(target: LatentGaussian, nodes: Any) -> dict[str, Any]:
    return jax.vmap(target.reported)(nodes)
