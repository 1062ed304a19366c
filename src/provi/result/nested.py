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
from provi.families.nested import SMOOTHING, NestedGaussian, NestedPoint, effect_rows
from provi.result.posterior import Posterior
from provi.result.summary import Summary, content_note
from provi.targets.latent_gaussian import LatentGaussian

_BISECTIONS = 60


@dataclasses.dataclass(frozen=True)
class Marginal:
    """One number's posterior: a mixture of Gaussians in some coordinate x = `to(t)`, increasing in t.

    `mean` and `sd` are of x, exact for the rule; `centres`, `spreads`, `weights` are of t.
    """

    name: str
    mean: float
    sd: float
    weights: np.ndarray
    centres: np.ndarray
    spreads: np.ndarray
    coordinate: str = "identity"
    ends: tuple[float, float] = (-math.inf, math.inf)

    def quantile(self, probability: Any) -> Any:
        """Of x."""
        levels = np.atleast_1d(np.asarray(probability, float))
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        low = np.full(len(levels), float(np.min(self.centres - 12 * self.spreads)))
        high = np.full(len(levels), float(np.max(self.centres + 12 * self.spreads)))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            below = self._distribution(middle) < levels
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found = self._to((low + high) / 2)
        return found if np.ndim(probability) else float(found[0])

    def interval(self, probability: float = 0.94) -> tuple[float, float]:
        """The central one."""
        low, high = self.quantile([(1 - probability) / 2, (1 + probability) / 2])
        return float(low), float(high)

    def density(self, x: Any) -> np.ndarray:
        """Of x, at each of these."""
        values = np.atleast_1d(np.asarray(x, float))
        t, slope = self._from(values)
        z = (t[:, None] - self.centres) / self.spreads
        return np.exp(-0.5 * z**2) @ (self.weights / self.spreads) / math.sqrt(2 * math.pi) * slope

    def _distribution(self, t: np.ndarray) -> np.ndarray:
        return special.ndtr((t[:, None] - self.centres) / self.spreads) @ self.weights

    def _to(self, t: np.ndarray) -> np.ndarray:
        if self.coordinate == "log":
            return np.exp(t)
        if self.coordinate == "logit":
            return self.ends[0] + (self.ends[1] - self.ends[0]) * special.expit(t)
        return t

    def _from(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """t, and dt/dx; zero density outside the support."""
        with np.errstate(all="ignore"):
            if self.coordinate == "log":
                return np.log(np.where(x > 0, x, np.nan)), np.where(x > 0, 1 / x, 0.0)
            if self.coordinate == "logit":
                low, high = self.ends
                inside = (x > low) & (x < high)
                share = np.where(inside, (x - low) / (high - low), 0.5)
                return special.logit(share), np.where(inside, 1 / (share * (1 - share) * (high - low)), 0.0)
        return x, np.ones_like(x)

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
        target, nodes, weights = self.target, np.asarray(self.point.nodes), self.weights
        if not nodes.shape[1]:
            return {}
        values = _reported(target, nodes)
        priors, found = target.hyperpriors, {}
        for name, value in values.items():
            x = np.asarray(value)
            prior = priors.get(name)
            low, high = (-math.inf, math.inf) if prior is None else prior.support
            if prior is None and name.startswith("cor("):
                low, high = -1.0, 1.0
            kind = "identity" if math.isinf(low) else "log" if math.isinf(high) else "logit"
            found[name] = _node_marginal(name, x, weights, kind, (low, high))
        return found

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


def _node_marginal(name: str, x: np.ndarray, weights: np.ndarray, kind: str, ends: tuple[float, float]) -> Marginal:
    """Values on nodes as a smooth density: kernels in the free coordinate that keep its mean and deviation there.

    With one hyperparameter the nodes are a fine grid, and the kernel is as wide as its step.
    """
    mean = float(weights @ x)
    sd = math.sqrt(max(float(weights @ (x - mean) ** 2), 0.0))
    if kind == "log":
        t = np.log(x)
    elif kind == "logit":
        t = special.logit(np.clip((x - ends[0]) / (ends[1] - ends[0]), 1e-12, 1 - 1e-12))
    else:
        t = x
    centre = float(weights @ t)
    spread = math.sqrt(max(float(weights @ (t - centre) ** 2), 1e-24))
    shrunk = centre + math.sqrt(1 - SMOOTHING**2) * (t - centre)
    return Marginal(name, mean, sd, weights, shrunk, np.full(len(t), SMOOTHING * spread), kind, ends)


