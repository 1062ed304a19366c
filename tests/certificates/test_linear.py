"""Deterministic bounds for linear models: above the true gap, equal to brute force where they are exact."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize

from provi.certificates.bounds import log_det_gap, log_det_gap_from_norm
from provi.certificates.linear.bounds import (
    NAMES,
    linear_model_bounds,
    linearisation_bound,
    local_bound,
    log_det_part,
    mean_part,
    prior_part,
    strong_convexity_bound,
    whitened_pass,
)
from provi.diagnostics import linear_model_optimum
from provi.families import Gaussian, Laplace, LocationScale, StudentT
from support.linear_models import DIM, best_gaussian, gradients, linear_model, objective

OTHER = np.array([[0.5, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.4]])


def member(family, loc, covariance):
    return family.point_from_covariance(np.asarray(loc), np.asarray(covariance))


def mean_of(at):
    """The part of the mean in the global curvature bound."""
    return mean_part(at, at.lower, float(np.linalg.eigvalsh(at.lower)[0]))


def whitened_move(best, size, rng, diagonal):
    """A member at a distance of `size` from the best one, in the best one's own units."""
    root = np.linalg.cholesky(best[1])
    change = rng.normal(size=root.shape)
    change = np.diag(np.diagonal(change)) if diagonal else (change + change.T) / 2
    move = root @ (np.eye(len(root)) + size * change / np.linalg.norm(change, 2))
    direction = rng.normal(size=len(root))
    return best[0] + size * root @ direction / np.linalg.norm(direction), move @ move.T


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("linear", "triangular"),
        ("logistic", "triangular"),
        ("logistic", "diagonal"),
        ("poisson", "triangular"),
        ("probit", "symmetric"),
    ],
)
def test_every_bound_is_above_the_true_gap(kind, scale):
    target, family, rng = linear_model(kind), Gaussian(DIM, scale), np.random.default_rng(0)
    best = best_gaussian(target, scale == "diagonal")
    least = objective(target, *best)
    for size in (0.0, 1e-4, 1e-2, 0.1, 0.5, 0.9):
        loc, covariance = whitened_move(best, size, rng, scale == "diagonal")
        gap = objective(target, loc, covariance) - least
        bounds = linear_model_bounds(target, family, member(family, loc, covariance))
        assert [bound.name for bound in bounds] == list(NAMES)
        for bound in bounds:
            assert bound.status == "proven" and bound.confidence is None
            assert bound.value >= gap - 1e-12 * abs(least), (size, bound)
        if 0 < size <= 0.1:
            # Probit has no bound (d); (d) of Poisson ends sooner. The others pay for the prior.
            assert min(bound.value for bound in bounds) < (6 if kind == "logistic" else 30) * gap + 1e-9


def test_local_curvature_is_sharp_where_the_prior_is_weak():
    """(a) and (b) pay for the prior's curvature, 1e-4; (d) for that of the data, where q is."""
    target, family = linear_model("logistic", terms=200, prior_scale=100.0), Gaussian(DIM)
    best = best_gaussian(target)
    least = objective(target, *best)
    loc, covariance = whitened_move(best, 0.02, np.random.default_rng(3), False)
    gap = objective(target, loc, covariance) - least
    first, second, local = (
        bound.value for bound in linear_model_bounds(target, family, member(family, loc, covariance))
    )
    assert gap < local < 3 * gap < 20 * gap < min(first, second)


def linear_regression_at(loc_shift, factor):
    """Linear regression at a Gaussian with the exact posterior moved: the pass, and the true gap, a KL divergence."""
    target, family = linear_model("linear"), Gaussian(DIM)
    mean, covariance = target.exact_posterior()
    precision, root = np.linalg.inv(covariance), np.linalg.cholesky(covariance) @ factor
    at = whitened_pass(target, family, member(family, mean + loc_shift, root @ root.T))
    seen = precision @ root @ root.T
    scale_gap = 0.5 * (np.trace(seen) - DIM - np.linalg.slogdet(seen)[1])
    return at, 0.5 * loc_shift @ precision @ loc_shift, scale_gap


