"""Means over batches against NumPy, their minima against SciPy, and J over a ball against brute force."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from certificates.monte_carlo_problems import LOGISTIC
from provi.certificates.monte_carlo.batch_minima import minimise_batches
from provi.certificates.monte_carlo.batch_sums import batch_means
from provi.certificates.monte_carlo.check_values import in_metric_of, log_det_gap_in_ball, next_centre
from provi.certificates.monte_carlo.whitened_frame import whitened_frame
from provi.families import LocationScale, Normal


def test_means_against_numpy():
    rng = np.random.default_rng(4)
    design, response = np.asarray(LOGISTIC.design), np.asarray(LOGISTIC.response)
    family = LocationScale(3)
    factor, loc = np.tril(rng.normal(size=(3, 3)) / 4 + np.eye(3) / 2), rng.normal(size=3)
    frame, grounds = whitened_frame(LOGISTIC, family.point(loc, factor))
    assert grounds.convexity == "proven" and grounds.curvature is not None
    whitener = np.asarray(frame.whitener)
    assert np.allclose(whitener @ factor.T @ factor @ whitener.T, np.eye(3))  # H = I, the prior's precision
    shifts, key = rng.normal(size=(32, 3)), jax.random.key(3)
    guess = rng.normal(size=(3, 3))
    guess = guess + guess.T
    found = batch_means(
        key,
        LOGISTIC,
        Normal(),
        frame,
        jnp.asarray(guess),
        jnp.asarray(shifts),
        jnp.asarray(5),
        jnp.asarray(2),
        8,
        jnp.asarray(True),
    )
    chunks = [np.asarray(Normal().sample(jax.random.fold_in(key, index), 256, 3, jnp.float64)) for index in (5, 6)]
    u = np.concatenate([draws.reshape(32, 8, 3) for draws in chunks], axis=1)
    u = np.concatenate([u, -u], axis=1)
    z = loc + (shifts[:, None, :] + u) @ factor.T
    eta = z @ design.T
    value = (
        np.sum(np.logaddexp(0, eta) - response * eta, axis=2) + 0.5 * np.sum(z**2, axis=2) + 1.5 * math.log(2 * math.pi)
    )
    w = (z + (1 / (1 + np.exp(-eta)) - response) @ design) @ factor
    assert np.allclose(found.value, value.mean(axis=1), rtol=1e-12)
    assert np.allclose(found.gradient, w.mean(axis=1), rtol=1e-10, atol=1e-12)
    assert np.allclose(found.moment, np.einsum("bci,bcj->bij", w - u - u @ guess, u) / 32, rtol=1e-10, atol=1e-12)
    assert np.allclose(found.relative_fisher, np.sum(((w - u) @ whitener.T) ** 2, axis=2).mean(axis=1), rtol=1e-10)
    assert (np.asarray(found.least) == 0).all()


class Quartic:
    """phi_b(v) = |v - a_b|^4 / 4 + (v - a_b)' Q (v - a_b) / 2, one a batch; records the passes."""

    def __init__(self, dim, overflow=math.inf):
        rng = np.random.default_rng(dim)
        root = rng.normal(size=(dim, dim))
        self.centres, self.matrix = 2 * rng.normal(size=(32, dim)), root @ root.T / dim + np.eye(dim)
        self.overflow, self.passes = overflow, 0

    def __call__(self, shifts, with_fisher):
        assert with_fisher == (self.passes == 0)
        self.passes += 1
        away = shifts - self.centres
        square = np.sum(away**2, axis=1)
        value = square**2 / 4 + 0.5 * np.sum((away @ self.matrix) * away, axis=1)
        value = np.where(np.sum(shifts**2, axis=1) > self.overflow, np.inf, value)
        gradient = square[:, None] * away + away @ self.matrix
        moment, zeros = shifts[:, :, None] * np.ones((1, 1, shifts.shape[1])), np.zeros(32)
        return SimpleNamespace(
            value=value,
            magnitude=np.abs(value),
            gradient=gradient,
            moment=moment,
            hessian=None,
            fisher=zeros,
            least=zeros,
        )


@pytest.mark.parametrize("overflow", [math.inf, 200.0])
def test_minima_are_found_and_their_remainders_are_honest(overflow):
    target, dim = Quartic(4, overflow), 4
    found = minimise_batches(target, None, np.eye(dim), 60, 2e-16)
    assert found.passes == target.passes <= 60
    # The minimum is 0 at the centre of the batch.
    first = target(np.zeros((32, dim)), False).value
    assert np.allclose(found.shifts, target.centres, atol=1e-7)
    assert np.allclose(found.decrease, first, rtol=1e-12)
    assert np.allclose(found.moment[:, :, 0], found.shifts)
    assert found.remainder.mean() <= 0.01 * found.decrease.mean()


def test_remainder_by_strong_convexity_covers_what_is_left():
    target, dim = Quartic(3), 3
    whitener = np.linalg.inv(np.linalg.cholesky(target.matrix))
    for passes in (1, 2, 4, 8):
        target.passes = 0
        found = minimise_batches(target, whitener, np.eye(dim), passes, 2e-16)
        assert found.passes <= passes
        left = target(found.shifts, False).value
        assert (found.remainder >= left * (1 - 1e-12)).all()


def log_det_gap_of(moment):
    matrix = np.eye(len(moment)) + moment
    return np.trace(moment) - np.linalg.slogdet(matrix)[1]


@pytest.mark.parametrize("seed", range(4))
def test_log_det_gap_in_ball_is_above_all_matrices_in_it(seed):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(3, 3)) / 4
    centre = np.zeros((3, 3)) if seed == 0 else centre + centre.T
    factor, radius = np.linalg.cholesky(np.eye(3) + centre), 0.4
    bound, found = log_det_gap_in_ball(centre, radius), []
    for _ in range(3000):
        moment = rng.normal(size=(3, 3))
        # Mostly of rank one: there is the maximum.
        moment = np.outer(moment[0], moment[0]) * rng.choice([-1, 1]) + rng.choice([0, 0.3]) * (moment + moment.T)
        moment *= radius / np.linalg.norm(moment)
        found.append(log_det_gap_of(centre + factor @ moment @ factor.T))
        rows = in_metric_of(centre, (factor @ moment @ factor.T)[None])
        assert math.isclose(np.linalg.norm(rows), radius, rel_tol=1e-9)
    assert max(found) <= bound * (1 + 1e-12)
    assert max(found) > (0.99 if seed == 0 else 0.5) * bound


def test_vectors_stand_for_diagonal_matrices():
    centre, moments = np.array([0.3, -0.2]), np.array([[0.1, 0.2], [0.0, -0.1]])
    matrices = np.stack([np.diag(row) for row in moments])
    dense, thin = in_metric_of(np.diag(centre), matrices), in_metric_of(centre, moments)
    assert np.allclose(dense @ dense.T, thin @ thin.T)
    assert math.isclose(log_det_gap_in_ball(np.diag(centre), 0.2), log_det_gap_in_ball(centre, 0.2))


def test_the_centre_moves_only_when_that_pays():
    rng = np.random.default_rng(0)
    noise = 0.05 * rng.normal(size=(32, 4))
    assert (next_centre(np.zeros(4), noise + 0.05) == 0).all()
    far = next_centre(np.zeros(4), noise + 1.5)
    assert np.allclose(far, 1.5 + noise.mean(axis=0))
    assert (next_centre(np.zeros(4), noise - 1.5) == 0).all()
