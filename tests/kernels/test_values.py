"""Kernel matrices against scikit-learn's."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sklearn_kernels

from provi.kernels import Constant, Linear, Matern12, Matern32, Matern52, Periodic, SquaredExponential, White

RNG = np.random.default_rng(0)
X = RNG.normal(size=(17, 3))
Z = RNG.normal(size=(11, 3))
ARD = np.array([0.4, 1.3, 2.2])

PAIRS = {
    "squared exponential": (SquaredExponential(0.7, 1.4), 1.4**2 * sklearn_kernels.RBF(0.7)),
    "squared exponential, ARD": (SquaredExponential(ARD, 1.4), 1.4**2 * sklearn_kernels.RBF(ARD)),
    "matern 1/2": (Matern12(0.7, 1.4), 1.4**2 * sklearn_kernels.Matern(0.7, nu=0.5)),
    "matern 1/2, ARD": (Matern12(ARD), sklearn_kernels.Matern(ARD, nu=0.5)),
    "matern 3/2": (Matern32(0.7, 1.4), 1.4**2 * sklearn_kernels.Matern(0.7, nu=1.5)),
    "matern 3/2, ARD": (Matern32(ARD), sklearn_kernels.Matern(ARD, nu=1.5)),
    "matern 5/2": (Matern52(0.7, 1.4), 1.4**2 * sklearn_kernels.Matern(0.7, nu=2.5)),
    "matern 5/2, ARD": (Matern52(ARD), sklearn_kernels.Matern(ARD, nu=2.5)),
    "linear": (Linear(1.0, 0.6), sklearn_kernels.DotProduct(0.6)),
    "linear, no offset": (Linear(1.4, 0), 1.4**2 * sklearn_kernels.DotProduct(1e-12)),
    "constant": (Constant(1.4), sklearn_kernels.ConstantKernel(1.4**2)),
    "white": (White(0.3), sklearn_kernels.WhiteKernel(0.3**2)),
    "sum": (SquaredExponential(0.7) + Linear(1.0, 0.6), sklearn_kernels.RBF(0.7) + sklearn_kernels.DotProduct(0.6)),
    "product": (SquaredExponential(0.7) * Linear(1.0, 0.6), sklearn_kernels.RBF(0.7) * sklearn_kernels.DotProduct(0.6)),
    "with numbers": (
        2.5 * Matern32(0.7) + 0.5 + White(0.3) * 2,
        2.5 * sklearn_kernels.Matern(0.7, nu=1.5) + 0.5 + sklearn_kernels.WhiteKernel(0.3**2) * 2,
    ),
    "number first": (0.5 + SquaredExponential(0.7), 0.5 + sklearn_kernels.RBF(0.7)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_to_scikit_learn(name):
    ours, theirs = PAIRS[name]
    np.testing.assert_allclose(ours.matrix(X), theirs(X), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours.matrix(X, Z), theirs(X, Z), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours.diagonal(X), theirs.diag(X), rtol=1e-13)


def test_periodic_equals_scikit_learn_in_one_column():
    # In several columns scikit-learn takes the sine of the distance, which is another (and no valid) kernel.
    theirs = 1.4**2 * sklearn_kernels.ExpSineSquared(0.7, periodicity=2.1)
    ours = Periodic(0.7, 2.1, 1.4)
    np.testing.assert_allclose(ours.matrix(X[:, :1], Z[:, :1]), theirs(X[:, :1], Z[:, :1]), rtol=1e-12)


@pytest.mark.parametrize("period", [1.7, np.array([0.4, 1.3, 2.2])], ids=["one", "each"])
def test_periodic_formula_in_several_columns(period):
    lengths = np.array([0.9, 1.1, 2.0])
    sines = np.sin(np.pi * (X[:, None, :] - Z[None, :, :]) / period)
    expected = 1.4**2 * np.exp(-2 * np.sum((sines / lengths) ** 2, axis=2))
    np.testing.assert_allclose(Periodic(lengths, period, 1.4).matrix(X, Z), expected, rtol=1e-12)


def test_periodic_far_from_the_origin():
    # 2^40 periods of exactly 0.25 away the phase is the same; 2 pi x / period would have lost twelve digits.
    shifted = X[:, :1] + 2.0**40 * 0.25
    kernel = Periodic(0.7, 0.25)
    expected = kernel.matrix(shifted - 2.0**40 * 0.25)
    np.testing.assert_allclose(kernel.matrix(shifted), expected, atol=1e-13)


def test_linear_with_a_weight_a_column():
    expected = (X * ARD**2) @ Z.T + 0.36
    np.testing.assert_allclose(Linear(ARD, 0.6).matrix(X, Z), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [SquaredExponential, Matern12, Matern32, Matern52, Periodic])
def test_columns_choose_what_the_kernel_sees(kind):
    np.testing.assert_array_equal(kind(0.7, columns=(2, 0)).matrix(X, Z), kind(0.7).matrix(X[:, [2, 0]], Z[:, [2, 0]]))
    np.testing.assert_array_equal(Linear(columns=(1,)).matrix(X), Linear().matrix(X[:, [1]]))


def test_sums_in_sums_and_products_in_products_are_taken_apart():
    kernel = (SquaredExponential() + Matern12()) + (Linear() + 1.0)
    assert [type(term).__name__ for term in kernel.terms] == ["SquaredExponential", "Matern12", "Linear", "Constant"]
    product = SquaredExponential() * (Matern12() * Linear())
    assert [type(factor).__name__ for factor in product.factors] == ["SquaredExponential", "Matern12", "Linear"]
    mixed = SquaredExponential() * (Matern12() + Linear())
    assert len(mixed.factors) == 2
    expected = SquaredExponential().matrix(X) * (Matern12().matrix(X) + Linear().matrix(X))
    np.testing.assert_allclose(mixed.matrix(X), expected, rtol=1e-14)


def test_integer_points_are_read_as_floating_point():
    points = np.array([[0, 1], [2, 3]])
    gram = SquaredExponential(0.7).matrix(points)
    assert gram.dtype == jnp.float64
    np.testing.assert_array_equal(gram, SquaredExponential(0.7).matrix(points.astype(float)))
