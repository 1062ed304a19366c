"""Pytree arithmetic against the same operations on one flat vector; precision on and off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core import arguments as precision
from provi.core import tree

X = {"a": jnp.asarray([1.0, -2.0]), "b": (jnp.asarray(3.0), jnp.asarray([[0.5, 4.0]]))}
Y = jax.tree.map(lambda leaf: 2 * leaf + 1, X)


def flat(value):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(value)])


def test_arithmetic():
    np.testing.assert_array_equal(flat(tree.add_scaled(X, 3.0, Y)), flat(X) + 3 * flat(Y))
    np.testing.assert_array_equal(flat(tree.scale(-2.0, X)), -2 * flat(X))
    np.testing.assert_array_equal(flat(tree.subtract(X, Y)), flat(X) - flat(Y))
    np.testing.assert_array_equal(flat(tree.zeros_like(X)), 0 * flat(X))
    np.testing.assert_allclose(tree.inner(X, Y), flat(X) @ flat(Y), rtol=1e-15)
    np.testing.assert_allclose(tree.squared_norm(X), flat(X) @ flat(X), rtol=1e-15)


@pytest.mark.parametrize("condition", [True, False])
def test_select(condition):
    np.testing.assert_array_equal(flat(tree.select(jnp.asarray(condition), X, Y)), flat(X if condition else Y))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_finds_one_bad_entry(bad):
    assert bool(tree.all_finite(X))
    assert not bool(tree.all_finite({**X, "b": (X["b"][0], jnp.asarray([[0.5, bad]]))}))


def test_double_precision_holds_inside_and_is_restored_outside():
    @precision.double_precision
    def dtype_of_ones(raises=False):
        if raises:
            raise RuntimeError
        return jnp.ones(2).dtype

    with jax.enable_x64(False):
        assert dtype_of_ones() == jnp.float64
        assert jnp.ones(2).dtype == jnp.float32
        with pytest.raises(RuntimeError):
            dtype_of_ones(raises=True)
        assert jnp.ones(2).dtype == jnp.float32


def test_floating_dtype():
    assert precision.floating_dtype(np.ones(2, np.float32)) == jnp.float32
    assert precision.floating_dtype(np.ones(2, np.float64)) == jnp.float64
    assert precision.floating_dtype(np.ones(2, np.float16)) == jnp.float32
    assert precision.floating_dtype(np.ones(2, int)) == precision.default_dtype() == jnp.float64
    assert precision.floating_dtype([1.0]) == jnp.float64
