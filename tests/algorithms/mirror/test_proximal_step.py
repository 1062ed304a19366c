"""The proximal step against closed forms and SciPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from provi.algorithms import KLToPrior, Penalty
from provi.algorithms.mirror.step import damped_newton, proximal_step
from provi.families.exponential import (
    Bernoulli,
    Categorical,
    Coordinates,
    DiagonalGaussian,
    FullGaussian,
    Gamma,
    pack,
)
from provi.geometry.divergences import KL, Euclidean, ReverseKL, SymmetricKL

BETA = jnp.asarray(0.7)
MATRIX = np.array([[0.9, 0.3], [0.3, 0.5]])


def hidden_gaussian_prior(w):
    """KL of N(m, v) to N(0.2, 1), up to a constant, written out: the step must minimise it numerically."""
    return 0.5 * (w[1] + (w[0] - 0.2) ** 2 - jnp.log(w[1]))


def hidden_categorical_prior(w):
    """KL of a categorical distribution to the uniform one, up to a constant: its negative entropy."""
    whole = jnp.append(w, 1 - jnp.sum(w))
    return jnp.sum(whole * jnp.log(whole))


def zero(w):
    return 0 * jnp.sum(w)


def full_moments(mean, matrix):
    return jnp.concatenate([jnp.asarray(mean, jnp.float64), pack(jnp.asarray(matrix))])


GAUSSIAN, SIMPLEX = Coordinates(DiagonalGaussian(1), "moments"), Coordinates(Categorical(3), "mean")


@pytest.mark.parametrize(
    ("coordinates", "old", "prior", "disguise", "gradient"),
    [
        (GAUSSIAN, [0.5, 0.9], [0.2, -0.5], hidden_gaussian_prior, [0.3, 0.4]),
        (SIMPLEX, [0.2, 0.5], [0.0, 0.0], hidden_categorical_prior, [-0.6, 2.0]),
    ],
    ids=["gaussian-moments", "categorical-mean"],
)
def test_numerical_step_equals_the_closed_form(coordinates, old, prior, disguise, gradient):
    """The B-form and the natural-parameter average are what minimising the raw objective gives, to 1e-10."""

    @eqx.filter_jit
    def step(penalty):
        return proximal_step(coordinates, KL(), penalty, jnp.asarray(old), jnp.asarray(gradient), BETA)

    closed, found = step(KLToPrior(jnp.asarray(prior))), step(Penalty(disguise))
    np.testing.assert_allclose(found.w, closed.w, rtol=1e-10, atol=1e-10)
    assert bool(found.solved) and bool(closed.solved)
    assert 0 <= float(found.gap_bound) < 1e-13
    assert float(closed.gap_bound) == 0


def test_b_form_is_the_minimum():
    """In (m, V) the step's problem is strictly convex: its minimum is where the gradient, by hand, is zero.

    SciPy's BFGS, which knows nothing of Gaussians, finds no lower value.
    """
    prior, mean_slope, matrix_slope = np.array([0.0, 0.2]), np.array([0.3, -0.8]), np.array([[0.4, -0.1], [-0.1, 0.2]])
    mean_old, coordinates = np.array([0.5, -1.0]), Coordinates(FullGaussian(2), "moments")

    @jax.jit
    def step(old, prior, gradient):
        return proximal_step(coordinates, KL(), KLToPrior(coordinates.to_natural(prior)), old, gradient, BETA).w

    closed = np.asarray(
        step(full_moments(mean_old, MATRIX), full_moments(prior, np.eye(2)), full_moments(mean_slope, matrix_slope))
    )
    mean, covariance = closed[:2], np.array([[closed[2], closed[3] / 2**0.5], [closed[3] / 2**0.5, closed[4]]])
    precision, precision_old = np.linalg.inv(covariance), np.linalg.inv(MATRIX)
    in_mean = mean_slope + (mean - prior) + precision_old @ (mean - mean_old) / 0.7
    in_matrix = matrix_slope + (np.eye(2) - precision) / 2 + (precision_old - precision) / (2 * 0.7)
    np.testing.assert_allclose(in_mean, 0, atol=1e-13)
    np.testing.assert_allclose(in_matrix, 0, atol=1e-13)

    def divergence(mean, matrix, mean2, matrix2):
        ratio = np.linalg.solve(matrix2, matrix)
        shift = (mean - mean2) @ np.linalg.solve(matrix2, mean - mean2)
        return 0.5 * (np.trace(ratio) - 2 - np.log(np.linalg.det(ratio)) + shift)

    def problem(free):
        root = np.array([[np.exp(free[2]), 0], [free[3], np.exp(free[4])]])
        mean, matrix = free[:2], root @ root.T
        linear = mean @ mean_slope + np.sum(matrix * matrix_slope)
        return linear + divergence(mean, matrix, prior, np.eye(2)) + divergence(mean, matrix, mean_old, MATRIX) / 0.7

    root = np.linalg.cholesky(covariance)
    ours = np.array([*mean, np.log(root[0, 0]), root[1, 0], np.log(root[1, 1])])
    best = optimize.minimize(problem, np.zeros(5), method="BFGS", options={"gtol": 1e-7})
    assert problem(ours) <= best.fun + 1e-13
    np.testing.assert_allclose(ours, best.x, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "divergence", "name", "start", "gradient"),
    [
        (Gamma(), ReverseKL(), "natural", [2.0, -3.0], [0.2, -0.1]),
        (Bernoulli(2), Euclidean(), "natural", [0.3, -0.2], [0.4, 1.0]),
    ],
    ids=["gamma-mirror", "bernoulli-euclidean"],
)
def test_numerical_step_without_a_penalty(family, divergence, name, start, gradient):
    """A penalty of zero hides the closed form."""
    coordinates = Coordinates(family, name)

    @eqx.filter_jit
    def step(penalty):
        return proximal_step(coordinates, divergence, penalty, jnp.asarray(start), jnp.asarray(gradient), BETA)

    closed, found = step(None), step(Penalty(zero))
    np.testing.assert_allclose(found.w, closed.w, rtol=1e-10, atol=1e-10)
    assert float(found.gap_bound) < 1e-13


def test_symmetric_divergence_step_is_stationary():
    """No closed form: in one dimension the condition is g + (logit p - logit q + F^-1 (p - q)) / beta = 0."""
    coordinates, old, gradient = Coordinates(Bernoulli(1), "mean"), jnp.asarray([0.6]), jnp.asarray([1.3])
    found = jax.jit(lambda: proximal_step(coordinates, SymmetricKL(), None, old, gradient, BETA))()

    def condition(p):
        return 1.3 + (np.log(p / (1 - p)) - np.log(0.6 / 0.4) + (p - 0.6) / (p * (1 - p))) / 0.7

    np.testing.assert_allclose(found.w[0], optimize.brentq(condition, 1e-6, 1 - 1e-6, xtol=1e-15), rtol=1e-11)
    assert float(found.gap_bound) < 1e-13


def test_gap_bound_holds_with_a_penalty():
    """psi(w) - psi(w*) <= bound at 500 random points of the simplex, h = KL to a prior (bound: h convex only)."""
    coordinates, beta = Coordinates(Categorical(3), "mean"), BETA
    old, prior, gradient = jnp.asarray([0.2, 0.5]), jnp.asarray([0.4, -0.3]), jnp.asarray([0.5, -1.0])
    penalty = KLToPrior(prior)

    def problem(w):
        h = penalty.value(coordinates.family, coordinates.to_natural(w), w)
        return w @ gradient + h + KL().value(coordinates, w, old) / beta

    @jax.jit
    def compare(points):
        best = problem(proximal_step(coordinates, KL(), penalty, old, gradient, beta).w)
        bounds = jax.vmap(lambda w: KL().gap_bound(coordinates, w, old, jax.grad(problem)(w), beta))(points)
        return jax.vmap(problem)(points) - best, bounds

    gaps, bounds = compare(jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(3), size=500)[:, :2]))
    assert np.all(gaps >= -1e-12)
    assert np.all(gaps <= bounds + 1e-12)
    # The bound is tight up to the strong convexity that h adds, a factor 1 + beta, close to the minimum.
    near = np.argmin(gaps)
    assert bounds[near] <= 2.5 * gaps[near]


def test_damped_newton():
    """Rosenbrock's valley; a logarithm whose full step leaves its domain; a NaN at the start."""

    def valley(u):
        return 100 * (u[1] - u[0] ** 2) ** 2 + (1 - u[0]) ** 2

    answer = jax.jit(lambda u: damped_newton(valley, u))(jnp.asarray([-1.2, 1.0]))
    np.testing.assert_allclose(answer.point, 1.0, atol=1e-10)
    assert bool(answer.solved) and int(answer.steps) < 40
    barrier = jax.jit(lambda u: damped_newton(lambda x: jnp.sum(x - jnp.log(x)), u))
    answer = barrier(jnp.asarray([5.0, 1e-3]))
    np.testing.assert_allclose(answer.point, 1.0, atol=1e-8)
    assert bool(answer.solved)
    assert not bool(barrier(jnp.asarray([-1.0, 1.0])).solved)
