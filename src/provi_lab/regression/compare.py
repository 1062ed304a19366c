"""The regressions' likelihoods beside statsmodels and NumPyro's NUTS.

    python -m provi_lab.regression.compare [--model NAME] [--record FOLDER]

With priors a thousand times as wide as the default ones and 2000 rows, posterior means against the maximum-likelihood
estimates of statsmodels, in its standard errors, and posterior deviations against these (statsmodels has no censored
times of these laws, and its Student-t regression is not compared). With the default priors and 150 rows, means and
deviations against those of NUTS, in deviations. statsmodels is not among the packages of the lab: pip install
statsmodels.
"""

import argparse
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.record import RESULTS, make_record
from provi_lab.common.tables import Row

FLAT_ROWS, REAL_ROWS, WIDE = 2000, 150, 1000.0
REAL = ("linear", "student-t")
NUMBERS = {"student-t": ("sigma", "nu")}
"""Compared as well, since nothing is proven of this model: they are its least Gaussian parameters."""

SLOPES = np.array([0.6, -0.4])


def _columns(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(n, 2))
    return X, X @ SLOPES


def _priors(data: Row, wide: float, unit: float = 1.0) -> dict[str, tuple[float, float]]:
    """The default priors of the slopes, so many times as wide."""
    scale = 2.5 * unit * wide / np.asarray(data["X"]).std(axis=0)
    return {f"coefficient[{k}]": (0.0, float(scale[k])) for k in range(2)}


def _linear(rng: np.random.Generator, n: int) -> Row:
    X, eta = _columns(rng, n)
    return {"X": X, "y": 1 + eta + 0.7 * rng.normal(size=n)}


def _outliers(rng: np.random.Generator, n: int) -> Row:
    X, eta = _columns(rng, n)
    return {"X": X, "y": 1 + eta + 0.7 * rng.standard_t(4.0, n)}


def _counts(rng: np.random.Generator, n: int) -> Row:
    X, eta = _columns(rng, n)
    exposure = rng.uniform(0.5, 3.0, n)
    rate = exposure * np.exp(0.5 + eta)
    return {"X": X, "y": rng.poisson(rate * rng.gamma(2.0, 0.5, n)), "exposure": exposure}


def _labels(rng: np.random.Generator, n: int) -> Row:
    X, eta = _columns(rng, n)
    return {"X": X, "y": (rng.random(n) < 1 / (1 + np.exp(-0.3 - eta))).astype(int), "weights": rng.integers(1, 4, n)}


def _grades(rng: np.random.Generator, n: int) -> Row:
    X, eta = _columns(rng, n)
    return {"X": X, "y": np.digitize(eta + rng.logistic(size=n), [-0.8, 0.6])}


def _classes(rng: np.random.Generator, n: int) -> Row:
    X, eta = _columns(rng, n)
    scores = np.c_[np.zeros(n), 0.2 + eta, -0.3 - eta] + rng.gumbel(size=(n, 3))
    return {"X": X, "y": np.argmax(scores, axis=1)}


def _times(rng: np.random.Generator, n: int) -> Row:
    X, eta = _columns(rng, n)
    time, last = (rng.exponential(size=n) * np.exp(-eta)) ** (1 / 1.5), 1.2
    return {"X": X, "y": np.minimum(time, last), "event": time < last}


def _linear_rows(data: Row, eta: Any, numpyro: Any) -> None:
    y, dist = data["y"], numpyro.distributions
    level = numpyro.sample("level", dist.Normal(y.mean(), 2.5 * y.std()))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.5 * y.std()))
    numpyro.sample("y", dist.Normal(level + eta, sigma), obs=y)


def _outlier_rows(data: Row, eta: Any, numpyro: Any) -> None:
    y, dist = data["y"], numpyro.distributions
    level = numpyro.sample("level", dist.Normal(y.mean(), 2.5 * y.std()))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.5 * y.std()))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    numpyro.sample("y", dist.StudentT(nu, level + eta, sigma), obs=y)


def _count_rows(data: Row, eta: Any, numpyro: Any) -> None:
    import jax.numpy as jnp

    dist, y = numpyro.distributions, data["y"]
    centre = np.log((y.sum() + 0.5) / data["exposure"].sum())
    level = numpyro.sample("level", dist.Normal(centre, 2.5))
    dispersion = numpyro.sample("dispersion", dist.Gamma(2.0, 0.1))
    mean = data["exposure"] * jnp.exp(level + eta)
    numpyro.sample("y", dist.NegativeBinomial2(mean, dispersion), obs=y)


