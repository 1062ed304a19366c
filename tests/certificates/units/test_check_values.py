"""`monte_carlo/check_values.py`: the numbers of a check from batches that are given, by other algebra."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from provi.certificates.bounds import (
    log_det_gap,
    log_det_gap_from_norm,
    mean_upper_bound,
    squared_norm_upper_bound,
)
from provi.certificates.monte_carlo import check_values as values
from provi.certificates.monte_carlo.batch_minima import BatchMinima
from provi.certificates.monte_carlo.check_values import CheckValues, Unseen

RNG = np.random.default_rng(4)
COUNT, DIM = 32, 2


def symmetric(seed, size=0.2):
    half = np.random.default_rng(seed).normal(size=(DIM, DIM))
    return size * (half + half.T) / 2


def test_j_in_a_ball_is_above_all_that_is_in_it():
    for centre in (symmetric(1), np.array([0.3, -0.2]), np.zeros((2, 2))):
        full = centre if centre.ndim == 2 else np.diag(centre)
        for radius in (0.0, 0.1, 0.7):
            found = values.log_det_gap_in_ball(centre, radius)
            root = np.linalg.cholesky(np.eye(2) + full)
            expected = log_det_gap(np.linalg.eigvalsh(np.eye(2) + full)) + radius * math.sqrt(np.sum(full**2))
            assert found == pytest.approx(expected - radius - math.log(1 - radius), rel=1e-12)
            for seed in range(40):
                away = symmetric(seed, 1.0)
                away = radius * (np.diag(np.diag(away)) if centre.ndim == 1 else away) / np.linalg.norm(away)
                inside = np.linalg.eigvalsh(np.eye(2) + full + root @ away @ root.T)
                assert np.sum(inside - 1 - np.log(inside)) <= found + 1e-12
        for radius in (1.0, 2.0, math.nan):
            assert values.log_det_gap_in_ball(centre, radius) == math.inf


def test_the_metric_of_a_centre():
    moments = np.stack([symmetric(seed) for seed in range(3)])
    centre = symmetric(9)
    lower = np.linalg.cholesky(np.eye(2) + centre)
    expected = [(np.linalg.solve(lower, np.linalg.solve(lower, x).T).T).ravel() for x in moments]
    assert np.allclose(values.in_metric_of(centre, moments), expected)
    assert np.allclose(values.in_metric_of(np.zeros((2, 2)), moments), moments.reshape(3, 4))
    vectors = RNG.normal(size=(3, 2))
    assert np.allclose(values.in_metric_of(np.array([0.5, -0.2]), vectors), vectors / [1.5, 0.8])
    # A centre with one number that is not zero is one.
    lone = np.array([[0.0, 0.0], [0.0, 0.21]])
    assert np.allclose(values.in_metric_of(lone, moments)[:, 3], moments[:, 1, 1] / 1.21)


@pytest.mark.parametrize("vector", [False, True])
def test_the_next_centre(vector):
    chosen = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        centre = np.array([0.2, -0.1]) if vector else symmetric(seed, 0.3)
        mean = rng.normal(size=centre.shape) * rng.choice([0.05, 0.4, 0.9])
        mean = mean if vector else (mean + mean.T) / 2
        noise = rng.normal(size=(8, *centre.shape)) * rng.choice([0.01, 0.3])
        moments = mean + (noise if vector else (noise + np.swapaxes(noise, 1, 2)) / 2)
        estimate = centre + moments.mean(axis=0)
        spectrum = 1 + (estimate if vector else np.linalg.eigvalsh(estimate))
        found = values.next_centre(centre, moments)
        if spectrum.min() <= 0:
            expected = 0 * centre
        else:
            rows = values.in_metric_of(estimate, moments - moments.mean(axis=0)[None])
            radius = math.sqrt(2 * sum(float(row @ row) for row in rows) / (8 * 7))
            around = values.log_det_gap_in_ball(estimate, radius)
            takes = around < log_det_gap_from_norm(float(np.linalg.norm(estimate)))
            expected = estimate if takes else 0 * centre
            chosen.add(takes)
        assert np.allclose(found, expected, atol=1e-14)
    assert chosen == {True, False}
    far = np.full((4, 2), 3.0) if vector else np.broadcast_to(3.0 * np.eye(2), (4, 2, 2))
    centre = np.zeros(2) if vector else np.zeros((2, 2))
    assert np.allclose(values.next_centre(centre, far), far[0])  # exactly known, and out of the ball around zero
    for broken in (np.nan, -np.inf):
        assert not values.next_centre(centre, np.full((4, *centre.shape), broken)).any()
    assert not values.next_centre(centre, -far).any()


def means(**changed):
    moment = 0.1 * RNG.normal(size=(COUNT, DIM, DIM))
    held = dict(
        value=RNG.normal(size=COUNT), magnitude=np.full(COUNT, 3.0), gradient=0.2 * RNG.normal(size=(COUNT, DIM)) + 0.1,
        moment=moment, hessian=None, fisher=RNG.gamma(2.0, size=COUNT) + 1, relative_fisher=RNG.gamma(2.0, size=COUNT),
        least=np.zeros(COUNT),
    )  # fmt: skip
    return SimpleNamespace(**{**held, **changed})


def minima(**changed):
    first = changed.pop("first", None) or means()
    held = dict(first=first, shifts=np.zeros((COUNT, DIM)), decrease=RNG.gamma(2.0, size=COUNT) * 0.05,
                remainder=RNG.random(COUNT) * 0.01, moment=0.1 * RNG.normal(size=(COUNT, DIM, DIM)), passes=3,
                least=0.0, least_at=np.zeros((COUNT, DIM)))  # fmt: skip
    return BatchMinima(**{**held, **changed})


def covariance_of(moment, centre, share, missed):
    symmetric_part = (moment + np.swapaxes(moment, 1, 2)) / 2 if moment.ndim == 3 else moment
    rows = values.in_metric_of(centre, symmetric_part)
    least = 1 + (np.linalg.eigvalsh(centre)[0] if centre.ndim == 2 else centre.min())
    radius = math.sqrt(squared_norm_upper_bound(rows @ rows.T, share)) + missed / least
    return values.log_det_gap_in_ball(centre, radius)


@pytest.mark.parametrize("whitener", [None, np.array([[0.9, 0.0], [0.2, 1.4]]), np.array([0.6, 1.3])])
@pytest.mark.parametrize("fisher", [0.01, 4.0])
def test_the_bounds_of_a_check(whitener, fisher):
    """Seven statements, each with its share; what draws may have missed and rounding are added to the radii."""
    vector = whitener is not None and whitener.ndim == 1
    found = minima(first=means(fisher=np.full(COUNT, fisher)))
    centre = symmetric(3)
    if vector:
        found = dataclasses.replace(found, moment=0.1 * RNG.normal(size=(COUNT, DIM)))
        found.first.moment, centre = 0.1 * RNG.normal(size=(COUNT, DIM)), np.array([0.2, -0.3])
    delta, epsilon, unseen = 0.07, 1e-4, Unseen(0.01, 0.02, 400, 2e-3)
    share = delta / (5 if whitener is None else 7)
    missed = 0.01 + math.log(1 / share) / 400 * max(1, math.sqrt(fisher))
    covariance = 0.02 + math.log(1 / share) / 400 * max(1, math.sqrt(fisher)) * math.sqrt(2)
    rounded = (64 * epsilon + 4 * 2e-3) * (math.sqrt(fisher) + math.sqrt(2))
    missed, covariance = missed + rounded, covariance + rounded * math.sqrt(2)
    decrease = mean_upper_bound(found.decrease + found.remainder + 4 * epsilon * 3.0, share)
    first = found.first
    here, there = (covariance_of(m, centre, share, covariance) for m in (first.moment, found.moment))
    near = (math.sqrt(squared_norm_upper_bound(first.gradient @ first.gradient.T, share)) + missed) ** 2 / 2 + here
    result = values.check_values(found, whitener, True, centre, delta, epsilon, unseen)
    expected = CheckValues(
        constants_free=(math.sqrt(2 * decrease) + missed) ** 2 / 2 + there, metric_of_q=near, decrease=decrease,
        least_decrease=2 * float(found.decrease.mean()) - mean_upper_bound(found.decrease, share),
    )  # fmt: skip
    if whitener is not None:
        matrix = np.diag(whitener) if vector else whitener
        rows = first.gradient @ matrix.T
        norm = np.linalg.norm(matrix, 2)
        far = (math.sqrt(squared_norm_upper_bound(rows @ rows.T, share)) + norm * missed) ** 2 / 2 + here
        kl = mean_upper_bound(first.relative_fisher, share) / 2
        expected = dataclasses.replace(expected, strong_convexity=far, kl=kl)
        assert values.check_values(found, whitener, False, centre, delta, epsilon, unseen).kl == math.inf
    assert dataclasses.astuple(result) == pytest.approx(dataclasses.astuple(expected), rel=1e-10)
    assert result.best == min(result.constants_free, result.strong_convexity)
    assert dataclasses.replace(result, constants_free=9.0, strong_convexity=8.0).best == 8.0


def test_a_decrease_below_zero_is_none():
    found = minima(decrease=-1.0 - RNG.random(COUNT))
    result = values.check_values(found, None, True, np.zeros((2, 2)), 0.05, 0.0, Unseen(0.5, 0.0, 10**9))
    there = covariance_of(found.moment, np.zeros((2, 2)), 0.01, 1e-9 * math.log(100) * 2)
    assert result.decrease < 0 and result.constants_free == pytest.approx(0.125 + there, rel=1e-6)
    assert Unseen(0.1, 0.2, 5) == Unseen(0.1, 0.2, 5, 0.0)


def test_what_is_not_finite_bounds_nothing():
    broken = np.full((COUNT, DIM), np.inf)
    for found in (
        minima(first=means(gradient=broken)), minima(first=means(moment=np.full((COUNT, DIM, DIM), np.nan))),
        minima(decrease=np.full(COUNT, np.nan)), minima(moment=np.full((COUNT, DIM, DIM), np.inf)),
    ):  # fmt: skip
        result = values.check_values(found, np.eye(2), True, np.zeros((2, 2)), 0.05, 0.0, Unseen(0.0, 0.0, 100))
        assert result == CheckValues()
    nothing = CheckValues()
    assert {nothing.constants_free, nothing.strong_convexity, nothing.metric_of_q, nothing.kl, nothing.decrease} == {
        math.inf
    }
    assert nothing.least_decrease == -math.inf and values.ROUNDING == 64


def test_the_next_guesses():
    first = means(moment=0.1 * RNG.normal(size=(COUNT, DIM, DIM)) + np.array([[-0.9, 0.1], [0.3, 0.2]]))
    centre = symmetric(5)
    parts = (first.moment + np.swapaxes(first.moment, 1, 2)) / 2
    guess, inverse = values.next_guesses(minima(first=first), centre)
    assert np.allclose(guess, values.next_centre(centre, parts))
    spectrum, vectors = np.linalg.eigh(np.eye(2) + centre + parts.mean(axis=0))
    assert spectrum[0] < 0.25 < spectrum[1]
    assert np.allclose(inverse, vectors @ np.diag(1 / np.maximum(spectrum, 0.25)) @ vectors.T)
    hessian = np.array([[0.5, 0.2], [0.1, -0.3]])
    diagonal = means(moment=0.1 * RNG.normal(size=(COUNT, DIM)), hessian=hessian)
    guess, inverse = values.next_guesses(minima(first=diagonal), np.zeros(2))
    assert np.allclose(inverse, np.linalg.inv(np.array([[1.5, 0.15], [0.15, 0.7]])))
    large = means(moment=np.full((COUNT, DIM), [0.6, -0.9]), hessian=None)
    assert np.allclose(values.next_guesses(minima(first=large), np.array([0.1, 0.0]))[1], [1 / 1.7, 4])
    for broken in (np.full((2, 2), np.nan), np.full(2, np.inf)):
        assert np.array_equal(values._inverse(broken), np.eye(2) if broken.ndim == 2 else np.ones(2))
