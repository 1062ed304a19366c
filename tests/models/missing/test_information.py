"""The information against automatic differentiation, Louis's formula by quadrature, and complete data's closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.models.missing import information as module
from provi.models.missing.conditional import (
    Parameters,
    Rows,
    condition_patterns,
    condition_rows,
    flatten_parameters,
    make_rows,
    unflatten_parameters,
)
from provi.models.missing.estimation import coefficient_covariance, parameter_covariance, standard_errors
from provi.models.missing.information import empirical_information, louis_information
from provi.models.missing.likelihood import log_likelihood


def make_problem(num_rows: int, p: int, share: float, seed: int = 0) -> tuple[Parameters, Rows]:
    random = np.random.default_rng(seed)
    root = random.normal(size=(p, p)) / np.sqrt(p) + 0.7 * np.eye(p)
    mean, coefficients = random.normal(size=p), random.normal(size=p + 1)
    X = mean + random.normal(size=(num_rows, p)) @ root.T
    chance = 1 / (1 + np.exp(-coefficients[0] - X @ coefficients[1:]))
    labels = np.where(random.uniform(size=num_rows) < chance, 1.0, -1.0)
    X[random.uniform(size=X.shape) < share] = np.nan
    X[0], X[1] = np.nan, 1.0  # a row without any entry, and a complete one
    parameters = Parameters(jnp.asarray(coefficients), jnp.asarray(mean), jnp.asarray(root @ root.T))
    return parameters, make_rows(X, labels)


@jax.jit
def negative_hessian(vector, rows):
    return -jax.hessian(lambda v: log_likelihood(unflatten_parameters(v, rows.values.shape[1]), rows))(vector)


@jax.jit
def row_scores(vector, rows):
    """The gradients of the rows' log-likelihoods, one at a time."""

    def one(place):
        return jax.grad(lambda v: log_likelihood(unflatten_parameters(v, rows.values.shape[1]), rows.take(place)))(
            vector
        )

    return jax.vmap(one)(jnp.arange(rows.labels.shape[0])[:, None])


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found) - np.asarray(expected)).max() / np.abs(np.asarray(expected)).max())


@pytest.fixture(scope="module")
def problem():
    return make_problem(60, 3, 0.4)


def test_vector_and_parameters_are_inverse_to_each_other(problem):
    parameters, _ = problem
    vector = flatten_parameters(parameters)
    assert vector.shape == (4 + 3 + 6,)
    back = unflatten_parameters(vector, 3)
    for found, expected in zip(jax.tree.leaves(back), jax.tree.leaves(parameters), strict=True):
        np.testing.assert_array_equal(found, expected)
    # Row by row: Omega_00, Omega_10, Omega_11, Omega_20, ...
    np.testing.assert_array_equal(vector[7:10], parameters.covariance[jnp.array([0, 1, 1]), jnp.array([0, 0, 1])])


def test_louis_is_minus_the_second_derivative_at_and_away_from_the_maximum(problem):
    parameters, rows = problem
    best = flatten_parameters(parameters)
    for _ in range(12):  # Newton's method
        information = np.asarray(louis_information(unflatten_parameters(best, 3), rows))
        best = best + jnp.asarray(np.linalg.solve(information, np.asarray(row_scores(best, rows)).sum(axis=0)))
    assert np.abs(np.asarray(row_scores(best, rows)).sum(axis=0)).max() < 1e-8
    best = unflatten_parameters(best, 3)
    far = Parameters(parameters.coefficients * 3, parameters.mean - 1, parameters.covariance + jnp.eye(3))
    for point in (parameters, best, far):
        found = louis_information(point, rows)
        assert relative_error(found, negative_hessian(flatten_parameters(point), rows)) < 1e-12
        np.testing.assert_array_equal(found, found.T)
    # Only at a maximum must it be positive definite.
    assert np.linalg.eigvalsh(louis_information(best, rows))[0] > 0
    assert np.linalg.eigvalsh(louis_information(far, rows))[0] < 0


