"""The proximal operator of -log det by first-order optimality, by perturbation and in extreme cases."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.tree import scale
from provi.families import Diagonal, LowRank, Symmetric, Triangular
from provi.geometry import prox_negative_entropy
from support.members import flat, in_space

RNG = np.random.default_rng(0)
LOWER = np.tril(RNG.normal(size=(3, 3)))
SYMMETRIC = RNG.normal(size=(3, 3))
START = {
    "triangular": Triangular(jnp.asarray(LOWER - np.diag(np.diagonal(LOWER)) + np.diag([1.3, -0.8, 1e-9]))),
    "symmetric": Symmetric(jnp.asarray(SYMMETRIC + SYMMETRIC.T)),  # indefinite
    "diagonal": Diagonal(jnp.asarray([1.3, -0.8, 1e-9])),
}
by_kind = pytest.mark.parametrize("kind", START)
by_step = pytest.mark.parametrize("step_size", [1e-4, 0.3, 1.0, 1e4])
prox = jax.jit(prox_negative_entropy)


def objective(x, centre, step_size):
    """-log det X + |X - C|^2 / (2 gamma), with the determinant of the dense matrix."""
    matrix = jnp.diag(x.diagonal) if x.kind == "diagonal" else x.matrix
    sign, log_det = jnp.linalg.slogdet(matrix)
    distance = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(centre), strict=True))
    return jnp.where(sign > 0, -log_det, jnp.inf) + distance / (2 * step_size)


gradient = jax.jit(jax.grad(objective))
value = jax.jit(objective)


def smallest_eigenvalue(x):
    return x.diagonal.min() if x.kind == "diagonal" else np.linalg.eigvals(np.asarray(x.matrix)).real.min()


@by_kind
@by_step
def test_first_order_optimality(kind, step_size):
    result = prox(START[kind], step_size)
    assert type(result) is type(START[kind])
    assert smallest_eigenvalue(result) > 0
    stationary = flat(in_space(gradient(result, START[kind], step_size)))
    size = np.abs(flat(result)).max() / step_size + np.abs(flat(result.log_det_gradient())).max()
    np.testing.assert_allclose(stationary, 0, atol=1e-11 * size)


@by_kind
def test_no_nearby_point_is_better(kind):
    result = prox(START[kind], 0.3)
    best = float(value(result, START[kind], 0.3))
    for radius in (1e-3, 0.1, 1.0):
        for _ in range(20):
            noise = in_space(jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), result))
            noise = scale(radius, noise)
            moved = jax.tree.map(jnp.add, result, noise)
            # The objective is strongly convex with modulus 1/gamma in the scale's own space.
            if smallest_eigenvalue(moved) > 0:
                excess = float(value(moved, START[kind], 0.3)) - best
                assert excess >= 0.999 * np.sum(flat(noise) ** 2) / (2 * 0.3) - 1e-13


@pytest.mark.parametrize("entry", [-1e8, -1.0, -1e-12, 0.0, 1e-300, 1e-12, 1.0, 1e8])
@pytest.mark.parametrize("step_size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("kind", ["triangular", "diagonal"])
def test_extreme_entries_keep_relative_accuracy(kind, entry, step_size):
    """The root of t^2 - x t - gamma = 0 in extended precision, where nothing cancels."""
    with decimal.localcontext(prec=700):  # 1e-300 squared next to 1e12
        x, gamma = decimal.Decimal(entry), decimal.Decimal(step_size)
        expected = float((x + (x * x + 4 * gamma).sqrt()) / 2)
    if kind == "diagonal":
        result = prox(Diagonal(jnp.asarray([entry])), step_size).diagonal[0]
    else:
        result = prox(Triangular(jnp.asarray([[entry, 0.0], [5.0, entry]])), step_size).matrix[1, 1]
    assert expected > 0
    np.testing.assert_allclose(float(result), expected, rtol=1e-14)


def test_triangular_keeps_the_off_diagonal_bit_for_bit():
    result = np.asarray(prox(START["triangular"], 0.7).matrix)
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_array_equal(result[off], np.asarray(START["triangular"].matrix)[off])


def test_symmetric_acts_on_the_eigenvalues():
    centre = START["symmetric"].matrix
    values, vectors = np.linalg.eigh(np.asarray(centre))
    assert values[0] < 0
    result = np.asarray(prox(START["symmetric"], 0.3).matrix)
    np.testing.assert_array_equal(result, result.T)
    expected = (vectors * ((values + np.sqrt(values**2 + 1.2)) / 2)) @ vectors.T
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)


@by_kind
def test_nonexpansive(kind):
    """A proximal operator of a convex function is 1-Lipschitz."""
    for _ in range(10):
        x, y = (in_space(jax.tree.map(lambda a: a + RNG.normal(size=a.shape), START[kind])) for _ in range(2))
        moved = np.linalg.norm(flat(prox(x, 0.5)) - flat(prox(y, 0.5)))
        assert moved <= np.linalg.norm(flat(x) - flat(y)) * (1 + 1e-12)


def test_low_rank_is_refused():
    with pytest.raises(TypeError, match="ProjSGD or Optax"):
        prox_negative_entropy(LowRank(jnp.ones(2), jnp.ones((2, 1))), 0.1)
