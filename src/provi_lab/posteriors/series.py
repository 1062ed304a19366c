"""Series in time and space: autoregressions, states, differential equations, hidden chains, Gaussian processes."""

# NumPyro says of a site only that it is an array or a number.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false, reportOptionalOperand=false, reportCallIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from provi_lab.posteriors.posterior import Posterior, generator


def autoregression(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0, 2))
    phi = numpyro.sample("phi", dist.Normal(0, 1).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(a + phi[0] * y[1:-1] + phi[1] * y[:-2], noise), obs=y[2:])


def _autoregression_data() -> tuple[Any, ...]:
    rng, y = generator(31), [0.0, 0.0]
    for _ in range(60):
        y.append(0.5 + 0.6 * y[-1] - 0.3 * y[-2] + rng.normal())
    return (np.array(y),)


def moving_average(y: Any) -> None:
    """ARMA(1, 1)."""
    phi, theta = numpyro.sample("phi", dist.Uniform(-1, 1)), numpyro.sample("theta", dist.Uniform(-1, 1))
    noise = numpyro.sample("noise", dist.HalfNormal(2))

    def step(carry: Any, value: Any) -> Any:
        last, error = carry
        error = value - phi * last - theta * error
        return (value, error), error

    _, errors = jax.lax.scan(step, (y[0], jnp.zeros(())), y[1:])
    numpyro.sample("e", dist.Normal(0, noise), obs=errors)


def _moving_average_data() -> tuple[Any, ...]:
    rng, y, last = generator(32), [0.0], 0.0
    for _ in range(50):
        error = rng.normal()
        y.append(0.7 * y[-1] + error + 0.4 * last)
        last = error
    return (np.array(y),)


def garch(y: Any) -> None:
    level = numpyro.sample("level", dist.HalfNormal(1))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))

    def step(variance: Any, value: Any) -> Any:
        following = level + shares[0] * value**2 + shares[1] * variance
        return following, variance

    _, variances = jax.lax.scan(step, level / (1 - shares[0] - shares[1] + 0.05), y)
    numpyro.sample("y", dist.Normal(0, jnp.sqrt(variances)), obs=y)


def _garch_data() -> tuple[Any, ...]:
    rng, variance, y = generator(33), 1.0, []
    for _ in range(120):
        y.append(np.sqrt(variance) * rng.normal())
        variance = 0.3 + 0.3 * y[-1] ** 2 + 0.4 * variance
    return (np.array(y),)


def local_level(y: Any) -> None:
    """A random walk seen with noise; the walk centred."""
    drift, noise = numpyro.sample("drift", dist.HalfNormal(1)), numpyro.sample("noise", dist.HalfNormal(1))
    steps = numpyro.sample("steps", dist.Normal(0, 1).expand([y.shape[0]]).to_event(1))
    numpyro.sample("y", dist.Normal(drift * jnp.cumsum(steps), noise), obs=y)


def _local_level_data() -> tuple[Any, ...]:
    rng = generator(34)
    return (np.cumsum(0.4 * rng.normal(size=30)) + 0.6 * rng.normal(size=30),)


def stochastic_volatility(y: Any) -> None:
    persistence = numpyro.sample("persistence", dist.Beta(20.0, 1.5))
    level, spread = numpyro.sample("level", dist.Normal(0, 2)), numpyro.sample("spread", dist.HalfNormal(0.5))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([y.shape[0]]).to_event(1))

    def step(state: Any, shock: Any) -> Any:
        state = persistence * state + spread * shock
        return state, state

    _, states = jax.lax.scan(step, jnp.zeros(()), z)
    numpyro.sample("y", dist.Normal(0, jnp.exp((level + states) / 2)), obs=y)


def _volatility_data() -> tuple[Any, ...]:
    rng, state, y = generator(35), 0.0, []
    for _ in range(40):
        state = 0.95 * state + 0.3 * rng.normal()
        y.append(np.exp((-0.5 + state) / 2) * rng.normal())
    return (np.array(y),)


