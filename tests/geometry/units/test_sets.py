"""Sets and the searches in them, step by step and to the end: each formula a second time, in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from provi.families.exponential import Categorical, Coordinates, Gamma
from provi.geometry import constraints, operators
from provi.geometry.constraints import Ball, Box, is_number
from provi.geometry.divergences import SymmetricKL


def problem(seed):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(5, 5))
    matrix = (half @ half.T + 0.02 * np.eye(5)) * (0.05 if seed == 2 else 1)
    if seed == 3:
        matrix[0] = matrix[:, 0] = 0  # no curvature: its scale is 1
    return matrix, rng.normal(size=5) * np.array([10.0, 1.0, 1.0, 1.0, 0.01]), np.full(5, 0.4)


@pytest.mark.parametrize("seed", range(4))
def test_every_step_and_the_end(seed, monkeypatch):
    matrix, linear, high = problem(seed)
    root = np.sqrt(np.where(np.diag(matrix) > 0, np.diag(matrix), 1))
    scaled, h, edge = matrix / np.outer(root, root), linear / root, high * root
    step = 1 / np.linalg.eigvalsh(scaled)[-1]
    seen = []

    def followed(unfinished, advance, carry):
        while True:
            goes_on = bool(unfinished(carry))
            seen.append((*(np.asarray(part) for part in carry), goes_on))
            if not goes_on:
                return carry
            carry = advance(carry)

    monkeypatch.setattr(constraints.jax.lax, "while_loop", followed)
    constraints._in_box(*(jnp.asarray(x) for x in (matrix, linear, -high, high, np.full(5, 0.1))))
    x = y = np.clip(0.1 * root, -edge, edge)
    momentum, uphills = 1.0, 0
    for count, (own_x, own_y, own_momentum, own_count, goes_on) in enumerate(seen):
        for ours, theirs in ((own_x, x), (own_y, y), (own_momentum, momentum), (own_count, count)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        moved = np.clip(x - step * (scaled @ x - h), -edge, edge)
        size = np.max(np.abs(x)) + step * np.max(np.abs(h))
        left = np.max(np.abs(x - moved)) / (max(constraints._TOLERANCE, 64 * 2.0**-52) * size)
        assert goes_on == (left > 1) or abs(left - 1) < 1e-3
        new = np.clip(y - step * (scaled @ y - h), -edge, edge)
        uphill = (y - new) @ (new - x) > 0
        larger = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        y = new if uphill else new + (momentum - 1) / larger * (new - x)
        x, momentum, uphills = new, 1.0 if uphill else larger, uphills + uphill
    assert len(seen) > 15 and uphills > 0


def test_a_search_that_is_done_ends_at_once(monkeypatch):
    """What is left is compared with the largest entries: of h too, where x is small."""
    linear = np.array([1e-3, 1e6])
    x = np.array([1e-3, 1e6]) + np.array([1e-8, 0.0])
    steps = []

    def counted(unfinished, advance, carry):
        while bool(unfinished(carry)):
            carry = advance(carry)
        steps.append(int(carry[3]))
        return carry

    monkeypatch.setattr(constraints.jax.lax, "while_loop", counted)
    for start in (x, np.zeros(2)):
        constraints._in_box(*(jnp.asarray(a) for a in (np.eye(2), linear, np.full(2, -1e9), np.full(2, 1e9), start)))
    assert steps[0] == 0 and steps[1] >= 1


def test_the_symmetric_divergence_has_a_bound_only_where_both_parts_are_convex():
    rng, step = np.random.default_rng(0), jnp.asarray(0.3)
    for family, name, known in (
        (Categorical(3), "mean", True),
        (Categorical(3), "natural", False),
        (Gamma(), "mean", False),
        (Gamma(), "natural", False),
    ):
        coordinates = Coordinates(family, name)
        w, old = (
            coordinates.from_natural(family.from_unconstrained(jnp.asarray(0.3 * rng.normal(size=family.size))))
            for _ in range(2)
        )
        bound = SymmetricKL().gap_bound(coordinates, w, old, 0.01 * jnp.ones_like(w), step)
        assert np.isfinite(bound) == known


@pytest.mark.parametrize("seed", range(4))
def test_every_step_of_the_multiplier_of_a_ball(seed, monkeypatch):
    """Newton's method for 1/|y| = 1/r, with entries of the linear part that are 0 and 1, and what the ball cuts."""
    rng = np.random.default_rng(seed)
    diagonal, linear, radius = rng.random(4) * 3, np.array([0.0, 1.0, *rng.normal(size=2)]), [0.1, 0.4, 0.7, 9.0][seed]
    diagonal[0] *= seed % 2  # no curvature where nothing pulls
    seen = []

    ends = {}

    def followed(rising, newton, carry):
        ends["rising"] = rising
        seen.append((*(float(part) for part in carry), bool(rising(carry))))
        while bool(rising(carry)):
            carry = newton(carry)
            seen.append((*(float(part) for part in carry), bool(rising(carry))))
        return carry

    monkeypatch.setattr(constraints.jax.lax, "while_loop", followed)
    found = constraints._in_ball(*(jnp.asarray(x) for x in (diagonal, linear, radius)))

    def solution(multiplier):
        return np.divide(linear, diagonal + multiplier, out=np.zeros(4), where=linear != 0)

    multiplier = max(np.max(np.abs(linear) / radius - diagonal), 0.0)
    for count, (own, own_step, own_count, goes_on) in enumerate(seen, start=1):
        y = solution(multiplier)
        length = np.linalg.norm(y)
        pulled = linear != 0
        slope = np.sum(y[pulled] ** 2 / (diagonal[pulled] + multiplier)) / length**3
        step = (1 / radius - 1 / length) / slope if length > radius else 0.0
        multiplier += step
        np.testing.assert_allclose([own, own_count], [multiplier, count], rtol=1e-11)
        np.testing.assert_allclose(own_step, step, rtol=1e-6, atol=1e-13)
        ratio = step / (4 * 2.0**-52 * multiplier) if multiplier else 0.0
        assert goes_on == (ratio > 1) or 0.5 < ratio < 2 or step < 1e-14
    rising = ends["rising"]
    for step_size, limit in ((4.5, True), (3.9, False)):
        carry = jnp.asarray(1.0), jnp.asarray(step_size * 2.0**-52), 3
        assert bool(rising(carry)) == limit and not rising((*carry[:2], constraints._MOST_NEWTON_STEPS))
    y = solution(multiplier)
    np.testing.assert_allclose(found, y * min(1, radius / np.linalg.norm(y)), rtol=1e-12)
    assert len(seen) == 1 if radius == 9.0 else len(seen) > 2


