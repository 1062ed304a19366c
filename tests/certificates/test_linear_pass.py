"""What the deterministic bounds are made of: the whitened gradient with its errors, and the local curvature."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from provi.certificates.linear.bounds import local_curvature, whitened_pass
from provi.families import Gaussian
from provi.targets import LogisticRegression, PoissonRegression
from support.linear_models import DIM, NODES, WEIGHTS, gradients, linear_model

OTHER = np.array([[0.5, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.4]])


def test_the_pass_is_the_gradient_and_its_errors_hold():
    target, family = linear_model("logistic"), Gaussian(DIM)
    loc = np.array([0.2, 0.1, -0.3])
    at = whitened_pass(target, family, family.point_from_covariance(loc, OTHER))
    gradient, wanted = gradients(target, loc, OTHER)
    assert np.linalg.norm(at.root.T @ gradient - at.gradient) <= at.gradient_error
    assert np.linalg.norm(at.root.T @ wanted @ at.root - at.curvature) <= at.curvature_error
    assert at.gradient_error < 1e-6 and at.curvature_error < 1e-6


@pytest.mark.parametrize("make", [LogisticRegression, PoissonRegression], ids=["logistic", "poisson"])
def test_local_curvature_bounds_the_schur_complement_in_the_region(make):
    """The key inequality of (d): at (mu', sigma') in the region, the least E[(1 + bt)^2 l''(mu' + sigma't)] over b."""
    rng = np.random.default_rng(4)
    smallest = math.inf
    for _ in range(40):
        centre, spread, radius = rng.normal() * 2, np.exp(rng.uniform(-3, 1)), np.exp(rng.uniform(-3, 0))
        target = make(np.ones((1, 1)), [1])
        arrays = (jnp.asarray([[spread]]), jnp.asarray([centre]), jnp.asarray([spread]), jnp.asarray(radius))
        kappa = float(local_curvature(target, *arrays)[0, 0]) / spread**2
        assert kappa > 0
        for _ in range(20):
            away, wider = centre + spread * radius * rng.uniform(-1, 1), spread * (1 + radius * rng.uniform(-1, 1))
            eta = away + wider * NODES
            tail = 1 / (1 + np.exp(-eta))
            second = np.exp(eta) if make is PoissonRegression else tail * (1 - tail)
            moments = [WEIGHTS @ (NODES**j * second) for j in range(3)]
            found = moments[0] - moments[1] ** 2 / moments[2]
            assert found >= kappa * (1 - 1e-9)
            smallest = min(smallest, found / kappa)
    assert smallest < 2.0  # and it is not vacuous
