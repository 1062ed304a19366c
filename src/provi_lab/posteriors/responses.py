"""Tests, games, lifetimes and animals: models of people's and machines' answers."""

# NumPyro says of a site only that it is an array or a number.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false, reportOptionalOperand=false, reportCallIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

from provi_lab.posteriors.posterior import Posterior, design, generator

_PERSONS, _ITEMS = 20, 8


def item_response(y: Any) -> None:
    """One parameter an item."""
    spread = numpyro.sample("spread", dist.HalfNormal(1.5))
    ability = numpyro.sample("ability", dist.Normal(0, 1).expand([_PERSONS]).to_event(1))
    difficulty = numpyro.sample("difficulty", dist.Normal(0, 2).expand([_ITEMS]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=spread * ability[:, None] - difficulty).to_event(2), obs=y)


def item_response_two(y: Any) -> None:
    """Two parameters an item."""
    ability = numpyro.sample("ability", dist.Normal(0, 1).expand([_PERSONS]).to_event(1))
    difficulty = numpyro.sample("difficulty", dist.Normal(0, 1.5).expand([_ITEMS]).to_event(1))
    slope = numpyro.sample("slope", dist.LogNormal(0, 0.5).expand([_ITEMS]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=slope * (ability[:, None] - difficulty)).to_event(2), obs=y)


def _items_data() -> tuple[Any, ...]:
    rng = generator(61)
    return (rng.binomial(1, expit(1.2 * rng.normal(size=(_PERSONS, 1)) - np.linspace(-1.5, 1.5, _ITEMS))),)


def weibull(X: Any, time: Any, died: Any) -> None:
    """Lifetimes, some of them censored."""
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.7))
    b = numpyro.sample("b", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
    log_hazard = jnp.log(shape) - shape * X @ b + (shape - 1) * jnp.log(time)
    total = (time * jnp.exp(-X @ b)) ** shape
    numpyro.factor("lifetimes", jnp.sum(died * log_hazard - total))


def _weibull_data() -> tuple[Any, ...]:
    rng = generator(62)
    X = np.c_[np.ones(50), design(rng, 50, 2)]
    time = np.exp(X @ np.array([1.0, 0.4, -0.3])) * rng.weibull(1.5, 50)
    end = rng.exponential(5.0, 50)
    return X, np.minimum(time, end), (time <= end).astype(float)


def log_normal_lifetimes(time: Any, died: Any) -> None:
    """Few deaths among many: location and scale hardly told apart."""
    middle, spread = numpyro.sample("middle", dist.Normal(0, 3)), numpyro.sample("spread", dist.HalfNormal(1))
    normal = dist.Normal(middle, spread)
    alive = jax.scipy.stats.norm.logcdf((middle - jnp.log(time)) / spread)
    numpyro.factor("lifetimes", jnp.sum(jnp.where(died > 0, normal.log_prob(jnp.log(time)), alive)))


def _lifetimes_data() -> tuple[Any, ...]:
    time = np.exp(1.5 + 0.8 * generator(63).normal(size=25))
    return np.minimum(time, 3.0), (time <= 3.0).astype(float)


def cox(X: Any, order: Any) -> None:
    """The partial likelihood of proportional hazards: who died next, among those alive."""
    b = numpyro.sample("b", dist.Normal(0, 1.5).expand([X.shape[1]]).to_event(1))
    risk = (X @ b)[order]
    numpyro.factor("deaths", jnp.sum(risk - jax.lax.associative_scan(jnp.logaddexp, risk[::-1])[::-1]))


def _cox_data() -> tuple[Any, ...]:
    rng = generator(64)
    X = design(rng, 30, 3)
    return X, np.argsort(rng.exponential(np.exp(-X @ np.array([0.8, -0.5, 0.0]))))


def paired_games(left: Any, right: Any, won: Any) -> None:
    """Bradley and Terry's strengths."""
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    strength = numpyro.sample("strength", dist.Normal(0, 1).expand([10]).to_event(1))
    numpyro.sample("won", dist.Bernoulli(logits=spread * (strength[left] - strength[right])), obs=won)


def _games_data() -> tuple[Any, ...]:
    rng = generator(65)
    left, right = rng.integers(0, 10, 60), rng.integers(0, 9, 60)
    right = np.where(right >= left, right + 1, right)
    strength = rng.normal(size=10)
    return left, right, rng.binomial(1, expit(strength[left] - strength[right]))


def occupancy(seen: Any, visits: int) -> None:
    """Whether an animal lives at a site and is seen there, the first summed out."""
    lives, found = numpyro.sample("lives", dist.Beta(1.0, 1.0)), numpyro.sample("found", dist.Beta(1.0, 1.0))
    never = jnp.log(lives * (1 - found) ** visits + 1 - lives)
    some = jnp.log(lives) + seen * jnp.log(found) + (visits - seen) * jnp.log1p(-found)
    numpyro.factor("sites", jnp.sum(jnp.where(seen > 0, some, never)))


def _occupancy_data() -> tuple[Any, ...]:
    rng = generator(66)
    return rng.binomial(3, 0.3, 30) * rng.binomial(1, 0.5, 30), 3


def dose_response(dose: Any, size: Any, dead: Any) -> None:
    """Four animals at each of four doses."""
    a, b = numpyro.sample("a", dist.Normal(0, 5)), numpyro.sample("b", dist.LogNormal(1, 1))
    numpyro.sample("dead", dist.Binomial(size, logits=a + b * dose), obs=dead)


def _bioassay() -> tuple[Any, ...]:
    return np.array([-0.86, -0.3, -0.05, 0.73]), np.full(4, 5), np.array([0, 1, 3, 5])


RESPONSES = [
    Posterior("item_response", "item response", item_response, _items_data),
    Posterior("item_response_two", "item response", item_response_two, _items_data),
    Posterior("weibull", "survival", weibull, _weibull_data),
    Posterior("log_normal_lifetimes", "survival", log_normal_lifetimes, _lifetimes_data),
    Posterior("cox", "survival", cox, _cox_data),
    Posterior("paired_games", "item response", paired_games, _games_data),
    Posterior("occupancy", "ecology", occupancy, _occupancy_data),
    Posterior("dose_response", "regression", dose_response, _bioassay),
]
