"""Linear models with a known best Gaussian, members near and far from it, and the same models as black boxes.

Problems of one kind and shape share compiled code, so the small ones are all 30 x 5 with a full prior covariance: fewer
data than parameters, or a group structure, are made by rows and columns of zeros.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.support.hidden import hidden

from provi.diagnostics import Optimum, exact_negative_elbo, linear_model_optimum
from provi.families import Laplace, LocationScale, Normal, Point
from provi.targets import (
    HierarchicalLogisticRegression,
    LinearRegression,
    LogDensity,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
)

SIZES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 0.0)
"""Distances from the best member, in its own coordinates."""

KINDS: dict[str, Any] = {
    "logistic": LogisticRegression,
    "probit": ProbitRegression,
    "poisson": PoissonRegression,
    "linear": LinearRegression,
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A linear model and a family; the truth about any member of it."""

    target: Any
    family: LocationScale

    @functools.cached_property
    def optimum(self) -> Optimum:
        """By the fixed-point solver with the trapezoid rule, to about 1e-12 nats."""
        return linear_model_optimum(self.target, self.family)

    @property
    def accuracy(self) -> float:
        """Of a difference of two exact negative ELBOs, in nats."""
        return 1e-10 * (1 + abs(self.optimum.negative_elbo))

    def gap(self, point: Point) -> float:
        """f(w) - f*; for Poisson regression from the closed form, because quadrature misses its far tails."""
        if isinstance(self.target, PoissonRegression) and isinstance(self.family.base, Normal):
            return poisson_negative_elbo(self.target, point) - self.optimum.negative_elbo
        return float(exact_negative_elbo(self.target, self.family, point)) - self.optimum.negative_elbo

    def near(self, size: float, seed: int) -> Point:
        """The best member moved by `size` in a random direction v, and its scale C times exp(D), |D|_F = `size`."""
        rng, dim = np.random.default_rng(seed), self.family.dim
        factor = np.linalg.cholesky(np.asarray(self.optimum.point.scale.covariance()))
        shift, change = rng.normal(size=dim), rng.normal(size=(dim, dim))
        change = np.diag(np.diagonal(change)) if self.family.scale == "diagonal" else change + change.T
        values, vectors = np.linalg.eigh(change * size / np.linalg.norm(change))
        there = factor @ (vectors * np.exp(values)) @ vectors.T
        loc = np.asarray(self.optimum.point.loc) + size * factor @ shift / np.linalg.norm(shift)
        return self.family.point_from_covariance(loc, there @ there.T)

    def far(self) -> Iterator[tuple[str, Point]]:
        """The Laplace approximation and the prior."""
        mode = self.optimum.mode
        hessian = np.asarray(jax.hessian(self.target.potential)(jnp.asarray(mode)))
        covariance = np.diag(1 / np.diagonal(hessian)) if self.family.scale == "diagonal" else np.linalg.inv(hessian)
        yield "Laplace", self.family.point_from_covariance(mode, (covariance + covariance.T) / 2)
        prior = self.target.prior.covariance_factor()
        yield "prior", self.family.point_from_covariance(np.asarray(self.target.prior.mean), prior @ prior.T)

    def members(self) -> Iterator[tuple[str, Point]]:
        """All of them, one direction a size, but for a prior under which the energy is astronomical (Poisson)."""
        near = [(f"{size:g}", self.near(size, seed)) for seed, size in enumerate(SIZES)]
        yield from (pair for pair in [*near, *self.far()] if self.gap(pair[1]) < 1e100)


def poisson_negative_elbo(target: PoissonRegression, point: Point) -> float:
    """E exp(eta) = exp(mean + variance / 2); all the rest is quadratic."""
    design, y = np.asarray(target.design), np.asarray(target.response)
    loc, covariance = np.asarray(point.loc), np.asarray(point.scale.covariance())
    mean, variance = design @ loc, np.einsum("ni,ij,nj->n", design, covariance, design)
    factor = target.prior.covariance_factor()
    white, spread = np.linalg.solve(factor, loc - np.asarray(target.prior.mean)), np.linalg.solve(factor, covariance)
    prior = 0.5 * (white @ white + np.trace(np.linalg.solve(factor, spread.T))) + np.log(np.diagonal(factor)).sum()
    with np.errstate(over="ignore"):
        terms = np.exp(mean + variance / 2) - y * mean + np.asarray([math.lgamma(count + 1) for count in y])
    return float(terms.sum() + prior - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * len(loc))


