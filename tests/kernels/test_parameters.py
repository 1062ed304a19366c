"""Hyperparameters as one vector: names, order, round trip; and arguments that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.kernels import (
    AbstractKernel,
    Constant,
    Linear,
    Matern32,
    Periodic,
    Product,
    SquaredExponential,
    Sum,
    White,
    log_parameters,
    parameter_names,
    with_log_parameters,
)

KERNEL = SquaredExponential([0.5, 2.0], 1.5) + 4.0 * Periodic(0.7, 3.0, columns=(1,)) + Linear(0.3, 0) + White(0.1)
NAMED = {
    "terms[0].length_scale[0]": 0.5,
    "terms[0].length_scale[1]": 2.0,
    "terms[0].amplitude": 1.5,
    "terms[1].factors[0].amplitude": 2.0,
    "terms[1].factors[1].length_scale": 0.7,
    "terms[1].factors[1].period": 3.0,
    "terms[1].factors[1].amplitude": 1.0,
    "terms[2].amplitude": 0.3,
    "terms[3].amplitude": 0.1,
}
X = np.random.default_rng(0).normal(size=(6, 2))


def test_names_and_values_in_the_same_order():
    assert parameter_names(KERNEL) == tuple(NAMED)
    np.testing.assert_allclose(log_parameters(KERNEL), np.log(list(NAMED.values())), rtol=1e-15, atol=1e-16)
    assert parameter_names(SquaredExponential()) == ("length_scale", "amplitude")


def test_vector_of_the_wrong_length():
    with pytest.raises(ValueError, match="9 hyperparameters"):
        with_log_parameters(KERNEL, jnp.zeros(8))


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("kind", [SquaredExponential, Matern32, Periodic])
def test_hyperparameters_must_be_positive_and_finite(kind, value):
    with pytest.raises(ValueError, match="length_scale must be positive"):
        kind(value)
    with pytest.raises(ValueError, match="amplitude must be positive"):
        kind(amplitude=value)
    with pytest.raises(ValueError, match="length_scale must be positive"):
        kind([1.0, value])


def test_other_hyperparameters_are_checked_too():
    with pytest.raises(ValueError, match="period must be positive"):
        Periodic(period=-1.0)
    with pytest.raises(ValueError, match="offset must be positive"):
        Linear(offset=-1.0)
    with pytest.raises(ValueError, match="amplitude must be positive"):
        Constant(0.0)
    with pytest.raises(ValueError, match="amplitude must be positive"):
        White(np.inf)


def test_traced_hyperparameters_pass_the_checks():
    value = jax.jit(lambda scale: SquaredExponential(scale).matrix(X)[0, 1])(0.7)
    np.testing.assert_allclose(value, SquaredExponential(0.7).matrix(X)[0, 1], rtol=1e-15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SquaredExponential([1.0, 2.0, 3.0]).matrix(X), "length_scale has 3 entries, but the kernel acts on 2"),
        (lambda: SquaredExponential([1.0, 2.0], columns=(0,)), "length_scale has 2 entries, but columns"),
        (lambda: Linear([1.0, 2.0, 3.0]).matrix(X), "amplitude has 3 entries"),
        (lambda: Periodic(1.0, [1.0, 2.0, 3.0]).matrix(X), "period has 3 entries"),
        (lambda: SquaredExponential(columns=(0, 2)).matrix(X), "needs 3 columns, but X has 2"),
        (lambda: SquaredExponential(columns=(0, 0)), "twice"),
        (lambda: SquaredExponential(columns=(-1,)), "columns must name columns"),
        (lambda: SquaredExponential(columns=()), "columns must name columns"),
        (lambda: SquaredExponential().matrix(X[:, 0]), r"X\[:, None\]"),
        (lambda: SquaredExponential().matrix(X, X[:, :1]), "Z has 1 columns, but X has 2"),
        (lambda: SquaredExponential() + 0.0, "positive finite number"),
        (lambda: -2.0 * SquaredExponential(), "positive finite number"),
        (lambda: Sum(), "at least one"),
        (lambda: Product("squared"), "takes kernels"),
    ],
)
def test_refused_arguments_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_objects_are_not_added():
    with pytest.raises(TypeError):
        SquaredExponential() + "noise"


class _Shifted(AbstractKernel):
    """A user's kernel with a leaf that is not positive."""

    shift: jax.Array

    def matrix(self, X, Z=None):
        return X @ X.T + self.shift

    def diagonal(self, X):
        return jnp.sum(X**2, axis=1) + self.shift


def test_a_leaf_without_logarithm_is_named():
    with pytest.raises(ValueError, match=r"terms\[1\].shift"):
        log_parameters(White() + _Shifted(jnp.asarray(-1.0)))


def test_without_64_bits_the_hyperparameters_keep_their_digits():
    with jax.enable_x64(False):
        kernel = SquaredExponential(0.1) + Linear(0.3)
        assert kernel.matrix(X).dtype == jnp.float32
        assert kernel.diagonal(X).dtype == jnp.float32
        assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(kernel))
    np.testing.assert_allclose(kernel.matrix(X), (SquaredExponential(0.1) + Linear(0.3)).matrix(X), rtol=1e-15)
