"""Posteriors on which the bounds of the distance are tried: ordinary ones, and hostile ones."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi import kernels
from provi.targets import GaussianProcess, GeneralisedLinearModel, LogDensity
from provi.targets.likelihoods import BernoulliLogit, BernoulliProbit, GaussianNoise, NegativeBinomial, Poisson
from provi_lab.bench.distance_oracle import LinearPosterior
from provi_lab.bench.problems import squared_exponential

LIKELIHOODS: dict[str, Callable[[float], Any]] = {
    "logit": lambda parameter: BernoulliLogit(),
    "probit": lambda parameter: BernoulliProbit(),
    "poisson": lambda parameter: Poisson(),
    "binomial": NegativeBinomial,
    "gaussian": GaussianNoise,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A target, the same posterior for the oracle, and the Gaussian that is asked about.

    - `group`: "ordinary", "weak" (prior sd of 10 or more) or "near-separable" (labels that a plane parts, or fewer than
      five a column, under a weak prior); others have no say in the medians. - `make`: target and posterior.
    - `member`: "fit", or how the fit is changed: "shifted", "narrow", "wide", "mean field", "prior".
    - `size`: of the work, so that long ones start first.
    """

    name: str
    group: str
    make: Callable[[], tuple[Any, LinearPosterior]]
    member: str = "fit"
    size: float = 0.0


def data(link: str, terms: int, dim: int, seed: int, signal: float = 1.5, shift: float = 0.0) -> tuple[Any, Any]:
    """Standard normal columns, and responses of a linear predictor of standard deviation `signal` around `shift`."""
    rng = np.random.default_rng([seed, terms, dim])
    design, eta = rng.normal(size=(terms, dim)), np.zeros(terms)
    eta = shift + signal * design @ rng.normal(size=dim) / math.sqrt(dim)
    if link in ("logit", "probit"):
        return design, (rng.random(terms) < 1 / (1 + np.exp(-eta))).astype(float)
    if link == "gaussian":
        return design, eta + 0.5 * rng.normal(size=terms)
    return design, rng.poisson(np.exp(np.minimum(eta, 15))).astype(float)


def model(link: str, design: Any, response: Any, sd: float, parameter: float = 1.0, mean: float = 0.0) -> Any:
    """The library's target and the oracle's posterior."""
    dim = design.shape[1]
    target = GeneralisedLinearModel(
        design, response, LIKELIHOODS[link](parameter), sd, prior_mean=np.full(dim, mean), intercept=False
    )
    exact = np.asarray(design, np.float64)
    prior = float(np.asarray(sd, np.asarray(design).dtype)) ** 2 * np.eye(dim)
    return target, LinearPosterior(exact, np.asarray(response, float), link, np.full(dim, mean), prior, parameter)


def linear(link: str, terms: int, dim: int, sd: float, seed: int = 0, parameter: float = 1.0, **options: Any) -> Any:
    """Of random data."""
    return model(link, *data(link, terms, dim, seed, **options), sd, parameter)


def collinear(kind: str, sd: float, dtype: Any = np.float64) -> Any:
    """Logistic, 200 x 6: "copies" of a column, "nearly" so (1e-5), or an "offset" of 1e3 beside a column of ones."""
    design, response = data("logit", 200, 6, 11)
    if kind == "offset":
        design[:, 0], design[:, 1] = 1.0, 1e3 + design[:, 1]
    else:
        design[:, 1] = design[:, 0] + (1e-5 * design[:, 1] if kind == "nearly" else 0.0)
    return model("logit", design.astype(dtype), response, sd)


def wide(link: str, terms: int, dim: int, sd: float) -> Any:
    """More columns than rows: the oracle works with the terms' own predictors."""
    target, posterior = linear(link, terms, dim, sd, seed=3)
    gram = posterior.design @ posterior.prior_covariance @ posterior.design.T
    return target, dataclasses.replace(
        posterior, design=np.eye(terms), prior_mean=np.zeros(terms), prior_covariance=gram
    )


