"""The eight schools, written in PyMC and fitted by ProVI: pip install 'provi[pymc,arviz]'."""

import numpy as np
import pymc as pm

import provi

effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfNormal("tau", 5)
    standard = pm.Normal("standard", 0, 1, dims="school")
    theta = pm.Deterministic("theta", mu + tau * standard, dims="school")
    pm.Normal("effect", theta, errors, observed=effects, dims="school")

target = provi.from_pymc(model)
fit = provi.fit(target)  # recognised: linear given tau, which is integrated numerically
summary = fit.posterior.summary()
print(summary)
print(fit.posterior.hyperparameters["tau"])
print(fit.evidence)
