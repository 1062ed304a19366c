"""Posteriors that no rule of the library was set on: written before any of them was fitted, and counted apart."""

# NumPyro says of a site only that it is an array or a number.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false, reportOptionalOperand=false, reportCallIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from provi_lab.posteriors.posterior import Moments, Posterior, design, generator


def gompertz(time: Any, y: Any) -> None:
    """Growth that levels off, with errors in proportion."""
    most, delay = numpyro.sample("most", dist.LogNormal(2, 1)), numpyro.sample("delay", dist.LogNormal(0, 1))
    rate, noise = numpyro.sample("rate", dist.LogNormal(-1, 1)), numpyro.sample("noise", dist.HalfNormal(0.5))
    numpyro.sample("y", dist.LogNormal(jnp.log(most) - delay * jnp.exp(-rate * time), noise), obs=y)


def _gompertz_data() -> tuple[Any, ...]:
    rng, time = generator(101), np.linspace(0, 8, 12)
    return time, 10 * np.exp(-3 * np.exp(-0.6 * time) + 0.15 * rng.normal(size=12))


def censored(X: Any, y: Any, seen: Any) -> None:
    """Regression where responses below zero are recorded as zero."""
    b = numpyro.sample("b", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    law = dist.Normal(X @ b, noise)
    numpyro.factor("rows", jnp.sum(jnp.where(seen, law.log_prob(y), jax.scipy.stats.norm.logcdf(-X @ b / noise))))


def _censored_data() -> tuple[Any, ...]:
    rng = generator(102)
    X = np.column_stack([np.ones(40), design(rng, 40, 3)])
    y = X @ np.array([0.2, 1.0, -0.5, 0.0]) + rng.normal(size=40)
    return X, np.maximum(y, 0.0), y > 0


def gamma_rates(exposure: Any, y: Any) -> None:
    """Counts whose rates come from a gamma law with unknown shape and rate."""
    shape, rate = numpyro.sample("shape", dist.HalfNormal(3)), numpyro.sample("rate", dist.HalfNormal(3))
    rates = numpyro.sample("rates", dist.Gamma(shape, rate).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Poisson(rates * exposure).to_event(1), obs=y)


def _gamma_rates_data() -> tuple[Any, ...]:
    rng = generator(103)
    exposure = rng.uniform(0.5, 4, 9)
    return exposure, rng.poisson(exposure * rng.gamma(2.0, 0.8, 9))


def two_regimes(y: Any) -> None:
    """An autoregression whose coefficient differs above and below a level, with a smooth change."""
    low, high = numpyro.sample("low", dist.Normal(0, 0.5)), numpyro.sample("high", dist.Normal(0, 0.5))
    level, noise = numpyro.sample("level", dist.Normal(0, 1)), numpyro.sample("noise", dist.HalfNormal(1))
    share = jax.nn.sigmoid(4 * (y[:-1] - level))
    numpyro.sample("y", dist.Normal((low + (high - low) * share) * y[:-1], noise), obs=y[1:])


def _two_regimes_data() -> tuple[Any, ...]:
    rng, y = generator(104), [0.0]
    for _ in range(60):
        y.append((0.8 if y[-1] > 0 else -0.4) * y[-1] + 0.6 * rng.normal())
    return (np.asarray(y),)


def skew_data(y: Any) -> None:
    """Location, scale and shape of skew-normal data: the shape may be of either sign, or large."""
    centre, width = numpyro.sample("centre", dist.Normal(0, 3)), numpyro.sample("width", dist.HalfNormal(3))
    shape = numpyro.sample("shape", dist.Normal(0, 3))
    u = (y - centre) / width
    numpyro.factor("rows", jnp.sum(-0.5 * u**2 - jnp.log(width) + jax.scipy.stats.norm.logcdf(shape * u)))


def _skew_data() -> tuple[Any, ...]:
    rng = generator(105)
    return (1 + 1.5 * (0.9 * np.abs(rng.normal(size=25)) + np.sqrt(1 - 0.81) * rng.normal(size=25)),)


def cubic_ridge() -> None:
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("b", dist.Normal(a + a**3 / 6, 0.4))


def _cubic_ridge_moments() -> Moments:
    """Var b = E(a + a^3/6)^2 + 0.16, with E a^4 = 3 and E a^6 = 15."""
    return {"a": (np.zeros(()), np.ones(())), "b": (np.zeros(()), np.sqrt(np.array(1 + 6 / 6 + 15 / 36 + 0.16)))}


_MEANS = np.array([[0.0] * 5, [6.0, 0, 0, 0, 0], [0.0, -7.0, 3, 0, 0]])
_SCALES, _WEIGHTS = np.array([1.0, 0.6, 1.4]), np.array([0.5, 0.2, 0.3])


def three_islands() -> None:
    parts = dist.Normal(_MEANS, _SCALES[:, None]).to_event(1)
    numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(probs=jnp.asarray(_WEIGHTS)), parts))


def _three_islands_moments() -> Moments:
    mean = _WEIGHTS @ _MEANS
    return {"x": (mean, np.sqrt(_WEIGHTS @ (_MEANS**2 + _SCALES[:, None] ** 2) - mean**2))}


def laplace_groups(group: Any, y: Any) -> None:
    """Groups whose effects have Laplace's law with an unknown scale, centred."""
    scale, noise = numpyro.sample("scale", dist.HalfNormal(2)), numpyro.sample("noise", dist.HalfNormal(2))
    centre = numpyro.sample("centre", dist.Normal(0, 5))
    effects = numpyro.sample("effects", dist.Laplace(centre, scale).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(effects[group], noise), obs=y)


def _laplace_groups_data() -> tuple[Any, ...]:
    rng, group = generator(106), np.repeat(np.arange(8), 5)
    return group, (1 + rng.laplace(size=8))[group] + rng.normal(size=40)


HELD_OUT: dict[str, Posterior] = {
    p.name: p
    for p in (
        Posterior("gompertz", "regression", gompertz, _gompertz_data),
        Posterior("censored", "regression", censored, _censored_data),
        Posterior("gamma_rates", "hierarchical", gamma_rates, _gamma_rates_data),
        Posterior("two_regimes", "time series", two_regimes, _two_regimes_data),
        Posterior("skew_data", "heavy tails", skew_data, _skew_data),
        Posterior("cubic_ridge", "curved", cubic_ridge, exact=_cubic_ridge_moments),
        Posterior("three_islands", "multimodal", three_islands, exact=_three_islands_moments),
        Posterior("laplace_groups", "hierarchical", laplace_groups, _laplace_groups_data, decentre=("effects",)),
    )
}
