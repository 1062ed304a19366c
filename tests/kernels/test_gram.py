"""Gram matrices in finite precision: symmetry, diagonal, equal points, definiteness, extreme length scales."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.kernels import Constant, Matern12, Matern32, Matern52, Periodic, SquaredExponential, White

STATIONARY = [SquaredExponential, Matern12, Matern32, Matern52, Periodic]


@eqx.filter_jit
def gram(kernel, X, Z=None):
    return kernel.matrix(X, Z)


def points(num=61, seed=0):
    """Points in 19 columns (a block of sixteen and three more), far from the origin, some of them equal."""
    X = np.random.default_rng(seed).normal(size=(num, 19)) / 3 + 100.0
    X[num // 2 : num // 2 + 4] = X[:4]
    return X


@pytest.mark.parametrize("kind", STATIONARY)
@pytest.mark.parametrize("length_scale", [0.7, np.full(19, 0.7)], ids=["one", "ARD"])
def test_equal_points_have_equal_rows_and_variance_a_squared(kind, length_scale):
    matrix = np.asarray(gram(kind(length_scale, amplitude=1.3), jnp.asarray(points())))
    variance = np.float64(1.3) ** 2
    assert (np.diag(matrix) == variance).all()
    first, half = np.arange(4), len(matrix) // 2
    np.testing.assert_array_equal(matrix[half + first], matrix[first])
    assert (matrix[half + first, first] == variance).all()


@pytest.mark.parametrize("kind", STATIONARY)
def test_near_points_keep_their_distance(kind):
    # 1e-6 apart at distance 100 from the origin: |x|^2 + |z|^2 - 2 x'z = 1e-12 would drown in rounding of 1e-11.
    X = jnp.asarray(np.full((1, 19), 100.0))
    Z = X.at[0, 3].add(1e-6)
    gap = float(Z[0, 3] - X[0, 3])
    tiny = kind(gap, amplitude=1.0)
    expected = float(kind(1.0, amplitude=1.0).matrix(jnp.zeros((1, 1)), jnp.ones((1, 1)))[0, 0])
    if kind is not Periodic:
        assert float(gram(tiny, X, Z)[0, 0]) == pytest.approx(expected, rel=1e-12)
        assert float(gram(kind(np.full(19, gap)), X, Z)[0, 0]) == pytest.approx(expected, rel=1e-12)
    else:
        periodic = Periodic(gap, 2.0)
        chord = 2 * np.sin(np.pi * gap / 2) ** 2 / gap**2
        # The phase on the circle is rounded at 1e-16, which is 1e-10 of the gap.
        assert float(gram(periodic, X, Z)[0, 0]) == pytest.approx(np.exp(-chord), rel=1e-8)


@pytest.mark.parametrize("kind", STATIONARY)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_extreme_length_scales(kind, dtype):
    X = jnp.asarray(np.random.default_rng(1).normal(size=(30, 2)), dtype)
    np.testing.assert_array_equal(gram(kind(1e-6, amplitude=1.3), X), np.eye(30) * np.asarray(1.3, dtype) ** 2)
    flat = np.asarray(gram(kind(1e6, amplitude=1.3), X), np.float64)
    np.testing.assert_allclose(flat, 1.3**2, rtol=2e-5)
    eigenvalues = np.linalg.eigvalsh(flat)
    assert eigenvalues[-2] <= 1e-5 * eigenvalues[-1] and np.isfinite(flat).all()
    gradient = eqx.filter_jit(eqx.filter_grad(lambda kernel, X: jnp.sum(kernel.matrix(X))))
    assert np.isfinite([gradient(kind(scale), X).length_scale for scale in (1e-6, 1e6)]).all()


def test_a_length_scale_whose_square_underflows():
    X = jnp.asarray([[0.0], [0.0], [1.0]], jnp.float32)
    expected = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(gram(SquaredExponential(1e-25), X), expected)


def test_white_noise_is_not_shared_by_equal_points_and_not_between_tables():
    X = jnp.ones((4, 2))
    np.testing.assert_array_equal(gram(White(0.5), X), 0.25 * np.eye(4))
    np.testing.assert_array_equal(gram(White(0.5), X, X), np.zeros((4, 4)))
    np.testing.assert_array_equal(gram(Constant(0.5), X, X[:2]), np.full((4, 2), 0.25))


def test_one_point_and_one_column():
    np.testing.assert_array_equal(gram(Matern52(0.1, 3.0), jnp.zeros((1, 1))), [[9.0]])


@pytest.mark.parametrize("length_scale", [16.0, np.full(256, 16.0)], ids=["one", "ARD"])
def test_no_array_over_points_points_columns(length_scale):
    X, kernel = jnp.zeros((300, 256)), SquaredExponential(length_scale)
    one_matrix, full_tensor = 300 * 300 * 8, 300 * 300 * 256 * 8

    def total(kernel, X):
        return jnp.sum(kernel.matrix(X) ** 2)

    for function in (total, jax.grad(total, argnums=(0, 1))):
        memory = jax.jit(function).lower(kernel, X).compile().memory_analysis()
        assert memory.temp_size_in_bytes < 20 * one_matrix < full_tensor