def test_the_mean_part_is_exact_for_a_gaussian_posterior():
    at, mean_gap, _ = linear_regression_at(np.array([0.3, -1.0, 0.2]), np.eye(DIM))
    assert mean_of(at) == pytest.approx(mean_gap, rel=1e-9)
    assert strong_convexity_bound(at).value == pytest.approx(mean_gap, rel=1e-9)
    assert linearisation_bound(at).value == pytest.approx(mean_gap, rel=1e-9)


def test_the_local_bound_counts_the_curvature_of_the_data_once():
    """Where the data's curvature is constant, (d) is exact for the mean, too."""
    target, family = linear_model("linear"), Gaussian(DIM)
    at, mean_gap, _ = linear_regression_at(np.array([0.01, -0.02, 0.01]), np.eye(DIM))
    assert local_bound(target, family, at).value == pytest.approx(mean_gap, rel=1e-9)


def test_the_log_det_part_is_twice_the_gap_of_a_gaussian_posterior():
    """J(S) = tr(S - I) - log det S is twice KL(q || p) of two centred Gaussians."""
    factor = np.array([[1.4, 0.0, 0.0], [0.3, 0.6, 0.0], [0.1, -0.2, 1.1]])
    at, _, scale_gap = linear_regression_at(np.zeros(DIM), factor)
    assert log_det_part(at) == pytest.approx(2 * scale_gap, rel=1e-9)
    values = np.linalg.eigvalsh(at.curvature)
    assert log_det_gap(values) == pytest.approx(np.sum(values - 1 - np.log(values)), rel=1e-12)
    # (a), by its definition: the norm of S - I in the metric of the Hessian of E|Du|^2_H / 2 over symmetric D.
    basis = [np.eye(DIM)[[i]].T @ np.eye(DIM)[[j]] for i in range(DIM) for j in range(i, DIM)]
    basis = [(b + b.T) / (2 if i == j else np.sqrt(2)) for b, (i, j) in zip(basis, _pairs(), strict=True)]
    metric = np.array([[np.sum(a * (at.lower @ b + b @ at.lower)) / 2 for b in basis] for a in basis])
    slope = np.array([np.sum(b * (at.curvature - np.eye(DIM))) for b in basis])
    expected = 0.5 * slope @ np.linalg.solve(metric, slope)
    assert strong_convexity_bound(at).value == pytest.approx(expected + mean_of(at), rel=1e-8)


def _pairs():
    return [(i, j) for i in range(DIM) for j in range(i, DIM)]


@pytest.mark.parametrize("diagonal", [False, True])
def test_linearisation_against_brute_force(diagonal):
    """sup over (m', C') of <grad l, w - w'> + h(w) - h(w') with the prior in h, by a general optimiser.

    C' and C'R are the same member for every rotation R, so the largest <A, C'R>, a nuclear norm, may be taken.
    """
    target, family = linear_model("poisson", dim=2), Gaussian(2, "diagonal" if diagonal else "triangular")
    loc, root = np.array([-0.5, 0.4]), np.diag([0.4, 0.3]) if diagonal else np.array([[0.4, 0.0], [0.2, 0.3]])
    at = whitened_pass(target, family, member(family, loc, root @ root.T))
    gradient, wanted = gradients(target, loc, root @ root.T)
    prior = target.prior.precision_matrix()
    slope, slope_root = gradient - prior @ loc, (wanted - prior) @ root

    def own_part(m, c):
        return 0.5 * (m @ prior @ m + np.trace(c.T @ prior @ c)) - np.linalg.slogdet(c)[1]

    def linearised(x):
        new_loc, new_root = x[:2], np.diag(np.exp(x[2:])) if diagonal else x[2:].reshape(2, 2)
        product = new_root.T @ slope_root
        inner = np.trace(product) if diagonal else np.linalg.norm(product, "nuc")
        linear = slope @ (loc - new_loc) + np.sum(slope_root * root) - inner
        return -(linear + own_part(loc, root) - own_part(new_loc, new_root))

    start = np.r_[loc, np.log(np.diagonal(root)) if diagonal else root.ravel()]
    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000}
    found = optimize.minimize(linearised, start, method="Nelder-Mead", options=options)
    found = optimize.minimize(linearised, found.x, method="Nelder-Mead", options=options)
    assert mean_of(at) + prior_part(at) == pytest.approx(-found.fun, rel=1e-7)
    # Nothing but -log det in h: J, as its own brute force.
    curvature = np.diag(np.diagonal(at.curvature)) if diagonal else at.curvature

    def dual(x):
        factor = np.diag(x[:2]) if diagonal else np.array([[x[0], 0.0], [x[2], x[1]]])
        other = factor @ factor.T
        return np.sum(curvature * (other - np.eye(2))) - np.linalg.slogdet(other)[1]

    best = optimize.minimize(dual, np.array([1.0, 1.0, 0.0]), method="BFGS", options={"gtol": 1e-9})
    assert log_det_part(at) == pytest.approx(-best.fun, rel=1e-7)


