"""Counts: y ~ Poisson(exp(intercept + slope x)). The certificate is deterministic, although the model is not smooth."""

from pathlib import Path

import numpy as np

import provi

rng = np.random.default_rng(0)
truth = np.array([0.5, 0.8, -0.4])
x = rng.normal(size=(200, 2))
y = rng.poisson(np.exp(truth[0] + x @ truth[1:]))

target = provi.targets.PoissonRegression(x, y, prior_scale=2.0, intercept=True, names=["rain", "sun"])
fit = provi.fit(target, tol=0.01)
print(fit.posterior.summary())
print(fit.certificate.headline)

# The rate where both columns are 1, averaged over the posterior.
rates = np.exp(fit.posterior.sample(10_000, seed=0) @ np.array([1.0, 1.0, 1.0]))
low, high = np.quantile(rates, [0.03, 0.97])
print(f"rate at (1, 1): {rates.mean():.2f}, between {low:.2f} and {high:.2f}; the truth is {np.exp(truth.sum()):.2f}")

out = Path("out")
out.mkdir(exist_ok=True)
fit.plot().savefig(out / "poisson_regression.png")
