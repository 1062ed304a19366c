"""A log density of your own, with a parameter that must be positive: a straight line with unknown noise."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import provi

rng = np.random.default_rng(0)
x = rng.uniform(-1, 1, 60)
y = 0.5 + 2.0 * x + rng.normal(scale=0.3, size=60)


def log_density(x, y, parameters):
    """log p(y, parameters): in the parameters' own space. ProVI adds the Jacobian of its transformation."""
    line = parameters["intercept"] + parameters["slope"] * x
    log_likelihood = jax.scipy.stats.norm.logpdf(y, line, parameters["noise"]).sum()
    log_prior = -0.5 * (parameters["intercept"] ** 2 + parameters["slope"] ** 2) / 3.0**2 - parameters["noise"]
    return log_likelihood + log_prior


example = {"intercept": jnp.zeros(()), "slope": jnp.zeros(()), "noise": jnp.ones(())}
density = jax.tree_util.Partial(log_density, x, y)  # data go in as arguments, so that new data do not recompile
target = provi.targets.LogDensity(density, example, constraints={"noise": "positive"})
fit = provi.fit(target, tol=0.05, budget=20_000)
print(fit.certificate.headline)

print(fit.posterior.summary())
draws = fit.posterior.draws(4000, seed=0)  # a dictionary like `example`, 4000 of each
print("P(slope > 2 | y) =", (draws["slope"] > 2).mean())

out = Path("out")
out.mkdir(exist_ok=True)
fit.plot().savefig(out / "your_own_density.png")
