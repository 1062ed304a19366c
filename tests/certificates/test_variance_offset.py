"""Rows with a variance offset: moments of the smoothed link, and bounds that are never below the truth."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy import special

from provi.algorithms import NaturalGradient, SiteTable
from provi.certificates.comparison import linear_difference_bound
from provi.certificates.linear.bounds import (
    NAMES,
    linear_model_bounds,
    local_curvature,
    smoothed_moments,
    whitened_pass,
)
from provi.diagnostics import exact_negative_elbo, linear_model_optimum
from provi.families import Gaussian
from provi.runtime.run import run
from provi.targets import GaussianPrior
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, Poisson
from provi.targets.linear_model import AbstractLinearModel

NODES = np.linspace(-12, 12, 1201)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
LIKELIHOODS = {"linear": GaussianNoise(0.7), "logistic": BernoulliLogit(), "poisson": Poisson()}


class NoisyRows(AbstractLinearModel):
    """A linear model with offsets, and nothing of a Gaussian process."""

    design: Float[Array, "terms dim"]
    response: Float[Array, " terms"]
    prior: GaussianPrior
    likelihood: Any
    offset: Float[Array, " terms"]
    names: tuple[str, ...] | None = eqx.field(static=True, default=None)

    @property
    def variance_offset(self):
        return self.offset


def noisy_rows(kind, terms=50, dim=5, seed=0, prior_scale=1.0):
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(terms, dim)) / np.sqrt(dim)
    eta = design @ rng.normal(size=dim)
    y = {
        "linear": eta + 0.7 * rng.normal(size=terms),
        "logistic": rng.random(terms) < special.expit(eta),
        "poisson": rng.poisson(np.exp(np.minimum(eta, 2))),
    }[kind]
    # Among the offsets are zeros and large ones.
    offset = np.where(rng.random(terms) < 0.2, 0.0, rng.exponential(size=terms))
    prior = GaussianPrior(jnp.zeros(dim), jnp.asarray(prior_scale))
    return NoisyRows(jnp.asarray(design), jnp.asarray(y, float), prior, LIKELIHOODS[kind], jnp.asarray(offset))


def second_derivative(kind, eta):
    return np.exp(eta) if kind == "poisson" else special.expit(eta) * special.expit(-eta)


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_moments_of_the_smoothed_link(kind):
    """E[t^j psi''(mu + s t)] by a double integral, psi'' = E_e l''(. + sqrt(kappa) e)."""
    target, rng = noisy_rows(kind, terms=4), np.random.default_rng(1)
    centre, offset = rng.normal(size=6), np.array([0.0, 0.3, 1.0, 2.0, 0.5, 0.0])
    deviation = np.array([0.7, 0.5, 0.1, 0.9, 0.0, 0.0])
    found = smoothed_moments(target, *(jnp.asarray(x) for x in (centre, deviation, offset)))
    for n in range(6):
        eta = centre[n] + deviation[n] * NODES[:, None] + np.sqrt(offset[n]) * NODES[None, :]
        smoothed = second_derivative(kind, eta) @ WEIGHTS
        for j in range(3):
            if deviation[n] > 0 or j == 0:
                assert float(found[j][n]) == pytest.approx((NODES**j * smoothed) @ WEIGHTS, abs=3e-8)


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_local_curvature_bounds_the_schur_complement_in_the_region(kind):
    """The key inequality of (d) for the smoothed link at every (mu', sigma') of the region."""
    rng, target, smallest = np.random.default_rng(4), noisy_rows(kind, terms=4), np.inf
    for _ in range(25):
        centre, spread, radius = rng.normal() * 2, np.exp(rng.uniform(-3, 0)), np.exp(rng.uniform(-3, 0))
        offset = rng.exponential()
        arrays = (jnp.asarray(x) for x in ([[spread]], [centre], [spread], radius, [offset]))
        bound = float(local_curvature(target, *arrays)[0, 0]) / spread**2
        assert bound > 0
        for _ in range(8):
            away, wider = centre + spread * radius * rng.uniform(-1, 1), spread * (1 + radius * rng.uniform(-1, 1))
            eta = away + wider * NODES[::4, None] + np.sqrt(offset) * NODES[None, ::4]
            smoothed = second_derivative(kind, eta) @ WEIGHTS[::4] * 4
            moments = [4 * WEIGHTS[::4] @ (NODES[::4] ** j * smoothed) for j in range(3)]
            found = moments[0] - moments[1] ** 2 / moments[2]
            assert found >= bound * (1 - 1e-6)
            smallest = min(smallest, found / bound)
    assert smallest < 2.0  # and it is not vacuous


@pytest.mark.parametrize(
    ("kind", "scale", "terms", "dim"),
    [
        ("linear", "symmetric", 50, 5),
        ("logistic", "triangular", 300, 20),
        ("logistic", "diagonal", 50, 5),
        ("poisson", "triangular", 100, 10),
    ],
)
def test_every_bound_is_above_the_true_gap(kind, scale, terms, dim):
    target, family, rng = noisy_rows(kind, terms, dim, prior_scale=3.0), Gaussian(dim, scale), np.random.default_rng(0)
    best = linear_model_optimum(target, family)
    root = np.linalg.cholesky(np.asarray(best.point.scale.covariance()))
    for size in (0.0, 1e-3, 0.03, 0.3, 1.0):
        direction, change = rng.normal(size=dim), rng.normal(size=(dim, dim))
        change = np.diag(np.diagonal(change)) if scale == "diagonal" else (change + change.T) / 2
        moved = root @ (np.eye(dim) + 0.9 * size * change / np.linalg.norm(change))
        loc = np.asarray(best.point.loc) + size * root @ direction / np.linalg.norm(direction)
        point = family.point_from_covariance(loc, moved @ moved.T)
        gap = float(exact_negative_elbo(target, family, point)) - best.negative_elbo
        bounds = linear_model_bounds(target, family, point)
        assert [bound.name for bound in bounds] == list(NAMES)
        for bound in bounds:
            assert bound.value >= gap - 1e-10 * abs(best.negative_elbo), (size, bound)
        if 0 < size <= 0.03:
            assert bounds[2].value < 5 * gap + 1e-8
        # The difference of two members, with its own error bound.
        difference = linear_difference_bound(target, family, point, best.point)[0]
        assert gap - 1e-10 * abs(best.negative_elbo) <= difference < gap + 1e-4


def test_the_pass_against_the_gradient_of_the_objective():
    """g and S are derivatives of the exact negative ELBO in (v, D), here by central differences."""
    target, family = noisy_rows("logistic"), Gaussian(5)
    loc, root = np.linspace(-0.3, 0.5, 5), np.tril(0.1 * np.ones((5, 5))) + 0.4 * np.eye(5)
    at = whitened_pass(target, family, family.point_from_covariance(loc, root @ root.T))

    def objective(v, change):
        new = at.root @ (np.eye(5) + change)
        return float(exact_negative_elbo(target, family, family.point_from_covariance(loc + at.root @ v, new @ new.T)))

    step, none = 1e-4, np.zeros((5, 5))
    for i in (0, 3):
        unit = step * np.eye(5)[i]
        slope = (objective(unit, none) - objective(-unit, none)) / (2 * step)
        assert slope == pytest.approx(at.gradient[i], abs=1e-6)
        change = step * np.outer(np.eye(5)[i], np.eye(5)[i])
        slope = (objective(0 * unit, change) - objective(0 * unit, -change)) / (2 * step)
        assert slope == pytest.approx(at.curvature[i, i] - 1, abs=1e-6)


def test_algorithms_find_the_optimum_of_the_oracle():
    """The natural gradient and the mini-batched site table: the same fixed point, that of the smoothed model."""
    target, family = noisy_rows("logistic", terms=1200, dim=5), Gaussian(5)
    best = linear_model_optimum(target, family)
    start = family.point(np.zeros(5), 1.0)
    for algorithm in (NaturalGradient(from_curvature=True), SiteTable()):
        point = run(algorithm, target, family, start, seed=0, num_steps=15, num_records=1, progress=False).point
        np.testing.assert_allclose(point.loc, best.point.loc, atol=1e-6)
        np.testing.assert_allclose(point.scale.covariance(), best.point.scale.covariance(), atol=1e-7)