def test_log_det_gap():
    assert log_det_gap(np.array([1.0, 0.0])) == math.inf
    assert log_det_gap(np.ones(3)) == 0.0
    excess = np.array([1e-9, -1e-9])
    # Beyond the first digits that a difference of logarithms would keep.
    assert log_det_gap(1 + excess) == pytest.approx(1e-18, rel=1e-6)
    assert log_det_gap_from_norm(0.4) == pytest.approx(log_det_gap(np.array([0.6, 1.0])))
    assert log_det_gap_from_norm(1.0) == math.inf


@pytest.mark.parametrize("diagonal", [False, True])
def test_stated_errors_of_the_moments_are_paid_for(diagonal):
    """With an error e, each part is at least what it is at every gradient and curvature within e."""
    family, rng, error = Gaussian(DIM, "diagonal" if diagonal else "triangular"), np.random.default_rng(5), 0.02
    target = linear_model("logistic")
    at = whitened_pass(target, family, member(family, np.array([0.2, 0.1, -0.3]), 0.3 * OTHER))
    exact = dataclasses.replace(at, gradient_error=0.0, curvature_error=0.0)
    unsure = dataclasses.replace(at, gradient_error=error, curvature_error=error)
    parts = (mean_of, log_det_part, prior_part, lambda x: strong_convexity_bound(x).value)
    for _ in range(200):
        direction, change = rng.normal(size=DIM), rng.normal(size=(DIM, DIM))
        change = np.diag(np.diagonal(change)) if diagonal else change + change.T
        change *= error / np.linalg.norm(change)
        moved = dataclasses.replace(
            exact,
            gradient=at.gradient + error * direction / np.linalg.norm(direction),
            curvature=at.curvature + change,
            likelihood=at.likelihood + change,
        )
        for part in parts:
            assert part(exact) <= part(unsure) and part(moved) <= part(unsure) * (1 + 1e-12)


def test_the_reference_optimum_is_that_of_the_other_solver():
    target, family = linear_model("logistic"), Gaussian(DIM)
    best = linear_model_optimum(target, family).point
    loc, covariance = best_gaussian(target)
    np.testing.assert_allclose(best.loc, loc, atol=1e-9)
    np.testing.assert_allclose(best.scale.covariance(), covariance, atol=1e-9)


def test_where_a_bound_does_not_apply_it_says_why():
    family = Gaussian(DIM)
    point = member(family, np.zeros(DIM), OTHER)
    assert "self-concordant" in linear_model_bounds(linear_model("probit"), family, point)[2].detail
    other = LocationScale(DIM, Laplace())
    local = linear_model_bounds(linear_model("logistic"), other, member(other, np.zeros(DIM), OTHER))[2]
    assert math.isinf(local.value) and "normal base" in local.detail
    far = linear_model_bounds(linear_model("logistic"), family, member(family, np.full(DIM, 30.0), OTHER))[2]
    assert math.isinf(far.value) and "too far" in far.detail


@pytest.mark.parametrize(("base", "deviation"), [(None, 30.0), (Laplace(), 1.5), (StudentT(5.0), 0.1)])
def test_an_infinite_mean_gives_infinite_bounds(base, deviation):
    """exp overflows under a wide Gaussian, and has no mean under a wide Laplace base or a Student-t."""
    target, family = linear_model("poisson"), LocationScale(DIM, base)
    bounds = linear_model_bounds(target, family, family.point(np.zeros(DIM), deviation))
    assert len(bounds) == 3 and all(math.isinf(bound.value) and "infinite" in bound.detail for bound in bounds)
