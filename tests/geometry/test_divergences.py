"""Divergences against finite differences and each other; the gap bound against problems with a known minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.families.exponential import Bernoulli, Categorical, Coordinates, DiagonalGaussian, FullGaussian, Gamma
from provi.geometry.divergences import KL, Euclidean, QuadraticSymmetricKL, ReverseKL, SymmetricKL

DIVERGENCES = {
    "euclidean": Euclidean(),
    "kl": KL(),
    "reverse": ReverseKL(),
    "symmetric": SymmetricKL(),
    "quadratic": QuadraticSymmetricKL(),
}
CASES = [(Categorical(3), "mean"), (Gamma(), "natural"), (FullGaussian(2), "moments")]
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{type(case[0]).__name__}-{case[1]}")


def two_members(coordinates, distance=0.5):
    """Two members, `distance` apart in unconstrained coordinates."""
    first, second = np.random.default_rng(0).normal(size=(2, coordinates.family.size))
    make = jax.jit(lambda free: coordinates.from_natural(coordinates.family.from_unconstrained(free)))
    return make(jnp.asarray(first)), make(jnp.asarray(first + distance * second))


@by_case
def test_values_and_gradients(case):
    """Central differences confirm each gradient; the divergences are related as they should be."""
    coordinates = Coordinates(*case)
    w, old = two_members(coordinates)

    @jax.jit
    def values(w, old):
        return {name: d.value(coordinates, w, old) for name, d in DIVERGENCES.items()}

    gradients = jax.jit(lambda w, old: {n: d.gradient(coordinates, w, old) for n, d in DIVERGENCES.items()})(w, old)
    for entry, direction in enumerate(np.eye(w.size)):
        up, down = values(w + 1e-5 * direction, old), values(w - 1e-5 * direction, old)
        for name in DIVERGENCES:
            np.testing.assert_allclose(gradients[name][entry], (up[name] - down[name]) / 2e-5, rtol=2e-7, atol=2e-8)
    here, swapped, same = values(w, old), values(old, w), values(w, w)
    np.testing.assert_allclose(here["reverse"], swapped["kl"], rtol=1e-12)
    np.testing.assert_allclose(here["symmetric"], here["kl"] + here["reverse"], rtol=1e-10)
    np.testing.assert_allclose(here["euclidean"], 0.5 * np.sum((np.asarray(w) - np.asarray(old)) ** 2), rtol=1e-13)
    assert all(here[name] > 0 and abs(same[name]) < 1e-14 for name in DIVERGENCES)
    naturals = coordinates.to_natural(w), coordinates.to_natural(old)
    for name, divergence in DIVERGENCES.items():
        np.testing.assert_allclose(divergence.between_members(coordinates, *naturals), here[name], rtol=1e-9)
    near = values(old + 1e-4 * (w - old), old)
    np.testing.assert_allclose(near["quadratic"], near["symmetric"], rtol=2e-3)


@pytest.mark.parametrize(
    ("divergence", "family", "name"),
    [
        (KL(), Categorical(3), "mean"),
        (KL(), Gamma(), "mean"),
        (KL(), FullGaussian(2), "moments"),
        (KL(), DiagonalGaussian(1), "moments"),
        (ReverseKL(), Bernoulli(2), "natural"),
        (Euclidean(), Gamma(), "natural"),
        (QuadraticSymmetricKL(), Gamma(), "natural"),
    ],
    ids=lambda value: str(value),
)
def test_gap_bound_is_the_gap_without_a_penalty(divergence, family, name):
    """psi(w) = <w, g> + D(w, old)/beta is minimal at w* for g = -grad D(w*, old)/beta; the bound is then exact."""
    coordinates, step_size = Coordinates(family, name), 0.7
    best, old = two_members(coordinates)

    @jax.jit
    def gap_and_bound(w):
        gradient = -divergence.gradient(coordinates, best, old) / step_size

        def problem(v):
            return v @ gradient + divergence.value(coordinates, v, old) / step_size

        residual = gradient + divergence.gradient(coordinates, w, old) / step_size
        bound = divergence.gap_bound(coordinates, w, old, residual, jnp.asarray(step_size))
        return problem(w) - problem(best), bound

    for share in (0.05, 0.2):
        gap, bound = gap_and_bound(best + share * (old - best))
        np.testing.assert_allclose(bound, gap, rtol=1e-6)


def test_gap_bound_of_the_symmetric_divergence_holds_and_is_infinite_where_unknown():
    coordinates, divergence, step_size = Coordinates(Bernoulli(2), "mean"), SymmetricKL(), jnp.asarray(0.7)
    best, old = jnp.asarray([0.3, 0.8]), jnp.asarray([0.6, 0.5])

    @jax.jit
    def gap_and_bound(w):
        gradient = -divergence.gradient(coordinates, best, old) / step_size
        residual = gradient + divergence.gradient(coordinates, w, old) / step_size
        fall = (w - best) @ gradient + divergence.value(coordinates, w, old) / step_size
        gap = fall - divergence.value(coordinates, best, old) / step_size
        return gap, divergence.gap_bound(coordinates, w, old, residual, step_size)

    points = np.random.default_rng(0).uniform(0.05, 0.95, size=(200, 2))
    gaps, bounds = jax.vmap(gap_and_bound)(jnp.asarray(points))
    assert np.all(gaps >= -1e-12)
    assert np.all(bounds >= gaps)
    assert np.sum(np.isfinite(bounds)) > 150
    one = jnp.ones(2)
    for unknown, natural in [(KL(), "natural"), (SymmetricKL(), "natural"), (ReverseKL(), "mean")]:
        coordinates = Coordinates(Bernoulli(2), natural)
        assert np.isinf(unknown.gap_bound(coordinates, best, old, one, step_size))
    gamma = jnp.asarray([1.0, 2.0])  # a mean of which the reverse KL is not known to be convex
    assert np.isinf(SymmetricKL().gap_bound(Coordinates(Gamma(), "mean"), gamma, gamma, one, step_size))


def test_the_quadratic_divergence_of_near_members_is_the_symmetric_one():
    coordinates = Coordinates(Bernoulli(2), "mean")
    old, near = jnp.asarray([0.3, -0.8]), jnp.asarray([0.3, -0.8]) + 1e-4
    quadratic, symmetric = (
        float(kind.between_members(coordinates, near, old)) for kind in (QuadraticSymmetricKL(), SymmetricKL())
    )
    assert quadratic == pytest.approx(symmetric, rel=1e-3) and quadratic > 0