def process(link: str, terms: int, amplitude: float, jitter: float = 1e-4, parameter: float = 1.0) -> Any:
    """A Gaussian process on the plane."""
    rng = np.random.default_rng([terms, 5])
    inputs = rng.normal(size=(terms, 2))
    eta = 1.5 * np.sin(2 * inputs[:, 0]) + inputs[:, 1]
    draws = rng.random(terms) < 1 / (1 + np.exp(-eta))
    response = draws.astype(float) if link in ("logit", "probit") else rng.poisson(np.exp(eta)).astype(float)
    return _process(link, inputs, response, 1.0, amplitude, jitter, parameter)


def _process(link: str, inputs: Any, response: Any, length: float, amplitude: float, jitter: float, parameter: float):
    kernel = kernels.SquaredExponential(length, amplitude)
    target = GaussianProcess(inputs, response, kernel, LIKELIHOODS[link](parameter), jitter=jitter)
    gram = squared_exponential(inputs, inputs, length, amplitude) + jitter * np.eye(len(inputs))
    identity, zero = np.eye(len(inputs)), np.zeros(len(inputs))
    return target, LinearPosterior(identity, np.asarray(response, float), link, zero, gram, parameter)


def ionosphere(amplitude: float) -> Any:
    """280 points, length scale e, jitter 1e-2."""
    from provi.data.loaders import load

    table = load("ionosphere").table("train")
    inputs, response = np.asarray(table.features, float), np.asarray(table.response, float)
    return _process("logit", inputs, response, math.e, amplitude, 1e-2, 1.0)


