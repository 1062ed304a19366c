"""The posterior of a latent Gaussian model as people read it: marginals of scales, fixed and random effects by name."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy import special

from provi.core.arguments import device_array, double_precision
from provi.families.bases import marginal_quantile
from provi.families.nested import NestedGaussian, NestedPoint
from provi.result.marginal import Marginal
from provi.result.posterior import Posterior
from provi.result.predictors import AbstractNewRows, Four, Latent, LinearPredictor, no_draw
from provi.result.summary import Summary, Variable, content_note, summarise_model_space
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.latent_gaussian import LatentGaussian

_BISECTIONS, _AT_ONCE, _NUMBERS_AT_ONCE = 60, 1000, 2**22
_STREAM = 2**31 - 6  # of the seed: not the one that drew the parameters


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
    def model(self) -> AbstractLatentGaussian:
        """The target, or the form of it that was integrated."""
        return self.family.target

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
        start = len(self.model.fixed_names)
        for part in self.model.blocks:
            width = 1 if len(part.effect_shape) == 1 else part.effect_shape[1]
            if part.name == block:
                return self._gaussian_mixture(f"{block}[{level}]", start + level * width + coefficient)
            start += int(np.prod(part.effect_shape))
        raise ValueError(f"There is no block {block!r}: there are {[part.name for part in self.model.blocks]}.")

    def summary(
        self,
        probability: float = 0.94,
        var_names: str | Sequence[str] | None = None,
        kind: str = "all",
        *,
        unconstrained: bool = False,
    ) -> Summary:
        """Mean, standard deviation and central interval of fixed effects and hyperparameters.

        Those of the many effects are in `effects`, or here by the name of their block in `var_names`; with
        `unconstrained` all free coordinates are listed. The arguments are those of `Posterior.summary`.
        """
        if unconstrained or self.model is not self.target:
            free = Summary(self.names, self.mean, self.standard_deviation, self.interval(probability), probability)
            known = _table(list(self.hyperparameters.values()), probability)
            if unconstrained or self.target is None:
                found = free.select(var_names, kind)
            else:
                found = summarise_model_space(self, free, known, var_names, kind)
            return dataclasses.replace(found, notes=(*found.notes, *content_note(self, probability)))
        asked = {var_names} if isinstance(var_names, str) else set(var_names or ())
        rows = [*self.fixed.values(), *self.hyperparameters.values()]
        variables = [Variable(row.name, 1) for row in rows]
        for block in self.model.blocks:
            own = self._named_effects(block) if any(name.partition("[")[0] == block.name for name in asked) else []
            rows, variables = [*rows, *own], [*variables, *([Variable(block.name, len(own))] if own else [])]
        found = dataclasses.replace(_table(rows, probability), variables=tuple(variables)).select(var_names, kind)
        listed = ", ".join(f"{name} {effects.mean.shape}" for name, effects in self.effects.items())
        notes = (f"Random effects are in posterior.effects: {listed}.",) if listed and not asked else ()
        return dataclasses.replace(found, notes=(*notes, *content_note(self, probability)))

    def _named_effects(self, block: Any) -> list[Marginal]:
        """The marginals of all effects of a block, with their levels in their names."""
        names = [f"{block.name}[{level}]" for level in block.levels]
        if block.coefficients:
            names = [f"{block.name}[{level}, {label}]" for level in block.levels for label in block.coefficients]
        width = max(len(block.coefficients), 1)
        found = (self.effect_marginal(block.name, *divmod(place, width)) for place in range(len(names)))
        return [dataclasses.replace(row, name=name) for name, row in zip(names, found, strict=True)]

    @double_precision
    def interval(self, probability: float = 0.94) -> np.ndarray:
        """Central intervals of the free coordinates, shape (dim, 2): quantiles of the mixture."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        means, spreads = self.family.by_node(self.point)
        levels = np.array([(1 - probability) / 2, (1 + probability) / 2])
        found = []
        for start in range(0, self.family.dim, _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            found.append(_mixture_quantiles(self.weights, means[:, here], spreads[:, here], levels))
        whole, places = np.concatenate(found), self.model.own_places
        # Those of the hyperparameters are on the finer rule.
        fine, weights = np.asarray(self.point.fine_nodes), np.asarray(self.point.fine_weights)
        for j, place in enumerate(range(fine.shape[1]) if places is None else places[0]):
            whole[place] = Marginal("", 0.0, 0.0, weights, fine[:, j]).quantile(levels)
        return whole

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
        for name, value in _reported(self.model, padded).items():
            x = np.asarray(value)[: len(fine)]
            mean = float(weights @ x)
            found[name] = Marginal(name, mean, math.sqrt(max(float(weights @ (x - mean) ** 2), 0.0)), weights, x)
        return {name: found[name] for name in self.model.reported_names}

    def _fixed(self) -> dict[str, Marginal]:
        return {name: self._gaussian_mixture(name, j) for j, name in enumerate(self.model.fixed_names)}

    def _gaussian_mixture(self, name: str, place: int) -> Marginal:
        means, spreads = self._effect_moments()
        weights = self.weights
        mean = float(weights @ means[:, place])
        variance = float(weights @ (spreads[:, place] ** 2 + (means[:, place] - mean) ** 2))
        floor = np.maximum(spreads[:, place], 1e-12 * (1 + abs(mean)))
        return Marginal(name, mean, math.sqrt(variance), weights, means[:, place], floor)

    def _block_effects(self) -> dict[str, Effects]:
        means, spreads = self._effect_moments()
        weights, start, found = self.weights, len(self.model.fixed_names), {}
        mean = weights @ means
        sd = np.sqrt(weights @ (spreads**2 + (means - mean) ** 2))
        for block in self.model.blocks:
            here = slice(start, start + int(np.prod(block.effect_shape)))
            shape = block.effect_shape
            found[block.name] = Effects(
                mean[here].reshape(shape), sd[here].reshape(shape), block.levels, block.coefficients
            )
            start = here.stop
        return found

    def _effect_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations of every effect in its own space at each node, (K, M)."""

        return self._kept("moments", lambda: self.family.own_effects(self.point))


def _table(rows: list[Marginal], probability: float) -> Summary:
    mean, sd = np.array([row.mean for row in rows]), np.array([row.sd for row in rows])
    interval = np.array([row.interval(probability) for row in rows]).reshape(-1, 2)
    return Summary(tuple(row.name for row in rows), mean, sd, interval, probability)


@eqx.filter_jit
def _reported(target: AbstractLatentGaussian, nodes: Any) -> dict[str, Any]:
    return jax.vmap(target.reported)(nodes)


def _mixture_quantiles(weights: np.ndarray, means: np.ndarray, spreads: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """(d, levels) of mixtures of Gaussians with means and deviations (K, d)."""
    shape = (means.shape[1], len(levels))
    spreads = np.maximum(spreads, 1e-12 * (1 + np.abs(means)))
    low = np.broadcast_to(np.min(means - 12 * spreads, axis=0)[:, None], shape)
    high = np.broadcast_to(np.max(means + 12 * spreads, axis=0)[:, None], shape)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        share = np.einsum("k,kdl->dl", weights, special.ndtr((middle - means[:, :, None]) / spreads[:, :, None]))
        low, high = np.where(share < levels, middle, low), np.where(share < levels, high, middle)
    return (low + high) / 2


@dataclasses.dataclass(frozen=True)
class ClassRows(AbstractNewRows):
    """Rows of a response with several classes: by draws, as its probabilities are no functions of one number each.

    - `latent`: predictors at draws z, (draws, rows) or (draws, rows, classes - 1), for a matrix of rows.
    - `probabilities`: (draws, rows, classes) of z and these.
    """

    posterior: Any
    matrix: np.ndarray
    latent: Callable[[np.ndarray, np.ndarray], np.ndarray]
    probabilities: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def moments(self) -> Latent:
        """Of 4000 draws."""
        mean, sd, *_ = self._summarised(self.latent, 0.9, 4000, 0)
        return Latent(mean, sd)

    def predict(self, kind: str, interval: float, num_draws: int, seed: int) -> Four:
        """Of the draws."""
        if kind == "response":
            raise ValueError("kind='response' has no interval for several classes: posterior_predictive draws them.")
        values = self.latent if kind == "latent" else lambda z, rows: self.probabilities(z, self.latent(z, rows))
        return self._summarised(values, interval, num_draws, seed)

    def _summarised(self, values: Any, interval: float, num_draws: int, seed: int) -> Four:
        z, parts = np.asarray(self.posterior.sample(num_draws, seed), np.float64), []
        size = max(1, _NUMBERS_AT_ONCE // (8 * num_draws))
        for start in range(0, len(self.matrix), size):
            found = values(z, self.matrix[start : start + size])
            ends = np.quantile(found, [(1 - interval) / 2, (1 + interval) / 2], axis=0)
            parts.append((found.mean(axis=0), found.std(axis=0), *ends))
        mean, sd, lower, upper = (np.concatenate(column) for column in zip(*parts, strict=True))
        return mean, sd, lower, upper

    def responses(self, num_draws: int, seed: int) -> np.ndarray:
        """The numbers of the classes, from 0."""
        z = np.asarray(self.posterior.sample(num_draws, seed), np.float64)
        shares = self.probabilities(z, self.latent(z, self.matrix))
        below = np.random.default_rng([seed, 4]).random((*shares.shape[:2], 1)) > np.cumsum(shares, axis=2)[:, :, :-1]
        return below.sum(axis=2).astype(float)


@dataclasses.dataclass(frozen=True)
class StudentTRows(AbstractNewRows):
    """Rows of a Student-t regression: the predictor in closed form, new responses by draws of it, sigma and nu.

    The predictor stands for the expected response: it is the mean of y where nu > 1, and its median always. Where
    nu <= 2, which no fit excludes, y has no variance: the deviation of a new response is NaN, its interval is not.
    """

    posterior: Any
    matrix: np.ndarray
    offset: np.ndarray

    def moments(self) -> Latent:
        """Of x'w + o."""
        width = self.matrix.shape[1]
        mean, covariance = self.posterior.mean[:width], self.posterior.covariance[:width, :width]
        mean, variance = LinearPredictor(mean, np.linalg.cholesky(covariance)).moments(self.matrix)
        return Latent(mean + self.offset, np.sqrt(variance))

    def predict(self, kind: str, interval: float, num_draws: int, seed: int) -> Four:
        """In closed form but for new responses."""
        eta, family = self.moments(), self.posterior.family
        if kind != "response":
            wide = marginal_quantile(family.base, family.dim, (1 + interval) / 2) * eta.sd
            return eta.mean, eta.sd, eta.mean - wide, eta.mean + wide
        levels = [(1 - interval) / 2, (1 + interval) / 2]
        ends = [np.quantile(drawn, levels, axis=0) for drawn in self._drawn(num_draws, seed)]
        lower, upper = np.concatenate(ends, axis=1)
        return eta.mean, np.full_like(eta.mean, np.nan), lower, upper

    def responses(self, num_draws: int, seed: int) -> np.ndarray:
        """At the draws."""
        return np.concatenate(list(self._drawn(num_draws, seed)), axis=1)

    def _drawn(self, num_draws: int, seed: int) -> Iterator[np.ndarray]:
        """(draws, rows), some rows at a time."""
        z = np.asarray(self.posterior.sample(num_draws, seed), np.float64)
        rng, size = np.random.default_rng([seed, 5]), max(1, _NUMBERS_AT_ONCE // num_draws)
        for start in range(0, len(self.matrix), size):
            here = slice(start, start + size)
            eta = z[:, :-2] @ self.matrix[here].T + self.offset[here]
            yield eta + np.exp(z[:, -2:-1]) * rng.standard_t(np.exp(z[:, -1:]), eta.shape)


def graded(eta: np.ndarray, cutpoints: np.ndarray) -> np.ndarray:
    """P(y = k), (draws, rows, K), of the proportional-odds model: cut points (K - 1,) or (draws, K - 1)."""
    above = special.expit(eta[:, :, None] - np.reshape(cutpoints, (-1, 1, cutpoints.shape[-1])))
    ones = np.ones((*eta.shape, 1))
    return -np.diff(np.concatenate([ones, above, 0 * ones], axis=2), axis=2)


@dataclasses.dataclass(frozen=True)
class NestedRows(AbstractNewRows):
    """Rows of a latent Gaussian model with fixed effects only, whose likelihood may have unknown numbers: by draws."""

    posterior: Any
    target: LatentGaussian
    design: np.ndarray
    offset: np.ndarray

    def moments(self) -> Latent:
        """Of 4000 draws."""
        eta = self._eta(self.posterior.sample(4000, 0))
        return Latent(eta.mean(axis=0), eta.std(axis=0))

    def _eta(self, z: np.ndarray) -> np.ndarray:
        start = self.target.num_hyperparameters
        return self.offset + z[:, start : start + self.design.shape[1]] @ self.design.T

    def predict(self, kind: str, interval: float, num_draws: int, seed: int) -> Four:
        """Of the draws."""
        z = self.posterior.sample(num_draws, seed)
        values = self._eta(z) if kind == "latent" else self._values(z, seed, kind == "response")
        if values is None:
            raise ValueError(no_draw(self.target.likelihood))
        lower, upper = np.quantile(values, [(1 - interval) / 2, (1 + interval) / 2], axis=0)
        return values.mean(axis=0), values.std(axis=0), lower, upper

    def responses(self, num_draws: int, seed: int) -> np.ndarray | None:
        """At the draws."""
        return self._values(self.posterior.sample(num_draws, seed), seed, True)

    def grades(self) -> ClassRows:
        """The same rows, as probabilities of grades between the unknown cut points."""
        target, start = self.target, self.target.num_hyperparameters

        def latent(z: np.ndarray, rows: np.ndarray) -> np.ndarray:
            return z[:, start : start + rows.shape[1] - 1] @ rows[:, :-1].T + rows[:, -1]

        def shares(z: np.ndarray, eta: np.ndarray) -> np.ndarray:
            numbers = target.constrain(z)
            cuts = sum(name.startswith("cutpoint[") for name in numbers)
            return graded(eta, np.stack([numbers[f"cutpoint[{k + 1}]"] for k in range(cuts)], axis=1))

        return ClassRows(self.posterior, np.concatenate([self.design, self.offset[:, None]], axis=1), latent, shares)

    @double_precision
    def _values(self, z: np.ndarray, seed: int, draw: bool) -> np.ndarray | None:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _STREAM), len(z))
        theta = device_array(z[:, : self.target.num_hyperparameters])
        found = _nested_values(self.target, theta, device_array(self._eta(z)), keys, draw)
        return None if found is None else np.asarray(found)


@eqx.filter_jit
def _nested_values(target: LatentGaussian, theta: Any, eta: Any, keys: Any, draw: bool) -> Any:
    def one(item: Any) -> Any:
        values = target.hyperparameters(item[0])
        likelihood = target.numbers.assign(target.likelihood, values)
        return likelihood.draw(item[2], item[1]) if draw else likelihood.mean_response(item[1], 0 * item[1])

    if jax.eval_shape(one, (theta[0], eta[0], keys[0])) is None:
        return None
    return jax.lax.map(one, (theta, eta, keys))
