"""The incremental natural gradient: one block is the full step, several have the same fixed point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.natural import site_table
from provi.algorithms.natural.site_table import SiteTable
from provi.families import Gaussian, Laplace, LocationScale
from provi.targets import LogDensity
from support.linear_models import DIM, check_stationary, linear_model, moments
from support.trajectories import trajectory

KEY = jax.random.key(1)
LOC = np.array([0.4, -0.9, 0.2])
ROOT = np.array([[0.6, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.1, 0.3, 0.4]])


def passes(target, num, scale="triangular", key=KEY):
    family = Gaussian(DIM, scale)
    return trajectory(SiteTable(), target, family, family.point_from_covariance(LOC, ROOT @ ROOT.T), key, num)[0]


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_a_pass_over_one_block_is_the_full_step_without_damping(kind):
    """P = L_0 + X'GX and P m = L_0 mu_0 + X'(G X m - a), from any start."""
    target = linear_model(kind)
    state = passes(target, 1)[-1]
    _, slope, weight = moments(target, LOC, ROOT @ ROOT.T)
    design, prior = np.asarray(target.design), target.prior.precision_matrix()
    precision = prior + design.T @ (weight[:, None] * design)
    shift = prior @ np.asarray(target.prior.mean) + design.T @ (weight * (design @ LOC) - slope)
    np.testing.assert_allclose(state.precision, precision, atol=1e-6)
    np.testing.assert_allclose(state.point.loc, np.linalg.solve(precision, shift), atol=1e-6)
    np.testing.assert_allclose(state.point.scale.covariance(), np.linalg.inv(precision), atol=1e-6)


@pytest.mark.parametrize("scale", ["triangular", "symmetric"])
def test_fixed_point_is_the_optimum_with_one_block(scale):
    target = linear_model("probit")
    point = passes(target, 15, scale)[-1].point
    assert point.scale.kind == scale
    check_stationary(target, point, 1e-6)


def test_fixed_point_with_blocks_that_do_not_divide_the_rows(monkeypatch):
    monkeypatch.setattr(site_table, "_SMALLEST_BLOCK", 8)
    monkeypatch.setattr(site_table, "_ROWS_PER_COLUMN", 1)
    target = linear_model("logistic", terms=61)
    states = passes(target, 15)
    check_stationary(target, states[-1].point, 1e-6)
    # The table and the natural parameters agree: nothing was counted twice or left out.
    design, prior = np.asarray(target.design), target.prior.precision_matrix()
    for state in states[1:]:
        sites = design.T @ (np.asarray(state.weights)[:, None] * design)
        np.testing.assert_allclose(state.precision, prior + sites, rtol=1e-10)
        shift = prior @ np.asarray(target.prior.mean) + design.T @ np.asarray(state.slopes)
        np.testing.assert_allclose(state.shift, shift, rtol=1e-9, atol=1e-10)
    # Several blocks a pass: sequential, hence ahead of one full step, and dependent on the order.
    other = passes(target, 1, key=jax.random.key(5))[-1]
    assert np.abs(np.asarray(other.point.loc) - np.asarray(states[1].point.loc)).max() > 1e-6


def test_refusals():
    target = linear_model("logistic")
    with pytest.raises(ValueError, match="linear model"):
        SiteTable().resolve(LogDensity(lambda z: -0.5 * jnp.sum(z**2), DIM), Gaussian(DIM))
    for family in (Gaussian(DIM, "diagonal"), LocationScale(DIM, Laplace())):
        with pytest.raises(ValueError, match="triangular or symmetric"):
            SiteTable().resolve(target, family)
