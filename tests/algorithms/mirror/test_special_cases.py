"""Rows of the papers' table on vectors and the simplex: each method by hand and as an assembly of the iteration."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from provi.algorithms import Penalty, ProximalGradient, Split
from provi.families import Diagonal
from provi.families.exponential import (
    Categorical,
    Coordinates,
    UnitGaussian,
)
from provi.geometry import prox_negative_entropy
from provi.geometry.divergences import KL, Euclidean, ReverseKL
from provi.runtime import minimise_split

RNG = np.random.default_rng(0)
DESIGN, RESPONSE = RNG.normal(size=(12, 3)), RNG.normal(size=12)
START, STEPS = np.array([0.5, -1.0, 2.0]), 6
EXACT = {"rtol": 1e-11, "atol": 1e-12}


class LeastSquares(eqx.Module):
    """f(w) = |X w - y|^2 / 2; its stochastic gradient uses four rows, scaled by N / M."""

    design: jax.Array
    response: jax.Array

    def __call__(self, w):
        return 0.5 * jnp.sum((self.design @ w - self.response) ** 2)


class BatchGradient(eqx.Module):
    problem: LeastSquares

    def __call__(self, w, key):
        rows = jax.random.choice(key, 12, (4,), replace=False)
        design, response = self.problem.design[rows], self.problem.response[rows]
        return 3 * design.T @ (design @ w - response)


PROBLEM = LeastSquares(jnp.asarray(DESIGN), jnp.asarray(RESPONSE))


def slope_by_hand(w):
    return DESIGN.T @ (DESIGN @ w - RESPONSE)


def run(family, divergence, split, step_size, start, coordinates="mean", steps=STEPS, seed=None):
    method, space = ProximalGradient(divergence, step_size), Coordinates(family, coordinates)
    return minimise_split(split, space, start, method, num_steps=steps, seed=seed, keep_path=True)


@pytest.mark.parametrize("divergence", [Euclidean(), KL(), ReverseKL()], ids=lambda d: type(d).__name__)
def test_gradient_descent(divergence):
    """h = 0, Euclidean. In the family N(w, I) both KL divergences are Euclidean, so they give it as well."""
    coordinates = "natural" if isinstance(divergence, ReverseKL) else "mean"
    answer = run(UnitGaussian(3), divergence, Split(PROBLEM), 0.02, START, coordinates)
    w = START.copy()
    for k in range(STEPS):
        np.testing.assert_allclose(answer.path[k], w, **EXACT)
        w = w - 0.02 * slope_by_hand(w)
    np.testing.assert_allclose(answer.last, w, **EXACT)
    np.testing.assert_allclose(answer.measured_alpha, 1.0, rtol=1e-12)
    eigenvalues = np.linalg.eigvalsh(DESIGN.T @ DESIGN)
    assert np.all(answer.measured_smoothness <= eigenvalues[-1] * (1 + 1e-12))
    assert np.all(answer.measured_smoothness >= eigenvalues[0])


def test_stochastic_gradient_descent():
    """h = 0, Euclidean, mini-batches, a schedule that falls; the batch of step k comes from fold_in(key, k)."""
    key = jax.random.split(jax.random.key(3))[0]  # the other half is for records
    split = Split(PROBLEM, BatchGradient(PROBLEM))
    answer = run(UnitGaussian(3), Euclidean(), split, lambda k: 0.02 / (k + 1.0), START, seed=3)
    w = START.copy()
    choose = jax.jit(lambda k: jax.random.choice(jax.random.fold_in(key, k), 12, (4,), replace=False))
    for k in range(STEPS):
        rows = np.asarray(choose(k))
        w = w - 0.02 / (k + 1) * 3 * DESIGN[rows].T @ (DESIGN[rows] @ w - RESPONSE[rows])
    np.testing.assert_allclose(answer.last, w, **EXACT)
    assert answer.measured_smoothness is None
    assert answer.objective.shape == (STEPS + 1,)


def soft_threshold(v, beta):
    return jnp.sign(v) * jnp.maximum(jnp.abs(v) - 1.5 * beta, 0)


def one_norm(w):
    return 1.5 * jnp.sum(jnp.abs(w))


def test_proximal_gradient_with_soft_thresholding():
    answer = run(UnitGaussian(3), Euclidean(), Split(PROBLEM, penalty=Penalty(one_norm, soft_threshold)), 0.03, START)
    w = START.copy()
    for _ in range(STEPS):
        v = w - 0.03 * slope_by_hand(w)
        w = np.sign(v) * np.maximum(np.abs(v) - 1.5 * 0.03, 0)
    np.testing.assert_allclose(answer.last, w, **EXACT)
    value = 0.5 * np.sum((DESIGN @ w - RESPONSE) ** 2) + 1.5 * np.abs(w).sum()
    np.testing.assert_allclose(answer.objective[-1], value, rtol=1e-12)
    assert np.all(np.diff(answer.objective) < 0)


def negative_entropy(w):
    return -jnp.sum(jnp.log(w[2:]))


def entropy_prox(v, beta):
    return jnp.concatenate([v[:2], prox_negative_entropy(Diagonal(v[2:]), beta).diagonal])


def gaussian_energy(w):
    """E of a Gaussian potential under N(m, diag c^2): what Prox-SGD linearises."""
    precision = jnp.asarray([2.0, 0.5])
    return 0.5 * jnp.sum(precision * ((w[:2] - 1) ** 2 + w[2:] ** 2))


def test_prox_sgd_with_the_entropy():
    """Paper 003's proximal step: location as it is, scale c <- (c + sqrt(c^2 + 4 beta)) / 2."""
    split = Split(gaussian_energy, penalty=Penalty(negative_entropy, entropy_prox))
    start = np.array([0.0, 3.0, 0.2, 1.5])
    answer = run(UnitGaussian(4), Euclidean(), split, 0.3, start)
    m, c, precision = start[:2], start[2:], np.array([2.0, 0.5])
    for _ in range(STEPS):
        m, c = m - 0.3 * precision * (m - 1), c - 0.3 * precision * c
        c = (c + np.sqrt(c**2 + 4 * 0.3)) / 2
    np.testing.assert_allclose(answer.last, np.concatenate([m, c]), **EXACT)