def poisson_walk(y: Any) -> None:
    """Counts whose log rate is a random walk, centred."""
    drift = numpyro.sample("drift", dist.HalfNormal(0.5))
    x = numpyro.sample("x", dist.GaussianRandomWalk(drift, num_steps=y.shape[0]))
    level = numpyro.sample("level", dist.Normal(1, 1))
    numpyro.sample("y", dist.Poisson(jnp.exp(level + x)), obs=y)


def _poisson_walk_reference(y: Any) -> None:
    drift = numpyro.sample("drift", dist.HalfNormal(0.5))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([y.shape[0]]).to_event(1))
    x = numpyro.deterministic("x", drift * jnp.cumsum(z))
    level = numpyro.sample("level", dist.Normal(1, 1))
    numpyro.sample("y", dist.Poisson(jnp.exp(level + x)), obs=y)


def _poisson_walk_data() -> tuple[Any, ...]:
    rng = generator(36)
    return (rng.poisson(np.exp(1 + np.cumsum(0.3 * rng.normal(size=25)))),)


def change_of_rate(time: Any, y: Any) -> None:
    """Counts whose rate changes at an unknown time, smoothly."""
    early, late = numpyro.sample("early", dist.Exponential(0.3)), numpyro.sample("late", dist.Exponential(0.3))
    moment = numpyro.sample("moment", dist.Uniform(0, 1))
    numpyro.sample("y", dist.Poisson(early + (late - early) * jax.nn.sigmoid((time - moment) / 0.03)), obs=y)


def _change_data() -> tuple[Any, ...]:
    rng, time = generator(37), np.linspace(0, 1, 40)
    return time, rng.poisson(np.where(time < 0.4, 4.0, 1.5))


def _rk4(field: Any, state: Any, width: float, steps: int, every: int) -> Any:
    def step(value: Any, _: Any) -> Any:
        first = field(value)
        second = field(value + width / 2 * first)
        third = field(value + width / 2 * second)
        value = value + width / 6 * (first + 2 * second + 2 * third + field(value + width * third))
        return value, value

    return jax.lax.scan(step, state, None, length=steps)[1][every - 1 :: every]


def epidemic(infected: Any) -> None:
    """SIR: daily prevalence in a population of 500."""
    contact, recovery = (
        numpyro.sample("contact", dist.LogNormal(0, 1)),
        numpyro.sample("recovery", dist.LogNormal(-1, 1)),
    )
    seed = numpyro.sample("seed", dist.Beta(2.0, 100.0))

    def field(state: Any) -> Any:
        s, i = state
        return jnp.stack([-contact * s * i, contact * s * i - recovery * i])

    path = _rk4(field, jnp.stack([1 - seed, seed]), 0.25, 56, 4)
    numpyro.sample("y", dist.Poisson(500 * jnp.clip(path[:, 1], 1e-6)), obs=infected)


def _epidemic_data() -> tuple[Any, ...]:
    state, path = np.array([0.99, 0.01]), []
    for _ in range(14 * 40):
        s, i = state
        state = state + np.array([-1.2 * s * i, 1.2 * s * i - 0.4 * i]) / 40
        path.append(state[1])
    return (generator(38).poisson(500 * np.array(path)[39::40]),)


def predator_prey(y: Any) -> None:
    """Lotka and Volterra's equations with log-normal errors of observation."""
    rates = numpyro.sample("rates", dist.LogNormal(jnp.log(jnp.array([0.6, 0.3, 0.8, 0.3])), 0.5).to_event(1))
    first = numpyro.sample("first", dist.LogNormal(jnp.log(2.0), 0.5).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(0.5))

    def field(state: Any) -> Any:
        prey, predator = state
        return jnp.stack([(rates[0] - rates[1] * predator) * prey, (rates[3] * prey - rates[2]) * predator])

    path = _rk4(field, first, 0.125, 80, 4)
    numpyro.sample("y", dist.LogNormal(jnp.log(jnp.clip(path, 1e-6)), noise).to_event(2), obs=y)


