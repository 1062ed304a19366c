"""Counts along a line, 2000 of them: a sparse Gaussian process with 30 inducing points and a certificate."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from provi.models import GPRegressor

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 2000))
rate = np.exp(1 + np.sin(x) + 0.1 * x)
y = rng.poisson(rate)

model = GPRegressor(length_scale=1.0, amplitude=1.5, likelihood="poisson", num_inducing=30, random_state=0)
model.fit(x[:, None], y)
print(f"ELBO {model.elbo_:.1f} nats")
print(model.certificate_.headline)

mean, deviation = model.predict(x[:, None], return_std=True)
error = abs(mean - rate).mean() / rate.mean()
print(f"mean error of the rate: {error:.1%}; the posterior expects {(deviation / mean).mean():.1%}")

plt.plot(x, y, ".", ms=2, color="grey")
plt.plot(x, rate, "k--", label="truth")
plt.plot(x, mean, label="posterior mean")
plt.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, alpha=0.4)
plt.legend()
Path("out").mkdir(exist_ok=True)
plt.savefig("out/sparse_gp.png")