def linear_cost(p):
    """A cost on the simplex in the free coordinates, <c, p> with the last outcome eliminated, plus a quadratic."""
    whole = jnp.append(p, 1 - jnp.sum(p))
    return whole @ jnp.asarray([1.0, -0.5, 0.3, 0.0]) + jnp.sum(whole**2)


def test_mirror_descent_is_exponentiated_gradient_on_the_simplex():
    """h = 0, KL in the mean parameter: p <- p exp(-beta g), normalised."""
    start = np.array([0.1, 0.2, 0.3])
    answer = run(Categorical(4), KL(), Split(linear_cost), 0.4, start)
    p = np.append(start, 0.4)
    for _ in range(STEPS):
        p = p * np.exp(-0.4 * (np.array([1.0, -0.5, 0.3, 0.0]) + 2 * p))
        p = p / p.sum()
    np.testing.assert_allclose(answer.last, p[:-1], **EXACT)
    assert np.all(answer.measured_alpha >= 2)


def test_mirror_descent_with_the_log_partition():
    """h = 0, Bregman of A in natural parameters: the mean parameter moves, mu <- mu - beta g."""

    def cost(natural):
        return jnp.sum(jax.nn.softplus(natural)) - 0.3 * jnp.sum(natural)

    start = np.array([0.2, -0.4])
    answer = run(Categorical(3), ReverseKL(), Split(cost), 0.1, start, "natural")
    natural = start.copy()
    for _ in range(STEPS):
        mean = np.exp(natural) / (1 + np.exp(natural).sum())
        mean = mean - 0.1 * (special.expit(natural) - 0.3)
        natural = np.log(mean) - np.log(1 - mean.sum())
    np.testing.assert_allclose(answer.last, natural, **EXACT)