def test_louis_formula_by_quadrature_over_the_missing_entries():
    """E[complete information] - Var[complete score] summed over 60 x 60 nodes, for each pattern of two columns."""
    parameters, _ = make_problem(2, 2, 0.0, seed=3)
    X = np.array([[0.3, np.nan], [np.nan, -0.4], [np.nan, np.nan], [1.0, 0.2], [-1.0, np.nan]])
    rows = make_rows(X, np.array([1.0, -1.0, 1.0, -1.0, -1.0]))
    vector = flatten_parameters(parameters)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = jnp.asarray(np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2))
    weights = jnp.asarray(np.outer(weights, weights).reshape(-1))

    def complete(v, z, label):
        point = unflatten_parameters(v, 2)
        eta = point.coefficients[0] + point.coefficients[1:] @ z
        # Two columns: the determinant and the inverse of Omega written out.
        (a, b), (_, c) = point.covariance
        x, y = z - point.mean
        determinant = a * c - b**2
        gauss = -0.5 * (c * x**2 - 2 * b * x * y + a * y**2) / determinant - 0.5 * jnp.log(determinant)
        return jax.nn.log_sigmoid(label * eta) + gauss

    @jax.jit
    def louis(mean, root, label):
        z = mean[None] + grid @ root.T
        eta = parameters.coefficients[0] + z @ parameters.coefficients[1:]
        law = weights * jax.nn.sigmoid(label * eta)
        law = law / law.sum()
        scores = jax.vmap(lambda z: jax.grad(complete)(vector, z, label))(z)
        hessian = jnp.einsum("g,gij->ij", law, jax.vmap(lambda z: jax.hessian(complete)(vector, z, label))(z))
        centre = law @ scores
        return -hessian - jnp.einsum("g,gi,gj->ij", law, scores, scores) + jnp.outer(centre, centre)

    patterns = condition_patterns(parameters, rows.patterns)
    law = condition_rows(parameters, patterns, rows)
    total = 0.0
    for i in range(5):
        values, vectors = np.linalg.eigh(np.asarray(patterns.covariance[rows.pattern[i]]))
        root = jnp.asarray(vectors * np.sqrt(np.maximum(values, 0)))
        total = total + louis(law.filled[i], root, rows.labels[i])
    # The ratios of core.logistic_normal_ratios are good to some 1e-9.
    assert relative_error(louis_information(parameters, rows), total) < 1e-7


def test_empirical_information_is_the_sum_of_squared_scores(problem):
    parameters, rows = problem
    scores = row_scores(flatten_parameters(parameters), rows)
    assert relative_error(empirical_information(parameters, rows), scores.T @ scores) < 1e-12

    loadings = jnp.asarray(np.random.default_rng(1).normal(size=(3, 2)))
    noise = jnp.asarray([0.5, 1.0, 0.3])

    def covariance(free):
        factors = free[:6].reshape(3, 2)
        return (factors @ factors.T + jnp.diag(free[6:]))[np.tril_indices(3)]

    low_rank = Parameters(parameters.coefficients, parameters.mean, loadings @ loadings.T + jnp.diag(noise))
    scores = row_scores(flatten_parameters(low_rank), rows)
    chain = jax.jacobian(covariance)(jnp.concatenate([loadings.reshape(-1), noise]))
    scores = jnp.concatenate([scores[:, :7], scores[:, 7:] @ chain], axis=1)
    assert relative_error(empirical_information(low_rank, rows, loadings), scores.T @ scores) < 1e-12


def test_blocks_of_rows_change_nothing(problem, monkeypatch):
    parameters, rows = problem
    # One more pattern, which no row has: another shape, so that the programs are traced again with the small blocks.
    masks = jnp.concatenate([rows.patterns, rows.patterns[:1]])
    again = Rows(rows.values, rows.labels, rows.pattern, masks)
    for function in (louis_information, empirical_information):
        whole = function(parameters, rows)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_NUMBERS_AT_ONCE", 128)  # some seven blocks; `apart` in the second function
            assert relative_error(function(parameters, again), whole) < 1e-13


