"""Projection on the non-degenerate scales: feasible, idempotent, nearest, and the identity where it may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from provi.families import Diagonal, LowRank, Symmetric, Triangular
from provi.families.location_scale import Point
from provi.geometry import project_nondegenerate, project_nondegenerate_ball

project = jax.jit(project_nondegenerate)


def random_symmetric(seed, dim, size=1.0):
    matrix = np.random.default_rng(seed).normal(size=(dim, dim)) * size
    return (matrix + matrix.T) / 2


CASES = [(seed, dim, smallest) for seed in range(8) for dim in (1, 2, 5) for smallest in (1e-3, 0.5, 20.0)]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_symmetric_is_feasible_and_idempotent_to_the_bit(dtype):
    for seed, dim, smallest in CASES:
        matrix = random_symmetric(seed, dim).astype(dtype)
        once = project(Symmetric(jnp.asarray(matrix)), jnp.asarray(smallest, dtype))
        result = np.asarray(once.matrix)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, result.T)
        rounding = 10 * np.finfo(np.float64).eps * np.abs(result).max()
        floor = float(np.asarray(smallest, dtype))
        assert np.linalg.eigvalsh(result.astype(np.float64))[0] >= floor - rounding
        twice = project(once, jnp.asarray(smallest, dtype))
        np.testing.assert_array_equal(twice.matrix, result)


def test_symmetric_raises_the_eigenvalues():
    for seed, dim, smallest in CASES:
        matrix = random_symmetric(seed, dim)
        values, vectors = np.linalg.eigh(matrix)
        expected = (vectors * np.maximum(values, smallest)) @ vectors.T
        result = np.asarray(project(Symmetric(jnp.asarray(matrix)), smallest).matrix)
        size = max(smallest, np.abs(values).max())
        np.testing.assert_allclose(result, expected, atol=2e-13 * size)


def test_symmetric_is_the_nearest_of_random_feasible_points():
    rng = np.random.default_rng(3)
    for seed in range(5):
        matrix = random_symmetric(seed, 3)
        nearest = np.asarray(project(Symmetric(jnp.asarray(matrix)), 0.5).matrix)
        for _ in range(100):
            values, vectors = np.linalg.eigh(nearest + 0.3 * random_symmetric(rng.integers(2**31), 3))
            other = (vectors * np.maximum(values, 0.5)) @ vectors.T
            # Obtuse angle at the projection: <C - P, X - P> <= 0 for every feasible X.
            assert np.sum((matrix - nearest) * (other - nearest)) <= 1e-12
            assert np.linalg.norm(other - matrix) >= np.linalg.norm(nearest - matrix) - 1e-12


def test_symmetric_against_a_brute_force_minimum_in_two_dimensions():
    matrix = np.array([[0.2, 0.9], [0.9, -0.6]])
    nearest = np.asarray(project(Symmetric(jnp.asarray(matrix)), 0.5).matrix)

    def distance(parameters):
        # X - 0.5 I = L L' covers every feasible X.
        lower = np.array([[parameters[0], 0.0], [parameters[1], parameters[2]]])
        return np.sum((lower @ lower.T + 0.5 * np.eye(2) - matrix) ** 2)

    found = min(
        (optimize.minimize(distance, start, tol=1e-14) for start in np.random.default_rng(0).normal(size=(5, 3))),
        key=lambda result: result.fun,
    )
    assert np.sum((nearest - matrix) ** 2) == pytest.approx(found.fun, rel=1e-8)
    lower = np.array([[found.x[0], 0.0], [found.x[1], found.x[2]]])
    np.testing.assert_allclose(nearest, lower @ lower.T + 0.5 * np.eye(2), atol=1e-5)


def test_feasible_scales_come_back_bit_for_bit():
    for seed in range(5):
        factor = np.random.default_rng(seed).normal(size=(4, 4))
        matrix = factor @ factor.T
        matrix = (matrix + matrix.T) / 2 + 0.6 * np.eye(4)
        np.testing.assert_array_equal(project(Symmetric(jnp.asarray(matrix)), 0.5).matrix, matrix)
    diagonal = jnp.asarray([0.5, 0.7, 100.0])
    np.testing.assert_array_equal(project(Diagonal(diagonal), 0.5).diagonal, diagonal)


def test_diagonal_and_low_rank_raise_their_entries():
    diagonal = jnp.asarray([-2.0, 0.1, 0.5, 3.0])
    expected = [0.5, 0.5, 0.5, 3.0]
    np.testing.assert_array_equal(project(Diagonal(diagonal), 0.5).diagonal, expected)
    factor = jnp.asarray([[1.0], [-2.0], [0.0], [0.3]])
    result = project(LowRank(diagonal, factor), 0.5)
    np.testing.assert_array_equal(result.diagonal, expected)
    np.testing.assert_array_equal(result.factor, factor)
    assert np.linalg.eigvalsh(np.asarray(result.covariance()))[0] >= 0.25


def test_works_under_vmap():
    matrices = jnp.stack([jnp.asarray(random_symmetric(seed, 3)) for seed in range(4)] + [2 * jnp.eye(3)])
    together = jax.vmap(lambda m: project_nondegenerate(Symmetric(m), 0.5).matrix)(matrices)
    for matrix, result in zip(matrices, together, strict=True):
        np.testing.assert_allclose(result, project(Symmetric(matrix), 0.5).matrix, atol=1e-13)


def test_triangular_is_refused():
    with pytest.raises(TypeError, match="not a convex set.*ProxSGD"):
        project_nondegenerate(Triangular(jnp.eye(2)), 0.5)


def _dykstra(loc, matrix, smallest, centre, radius, level, factor):
    """Dykstra's alternating projections in NumPy, in coordinates where the norm is Euclidean."""
    root, eye = np.sqrt(factor), np.eye(len(loc))
    x = [loc - centre, (matrix - level * eye) / root]
    corrections = [[np.zeros_like(part) for part in x] for _ in range(2)]

    def on_scales(m, c):
        values, vectors = np.linalg.eigh(c * root + level * eye)
        return [m, ((vectors * np.maximum(values, smallest)) @ vectors.T - level * eye) / root]

    def on_ball(m, c):
        shrink = min(1.0, radius / np.sqrt((m**2).sum() + (c**2).sum()))
        return [shrink * m, shrink * c]

    for _ in range(1000):
        for project, correction in zip((on_scales, on_ball), corrections, strict=True):
            shifted = [part + p for part, p in zip(x, correction, strict=True)]
            x = project(*shifted)
            correction[:] = [s - part for s, part in zip(shifted, x, strict=True)]
    return x[0] + centre, x[1] * root + level * eye