def model(kind: str, rows: int, dim: int, prior_scale: float, *, seed: int, data: str = "random") -> Any:
    """A model of simulated data. `data`: "random", "separable", or "few": only dim // 2 of the rows are not zero."""
    rng = np.random.default_rng(seed)
    # Correlated columns of unequal length, as in real tables.
    design = rng.normal(size=(rows, dim)) @ (np.eye(dim) + 0.5 * rng.normal(size=(dim, dim)) / math.sqrt(dim))
    eta = design @ rng.normal(size=dim) / math.sqrt(dim)
    response = {
        "linear": eta + rng.normal(size=rows),
        "poisson": rng.poisson(np.exp(eta)),
        "logistic": eta > 0 if data == "separable" else rng.random(rows) < 1 / (1 + np.exp(-2 * eta)),
        "probit": eta > 0 if data == "separable" else eta + rng.normal(size=rows) > 0,
    }[kind]
    if data == "few":
        design[dim // 2 :] = 0
    return KINDS[kind](design, response, prior_covariance=prior_scale**2 * np.eye(dim))


def gaussian_process(dim: int, *, seed: int, length: float = 0.3, rows: int | None = None) -> LogisticRegression:
    """Classification at `dim` points on a line under the exponential kernel with variance 4: the design is I."""
    rng = np.random.default_rng(seed)
    place = np.sort(rng.random(dim))
    kernel = 4 * np.exp(-np.abs(place[:, None] - place[None, :]) / length) + 1e-6 * np.eye(dim)
    design = np.eye(rows or dim, dim)
    return LogisticRegression(design, rng.random(rows or dim) < 0.5, prior_covariance=kernel)


def hierarchical(rows: int, width: int, groups: int, *, seed: int) -> LogisticRegression:
    """The linear form of a hierarchical model, without its names, which would be compiled for themselves."""
    rng = np.random.default_rng(seed)
    group = np.arange(rows) % groups
    design, response = rng.normal(size=(rows, width)), rng.random(rows) < 0.3 + 0.4 * (group % 2)
    linear = HierarchicalLogisticRegression(design, response, group, prior_scale=3.0, group_scale=0.7).linear_model()
    factor = linear.prior.covariance_factor()
    return LogisticRegression(np.asarray(linear.design), response, prior_covariance=factor @ factor.T)


SMALL: dict[str, tuple[Any, str]] = {
    "logistic": (functools.partial(model, "logistic", 30, 5, 1.0, seed=1), "triangular"),
    "logistic, weak prior": (functools.partial(model, "logistic", 30, 5, 10.0, seed=2), "triangular"),
    "logistic, strong prior": (functools.partial(model, "logistic", 30, 5, 0.3, seed=3), "triangular"),
    "logistic, separable": (
        functools.partial(model, "logistic", 30, 5, 10.0, seed=4, data="separable"),
        "triangular",
    ),
    "logistic, n < d": (functools.partial(model, "logistic", 30, 5, 3.0, seed=5, data="few"), "triangular"),
    "hierarchical": (functools.partial(hierarchical, 30, 1, 4, seed=6), "triangular"),
    "Gaussian process": (functools.partial(gaussian_process, 5, seed=7, rows=30), "triangular"),
    "probit": (functools.partial(model, "probit", 30, 5, 1.0, seed=8), "triangular"),
    "probit, weak prior": (functools.partial(model, "probit", 30, 5, 10.0, seed=9), "triangular"),
    "Poisson": (functools.partial(model, "poisson", 30, 5, 1.0, seed=10), "triangular"),
    "Poisson, weak prior": (functools.partial(model, "poisson", 30, 5, 10.0, seed=11), "triangular"),
    "linear": (functools.partial(model, "linear", 30, 5, 1.0, seed=12), "triangular"),
    "linear, n < d, weak": (functools.partial(model, "linear", 30, 5, 10.0, seed=13, data="few"), "triangular"),
    "logistic, diagonal": (functools.partial(model, "logistic", 30, 5, 10.0, seed=14), "diagonal"),
    "Poisson, diagonal": (functools.partial(model, "poisson", 30, 5, 1.0, seed=15), "diagonal"),
    "logistic, d = 1": (functools.partial(model, "logistic", 30, 1, 10.0, seed=16), "triangular"),
}

LARGE: dict[str, tuple[Any, str]] = {
    "logistic, d = 20, n = 10": (functools.partial(model, "logistic", 10, 20, 3.0, seed=20), "triangular"),
    "probit, d = 30": (functools.partial(model, "probit", 90, 30, 1.0, seed=21), "symmetric"),
    "Poisson, d = 20": (functools.partial(model, "poisson", 80, 20, 1.0, seed=22), "triangular"),
    "Gaussian process, d = 50": (functools.partial(gaussian_process, 50, seed=23), "triangular"),
    "hierarchical, d = 52": (functools.partial(hierarchical, 300, 4, 12, seed=24), "triangular"),
    "linear, d = 60": (functools.partial(model, "linear", 100, 60, 10.0, seed=25), "triangular"),
    "logistic, d = 100, separable": (
        functools.partial(model, "logistic", 150, 100, 1.0, seed=26, data="separable"),
        "triangular",
    ),
    "logistic, d = 200, n = 100": (functools.partial(model, "logistic", 100, 200, 1.0, seed=27), "triangular"),
    "logistic, d = 200, weak": (functools.partial(model, "logistic", 1000, 200, 10.0, seed=28), "triangular"),
    "logistic, d = 200, diagonal": (functools.partial(model, "logistic", 300, 200, 1.0, seed=29), "diagonal"),
}

OTHER_BASES: dict[str, tuple[Any, str]] = {
    "logistic, Laplace base": (functools.partial(model, "logistic", 30, 5, 1.0, seed=40), "triangular"),
    "logistic, Laplace base, diagonal": (functools.partial(model, "logistic", 30, 5, 3.0, seed=41), "diagonal"),
}


@functools.cache
def problem(name: str) -> Problem:
    """The problem of this name."""
    make, scale = {**SMALL, **LARGE, **OTHER_BASES}[name]
    target = make()
    base = Laplace() if name in OTHER_BASES else Normal()
    return Problem(target, LocationScale(target.dim, base, scale))


def _log_density(kind: str, design: Any, response: Any, factor: Any, z: Any) -> Any:
    """log p(y, z) up to a constant, written apart from the library; nothing is to be proven from its program."""
    z = hidden(z)
    eta = design @ z
    signed = (2 * response - 1) * eta
    likelihood = {
        "logistic": lambda: -jnp.logaddexp(0.0, -signed),
        "probit": lambda: jax.scipy.stats.norm.logcdf(signed),
        "poisson": lambda: response * eta - jnp.exp(eta),
        "linear": lambda: -0.5 * (response - eta) ** 2,
    }[kind]()
    white = jax.scipy.linalg.solve_triangular(factor, z, lower=True)
    return jnp.sum(likelihood) - 0.5 * jnp.sum(white**2)


_DENSITIES = {kind: functools.partial(_log_density, kind) for kind in KINDS}


@functools.cache
def black_box(name: str, claim: str) -> LogDensity:
    """The model as nothing but a log density. `claim`: "strongly convex", with mu of the prior, or "log-concave"."""
    target = problem(name).target
    kind = next(kind for kind, cls in KINDS.items() if isinstance(target, cls))
    data = (target.design, target.response, jnp.asarray(target.prior.covariance_factor()))
    claims = {
        "strongly convex": {"strong_convexity": target.prior.strong_convexity()},
        "log-concave": {"log_concave": True},
        "nothing": {},
    }[claim]
    return LogDensity(jax.tree_util.Partial(_DENSITIES[kind], *data), target.dim, **claims)