def _predator_prey_data() -> tuple[Any, ...]:
    state, path = np.array([2.0, 2.0]), []
    for _ in range(10 * 200):
        prey, predator = state
        state = state + np.array([(0.7 - 0.3 * predator) * prey, (0.3 * prey - 0.7) * predator]) / 200
        path.append(state)
    return (np.array(path)[99::100] * np.exp(0.15 * generator(39).normal(size=(20, 2))),)


def hidden_chain(y: Any) -> None:
    """A hidden Markov chain of two states, summed out."""
    stay = numpyro.sample("stay", dist.Beta(6.0, 2.0).expand([2]).to_event(1))
    means = numpyro.sample(
        "means",
        dist.TransformedDistribution(dist.Normal(0, 2).expand([2]).to_event(1), dist.transforms.OrderedTransform()),
    )
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    log_rates = jnp.log(jnp.stack([jnp.stack([stay[0], 1 - stay[0]]), jnp.stack([1 - stay[1], stay[1]])]))
    emissions = dist.Normal(means, noise).log_prob(y[:, None])

    def step(forward: Any, emission: Any) -> Any:
        return jax.nn.logsumexp(forward[:, None] + log_rates, axis=0) + emission, None

    forward, _ = jax.lax.scan(step, emissions[0] - jnp.log(2.0), emissions[1:])
    numpyro.factor("chain", jax.nn.logsumexp(forward))


def _hidden_chain_data() -> tuple[Any, ...]:
    rng, state, y = generator(40), 0, []
    for _ in range(60):
        state = state if rng.random() < 0.85 else 1 - state
        y.append((-1.0, 1.5)[state] + 0.8 * rng.normal())
    return (np.array(y),)


def _kernel(x: Any, scale: Any, length: Any, jitter: Any) -> Any:
    return scale**2 * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + jitter * jnp.eye(x.shape[0])


def gp_regression(x: Any, y: Any) -> None:
    """The process summed out."""
    scale, length = numpyro.sample("scale", dist.HalfNormal(1.5)), numpyro.sample("length", dist.InverseGamma(3.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(0.5))
    covariance = _kernel(x, scale, length, noise**2 + 1e-6)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance), obs=y)


def _gp_data() -> tuple[Any, ...]:
    x = np.linspace(0, 4, 20)
    return x, np.sin(1.5 * x) + 0.3 * generator(41).normal(size=20)


def gp_counts(x: Any, y: Any) -> None:
    """A Poisson rate whose logarithm is a Gaussian process with unknown scale and length, whitened."""
    scale, length = numpyro.sample("scale", dist.HalfNormal(1)), numpyro.sample("length", dist.InverseGamma(3.0, 2.0))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([x.shape[0]]).to_event(1))
    latent = jnp.linalg.cholesky(_kernel(x, scale, length, 1e-5)) @ z
    numpyro.sample("y", dist.Poisson(jnp.exp(1 + latent)), obs=y)


def _gp_counts_data() -> tuple[Any, ...]:
    x = np.linspace(0, 4, 16)
    return x, generator(42).poisson(np.exp(1 + np.sin(1.5 * x)))


SERIES = [
    Posterior("autoregression", "time series", autoregression, _autoregression_data),
    Posterior("moving_average", "time series", moving_average, _moving_average_data),
    Posterior("garch", "time series", garch, _garch_data),
    Posterior("local_level", "time series", local_level, _local_level_data),
    Posterior("stochastic_volatility", "time series", stochastic_volatility, _volatility_data),
    Posterior("poisson_walk", "time series", poisson_walk, _poisson_walk_data, reference=_poisson_walk_reference),
    Posterior("change_of_rate", "time series", change_of_rate, _change_data),
    Posterior("epidemic", "differential equation", epidemic, _epidemic_data),
    Posterior("predator_prey", "differential equation", predator_prey, _predator_prey_data),
    Posterior("hidden_chain", "hidden Markov", hidden_chain, _hidden_chain_data),
    Posterior("gp_regression", "gaussian process", gp_regression, _gp_data),
    Posterior("gp_counts", "gaussian process", gp_counts, _gp_counts_data),
]