def test_a_search_ends_at_its_tolerance_in_single_precision(monkeypatch):
    """One column, where what is left is |x - h|: 64 units of rounding of |x| + |h|, and no more steps than allowed."""
    ends = {}

    def caught(unfinished, advance, carry):
        ends["unfinished"] = unfinished
        return carry

    monkeypatch.setattr(constraints.jax.lax, "while_loop", caught)
    one = jnp.ones(1, jnp.float32)
    constraints._in_box(one[None, :], one, -9 * one, 9 * one, one)
    for units, goes_on in ((129, True), (127, False)):
        x = one + units * jnp.float32(2.0**-23)
        assert bool(ends["unfinished"]((x, x, one[0], 0))) == goes_on
        assert not ends["unfinished"]((x, x, one[0], constraints._MOST_STEPS))


def test_what_a_search_leaves_outside_of_a_ball_is_drawn_in(monkeypatch):
    monkeypatch.setattr(constraints.jax.lax, "while_loop", lambda *_: (jnp.asarray(1.0), 0.0, 0))
    found = np.asarray(constraints._in_ball(jnp.zeros(2), jnp.asarray([3.0, 4.0]), jnp.asarray(2.0)))
    np.testing.assert_allclose(found, [1.2, 1.6], rtol=1e-15)


def test_points_partly_outside_of_a_box_are_outside():
    box = Box({"a": 0.0, "b": -1.0}, {"a": 1.0, "b": 1.0})
    inside = {"a": jnp.asarray([0.2, 0.9]), "b": jnp.asarray([0.0])}
    assert box.contains(inside)
    assert not box.contains({**inside, "a": jnp.asarray([0.2, 1.1])})
    assert not box.contains({**inside, "b": jnp.asarray([1.5])})
    for lower, upper in (("a", 1.0), (None, None)):
        with pytest.raises(ValueError, match="lower and upper must be numbers, arrays or pytrees"):
            Box(lower, upper)
    assert is_number(2.0) and not is_number(np.ones(2)) and not is_number({"a": 2.0})


def test_a_ball_forgives_64_units_of_rounding_and_no_more():
    ball, unit = Ball(0.0, 1.0), 2.0**-52
    assert ball.contains(jnp.asarray([1 + 64 * unit])) and not ball.contains(jnp.asarray([1 + 65 * unit]))


def test_a_shrinkage_with_a_quadratic_part_of_exactly_one():
    found = operators._shrink_to_ball(*(jnp.asarray(x) for x in (1.0, np.zeros(1), -0.5, 0.5, 1.0)))
    assert float(found) == pytest.approx(0.5, rel=1e-14)
