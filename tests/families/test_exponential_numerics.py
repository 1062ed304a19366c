"""Special functions, numerical inverses, samples, the constants alpha and single precision of exponential families."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from laws.members import EXPONENTIAL as FAMILIES
from provi.families.exponential import (
    BERNOULLI_ALPHA,
    PAPER_BERNOULLI_ALPHA,
    PAPER_MULTINOMIAL_ALPHA,
    Dirichlet,
    Gamma,
    categorical_alpha,
    gaussian_moments_alpha,
    least_fisher_eigenvalue,
)
from provi.families.exponential.dirichlet import inverse_digamma
from provi.families.exponential.gamma import polygamma
from support.statistics import assert_mean

by_family = pytest.mark.parametrize("name", FAMILIES)


def members(name, seed=0):
    """A random member, from unconstrained coordinates of order one."""
    family = FAMILIES[name]
    free = np.random.default_rng(seed).normal(size=family.size)
    return jax.jit(family.from_unconstrained)(jnp.asarray(free))


def full_members(seed):
    rng = np.random.default_rng(seed)
    root = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
    return rng.normal(size=3), root @ root.T


@by_family
def test_samples_have_the_mean_parameter(name):
    """One z-test an entry of T(x), at most 8 x 9 of them with alarm rate 1e-6 each: 1e-4 for the whole file."""
    family, natural = FAMILIES[name], members(name, 3)

    @jax.jit
    def draw(key):
        draws = family.sample(key, natural, 20000)
        return jax.vmap(family.statistic)(draws), family.mean_from_natural(natural)

    statistics, mean = draw(jax.random.key(0))
    for entry in range(family.size):
        assert_mean(np.asarray(statistics[:, entry]), float(mean[entry]))


def test_polygamma_equals_scipy():
    x = np.logspace(-8, 8, 200)
    for order in range(4):
        found = jax.jit(polygamma, static_argnums=0)(order, jnp.asarray(x))
        np.testing.assert_allclose(found, special.polygamma(order, x), rtol=1e-14, atol=4e-15 * (order == 0))
    slope = jax.jit(jax.vmap(jax.grad(lambda y: polygamma(1, y))))(jnp.asarray(x))
    np.testing.assert_allclose(slope, special.polygamma(2, x), rtol=1e-14)


def test_gamma_and_dirichlet_inverses_over_many_decades():
    """Mean parameters come back to 1e-12 for concentrations of 1e-6 to 1e8; SciPy's digamma is the judge."""
    shapes = np.logspace(-6, 8, 57)
    means = np.stack([special.digamma(shapes) - np.log(2.3), shapes / 2.3], axis=1)
    found = np.asarray(jax.jit(jax.vmap(Gamma().natural_from_mean))(jnp.asarray(means)))
    again = np.stack([special.digamma(found[:, 0]) - np.log(-found[:, 1]), -found[:, 0] / found[:, 1]], axis=1)
    np.testing.assert_allclose(again, means, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[:29, 0], shapes[:29], rtol=1e-12)  # shapes up to 10: well conditioned

    values = np.concatenate([-np.logspace(7, -2, 50), np.linspace(-2.3, -2.1, 21), np.logspace(-2, 1.3, 20)])
    roots = np.asarray(jax.jit(inverse_digamma)(jnp.asarray(values)))
    np.testing.assert_allclose(special.digamma(roots), values, rtol=1e-13, atol=1e-13)

    rng = np.random.default_rng(0)
    spread = np.repeat([0.5, 2.0, 4.0], 60)[:, None]
    concentrations = np.exp(spread * rng.normal(size=(180, 4)) + 3 * rng.normal(size=(180, 1)))
    means = special.digamma(concentrations) - special.digamma(concentrations.sum(1, keepdims=True))
    found = np.asarray(jax.jit(jax.vmap(Dirichlet(4).natural_from_mean))(jnp.asarray(means)))
    again = special.digamma(found) - special.digamma(found.sum(1, keepdims=True))
    np.testing.assert_allclose(again, means, rtol=1e-12, atol=1e-12)


