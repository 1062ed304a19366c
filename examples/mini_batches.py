"""Mini-batches: PG-SVI sees 100 of 4000 rows a step, and is certified on all of them afterwards."""

from pathlib import Path

import numpy as np

import provi

rng = np.random.default_rng(0)
X = rng.normal(size=(4000, 8)) / np.sqrt(8)
y = rng.random(4000) < 1 / (1 + np.exp(-X @ rng.normal(size=8) * 3))

target = provi.targets.LogisticRegression(X, y.astype(int))
family = provi.families.Gaussian(8)
gaps = {}
for rho in (1.0, 4.0):
    algorithm = provi.algorithms.PGSVI(rho=rho, batch_size=100, halve_on_stall=True)
    # `gradients` counts rows looked at: ten passes.
    fit = provi.fit(target, family, algorithm, budget=provi.Budget(gradients=40_000))
    gaps[rho] = fit.certificate.gap
    print(f"rho = {rho}: {fit.num_steps} steps, {fit.certificate.headline}")

default = provi.fit(target, family)
print(f"the default, whole passes: {default.num_steps} steps, {default.certificate.headline}")

Path("out").mkdir(exist_ok=True)
fit.plot("trace").savefig("out/mini_batches.png")
