"""The exact pieces of `geometry`: the shrinkage to a ball by search for its root, margins of rounding, boundaries."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from provi.families.location_scale import Point
from provi.families.scales import Diagonal, Symmetric
from provi.geometry import constraints, operators
from provi.geometry.constraints import Ball, Box
from support.formulas import fresh

EPS = 2.0**-52


def shrinkage(square, y, floor, radius, factor):
    """The largest a <= 1 with a^2 |m_0 - c|^2 + sum max(floor, a y)^2 / factor <= R^2, by search."""

    def left(a):
        return a**2 * square + np.sum(np.maximum(floor, a * np.asarray(y)) ** 2) / factor - radius**2

    return 1.0 if left(1.0) <= 0 else optimize.brentq(left, 0.0, 1.0, xtol=1e-15)


def test_the_shrinkage_to_a_ball_is_a_root():
    solve = fresh(operators._shrink_to_ball)
    drawn = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        floor = rng.choice([-0.5, 0.0, 0.3, 1.0])
        y, square, factor = (
            rng.normal(size=3) * rng.choice([0.5, 3.0]),
            rng.choice([0.0, 0.4, 5.0]),
            rng.choice([0.5, 2.0]),
        )
        if seed % 5 == 0:
            y[seed % 3] = 0.0
        if seed % 7 == 0:
            y = np.abs(y) + floor
        radius = np.sqrt(3 * max(floor, 0) ** 2 / factor) + rng.choice([0.01, 0.3, 2.0])
        expected = shrinkage(square, y, floor, radius, factor)
        found = float(solve(*(jnp.asarray(x) for x in (square, y, floor, radius, factor))))
        # Where the left side is constant near the root, every a there is one.
        now = found**2 * square + np.sum(np.maximum(floor, found * y) ** 2) / factor
        assert found == pytest.approx(expected, abs=1e-9) or now == pytest.approx(radius**2, rel=1e-9)
        assert 0 <= found <= 1 and now <= radius**2 * (1 + 1e-12)
        drawn += expected < 1
    assert 60 < drawn < 280


def test_a_member_is_drawn_to_the_centre_and_then_raised():
    """The minimum of the distance over the set, by search, for two eigenvalues and one location."""
    point = Point(jnp.asarray([2.0, 1.0]), Diagonal(jnp.asarray([3.0, 0.2])))
    found = operators.project_nondegenerate_ball(point, 0.5, jnp.asarray([0.5, 0.0]), 1.5, 0.25, 0.8)

    def distance(x):
        return np.sum((x[:2] - [2, 1]) ** 2) + np.sum((x[2:] - [3, 0.2]) ** 2) / 0.8

    def room(x):
        return 1.5**2 - np.sum((x[:2] - [0.5, 0]) ** 2) - np.sum((x[2:] - 0.25) ** 2) / 0.8

    best = optimize.minimize(distance, [0.5, 0, 0.6, 0.6], constraints={"type": "ineq", "fun": room},
                             bounds=[(None, None)] * 2 + [(0.5, None)] * 2, tol=1e-14)  # fmt: skip
    assert np.allclose([*found.loc, *found.scale.diagonal], best.x, atol=1e-5)


def test_eigenvalues_are_raised_a_little_more_than_asked_for():
    """By 8 d eps of the largest number, so that a second projection leaves the matrix alone."""
    for values, smallest, size in (((0.1, 2.0), 0.5, 2.0), ((0.1, -0.2), 0.5, 0.5), ((0.25, -4.0), 0.5, 4.0)):
        found = operators.project_nondegenerate(Symmetric(jnp.diag(jnp.asarray(values))), 0.5)
        raised = np.diag(np.asarray(found.matrix))
        margin = 8 * 2 * EPS * size
        assert np.array_equal(raised, np.maximum(values, smallest + margin))


def test_the_boundary_of_a_ball_is_as_wide_as_rounding():
    for centre, radius in ((0.0, 1.0), (1024.0, 1.0), (-512.0, 2.0)):
        ball, rounding = Ball(centre, radius), 64 * EPS * (abs(centre) + radius)
        out = 1 if centre >= 0 else -1
        for share, inside in ((0.9, True), (1.1, False)):
            there = jnp.asarray([centre + out * (radius + share * rounding)])
            assert bool(ball.contains(there)) == inside
        for share, moved in ((0.9, 0.0), (1.1, 1.0)):  # at the boundary no step outwards is left
            there = jnp.asarray([centre + out * (radius - share * rounding)])
            assert float(jnp.abs(ball.project_on_tangents(there, jnp.asarray([float(out)]))[0])) == pytest.approx(moved)
    both = Ball(jnp.asarray([3.0, 4.0]), 1.0)
    assert np.allclose(both.project(jnp.asarray([3.0, 8.0])), [3.0, 5.0])
    assert np.array_equal(both.project(jnp.asarray([3.5, 4.0])), [3.5, 4.0])
    assert np.array_equal(both.project_on_tangents(jnp.asarray([3.0, 4.0]), jnp.asarray([1.0, -2.0])), [1.0, -2.0])


def test_tangents_of_a_box():
    box = Box(jnp.asarray([0.0, -jnp.inf, 1.0]), jnp.asarray([2.0, 3.0, 1.0]))
    for x, d, expected in (([0, 0, 1], [-1, 5, 2], [0, 5, 0]), ([2, 3, 1], [1, 1, -1], [0, 0, 0]),
                           ([2, 3, 1], [-1, -1, 1], [-1, -1, 0]), ([1, 0, 1], [-1, 1, 0], [-1, 1, 0])):  # fmt: skip
        given = (jnp.asarray(v, float) for v in (x, d))
        assert np.array_equal(box.project_on_tangents(*given), expected)


def test_quadratics_in_a_ball_by_search():
    for seed in range(12):
        rng = np.random.default_rng(seed)
        diagonal, linear, radius = (
            rng.random(3) * rng.choice([0.1, 5.0]),
            3 * rng.normal(size=3),
            rng.choice([0.1, 1.0, 90.0]),
        )
        found = np.asarray(fresh(constraints._in_ball)(*(jnp.asarray(x) for x in (diagonal, linear, radius))))
        if np.linalg.norm(linear / diagonal) <= radius:
            expected = linear / diagonal
        else:
            multiplier = optimize.brentq(lambda m: np.linalg.norm(linear / (diagonal + m)) - radius, 0, 1e6, xtol=1e-14)  # noqa: B023
            expected = linear / (diagonal + multiplier)
        assert np.allclose(found, expected, rtol=1e-7, atol=1e-9) and np.linalg.norm(found) <= radius * (1 + 4 * EPS)
    flat = fresh(constraints._in_ball)(jnp.asarray([0.0, 1.0]), jnp.asarray([0.0, 0.5]), jnp.asarray(2.0))
    assert np.allclose(flat, [0.0, 0.5])


def test_quadratics_in_a_box_take_few_steps(monkeypatch):
    """As many as an accelerated method needs at this condition, and with momentum as it should be."""
    rng = np.random.default_rng(3)
    half = rng.normal(size=(6, 6))
    matrix, linear = half @ half.T + 0.05 * np.eye(6), rng.normal(size=6)
    low, high = -np.full(6, 0.3), np.full(6, 0.3)
    steps = []

    def counted(unfinished, advance, carry):
        while bool(unfinished(carry)):
            carry = advance(carry)
        steps.append(int(carry[3]))
        return carry

    monkeypatch.setattr(constraints.jax.lax, "while_loop", counted)
    found = constraints._in_box(*(jnp.asarray(x) for x in (matrix, linear, low, high, np.zeros(6))))
    gradient = matrix @ np.asarray(found) - linear
    x = np.asarray(found)
    assert np.all(np.where(x >= 0.3, gradient <= 1e-7, np.where(x <= -0.3, gradient >= -1e-7, np.abs(gradient) < 1e-7)))
    assert steps[0] < 200