def test_complete_data_have_the_closed_form():
    parameters, rows = make_problem(200, 3, 0.0, seed=7)
    X = np.asarray(rows.values).copy()
    X[0] = 0.5
    rows = make_rows(X, np.asarray(rows.labels))
    design, labels = np.concatenate([np.ones((200, 1)), X], axis=1), np.asarray(rows.labels)
    coefficients, covariance = np.zeros(4), np.eye(4)
    for _ in range(20):  # Newton's method for logistic regression; the last covariance is that at the maximum
        chance = 1 / (1 + np.exp(-design @ coefficients))
        covariance = np.linalg.inv(design.T @ ((chance * (1 - chance))[:, None] * design))
        coefficients = coefficients + covariance @ design.T @ ((labels + 1) / 2 - chance)
    S = np.cov(X.T, bias=True)
    best = Parameters(jnp.asarray(coefficients), jnp.asarray(X.mean(axis=0)), jnp.asarray(S))
    errors = standard_errors(louis_information(best, rows))
    np.testing.assert_allclose(errors[:4], np.sqrt(np.diag(covariance)), rtol=1e-8)
    np.testing.assert_allclose(errors[4:7], np.sqrt(np.diag(S) / 200), rtol=1e-6)
    row, column = np.tril_indices(3)
    wishart = (S[row, row] * S[column, column] + S[row, column] ** 2) / 200
    np.testing.assert_allclose(errors[7:], np.sqrt(wishart), rtol=1e-6)


def test_what_is_not_determined_is_nan():
    # The third parameter enters through its sum with the second only.
    map_ = np.array([[1.0, 0.0, 0.0], [0.3, 1.0, 1.0]])
    errors = standard_errors(map_.T @ map_)
    assert np.isfinite(errors[0]) and np.isnan(errors[1:]).all()
    np.testing.assert_allclose(errors[0], np.sqrt(np.linalg.pinv(map_.T @ map_)[0, 0]))
    assert np.isnan(parameter_covariance(np.diag([1.0, 2.0, -0.1]))).all()
    assert np.isnan(parameter_covariance(np.array([[1.0, 2.0], [2.0, 1.0]]))).all()
    assert np.isnan(parameter_covariance(np.full((2, 2), np.nan))).all()
    np.testing.assert_array_equal(np.isnan(standard_errors(np.diag([4.0, 0.0]))), [False, True])
    with pytest.raises(ValueError, match="square"):
        standard_errors(np.ones((2, 3)))


def test_rotations_of_the_loadings_leave_the_coefficients_errors():
    parameters, rows = make_problem(400, 5, 0.2, seed=8)
    loadings = jnp.asarray(np.random.default_rng(2).normal(size=(5, 2)))
    low_rank = Parameters(parameters.coefficients, parameters.mean, loadings @ loadings.T + jnp.eye(5))
    found = np.asarray(empirical_information(low_rank, rows, loadings))
    covariance = coefficient_covariance(found, 6)
    # Fixing one loading of a rank-two model takes away its one rotation, and must not matter to the coefficients.
    for fixed in (11, 14):
        rest = np.delete(np.delete(found, fixed, 0), fixed, 1)
        np.testing.assert_allclose(covariance, np.linalg.inv(rest)[:6, :6], rtol=1e-7)
    assert np.isnan(standard_errors(found)[11:21]).all()
    assert np.isfinite(standard_errors(found)[21:]).all()


def test_single_precision(problem):
    parameters, rows = problem
    small, few = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, problem)
    found = louis_information(small, few)
    assert found.dtype == jnp.float32
    assert relative_error(found, louis_information(parameters, rows)) < 1e-4