def _label_rows(data: Row, eta: Any, numpyro: Any) -> None:
    dist = numpyro.distributions
    level = numpyro.sample("level", dist.Normal(0.0, 2.5))
    terms = dist.Bernoulli(logits=level + eta).log_prob(data["y"])
    numpyro.factor("y", (data["weights"] * terms).sum())


def _grade_rows(data: Row, eta: Any, numpyro: Any) -> None:
    import jax.numpy as jnp

    dist = numpyro.distributions
    first = numpyro.sample("first", dist.Normal(0.0, 3.0))
    gap = numpyro.sample("gap", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.OrderedLogistic(eta, jnp.stack([first, first + gap])), obs=data["y"])


def _class_rows(data: Row, eta: Any, numpyro: Any) -> None:
    import jax.numpy as jnp

    dist, X = numpyro.distributions, data["X"] - data["X"].mean(axis=0)
    level = numpyro.sample("level", dist.Normal(np.zeros(2), 2.5))
    other = numpyro.sample("other", dist.Normal(np.zeros(2), 2.5 / data["X"].std(axis=0)))
    scores = jnp.stack([jnp.zeros_like(eta), level[0] + eta, level[1] + X @ other], axis=1)
    numpyro.sample("y", dist.Categorical(logits=scores), obs=data["y"])


def _time_rows(data: Row, eta: Any, numpyro: Any) -> None:
    import jax.numpy as jnp

    dist, y, event = numpyro.distributions, data["y"], data["event"]
    level = numpyro.sample("level", dist.Normal(np.log(event.sum() / y.sum()), 2.5))
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
    hazard = jnp.log(shape) + (shape - 1) * np.log(y) + level + eta
    numpyro.factor("y", (jnp.where(event, hazard, 0.0) - y**shape * jnp.exp(level + eta)).sum())


