"""Quadratic surrogates against their formulae, and MISO and MISSO with them against iterates written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import MISO, MISSO
from provi.algorithms.incremental.quadratic_surrogate import QuadraticSurrogate
from provi.geometry import Ball, Box
from support.statistics import assert_mean

N, DIM, RIDGE = 6, 3, 0.2
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, DIM)), RNG.normal(size=N)
SMOOTHNESS = np.sum(X**2, axis=1) + RIDGE


def ridge_loss(theta, row):
    x, y = row
    return 0.5 * (x @ theta - y) ** 2 + 0.5 * RIDGE * jnp.sum(theta**2)


def noisy_loss(theta, row, draw):
    return ridge_loss(theta, row) + draw @ theta


def draw_noise(key, row):
    return jax.random.normal(key, (DIM,))


def ridge_gradients(theta):
    return (X @ theta - Y)[:, None] * X + RIDGE * theta


def by_hand(theta, batches, weights, projection=lambda x: x):
    """SAG-type iterates: points and gradients of every term, the visited ones replaced, the mean minimised."""
    points, slopes = np.tile(theta, (N, 1)), ridge_gradients(theta)
    for rows in batches:
        points[rows], slopes[rows] = theta, ridge_gradients(theta)[rows]
        theta = projection(np.sum(weights[:, None] * points - slopes, axis=0) / weights.sum())
    return theta


def visits(algorithm, surrogate, theta, batches, num_draws=1):
    state = algorithm.begin(jax.random.key(1), surrogate, jnp.asarray(theta))
    for k, rows in enumerate(batches):
        state = algorithm.visit(jax.random.key(k), surrogate, state, jnp.asarray(rows), num_draws)
    return state


@pytest.mark.parametrize(("weighted", "constraint"), [(True, None), (False, Box(-0.1, 0.15)), (True, Ball(0.05, 0.2))])
def test_ridge_regression_by_hand(weighted, constraint):
    weights = SMOOTHNESS if weighted else np.full(N, SMOOTHNESS.max())
    options = {"curvature": 1.0, "weights": weights} if weighted else {"curvature": SMOOTHNESS.max()}
    surrogate = QuadraticSurrogate(ridge_loss, (X, Y), **options)
    batches = [RNG.choice(N, 2, replace=False) for _ in range(15)]
    state = visits(MISO(sampling=2, constraint=constraint), surrogate, np.ones(DIM), batches)
    project = (lambda x: x) if constraint is None else lambda x: np.asarray(constraint.project(jnp.asarray(x)))
    np.testing.assert_allclose(state.parameters, by_hand(np.ones(DIM), batches, weights, project), rtol=1e-11)


def test_it_ends_at_the_solution():
    """All terms at once with the smoothness: gradient descent, linear convergence to the normal equations."""
    surrogate = QuadraticSurrogate(ridge_loss, (X, Y), curvature=float(np.linalg.norm(X.T @ X / N, 2)) + RIDGE)
    state = visits(MISO(sampling=N), surrogate, np.zeros(DIM), [np.arange(N)] * 150)
    solution = np.linalg.solve(X.T @ X / N + RIDGE * np.eye(DIM), X.T @ Y / N)
    np.testing.assert_allclose(state.parameters, solution, rtol=1e-6)


def tree_loss(parameters, row):
    linear = row[:2] @ parameters["a"] + row[2] * parameters["b"]
    return jax.nn.softplus(linear)  # Hessian at most row row'/4


def test_the_statistics_stand_for_the_surrogates():
    """The mean surrogate from the table is the sum written out; above the objective everywhere, equal where built."""
    curvature = {"a": jnp.asarray(1.0), "b": jnp.asarray(2.0)}
    scaled = X / np.sqrt([1.0, 1.0, 2.0])  # rows in the norm of D^-1
    weights = np.sum(scaled**2, axis=1) / 4
    surrogate = QuadraticSurrogate(tree_loss, X, curvature, weights=weights)
    built_at = [{"a": jnp.asarray(RNG.normal(size=2)), "b": jnp.asarray(RNG.normal())} for _ in range(N)]

    def rows_at(i, parameters):
        rows = jnp.asarray([i])
        prepared = surrogate.prepare(parameters, rows)
        return surrogate.build(parameters, rows, prepared, surrogate.expect(parameters, rows, prepared))

    table = [rows_at(i, at) for i, at in enumerate(built_at)]
    mean = jax.tree.map(lambda *rows: jnp.mean(jnp.stack(rows), axis=0)[0], *table)

    def written_out(theta):
        total = 0.0
        for i, at in enumerate(built_at):
            value, slope = jax.value_and_grad(tree_loss)(at, jnp.asarray(X[i]))
            da, db = np.asarray(theta["a"] - at["a"]), float(theta["b"] - at["b"])
            total += float(value) + np.asarray(slope["a"]) @ da + float(slope["b"]) * db
            total += weights[i] / 2 * (da @ da + 2 * db**2)
        return total / N

    for spread in (0.1, 1.0, 10.0):
        theta = {"a": jnp.asarray(spread * RNG.normal(size=2)), "b": jnp.asarray(spread * RNG.normal())}
        assert float(surrogate.value(mean, theta)) == pytest.approx(written_out(theta), rel=1e-11)
        objective = np.mean([float(tree_loss(theta, jnp.asarray(row))) for row in X])
        assert float(surrogate.value(mean, theta)) >= objective
    # A table of copies of one term: the surrogate touches its loss where it was built, and nowhere is below.
    alone = QuadraticSurrogate(tree_loss, X[2:3], curvature, weights=weights[2:3])
    built = MISO(sampling=1).begin(jax.random.key(0), alone, built_at[2]).mean
    assert float(alone.value(built, built_at[2])) == pytest.approx(float(tree_loss(built_at[2], jnp.asarray(X[2]))))
    best = surrogate.minimise(mean, built_at[0], None)
    slope = jax.grad(lambda theta: surrogate.value(mean, theta))(best)
    assert float(jnp.max(jnp.abs(slope["a"]))) < 1e-12 and abs(float(slope["b"])) < 1e-12
    # In a set: no feasible neighbour is better.
    for constraint in (Box(-0.1, 0.1), Ball(0.0, 0.3)):
        inside = surrogate.minimise(mean, built_at[0], constraint)
        for _ in range(20):
            near = jax.tree.map(lambda x: x + 0.05 * RNG.normal(size=np.shape(x)), inside)
            assert (
                float(surrogate.value(mean, constraint.project(near))) >= float(surrogate.value(mean, inside)) - 1e-13
            )


def test_draws_average_to_the_exact_surrogate():
    """400 tables of one visit with 20 draws a term: unbiased centres and constants."""
    surrogate = QuadraticSurrogate(noisy_loss, (X, Y), 10.0, sample=draw_noise, exact=ridge_loss)
    theta = jnp.asarray(np.ones(DIM))
    exact = MISO(sampling=N).begin(jax.random.key(0), surrogate, theta).mean
    algorithm = MISSO(sampling=N, num_draws=20)
    means = jax.vmap(lambda key: algorithm.begin(key, surrogate, theta).mean)(jax.random.split(jax.random.key(3), 400))
    assert_mean(means.centre, exact.centre)
    assert_mean(means.constant, exact.constant)
    spread = np.std(np.asarray(means.centre), axis=0, ddof=1)
    np.testing.assert_allclose(spread, 1 / (10 * np.sqrt(20 * N)), rtol=0.2)  # 400 runs: 3.5% a standard error


def test_without_draws_misso_is_miso():
    surrogate = QuadraticSurrogate(ridge_loss, (X, Y), SMOOTHNESS.max())
    batches = [np.array([k % N]) for k in range(8)]
    one, other = (visits(a, surrogate, np.ones(DIM), batches) for a in (MISO(sampling=1), MISSO(sampling=1)))
    np.testing.assert_allclose(one.parameters, other.parameters, rtol=1e-14)


def test_single_precision():
    data = (X.astype(np.float32), Y.astype(np.float32))
    surrogate = QuadraticSurrogate(ridge_loss, data, SMOOTHNESS.max())
    batches = [np.array([k % N]) for k in range(8)]
    state = visits(MISO(sampling=1), surrogate, np.ones(DIM, np.float32), batches)
    assert state.parameters.dtype == jnp.float32
    np.testing.assert_allclose(
        state.parameters, by_hand(np.ones(DIM), batches, np.full(N, SMOOTHNESS.max())), rtol=1e-4
    )


def test_bad_arguments():
    with pytest.raises(ValueError, match="curvature must hold positive"):
        QuadraticSurrogate(ridge_loss, (X, Y), -1.0)
    with pytest.raises(ValueError, match="weights must be 6 positive"):
        QuadraticSurrogate(ridge_loss, (X, Y), 1.0, weights=np.ones(5))
    with pytest.raises(ValueError, match="data must be arrays"):
        QuadraticSurrogate(ridge_loss, (X, Y[:-1]), 1.0)
    surrogate = QuadraticSurrogate(noisy_loss, (X, Y), 1.0, sample=draw_noise)
    with pytest.raises(ValueError, match="give it exact="):
        MISO(sampling=1).begin(jax.random.key(0), surrogate, jnp.ones(DIM))