def test_numerical_inverse_has_second_derivatives():
    """The derivative of the inverse Fisher matrix along a direction, by differences of the first derivative."""
    inverse = Gamma().natural_from_mean
    mean, direction = np.array([-0.9, 0.8]), np.array([0.3, -0.5])
    first = jax.jit(jax.jacfwd(inverse))
    second = jax.jit(lambda m, d: jax.jvp(jax.jacfwd(inverse), (m,), (d,))[1])(
        jnp.asarray(mean), jnp.asarray(direction)
    )
    up, down = first(jnp.asarray(mean + 1e-5 * direction)), first(jnp.asarray(mean - 1e-5 * direction))
    np.testing.assert_allclose(second, (np.asarray(up) - np.asarray(down)) / 2e-5, rtol=1e-6)


def test_alpha_of_bernoulli_and_multinomial_in_the_mean_parameter():
    """(p - q)'(lambda_p - lambda_q) >= alpha |p - q|^2 on random pairs, and the constants cannot be raised."""
    rng = np.random.default_rng(0)
    p, q = rng.uniform(size=(2, 20000))
    ratio = (special.logit(p) - special.logit(q)) / (p - q)
    assert ratio.min() >= BERNOULLI_ALPHA > PAPER_BERNOULLI_ALPHA
    assert (special.logit(0.5 + 1e-4) - special.logit(0.5)) / 1e-4 < BERNOULLI_ALPHA * (1 + 1e-6)
    for outcomes in (2, 3, 5):
        p, q = rng.dirichlet(0.5 * np.ones(outcomes), size=(2, 20000))
        p, q = (0.999 * x + 0.001 / outcomes for x in (p, q))
        change = (p - q)[:, :-1]
        natural = np.log(p[:, :-1] / p[:, -1:]) - np.log(q[:, :-1] / q[:, -1:])
        ratio = (change * natural).sum(1) / (change**2).sum(1)
        assert ratio.min() >= categorical_alpha(outcomes) > PAPER_MULTINOMIAL_ALPHA
    p, q = np.array([0.5, 0.5 - 1e-7, 1e-7]), np.array([0.499, 0.501 - 1e-7, 1e-7])
    natural = np.log(p[:-1] / p[-1]) - np.log(q[:-1] / q[-1])
    assert (p - q)[:-1] @ natural / ((p - q)[:-1] ** 2).sum() < 2 * (1 + 1e-4)


def test_alpha_of_a_gaussian_in_the_moments():
    """For KL in (m, V), with the largest eigenvalue of both covariances as 1/tau; nearly attained in one dimension."""
    worst = np.inf
    for seed in range(300):
        (m1, v1), (m2, v2) = full_members(2 * seed), full_members(2 * seed + 1)
        tau = 1 / max(np.linalg.eigvalsh(v1)[-1], np.linalg.eigvalsh(v2)[-1])
        inner = (m1 - m2) @ np.linalg.solve(v2, m1 - m2)
        inner += 0.5 * np.trace((v1 - v2) @ (np.linalg.inv(v2) - np.linalg.inv(v1)))
        length = ((m1 - m2) ** 2).sum() + ((v1 - v2) ** 2).sum()
        worst = min(worst, inner / length / gaussian_moments_alpha(1 / tau))
    assert worst >= 1
    v1, v2 = 1.0, 1.0 - 1e-6
    assert 0.5 * (1 / v2 - 1 / v1) / (v1 - v2) < gaussian_moments_alpha(1.0) * (1 + 1e-5)
    assert gaussian_moments_alpha(0.1) == 10.0  # 1/v > 10: the mean decides


@pytest.mark.parametrize("name", ["bernoulli", "categorical", "gamma", "dirichlet", "diagonal"])
def test_alpha_in_natural_parameters_is_the_least_fisher_eigenvalue(name):
    family = FAMILIES[name]

    @jax.jit
    @jax.vmap
    def compare(first, second):
        change = second - first
        inner = change @ (family.mean_from_natural(second) - family.mean_from_natural(first))
        return inner / (change @ change), least_fisher_eigenvalue(family, first, second, 65)

    pairs = np.random.default_rng(0).normal(size=(2, 50, family.size))
    first, second = (jax.jit(jax.vmap(family.from_unconstrained))(jnp.asarray(p)) for p in pairs)
    ratio, least = compare(first, second)
    assert np.all(ratio >= least)
    assert np.all(least > 0)