def _slopes(found: Any, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and standard errors by name or place of a statsmodels result."""
    places = [list(found.model.exog_names).index(name) for name in names]
    return np.asarray(found.params)[places], np.asarray(found.bse)[places]


def _design(data: Row) -> Any:
    import pandas as pd

    return pd.DataFrame({"const": 1.0, "a": data["X"][:, 0], "b": data["X"][:, 1]})


def _ols(data: Row) -> tuple[np.ndarray, np.ndarray]:
    import statsmodels.api as sm

    return _slopes(sm.OLS(data["y"], _design(data)).fit(), ["a", "b"])


def _negative_binomial(data: Row) -> tuple[np.ndarray, np.ndarray]:
    import statsmodels.api as sm

    return _slopes(sm.NegativeBinomial(data["y"], _design(data), exposure=data["exposure"]).fit(disp=0), ["a", "b"])


def _weighted_logit(data: Row) -> tuple[np.ndarray, np.ndarray]:
    import statsmodels.api as sm

    weights = data["weights"].astype(float)
    model = sm.GLM(data["y"], _design(data), family=sm.families.Binomial(), freq_weights=weights)
    return _slopes(model.fit(), ["a", "b"])


def _ordered(data: Row) -> tuple[np.ndarray, np.ndarray]:
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    found = OrderedModel(data["y"], _design(data)[["a", "b"]], distr="logit").fit(method="bfgs", disp=0)
    return np.asarray(found.params)[:2], np.asarray(found.bse)[:2]


def _softmax(data: Row) -> tuple[np.ndarray, np.ndarray]:
    import statsmodels.api as sm

    found = sm.MNLogit(data["y"], _design(data)).fit(disp=0)
    return np.asarray(found.params)[1:, 0], np.asarray(found.bse)[1:, 0]


def _ours(name: str, data: Row, wide: float) -> Any:
    from provi import models

    X, y = data["X"], data["y"]
    unit = float(np.std(y)) if name in REAL else 1.0
    tol = 0.01 if name in ("multinomial", "student-t") else 1e-3  # a certificate from draws is not had for less
    options = {"priors": _priors(data, wide, unit), "random_state": 0, "tol": tol}
    match name:
        case "linear":
            return models.LinearRegression(noise_scale=None, **options).fit(X, y)
        case "student-t":
            return models.StudentTRegression(**options).fit(X, y)
        case "negative-binomial":
            made = models.GLM("negative-binomial", shape="estimate", **options)
            return made.fit(X, y, exposure=data["exposure"])
        case "logistic, weights":
            return models.LogisticRegression(**options).fit(X, y, data["weights"])
        case "ordinal":
            return models.OrdinalRegression(**options).fit(X, y)
        case "multinomial":
            return models.MultinomialRegression(**options).fit(X, y)
    return models.SurvivalRegression("weibull", **options).fit(X, y, data["event"])


MODELS = {
    "linear": (_linear, _ols, _linear_rows),
    "student-t": (_outliers, None, _outlier_rows),
    "negative-binomial": (_counts, _negative_binomial, _count_rows),
    "logistic, weights": (_labels, _weighted_logit, _label_rows),
    "ordinal": (_grades, _ordered, _grade_rows),
    "multinomial": (_classes, _softmax, _class_rows),
    "weibull": (_times, None, _time_rows),
}


def _moments(model: Any, numbers: tuple[str, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Of the two slopes, of several classes those of the second; and of numbers of the likelihood."""
    own = [model.numbers_[name] for name in numbers]
    mean, deviation = np.atleast_2d(model.coef_)[0], np.atleast_2d(model.coef_sd_)[0]
    return np.append(mean, [number.mean for number in own]), np.append(deviation, [number.sd for number in own])


def nuts(data: Row, rows: Callable, unit: float, numbers: tuple[str, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of the slopes and of `numbers` under the default priors: four chains of 2000 draws."""
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    X = data["X"] - np.average(data["X"], axis=0, weights=data.get("weights"))
    spread = np.sqrt(np.average(X**2, axis=0, weights=data.get("weights")))

    def model() -> None:
        slopes = numpyro.sample("slopes", numpyro.distributions.Normal(np.zeros(2), 2.5 * unit / spread))
        rows(data, X @ slopes, numpyro)

    with jax.enable_x64(True):
        sampler = MCMC(
            NUTS(model), num_warmup=1000, num_samples=2000, num_chains=4, chain_method="vectorized", progress_bar=False
        )
        sampler.run(jax.random.key(0))
        found = {name: np.asarray(values) for name, values in sampler.get_samples().items()}
    draws = np.column_stack([found["slopes"], *(found[name] for name in numbers)])
    return draws.mean(axis=0), draws.std(axis=0)


def compare(name: str) -> list[Row]:
    """The rows of a model: against statsmodels, where it has the model, and against NUTS."""
    make, maximum, rows = MODELS[name]
    found = []
    if maximum is not None:
        data = make(np.random.default_rng(1), FLAT_ROWS)
        found += _errors(name, "statsmodels", _moments(_ours(name, data, WIDE)), maximum(data))
    data = make(np.random.default_rng(2), REAL_ROWS)
    unit = float(np.std(data["y"])) if name in REAL else 1.0
    model = _ours(name, data, 1.0) if name != "logistic, weights" else _weighted(data)
    numbers = NUMBERS.get(name, ())
    return found + _errors(name, "NUTS", _moments(model, numbers), nuts(data, rows, unit, numbers), numbers)


def _weighted(data: Row) -> Any:
    """With its own default priors, which count rows by their weights."""
    from provi.models import LogisticRegression

    return LogisticRegression(tol=1e-3).fit(data["X"], data["y"], data["weights"])


def _errors(name: str, peer: str, ours: tuple, theirs: tuple, numbers: tuple[str, ...] = ()) -> list[Row]:
    return [
        {
            "problem": name, "peer": peer, "slope": label, "mean": float(ours[0][k]), "peer_mean": float(theirs[0][k]),
            "sd": float(ours[1][k]), "peer_sd": float(theirs[1][k]),
            "mean_error_sd": float((ours[0][k] - theirs[0][k]) / theirs[1][k]),
            "sd_ratio": float(ours[1][k] / theirs[1][k]),
        }
        for k, label in enumerate((0, 1, *numbers))
    ]  # fmt: skip


def main() -> None:
    """Compare, print and record."""
    parser = argparse.ArgumentParser(description="Regressions beside statsmodels and NUTS.")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--record", nargs="?", const=str(RESULTS), help="Folder for a dated JSON file.")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in given.model or MODELS:
        found = compare(name)
        rows += found
        for row in found:
            ours, theirs = f"{row['mean']:8.4f} ({row['sd']:.4f})", f"{row['peer_mean']:8.4f} ({row['peer_sd']:.4f})"
            what = row["slope"] if isinstance(row["slope"], str) else f"slope {row['slope']}"
            errors = f"off by {row['mean_error_sd']:+.3f} sd, sd ratio {row['sd_ratio']:.3f}"
            print(f"{name:20}{row['peer']:12} {what}: {ours} beside {theirs}, {errors}", flush=True)
    if given.record is not None:
        chosen = given.model or []
        command = " ".join(["python -m provi_lab.regression.compare", *(f'--model "{x}"' for x in chosen), "--record"])
        record = {**make_record("regression", rows), "command": command}
        if any(row["peer"] == "statsmodels" for row in rows):
            record["versions"]["statsmodels"] = metadata.version("statsmodels")
        # A part of the models is no record of all of them.
        path = Path(given.record) / f"{'-'.join([record['date'], 'regression', *chosen])}.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
