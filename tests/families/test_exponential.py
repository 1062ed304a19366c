"""Exponential families against SciPy, sums, quadrature, differences and automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from laws.members import EXPONENTIAL as FAMILIES
from provi.families.exponential import (
    Bernoulli,
    Categorical,
    Coordinates,
    DiagonalGaussian,
    Dirichlet,
    FullGaussian,
    Gamma,
    UnitGaussian,
    pack,
    unpack,
)

by_family = pytest.mark.parametrize("name", FAMILIES)
ROOT = np.array([[1.2, 0, 0], [0.4, 0.7, 0], [-0.3, 0.2, 0.5]])


def members(name, seed=0):
    """A random member, from unconstrained coordinates of order one."""
    family = FAMILIES[name]
    free = np.random.default_rng(seed).normal(size=family.size)
    return jax.jit(family.from_unconstrained)(jnp.asarray(free))


def pack_by_hand(matrix):
    rows, columns = np.tril_indices(len(matrix))
    return np.where(rows == columns, 1.0, np.sqrt(2)) * matrix[rows, columns]


def full_natural(mean, covariance):
    precision = np.linalg.inv(covariance)
    return np.concatenate([precision @ mean, -pack_by_hand(precision) / 2])


@by_family
def test_maps_agree_with_the_log_partition(name):
    """Mean parameter and Fisher matrix are derivatives of A (the second by differences); inverses are inverses."""
    family, natural = FAMILIES[name], members(name)
    to_mean = jax.jit(family.mean_from_natural)

    @jax.jit
    def maps(natural, mean):
        return (
            jax.grad(family.log_partition)(natural),
            family.fisher(natural),
            family.natural_from_mean(mean),
            family.from_unconstrained(family.to_unconstrained(natural)),
            jax.grad(family.conjugate)(mean),
            jax.jacfwd(family.natural_from_mean)(mean),
            family.conjugate(mean) + family.mean_log_base(mean) + family.entropy(natural),
            family.valid(natural),
        )

    mean = to_mean(natural)
    gradient, fisher, natural_again, free_again, dual, inverse_fisher, duality, valid = maps(natural, mean)
    np.testing.assert_allclose(mean, gradient, rtol=1e-12, atol=1e-12)
    shifts = 1e-5 * np.eye(family.size)
    differences = [(to_mean(natural + shift) - to_mean(natural - shift)) / 2e-5 for shift in shifts]
    np.testing.assert_allclose(fisher, np.stack(differences, axis=1), rtol=1e-7, atol=1e-8)
    assert np.linalg.eigvalsh(fisher)[0] > 0
    np.testing.assert_allclose(natural_again, natural, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(free_again, natural, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dual, natural, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(inverse_fisher @ fisher, np.eye(family.size), atol=1e-9)
    assert abs(float(duality)) < 1e-11
    assert bool(valid)


def test_densities_and_entropies_equal_scipy():
    mean, covariance, x = np.array([0.3, -1.0, 2.0]), ROOT @ ROOT.T, np.array([0.2, 0.5, 1.7])
    diagonal, probabilities = stats.multivariate_normal(mean[:2], np.diag([0.5, 2.0])), np.array([0.1, 0.4, 0.3, 0.2])
    cases = [
        (FullGaussian(3), full_natural(mean, covariance), x, stats.multivariate_normal(mean, covariance)),
        (DiagonalGaussian(2), [0.6, -0.5, -1.0, -0.25], x[:2], diagonal),
        (UnitGaussian(2), mean[:2], x[:2], stats.multivariate_normal(mean[:2], np.eye(2))),
        (Gamma(), [2.5, -0.7], np.asarray(1.3), stats.gamma(2.5, scale=1 / 0.7)),
        (Dirichlet(4), [0.3, 2.0, 1.0, 5.0], probabilities, stats.dirichlet([0.3, 2.0, 1.0, 5.0])),
    ]

    def compute(family, natural, point):
        both = jax.jit(lambda natural, point: (family.log_prob(natural, point), family.entropy(natural)))
        return both(jnp.asarray(natural), jnp.asarray(point))

    for family, natural, point, reference in cases:
        expected = [reference.logpdf(point), reference.entropy()]
        np.testing.assert_allclose(compute(family, natural, point), expected, rtol=1e-12)
    coin = stats.bernoulli([0.2, 0.9])
    found = compute(Bernoulli(2), special.logit([0.2, 0.9]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(found, [coin.logpmf([1, 0]).sum(), coin.entropy().sum()], rtol=1e-12)
    logits = np.log(probabilities[:-1] / probabilities[-1])
    for outcome, probability in enumerate(probabilities):
        found = compute(Categorical(4), logits, np.asarray(outcome))
        np.testing.assert_allclose(found, [np.log(probability), stats.entropy(probabilities)], rtol=1e-12)


@by_family
def test_divergence_is_the_bregman_divergence_of_the_log_partition(name):
    """The special formulas equal A(l2) - A(l1) - (l2 - l1)'mu1, and a close pair gives the Fisher quadratic form."""
    family, first, second = FAMILIES[name], members(name, 1), members(name, 2)

    @jax.jit
    def values(first, second):
        change = family.log_partition(second) - family.log_partition(first)
        bregman = change - (second - first) @ family.mean_from_natural(first)
        return family.kl(first, second), bregman, family.fisher(first)

    value, bregman, fisher = values(first, second)
    np.testing.assert_allclose(value, bregman, rtol=1e-10)
    step = 1e-4 * np.random.default_rng(0).normal(size=family.size)
    np.testing.assert_allclose(values(first, first + step)[0], 0.5 * step @ fisher @ step, rtol=5e-3)