def breast_cancer(sd: float) -> Any:
    """569 x 30, scaled, and a column of ones."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    design = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)  # pyright: ignore
    design = np.concatenate([np.ones((len(design), 1)), design], axis=1)
    return model("logit", design, table.target.astype(float), sd)  # pyright: ignore


def _log_density(design: Any, response: Any, sd: Any, z: Any) -> Any:
    eta = design @ z
    prior = 0.5 * jnp.sum((z / sd) ** 2) + len(z) * (math.log(sd) + 0.5 * math.log(2 * math.pi))
    return jnp.sum(response * eta - jax.nn.softplus(eta)) - prior


def black_box(terms: int, dim: int, sd: float, declared: bool = True) -> Any:
    """A logistic regression of which the library sees a function and, with `declared`, its constants."""
    _, posterior = linear("logit", terms, dim, sd)
    density = jax.tree_util.Partial(_log_density, posterior.design, posterior.response, sd)
    smooth = 0.25 * float(np.linalg.eigvalsh(posterior.design.T @ posterior.design)[-1]) + sd**-2
    constants: dict[str, Any] = {"strong_convexity": sd**-2, "smoothness": smooth} if declared else {}
    return LogDensity(density, dim, **constants), posterior


def _group(sd: float) -> str:
    return "weak" if sd >= 10 else "ordinary"


def cases() -> Iterator[Case]:
    """All of them."""
    part = functools.partial
    for dim, terms in ((1, 20), (2, 40), (3, 60), (5, 100), (10, 200), (20, 200), (20, 2000), (50, 500), (50, 2000)):
        for sd in (1.0, 10.0, 100.0, 1e4):
            yield Case(f"logistic, sd {sd:g}", _group(sd), part(linear, "logit", terms, dim, sd), size=terms * dim)
    for dim, terms in ((2, 8), (5, 20), (10, 40)):
        for sd in (1.0, 10.0, 100.0):
            group = "near-separable" if sd >= 10 else "ordinary"
            yield Case(f"logistic, few data, sd {sd:g}", group, part(linear, "logit", terms, dim, sd, signal=4.0))
    for link, terms, dim in (("logit", 20, 50), ("logit", 50, 200), ("logit", 10, 1000), ("poisson", 20, 60)):
        for sd in (0.3, 1.0):
            yield Case(f"{NAMES[link]}, n < d, sd {sd:g}", "ordinary", part(wide, link, terms, dim, sd), size=1e4)
    for kind in ("copies", "nearly", "offset"):
        for sd in (1.0, 10.0, 1e4):
            yield Case(f"logistic, collinear ({kind}), sd {sd:g}", _group(sd), part(collinear, kind, sd))
    yield Case("logistic, collinear (nearly), sd 10, float32", "weak", part(collinear, "nearly", 10.0, np.float32))
    for dim, terms in ((1, 20), (3, 60), (10, 100), (20, 500)):
        for sd in (1.0, 10.0, 1e4):
            yield Case(f"Poisson, sd {sd:g}", _group(sd), part(linear, "poisson", terms, dim, sd, signal=1.0))
    for dim, terms in ((1, 5), (3, 30), (10, 100)):
        make = part(linear, "poisson", terms, dim, 10.0, signal=13.0)
        yield Case("Poisson, counts to 1e6, sd 10", "weak", make)
    for link, parameter in (("probit", 1.0), ("binomial", 2.0)):
        for dim, terms in ((2, 40), (10, 200), (20, 200)):
            for sd in (1.0, 10.0):
                make = part(linear, link, terms, dim, sd, parameter=parameter, signal=1.0)
                yield Case(f"{NAMES[link]}, sd {sd:g}", _group(sd), make)
    for terms, dim, sd in ((2000, 500, 1.0), (2000, 500, 10.0), (2000, 20, 1.0), (2000, 20, 100.0), (20000, 100, 1.0)):
        make = part(linear, "logit", terms, dim, sd, seed=1)
        yield Case(f"logistic, large, sd {sd:g}", _group(sd), make, size=terms * dim)
    for sd in (1.0, 5.0):
        yield Case(f"breast cancer, sd {sd:g}", "ordinary", part(breast_cancer, sd), size=1e5)
    yield from _processes()
    yield from _others()


NAMES = {"logit": "logistic", "probit": "probit", "poisson": "Poisson", "binomial": "neg. binomial"}


def _processes() -> Iterator[Case]:
    part = functools.partial
    for link in ("logit", "probit", "poisson", "binomial"):
        for amplitude in (1.0, 3.0) if link == "poisson" else (1.0, 3.0, 10.0):
            make = part(process, link, 60, amplitude, parameter=2.0 if link == "binomial" else 1.0)
            yield Case(f"GP, {NAMES[link]}, amplitude {amplitude:g}", "ordinary", make, size=1e4)
    for terms in (1, 2, 3):
        yield Case("GP, logistic, amplitude 100", "other", part(process, "logit", terms, 100.0))
        yield Case("GP, logistic, amplitude 100, q = prior", "other", part(process, "logit", terms, 100.0), "prior")
    for amplitude in (1.0, 2.7, 12.2):
        yield Case(f"GP, ionosphere, amplitude {amplitude:g}", "ordinary", part(ionosphere, amplitude), size=1e6)


def _others() -> Iterator[Case]:
    """Black boxes, Gaussians other than the best, and posteriors that are Gaussian."""
    part = functools.partial
    for dim, terms in ((2, 40), (5, 100), (10, 200)):
        for sd in (1.0, 10.0):
            yield Case(f"black box, logistic, sd {sd:g}", "other", part(black_box, terms, dim, sd), size=3e5)
    yield Case("black box, nothing declared, sd 1", "other", part(black_box, 100, 5, 1.0, False), size=3e5)
    for dim, terms in ((2, 40), (10, 200)):
        for sd in (1.0, 100.0):
            for member in ("shifted", "narrow", "wide", "mean field", "prior"):
                make = part(linear, "logit", terms, dim, sd)
                yield Case(f"logistic, sd {sd:g}, q {member}", "other", make, member)
    for dim, terms, sd in ((1, 10, 1.0), (3, 60, 1e4), (20, 100, 10.0), (30, 10, 3.0)):
        for member in ("fit", "shifted", "wide"):
            if terms > dim or member == "fit":
                make = part(linear if terms > dim else wide, "gaussian", terms, dim, sd)
                yield Case(f"Gaussian noise, sd {sd:g}, q {member}", "other", make, member)
