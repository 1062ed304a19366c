"""Certificates of small hostile posteriors, of fits and of other Gaussians, against quadrature."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import provi
from provi import kernels, targets
from provi_lab.bench.distance_oracle import LinearPosterior, graded_rule, log_sum
from provi_lab.bench.problems import squared_exponential
from provi_lab.soak.inputs import ARGUMENTS, LINKS, hostile_problem, laplace
from provi_lab.soak.oracle import CONFIDENCE, check_against, check_sane, gaussian_of
from provi_lab.soak.tally import Tally, ViolationError, clear

_PASSES = 25  # over the data; certificates hold wherever a fit ends
_IN_THE_PLANE = 0.2  # share of the two-dimensional ones whose KL is computed as well
_TIGHT = 1e-8
_MEMBERS = ("fit", "shifted", "narrow", "wide", "laplace")


@contextlib.contextmanager
def cases() -> Iterator[Callable[[np.random.Generator, Tally], str]]:
    """A case: a linear model, a Gaussian process or a density, and the certificate of a good or bad Gaussian."""

    def case(rng: np.random.Generator, tally: Tally) -> str:
        kind = str(rng.choice(["linear", "process", "density"], p=[0.85, 0.1, 0.05]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return f"{kind}, {dict(linear=_linear, process=_process, density=_density)[kind](rng, tally)}"

    yield case


def _linear(rng: np.random.Generator, tally: Tally) -> str:
    link, design, response, sd, parameter = hostile_problem(rng, widest=6.0)
    target = targets.GeneralisedLinearModel(design, response, LINKS[link](parameter), sd)
    dim = design.shape[1]
    prior = sd**2 * np.eye(dim)
    return _held(rng, tally, target, LinearPosterior(design, response, link, np.zeros(dim), prior, parameter))


def _process(rng: np.random.Generator, tally: Tally) -> str:
    """Of two points, at distances from 1e-6 to 1e3 of a length scale."""
    link = str(rng.choice(["logit", "probit", "poisson"]))
    inputs = np.array([[0.0], [10.0 ** rng.uniform(-6, 3)]])
    response = (rng.random(2) < 0.5).astype(float) * (1 if link != "poisson" else 10 ** int(rng.integers(5)))
    amplitude, jitter = float(10 ** rng.uniform(-3, 2)), float(10 ** rng.uniform(-8, -1))
    kernel = kernels.SquaredExponential(1.0, amplitude)
    target = targets.GaussianProcess(inputs, response, kernel, LINKS[link](1.0), jitter=jitter)
    gram = squared_exponential(inputs, inputs, 1.0, amplitude) + jitter * np.eye(2)
    return _held(rng, tally, target, LinearPosterior(np.eye(2), response, link, np.zeros(2), gram))


def _held(rng: np.random.Generator, tally: Tally, target: Any, posterior: LinearPosterior) -> str:
    """The certificate of a fit, against a tighter one; or that of a Gaussian beside the fit, against the fit."""
    kind, tol = str(rng.choice(_MEMBERS)), float(10 ** rng.uniform(-6, 0))
    options = {"progress": False, "confidence": CONFIDENCE, "budget": _PASSES}
    mode = laplace(posterior)
    better = [] if mode is None else [mode]
    try:
        fit = provi.fit(target, tol=tol if kind == "fit" else _TIGHT, **options)
        certificate, member = fit.certificate, gaussian_of(fit)
        if kind == "fit":
            better.append(gaussian_of(provi.fit(target, tol=_TIGHT, **options)))
        else:
            better.append(member)
            member = _moved(rng, kind, member, better[0])
            certificate = provi.certify(target, member, CONFIDENCE, budget=_PASSES)
    except Exception as error:
        return clear(error, *ARGUMENTS, "q")
    check_sane(fit, certificate)
    tally.counts["certificates"] += 1
    return check_against(certificate, posterior, member, better, plane=rng.random() < _IN_THE_PLANE)


def _moved(rng: np.random.Generator, kind: str, member: Any, mode: Any) -> Any:
    """Another Gaussian than the fit: by up to a few of its deviations, or up to ten times as wide or narrow."""
    mean, covariance = member
    if kind == "shifted":
        return mean + np.sqrt(np.diagonal(covariance)) * rng.normal(size=len(mean)) * 10.0 ** rng.uniform(
            -3, 0.5
        ), covariance
    if kind == "laplace":
        return mode
    return mean, covariance * 10.0 ** (rng.uniform(-2, 0) if kind == "narrow" else rng.uniform(0, 2))


class Density(eqx.Module):
    """-log p(z) = (z/s)^2/2 + b z^4 + softplus(k z), on the line: log-concave, its numbers leaves of one program."""

    scale: Any
    quartic: Any
    slope: Any

    def __call__(self, z: Any) -> Any:
        return -jnp.sum(0.5 * (z / self.scale) ** 2 + self.quartic * z**4 + jax.nn.softplus(self.slope * z))

    def values(self, z: np.ndarray) -> np.ndarray:
        """The same in NumPy, for the oracle."""
        with np.errstate(over="ignore"):
            return -(0.5 * (z / self.scale) ** 2 + self.quartic * z**4 + np.logaddexp(0.0, self.slope * z))


def _density(rng: np.random.Generator, tally: Tally) -> str:
    """A black box, whose certificates are from draws: wrong with a probability of 1e-6 each."""
    numbers = 10.0 ** rng.uniform([-2, -6, -1], [2, 0, 2])
    density = Density(*(np.asarray(number) for number in numbers))
    fit = provi.fit(targets.LogDensity(density, 1, log_concave=True), progress=False, tol=0.05, confidence=CONFIDENCE)
    check_sane(fit)
    tally.counts["certificates"] += 1
    mean, deviation = float(fit.posterior.mean[0]), float(fit.posterior.standard_deviation[0])
    v, weights = graded_rule(np.linspace(-12, 12, 481)[None])
    v, weights = v[0], weights[0] * np.exp(-0.5 * v[0] ** 2) / math.sqrt(2 * math.pi)

    def elbo(centre: float, width: float) -> float:
        return (
            float(density.values(centre + width * v) @ weights) + math.log(width) + 0.5 * math.log(2 * math.pi * math.e)
        )

    z, shares = graded_rule((mean + deviation * np.linspace(-60, 60, 4801))[None])
    kl = log_sum(density.values(z[0]), shares[0]) - elbo(mean, deviation)
    tight = provi.fit(targets.LogDensity(density, 1, log_concave=True), progress=False, tol=0.005, seed=1)
    gap = elbo(float(tight.posterior.mean[0]), float(tight.posterior.standard_deviation[0])) - elbo(mean, deviation)
    for name, said, true in (("gap", fit.certificate.gap, gap), ("KL", fit.certificate.kl, kl)):
        if said is not None and said < true - 1e-9:
            raise ViolationError(f"{name} {said} ({fit.certificate.status}) is below the truth, {true}, at {numbers}")
    return "gap and KL verified" if fit.certificate.kl is not None else "gap verified"
