"""Targets with a known optimum for the Monte-Carlo certificates, and members of the family near it."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.monte_carlo.bounds import NAMES, monte_carlo_bounds
from provi.certificates.monte_carlo.finite_sample import NAME
from provi.diagnostics import exact_negative_elbo, linear_model_optimum
from provi.families import Laplace, LocationScale, Normal
from provi.targets import LinearRegression, LogDensity, LogisticRegression, PoissonRegression
from support.hidden import hidden

RNG = np.random.default_rng(11)
DESIGN = RNG.normal(size=(80, 3))
LOGISTIC = LogisticRegression(DESIGN, RNG.random(80) < 1 / (1 + np.exp(-DESIGN @ [1.0, -0.5, 0.3])))


def logistic(dim, rows):
    rng = np.random.default_rng(dim)
    # Correlated columns of unequal length, as in real tables.
    design = rng.normal(size=(rows, dim)) @ (np.eye(dim) + 0.5 * rng.normal(size=(dim, dim)) / np.sqrt(dim))
    return LogisticRegression(design, rng.random(rows) < 1 / (1 + np.exp(-design @ rng.normal(size=dim))))


def poisson(dim, rows):
    rng = np.random.default_rng(dim)
    design = rng.normal(size=(rows, dim))
    return PoissonRegression(design, rng.poisson(np.exp(0.4 * design @ rng.normal(size=dim))))


def linear(dim, rows):
    rng = np.random.default_rng(dim)
    return LinearRegression(rng.normal(size=(rows, dim)), rng.normal(size=rows))


PROBLEMS = {
    "logistic3": (functools.partial(logistic, 3, 60), Normal(), "triangular"),
    "logistic10": (functools.partial(logistic, 10, 150), Normal(), "symmetric"),
    "logistic30": (functools.partial(logistic, 30, 300), Normal(), "triangular"),
    "poisson5": (functools.partial(poisson, 5, 80), Normal(), "triangular"),
    "linear4": (functools.partial(linear, 4, 30), Normal(), "triangular"),
    "diagonal6": (functools.partial(logistic, 6, 100), Normal(), "diagonal"),
    "laplace5": (functools.partial(logistic, 5, 100), Laplace(), "triangular"),
}


@functools.cache
def problem(name):
    make, base, scale = PROBLEMS[name]
    target = make()
    family = LocationScale(target.dim, base, scale)
    return target, family, linear_model_optimum(target, family)


def perturbed(target, family, optimum, size, seed, spread=1.0):
    """A member near the best one, and its true gap; `spread` 0 leaves the covariance alone."""
    rng = np.random.default_rng(seed)
    covariance = np.asarray(optimum.point.scale.covariance())
    factor, dim = np.linalg.cholesky(covariance), family.dim
    change = spread * size * rng.normal(size=(dim, dim)) / math.sqrt(dim)
    change = np.diag(np.diagonal(change)) if family.scale == "diagonal" else (change + change.T) / 2
    values, vectors = np.linalg.eigh(change)
    factor_there = factor @ (vectors * np.exp(values)) @ vectors.T
    loc = np.asarray(optimum.point.loc) + size * factor @ rng.normal(size=dim) / math.sqrt(dim)
    point = family.point_from_covariance(loc, factor_there @ factor_there.T)
    return point, float(exact_negative_elbo(target, family, point)) - optimum.negative_elbo


def values(certificate):
    return {bound.name: bound.value for bound in certificate.bounds}


def black_box(data, z):
    design, response = data
    z = hidden(z)
    eta = design @ z
    return jnp.sum(response * eta - jnp.logaddexp(0.0, eta)) - 0.5 * jnp.sum(z**2)


def logistic_density(dtype=jnp.float64, **claims):
    data = (LOGISTIC.design.astype(dtype), LOGISTIC.response.astype(dtype))
    return LogDensity(jax.tree_util.Partial(black_box, data), 3, dtype=dtype, **claims)


def near_optimum(scale="triangular"):
    family = LocationScale(3, scale=scale)
    point, gap = perturbed(LOGISTIC, family, linear_model_optimum(LOGISTIC, family), 0.3, 2)
    return family, point, gap


def check_above_the_true_gap(name):
    """Every bound of four certificates is above the true gap, and (e) is within a small factor of it.

    Half of the members differ from the best one in the location alone, where (e) is nearly tight. With other seeds a
    certificate is wrong with probability 0.01 at most, a problem with 0.04.
    """
    target, family, optimum = problem(name)
    looseness = []
    for seed in range(4):
        point, gap = perturbed(target, family, optimum, (0.3, 0.1)[seed % 2], seed, float(seed < 2))
        certificate = monte_carlo_bounds(target, family, point, seed=seed, max_gradients=20_000)
        found = values(certificate)
        # Bounded curvature and a normal base: also the bound that holds for any number of draws.
        assert set(found) - {NAME} == set(NAMES)
        statuses = {bound.name: bound.status for bound in certificate.bounds}
        assert statuses.pop(NAME, "proven") == "proven" and "proven" not in statuses.values()
        # For a Gaussian target (f') is the gap itself, up to the rounding of the oracle's difference.
        assert min(found.values()) >= gap - 1e-12 > 0, (seed, gap, found)
        assert certificate.num_gradients <= 20_000
        looseness.append(found[NAMES[0]] / gap)
    print(f"{name}: (e) is {min(looseness):.2f}x to {max(looseness):.2f}x the true gap")
    assert np.median(looseness) < 6
