"""Groups that share a prior with unknown parameters: centred, not centred, and funnels."""

# NumPyro says of a site only that it is an array or a number.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false, reportOptionalOperand=false, reportCallIssue=false

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

from provi_lab.posteriors.posterior import Moments, Posterior, design, generator

_EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools_centred() -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, _ERRORS), obs=_EFFECTS)


def eight_schools() -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * z, _ERRORS), obs=_EFFECTS)


def intercepts_centred(group: Any, x: Any, y: Any) -> None:
    mu, slope = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("slope", dist.Normal(0, 2))
    between = numpyro.sample("between", dist.HalfNormal(1))
    a = numpyro.sample("a", dist.Normal(mu, between).expand([10]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(a[group] + slope * x, noise), obs=y)


def intercepts(group: Any, x: Any, y: Any) -> None:
    mu, slope = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("slope", dist.Normal(0, 2))
    between = numpyro.sample("between", dist.HalfNormal(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([10]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(mu + between * z[group] + slope * x, noise), obs=y)


def _intercepts_data() -> tuple[Any, ...]:
    rng, group = generator(21), np.repeat(np.arange(10), 6)
    x = rng.normal(size=60)
    return group, x, 1 + 0.5 * rng.normal(size=10)[group] + 0.7 * x + 0.8 * rng.normal(size=60)


def correlated_slopes(group: Any, x: Any, y: Any) -> None:
    """Intercepts and slopes of groups with an unknown correlation."""
    mean = numpyro.sample("mean", dist.Normal(0, 2).expand([2]).to_event(1))
    scales = numpyro.sample("scales", dist.HalfNormal(1).expand([2]).to_event(1))
    angle = numpyro.sample("correlation", dist.Uniform(-1, 1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([8, 2]).to_event(2))
    first = scales[0] * z[:, 0]
    second = scales[1] * (angle * z[:, 0] + jnp.sqrt(1 - angle**2) * z[:, 1])
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(mean[0] + first[group] + (mean[1] + second[group]) * x, noise), obs=y)


def _slopes_data() -> tuple[Any, ...]:
    rng, group = generator(22), np.repeat(np.arange(8), 8)
    x = rng.normal(size=64)
    a, b = 0.7 * rng.normal(size=8), 0.5 * rng.normal(size=8)
    return group, x, 1 + a[group] + (0.5 + b[group]) * x + 0.6 * rng.normal(size=64)


def pump_rates(time: Any, y: Any) -> None:
    shape, rate = numpyro.sample("shape", dist.Exponential(1.0)), numpyro.sample("rate", dist.Gamma(0.5, 1.0))
    theta = numpyro.sample("theta", dist.Gamma(shape, rate).expand([10]).to_event(1))
    numpyro.sample("y", dist.Poisson(theta * time), obs=y)


def _pumps() -> tuple[Any, ...]:
    time = np.array([94.3, 15.7, 62.9, 126.0, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5])
    return time, np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])


def survival_rates(size: Any, y: Any) -> None:
    """Binomial rates of groups, normal on the logit scale and centred."""
    mu, tau = numpyro.sample("mu", dist.Normal(0, 2)), numpyro.sample("tau", dist.HalfNormal(1))
    logit = numpyro.sample("logit", dist.Normal(mu, tau).expand([12]).to_event(1))
    numpyro.sample("y", dist.Binomial(size, logits=logit), obs=y)


def _rates_data() -> tuple[Any, ...]:
    rng = generator(23)
    size = rng.integers(8, 40, 12)
    return size, rng.binomial(size, expit(-0.5 + 0.6 * rng.normal(size=12)))


def crossed_effects(row: Any, column: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    scales = numpyro.sample("scales", dist.HalfNormal(1).expand([3]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0, 1).expand([8]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + scales[0] * a[row] + scales[1] * b[column], scales[2]), obs=y)


def _crossed_data() -> tuple[Any, ...]:
    rng = generator(24)
    row, column = (part.ravel() for part in np.meshgrid(np.arange(8), np.arange(6), indexing="ij"))
    return row, column, 2 + 0.8 * rng.normal(size=8)[row] + 0.4 * rng.normal(size=6)[column] + 0.5 * rng.normal(size=48)


def random_effects_logit(group: Any, X: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfCauchy(1))
    a = numpyro.sample("a", dist.Normal(0, tau).expand([12]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ b + a[group]), obs=y)


def _random_effects_data() -> tuple[Any, ...]:
    rng, group = generator(25), np.repeat(np.arange(12), 8)
    X = design(rng, 96, 2)
    return group, X, rng.binomial(1, expit(X @ np.array([0.8, -0.5]) + 0.9 * rng.normal(size=12)[group]))


def robust_groups(y: Any, error: Any) -> None:
    """A meta-analysis whose effects have heavy tails."""
    mu, tau = numpyro.sample("mu", dist.Normal(0, 1)), numpyro.sample("tau", dist.HalfNormal(0.5))
    theta = numpyro.sample("theta", dist.StudentT(4.0, mu, tau).expand([10]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, error), obs=y)


def _robust_groups_data() -> tuple[Any, ...]:
    rng = generator(26)
    error = rng.uniform(0.1, 0.4, 10)
    return 0.3 + 0.2 * rng.standard_t(4, size=10) + error * rng.normal(size=10), error


_FUNNEL_SCALE, _FUNNEL_LEAVES = 1.5, 5


def funnel() -> None:
    v = numpyro.sample("v", dist.Normal(0, _FUNNEL_SCALE))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([_FUNNEL_LEAVES]).to_event(1))


def _funnel_moments() -> Moments:
    """E exp(v) = exp(s^2/2)."""
    leaf = math.exp(_FUNNEL_SCALE**2 / 4)
    return {
        "v": (np.zeros(()), np.array(_FUNNEL_SCALE)),
        "x": (np.zeros(_FUNNEL_LEAVES), np.full(_FUNNEL_LEAVES, leaf)),
    }


def funnel_with_data(y: Any) -> None:
    v = numpyro.sample("v", dist.Normal(0, 2))
    x = numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([6]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def _funnel_data() -> tuple[Any, ...]:
    return (generator(27).normal(size=6) * 1.2,)


HIERARCHICAL = [
    Posterior("eight_schools_centred", "hierarchical", eight_schools_centred, decentre=("theta",)),
    Posterior("eight_schools", "hierarchical", eight_schools),
    Posterior("intercepts_centred", "hierarchical", intercepts_centred, _intercepts_data, decentre=("a",)),
    Posterior("intercepts", "hierarchical", intercepts, _intercepts_data),
    Posterior("correlated_slopes", "hierarchical", correlated_slopes, _slopes_data),
    Posterior("pump_rates", "hierarchical", pump_rates, _pumps),
    Posterior("binomial_rates", "hierarchical", survival_rates, _rates_data, decentre=("logit",)),
    Posterior("crossed_effects", "hierarchical", crossed_effects, _crossed_data),
    Posterior("random_effects_logit", "hierarchical", random_effects_logit, _random_effects_data, decentre=("a",)),
    Posterior("robust_groups", "hierarchical", robust_groups, _robust_groups_data, decentre=("theta",), shapes=("df",)),
    Posterior("funnel", "funnel", funnel, exact=_funnel_moments),
    Posterior("funnel_with_data", "funnel", funnel_with_data, _funnel_data, decentre=("x",)),
]