def test_gamma_divergence_by_quadrature():
    first, second = stats.gamma(2.5, scale=1 / 0.7), stats.gamma(0.8, scale=1 / 3.0)
    expected, _ = integrate.quad(lambda x: first.pdf(x) * (first.logpdf(x) - second.logpdf(x)), 0, 80, epsabs=1e-12)
    value = jax.jit(Gamma().kl)(jnp.asarray([2.5, -0.7]), jnp.asarray([0.8, -3.0]))
    np.testing.assert_allclose(value, expected, rtol=1e-9)


def test_what_is_not_a_member_is_said_to_be_none():
    outside = [
        (Bernoulli(2), [0.5, 1.2]),
        (Categorical(3), [0.7, 0.4]),
        (Gamma(), [0.5, 1.0]),  # E log x > log E x
        (Dirichlet(2), [-0.1, -0.2]),  # exp(-0.1) + exp(-0.2) > 1
        (DiagonalGaussian(1), [2.0, 3.0]),  # E x^2 < (E x)^2
        (FullGaussian(2), [0.0, 0.0, 1.0, 2 * np.sqrt(2), 1.0]),
    ]
    for family, mean in outside:
        valid = jax.jit(Coordinates(family, "mean").valid)
        assert not bool(valid(jnp.asarray(mean, jnp.float64))), family
    for family, natural in [(Gamma(), [1.0, 1.0]), (Dirichlet(2), [1.0, -1.0]), (DiagonalGaussian(1), [0.0, 0.1])]:
        assert not bool(jax.jit(family.valid)(jnp.asarray(natural)))
    assert not bool(Bernoulli(1).valid(jnp.asarray([jnp.nan])))
    with pytest.raises(ValueError, match="moments"):
        Coordinates(Gamma(), "moments")
    with pytest.raises(ValueError, match="one of natural, mean, moments"):
        Coordinates(Gamma(), "means")
    with pytest.raises(ValueError, match="outcomes"):
        Categorical(1)


def test_packing_keeps_inner_products_and_the_metric_is_the_fisher_matrix():
    rng = np.random.default_rng(0)
    a, b = (m + m.T for m in rng.normal(size=(2, 4, 4)))
    packed = [np.asarray(jax.jit(pack)(jnp.asarray(m))) for m in (a, b)]
    np.testing.assert_allclose(packed[0] @ packed[1], np.trace(a @ b), rtol=1e-13)
    np.testing.assert_allclose(packed[0], pack_by_hand(a), rtol=1e-14)
    np.testing.assert_allclose(jax.jit(unpack, static_argnums=1)(jnp.asarray(packed[0]), 4), a, rtol=1e-15)
    # The Fisher matrix of N(m, v) in (m, v) is diag(1/v, 1/(2 v^2)).
    metric = jax.jit(Coordinates(DiagonalGaussian(1), "moments").metric)(jnp.asarray([0.7, 0.4]))
    np.testing.assert_allclose(metric, np.diag([1 / 0.4, 0.5 / 0.4**2]), rtol=1e-12, atol=1e-12)
    gamma, natural = Gamma(), jnp.asarray([2.0, -3.0])
    product = jax.jit(lambda n: Coordinates(gamma, "mean").metric(gamma.mean_from_natural(n)) @ gamma.fisher(n))(
        natural
    )
    np.testing.assert_allclose(product, np.eye(2), atol=1e-10)
