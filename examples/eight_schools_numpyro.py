"""The eight schools, written in NumPyro and fitted by ProVI: pip install 'provi[numpyro,arviz]'."""

import numpy as np
import numpyro
import numpyro.distributions as dist

import provi

effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(errors, effects):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    with numpyro.plate("schools", 8):
        standard = numpyro.sample("standard", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * standard)
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)


target = provi.from_numpyro(eight_schools, errors, effects)
fit = provi.fit(target)  # recognised: linear given tau, which is integrated numerically
summary = fit.posterior.summary()
print(summary)
print(fit.posterior.hyperparameters["tau"])
print(fit.evidence)
