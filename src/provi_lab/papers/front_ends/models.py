"""Three models, each written in NumPyro, PyMC and Stan as its users would write it."""

import dataclasses
from typing import Any

import numpy as np

EIGHT_SCHOOLS, HIERARCHICAL, POISSON = "eight schools", "hierarchical logistic", "Poisson regression"
NUMPYRO, PYMC, STAN = "NumPyro", "PyMC", "Stan"
FRONT_ENDS = (NUMPYRO, PYMC, STAN)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model with its data; all three front-ends have the same coordinates in the same order."""

    name: str
    data: dict[str, Any]
    log_concave: bool | None
    """What a user declares to Stan's front-end; the other two find it out."""


def problems(seed: int) -> list[Model]:
    """Rubin's eight schools (non-centred), a hierarchical logistic and a Poisson regression on made-up data."""
    rng = np.random.default_rng(seed)
    schools = {
        "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
        "s": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
    }
    groups, rows = 10, 600
    x = rng.normal(size=(rows, 2))
    group = rng.integers(groups, size=rows)
    predictor = 0.5 + rng.normal(0, 0.8, groups)[group] + x @ np.array([1.0, -0.5])
    logistic = {"x": x, "group": group, "y": (rng.random(rows) < 1 / (1 + np.exp(-predictor))).astype(int)}
    design = np.column_stack([np.ones(300), rng.normal(size=(300, 3))])
    counts = rng.poisson(np.exp(design @ np.array([1.0, 0.4, -0.3, 0.2])))
    return [
        Model(EIGHT_SCHOOLS, schools, None),
        Model(HIERARCHICAL, logistic, None),
        Model(POISSON, {"x": design, "y": counts}, True),
    ]


def numpyro_model(name: str) -> Any:
    """The model as a NumPyro function of its data."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def eight_schools(y: Any, s: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfNormal(5))
        raw = numpyro.sample("raw", dist.Normal(0, 1).expand([len(y)]))
        theta = numpyro.deterministic("theta", mu + tau * raw)
        numpyro.sample("obs", dist.Normal(theta, s), obs=y)

    def hierarchical(x: Any, group: Any, y: Any) -> None:
        centre = numpyro.sample("centre", dist.Normal(0, 2))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([x.shape[1]]))
        raw = numpyro.sample("raw", dist.Normal(0, 1).expand([10]))
        logits = centre + spread * raw[group] + x @ slopes  # pyright: ignore
        numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)

    def poisson(x: Any, y: Any) -> None:
        slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([x.shape[1]]))
        numpyro.sample("obs", dist.Poisson(jnp.exp(x @ slopes)), obs=y)

    return {EIGHT_SCHOOLS: eight_schools, HIERARCHICAL: hierarchical, POISSON: poisson}[name]


def pymc_model(problem: Model) -> Any:
    """The model as a PyMC model with its data."""
    import pymc as pm

    data = problem.data
    with pm.Model() as model:
        if problem.name == EIGHT_SCHOOLS:
            mu = pm.Normal("mu", 0, 5)
            tau = pm.HalfNormal("tau", 5)
            raw = pm.Normal("raw", 0, 1, shape=len(data["y"]))
            theta = pm.Deterministic("theta", mu + tau * raw)
            pm.Normal("obs", theta, data["s"], observed=data["y"])
        elif problem.name == HIERARCHICAL:
            centre = pm.Normal("centre", 0, 2)
            spread = pm.HalfNormal("spread", 1)
            slopes = pm.Normal("slopes", 0, 1, shape=data["x"].shape[1])
            raw = pm.Normal("raw", 0, 1, shape=10)
            logits = centre + spread * raw[data["group"]] + pm.math.dot(data["x"], slopes)
            pm.Bernoulli("obs", logit_p=logits, observed=data["y"])
        else:
            slopes = pm.Normal("slopes", 0, 2, shape=data["x"].shape[1])
            pm.Poisson("obs", pm.math.exp(pm.math.dot(data["x"], slopes)), observed=data["y"])
    return model


_EIGHT_SCHOOLS = """
data { int<lower=0> J; vector[J] y; vector<lower=0>[J] s; }
parameters { real mu; real<lower=0> tau; vector[J] raw; }
transformed parameters { vector[J] theta = mu + tau * raw; }
model {
  target += normal_lpdf(mu | 0, 5);
  target += normal_lpdf(tau | 0, 5) + log(2);
  target += std_normal_lpdf(raw);
  target += normal_lpdf(y | theta, s);
}
"""

_HIERARCHICAL = """
data { int<lower=0> N; matrix[N, 2] x; array[N] int<lower=1, upper=10> group; array[N] int<lower=0, upper=1> y; }
parameters { real centre; real<lower=0> spread; vector[2] slopes; vector[10] raw; }
model {
  target += normal_lpdf(centre | 0, 2);
  target += normal_lpdf(spread | 0, 1) + log(2);
  target += std_normal_lpdf(slopes);
  target += std_normal_lpdf(raw);
  target += bernoulli_logit_lpmf(y | centre + spread * raw[group] + x * slopes);
}
"""

_POISSON = """
data { int<lower=0> N; int<lower=0> D; matrix[N, D] x; array[N] int<lower=0> y; }
parameters { vector[D] slopes; }
model {
  target += normal_lpdf(slopes | 0, 2);
  target += poisson_log_lpmf(y | x * slopes);
}
"""


def stan_program(problem: Model) -> tuple[str, dict[str, Any]]:
    """The model as Stan code, and its data under Stan's names."""
    data = problem.data
    if problem.name == EIGHT_SCHOOLS:
        return _EIGHT_SCHOOLS, {"J": len(data["y"]), **data}
    if problem.name == HIERARCHICAL:
        return _HIERARCHICAL, {"N": len(data["y"]), **data, "group": data["group"] + 1}
    return _POISSON, {"N": len(data["y"]), "D": data["x"].shape[1], **data}
