"""What holds for every kernel: valid covariances, in its own precision, smooth, one program for all hyperparameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.contracts import assert_one_program, floating
from laws.members import KERNELS
from provi.kernels import log_parameters, parameter_names, with_log_parameters

by_row = pytest.mark.parametrize("name", KERNELS)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(9, 3))
X[6:] = X[:3]
Z = RNG.normal(size=(4, 3))
WEIGHTS = RNG.normal(size=(9, 9))


def make(name, number=1.0, columns=3):
    return KERNELS[name].make(number, columns)


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """Each program is run a few times."""


@eqx.filter_jit
def gram(kernel, X, Z=None):
    return kernel.matrix(X, Z)


def far_points(num=61):
    """Points in 19 columns (a block of sixteen and three more), far from the origin, some of them equal."""
    points = np.random.default_rng(0).normal(size=(num, 19)) / 3 + 100.0
    points[num // 2 : num // 2 + 4] = points[:4]
    return points


@by_row
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_symmetric_exact_diagonal_and_definite(name, dtype):
    points, kernel = far_points().astype(dtype), make(name, columns=19)
    matrix = gram(kernel, jnp.asarray(points))
    assert matrix.dtype == dtype
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), kernel.diagonal(points), rtol=20 * np.finfo(dtype).eps)
    smallest, *_, largest = np.linalg.eigvalsh(np.asarray(matrix, np.float64))
    assert smallest >= -4 * np.finfo(dtype).eps * largest


@by_row
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_everything_has_the_type_of_the_points(name, dtype):
    """Values and derivatives, whatever the user's global setting; the hyperparameters keep their digits."""
    points, others = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((9, 3), (4, 3)))
    with jax.enable_x64(dtype == np.float64):
        kernel = make(name)
        assert floating(kernel) == {np.dtype(np.float64)}
        shapes = [
            eqx.filter_eval_shape(kernel.matrix, points),
            eqx.filter_eval_shape(kernel.matrix, points, others),
            eqx.filter_eval_shape(kernel.diagonal, points),
            eqx.filter_eval_shape(jax.grad(lambda x: jnp.sum(kernel.matrix(x))), points),
        ]
    assert floating(shapes) == {np.dtype(dtype)}
    assert [shape.shape for shape in shapes] == [(9, 9), (9, 4), (9,), (9, 3)]


@by_row
def test_one_program_for_all_hyperparameters(name):
    assert_one_program(make(name, 1.0), make(name, 2.0))


@by_row
def test_the_hyperparameters_are_one_vector(name):
    kernel = make(name)
    names, vector = parameter_names(kernel), log_parameters(kernel)
    assert len(set(names)) == len(names) == vector.size and np.isfinite(vector).all()
    same, doubled = (with_log_parameters(kernel, jnp.asarray(vector + shift)) for shift in (0.0, np.log(2.0)))
    assert jax.tree.structure(doubled) == jax.tree.structure(kernel)
    np.testing.assert_allclose(log_parameters(same), vector, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(log_parameters(doubled), vector + np.log(2.0), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(gram(same, jnp.asarray(X)), gram(kernel, jnp.asarray(X)), rtol=1e-12, atol=1e-14)


def weighted_sum(kernel, vector, X, Z, weights):
    """A fixed linear function of the covariances."""
    return jnp.sum(weights * with_log_parameters(kernel, vector).matrix(X, Z))


value = eqx.filter_jit(weighted_sum)
# Batched over the points moved along each coordinate: one call for all finite differences.
moved_values = eqx.filter_jit(
    lambda kernel, vectors, Xs, Zs, weights: jax.vmap(
        lambda v, x, z: weighted_sum(kernel, v, x, z, weights), in_axes=(0, 0, None if Zs is None else 0)
    )(vectors, Xs, Zs)
)
within = eqx.filter_jit(jax.grad(weighted_sum, argnums=(1, 2)))
between = eqx.filter_jit(jax.grad(weighted_sum, argnums=(2, 3)))


def central_differences(kernel, vector, X, Z, weights, which, step=1e-5):
    """(f(x + h e) - f(x - h e)) / 2h for each entry: error h^2 f'''/6 + eps f/h, both about 1e-10 here."""
    arguments = [vector, X, Z]
    flat = np.asarray(arguments[which]).ravel()
    moves = np.concatenate([np.eye(flat.size), -np.eye(flat.size)]) * step
    stacked = [None if a is None else np.broadcast_to(a, (len(moves), *a.shape)) for a in arguments]
    stacked[which] = (flat + moves).reshape(len(moves), *arguments[which].shape)
    up, down = np.split(np.asarray(moved_values(kernel, *stacked, weights)), 2)
    return ((up - down) / (2 * step)).reshape(arguments[which].shape)


@by_row
def test_gradients_where_points_coincide(name):
    """X with itself: the diagonal, and the three points that occur twice, are at distance zero."""
    kernel, vector = make(name), log_parameters(make(name))
    in_parameters, in_points = within(kernel, jnp.asarray(vector), jnp.asarray(X), None, WEIGHTS)
    expected = central_differences(kernel, vector, X, None, WEIGHTS, 0)
    np.testing.assert_allclose(in_parameters, expected, rtol=1e-7, atol=1e-7)
    assert np.isfinite(in_points).all()
    if KERNELS[name].differentiable:
        expected = central_differences(kernel, vector, X, None, WEIGHTS, 1)
        np.testing.assert_allclose(in_points, expected, rtol=1e-7, atol=1e-7)


@by_row
def test_input_gradients_between_different_points(name):
    kernel, weights, vector = make(name), WEIGHTS[:5, :4], log_parameters(make(name))
    gradients = between(kernel, jnp.asarray(vector), jnp.asarray(X[:5]), jnp.asarray(Z), weights)
    for which, gradient in zip((1, 2), gradients, strict=True):
        expected = central_differences(kernel, vector, X[:5], Z, weights, which)
        np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-7)


@by_row
def test_batched_over_hyperparameters(name):
    vectors = np.stack([log_parameters(make(name, number)) for number in (1.0, 2.0)])
    tables = np.broadcast_to(X, (2, *X.shape))
    together = moved_values(make(name), vectors, tables, None, WEIGHTS)
    alone = [value(make(name), jnp.asarray(vector), jnp.asarray(X), None, WEIGHTS) for vector in vectors]
    np.testing.assert_allclose(together, alone, rtol=1e-10, atol=1e-12)
    assert abs(alone[0] - alone[1]) > 1e-9