@pytest.mark.parametrize("level", [0.0, 0.5, 2.0])  # below, on and above the smallest scale
@pytest.mark.parametrize("factor", [1.0, 0.2])
def test_projection_on_a_ball_of_w_m_is_dykstras(level, factor):
    rng = np.random.default_rng(5)
    smallest = 0.5
    composed = 0.0
    on_both = jax.jit(project_nondegenerate_ball)
    for _ in range(4):
        noise = rng.normal(size=(3, 3))
        loc, matrix, centre = 3 * rng.normal(size=3), noise + noise.T, rng.normal(size=3)
        radius = 1.2 * abs(smallest - level) * np.sqrt(3 / factor) + 0.3
        found = on_both(
            Point(jnp.asarray(loc), Symmetric(jnp.asarray(matrix))), smallest, centre, radius, level, factor
        )
        expected = _dykstra(loc, matrix, smallest, centre, radius, level, factor)
        np.testing.assert_allclose(found.loc, expected[0], atol=1e-6)
        np.testing.assert_allclose(found.scale.matrix, expected[1], atol=1e-6)
        # The other order: raised first, then drawn to the centre.
        first = np.asarray(project_nondegenerate(Symmetric(jnp.asarray(matrix)), smallest).matrix)
        length = np.sqrt(((loc - centre) ** 2).sum() + ((first - level * np.eye(3)) ** 2).sum() / factor)
        composed = max(composed, np.abs(centre + min(1, radius / length) * (loc - centre) - expected[0]).max())
    # About a point of the edge, W_M is a cone, for which the order does not matter.
    assert (composed > 1e-2) == (level != smallest)


def test_projection_on_a_ball_of_w_m_leaves_its_points_alone_and_knows_diagonals():
    inside = Point(jnp.asarray([0.1, -0.2]), Symmetric(jnp.asarray([[1.0, 0.1], [0.1, 0.8]])))
    found = project_nondegenerate_ball(inside, 0.5, jnp.zeros(2), 5.0)
    np.testing.assert_array_equal(found.loc, inside.loc)
    np.testing.assert_allclose(found.scale.matrix, inside.scale.matrix, atol=1e-14)
    far = jnp.asarray([3.0, -2.0])
    diagonal = project_nondegenerate_ball(Point(far, Diagonal(jnp.asarray([2.0, -1.0]))), 0.5, jnp.zeros(2), 1.5)
    full = project_nondegenerate_ball(Point(far, Symmetric(jnp.diag(jnp.asarray([2.0, -1.0])))), 0.5, jnp.zeros(2), 1.5)
    np.testing.assert_allclose(diagonal.loc, full.loc, atol=1e-13)
    np.testing.assert_allclose(jnp.diag(diagonal.scale.diagonal), full.scale.matrix, atol=1e-13)
    size = float(jnp.sum(diagonal.loc**2) + jnp.sum(diagonal.scale.diagonal**2))
    assert size == pytest.approx(1.5**2)
    with pytest.raises(Exception, match="radius is too small"):
        project_nondegenerate_ball(inside, 0.5, jnp.zeros(2), 0.7)
    with pytest.raises(TypeError, match="use Symmetric or Diagonal"):
        project_nondegenerate_ball(Point(far, Triangular(jnp.eye(2))), 0.5, jnp.zeros(2), 5.0)
