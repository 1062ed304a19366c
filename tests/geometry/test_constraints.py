"""Boxes and balls against SciPy, brute force and the conditions of optimality."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import lsq_linear, minimize

from provi.geometry import AbstractConstraint, Ball, Box, minimise_quadratic, stationarity

solve = eqx.filter_jit(minimise_quadratic)


class HalfSpace(AbstractConstraint):
    """A set that the solver does not know."""

    def project(self, point):
        return point

    def contains(self, point):
        return point[0] >= 0

    def project_on_tangents(self, point, direction):
        return direction


def tree_of(vector):
    return {"a": jnp.asarray(vector[:2]), "b": (jnp.asarray(vector[2:4]).reshape(2, 1), jnp.asarray(vector[4]))}


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def test_projections_on_pytrees():
    point = tree_of(np.array([3.0, -0.5, 0.2, -4.0, 1.5]))
    np.testing.assert_array_equal(flat(Box(-1, 1).project(point)), [1, -0.5, 0.2, -1, 1])
    by_leaf = Box({"a": 0.0, "b": (-np.inf, np.array(1.6))}, {"a": np.array([1.0, 2.0]), "b": (0.0, 3.0)})
    np.testing.assert_array_equal(flat(by_leaf.project(point)), [1, 0, 0, -4, 1.6])
    ball = Ball(centre=1.0, radius=2.0)
    offset = flat(point) - 1
    np.testing.assert_allclose(flat(ball.project(point)), 1 + 2 * offset / np.linalg.norm(offset), rtol=1e-15)
    inside = tree_of(np.full(5, 1.3))
    np.testing.assert_array_equal(flat(ball.project(inside)), flat(inside))
    assert bool(ball.contains(ball.project(point))) and not bool(ball.contains(point))
    assert bool(Box(-1, 1).contains(Box(-1, 1).project(point))) and not bool(Box(-1, 1).contains(point))
    single = jnp.asarray([3.0, 0.0], jnp.float32)
    assert Box(-1, 1).project(single).dtype == Ball(0, 1).project(single).dtype == jnp.float32


def brute_force(gradient, point, members):
    """The negative part of the infimum over many members of the set."""
    offsets = members - point
    lengths = np.linalg.norm(offsets, axis=1)
    keep = lengths > 1e-9
    return max(0.0, -float(np.min(offsets[keep] @ gradient / lengths[keep])))


@pytest.mark.parametrize("seed", range(8))
def test_stationarity_by_brute_force(seed):
    """Never below what any member of the set shows, and reached by some of 100,000 within two per cent (3-d)."""
    rng = np.random.default_rng(seed)
    lower, upper = np.array([-1.0, -0.5, -1.0]), np.array([0.3, 0.5, 0.7])
    constraint = Box(lower, upper) if seed % 2 else Ball(np.array([0.2, 0.0, -0.1]), 0.8)
    gradient, start = rng.normal(size=3), jnp.asarray(rng.normal(size=3) * (3 if seed < 6 else 0.1))
    point = np.asarray(constraint.project(start))
    # Members near the point, those at the boundary by projection: their directions are dense in the tangent cone.
    near = point + 1e-3 * rng.normal(size=(100_000, 3))
    members = np.asarray(jax.vmap(constraint.project)(jnp.asarray(near)))
    found = brute_force(gradient, point, members)
    value = float(stationarity(jnp.asarray(gradient), jnp.asarray(point), constraint))
    assert found <= value * (1 + 1e-9)
    assert found >= 0.98 * value


def test_stationarity_special_cases():
    gradient, corner = jnp.asarray([1.0, -2.0]), jnp.asarray([0.0, 1.0])
    assert float(stationarity(gradient, corner)) == pytest.approx(5**0.5)
    assert float(stationarity(gradient, corner, Box(0.0, 1.0))) == 0.0
    assert float(stationarity(-gradient, corner, Box(0.0, 1.0))) == pytest.approx(5**0.5)
    assert float(stationarity(gradient, corner, Box(corner, corner))) == 0.0
    assert float(stationarity(-corner, corner, Ball(0.0, 1.0))) == 0.0
    assert float(stationarity(corner, corner, Ball(0.0, 1.0))) == 1.0


def problem(seed, dim=12, condition=1e4):
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    matrix = (vectors * np.geomspace(1 / condition, 1, dim)) @ vectors.T
    return (matrix + matrix.T) / 2, rng.normal(size=dim)


@pytest.mark.parametrize("seed", range(4))
def test_full_curvature_in_a_box(seed):
    matrix, h = problem(seed)
    lower, upper = np.full(12, -0.7), np.linspace(0.1, 1.0, 12)
    root = np.linalg.cholesky(matrix).T
    oracle = lsq_linear(root, np.linalg.solve(root.T, h), (lower, upper), method="bvls", tol=1e-14).x
    x = np.asarray(solve(jnp.asarray(matrix), jnp.asarray(h), Box(lower, upper)))
    assert (lower <= x).all() and (x <= upper).all()
    np.testing.assert_allclose(x, oracle, atol=1e-5)  # condition 1e4 times 1e-10
    value = lambda x: 0.5 * x @ matrix @ x - h @ x  # noqa: E731
    assert value(x) <= value(oracle) + 1e-11 * (1 + abs(value(oracle)))


def check_ball_optimality(matrix, h, centre, radius, x):
    """Some multiple of the outward normal is the descent direction, or the point is inside and the gradient zero."""
    offset, descent = x - centre, h - matrix @ x
    multiplier = max(descent @ offset, 0) / radius**2
    assert np.linalg.norm(offset) <= radius * (1 + 1e-12)
    np.testing.assert_allclose(descent, multiplier * offset, atol=1e-9 * (1 + np.abs(h).max()))
    assert multiplier <= 1e-9 or np.linalg.norm(offset) >= radius * (1 - 1e-9)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_answer_in_a_box_has_the_units_of_the_question(unit):
    """The tolerance is relative to the problem's own size, also where the start, at zero, has none."""
    rng = np.random.default_rng(8)
    factor = rng.normal(size=(4, 4))
    matrix, h = factor @ factor.T + 0.1 * np.eye(4), rng.normal(size=4)
    box = Box(-0.3 * unit, 0.3 * unit)
    x = np.asarray(solve(jnp.asarray(matrix), jnp.asarray(unit * h), box)) / unit
    np.testing.assert_allclose(x, np.asarray(solve(jnp.asarray(matrix), jnp.asarray(h), Box(-0.3, 0.3))), atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("radius", [1e-3, 1.0, 1e6])
def test_ball_with_full_and_diagonal_curvature(seed, radius):
    matrix, h = problem(seed)
    centre = np.linspace(-1, 1, 12)
    ball = Ball(centre, radius)
    check_ball_optimality(matrix, h, centre, radius, np.asarray(solve(jnp.asarray(matrix), jnp.asarray(h), ball)))
    diagonal = np.geomspace(1e-4, 1, 12)
    x = np.asarray(solve(jnp.asarray(diagonal), jnp.asarray(h), ball))
    check_ball_optimality(np.diag(diagonal), h, centre, radius, x)


def test_ball_with_singular_curvature():
    """Flat directions: pushed to the boundary where h has a part there, left alone where it has none."""
    matrix = np.diag([1.0, 0.0, 0.0])
    for h in (np.array([0.5, 3.0, 0.0]), np.array([0.5, 0.0, 0.0])):
        x = np.asarray(solve(jnp.asarray(matrix), jnp.asarray(h), Ball(0.0, 2.0)))
        check_ball_optimality(matrix, h, np.zeros(3), 2.0, x)
    np.testing.assert_allclose(x, [0.5, 0, 0], atol=1e-14)


def test_diagonal_and_scalar_curvature_on_a_pytree():
    h, curvature = np.array([3.0, -0.5, 0.2, -4.0, 1.5]), np.array([2.0, 2.0, 0.5, 0.5, 4.0])
    by_leaf = {"a": jnp.asarray(2.0), "b": (jnp.asarray(0.5), jnp.asarray(4.0))}
    np.testing.assert_allclose(flat(solve(by_leaf, tree_of(h))), h / curvature, rtol=1e-15)
    boxed = flat(solve(by_leaf, tree_of(h), Box(-1.0, 1.0)))
    np.testing.assert_allclose(boxed, np.clip(h / curvature, -1, 1), rtol=1e-15)
    balled = flat(solve(by_leaf, tree_of(h), Ball(0.0, 1.0)))
    oracle = minimize(
        lambda x: 0.5 * curvature @ x**2 - h @ x,
        np.zeros(5),
        jac=lambda x: curvature * x - h,
        constraints={"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * x},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(balled, oracle.x, atol=1e-6)
    projected = flat(solve(jnp.asarray(2.0), tree_of(h), Ball(0.0, 1.0)))
    np.testing.assert_allclose(projected, h / np.linalg.norm(h), rtol=1e-14)


def test_single_precision():
    """To the solver's 64 eps of the size of x and h (about 3), times the condition number."""
    matrix, h = problem(0, condition=10.0)
    arrays = jnp.asarray(matrix, jnp.float32), jnp.asarray(h, jnp.float32)
    for constraint in (Box(-0.5, 0.5), Ball(0.0, 1.0), None):
        x = solve(*arrays, constraint)
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(x, solve(jnp.asarray(matrix), jnp.asarray(h), constraint), atol=2e-4)


def test_bad_sets_are_refused():
    with pytest.raises(ValueError, match="lower must be at most upper"):
        Box(1.0, 0.0)
    with pytest.raises(ValueError, match="lower must be at most upper"):
        Box(np.array([0.0, np.nan]), np.ones(2))
    with pytest.raises(ValueError, match="radius must be"):
        Ball(0.0, -1.0)
    with pytest.raises(ValueError, match="radius must be one number"):
        Ball(0.0, np.ones(2))
    with pytest.raises(TypeError, match="Box or a Ball"):
        minimise_quadratic(1.0, jnp.ones(2), HalfSpace())
