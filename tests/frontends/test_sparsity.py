"""The entries that rows depend on: never fewer than their Jacobian has, and for grouped models as few."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.frontends.recognise.sparsity import columns_of_rows

RNG = np.random.default_rng(0)
N, LEVELS = 30, 12
GROUPS = RNG.integers(0, LEVELS, N)
X = RNG.normal(size=(N, 2))
FACTOR = jnp.asarray([[1.0, 0.0], [0.4, 2.0]])

FEW = {
    "intercepts": (lambda s, z: 2.0 + s * z.ravel()[GROUPS], (LEVELS,), 1),
    "negative indices": (lambda s, z: z[GROUPS - LEVELS], (LEVELS,), 1),
    "slopes": (lambda s, z: jnp.sum((z @ FACTOR.T)[GROUPS] * X, axis=1), (LEVELS, 2), 2),
    "slopes, turned": (lambda s, z: jnp.einsum("nb,bn->n", X, (s * FACTOR @ z)[:, GROUPS]), (2, LEVELS), 2),
    "differences": (lambda s, z: jnp.diff(z)[np.arange(N) % (LEVELS - 1)], (LEVELS,), 2),
    "rate": (lambda s, z: jnp.exp(s * z[GROUPS]) * X[:, 0], (LEVELS,), 1),
    "parts": (lambda s, z: jnp.concatenate([z[GROUPS[:9]], jnp.zeros(3), z[GROUPS[:18]] + z[0]]), (LEVELS,), 2),
    "known branch": (lambda s, z: jnp.where(GROUPS > 3, z[GROUPS], 0.5), (LEVELS,), 1),
    "inside jit": (jax.jit(lambda s, z: z[jnp.asarray(GROUPS)] - s), (LEVELS,), 1),
    "none": (lambda s, z: jnp.full(N, s), (LEVELS,), 1),
}
ALL = {
    "design": (lambda s, z: RNG.normal(size=(N, LEVELS)) @ z, (LEVELS,)),
    "walk": (lambda s, z: jnp.cumsum(z)[GROUPS], (LEVELS,)),
    "index that is held": (lambda s, z: z[jnp.asarray(GROUPS * s, int)], (LEVELS,)),
    "sorted": (lambda s, z: jnp.sort(z)[GROUPS], (LEVELS,)),
    "mean": (lambda s, z: z[GROUPS] - jnp.mean(z), (LEVELS,)),
}


@pytest.mark.parametrize("name", FEW)
def test_few_columns_and_all_that_the_jacobian_has(name):
    function, shape, most = FEW[name]
    found = columns_of_rows(lambda s, parts: function(s, parts["z"]), jnp.asarray(1.5), {"z": jnp.zeros(shape)})["z"]
    assert found is not None and found.shape == (N, most)
    jacobian = jax.jacobian(lambda z: function(jnp.asarray(1.5), z.reshape(shape)))(jnp.zeros(np.prod(shape)))
    for row, columns in zip(np.asarray(jacobian), found, strict=True):
        assert set(np.flatnonzero(row)) <= set(columns[columns >= 0])


@pytest.mark.parametrize("name", ALL)
def test_everything_else_is_full(name):
    function, shape = ALL[name]
    found = columns_of_rows(lambda s, parts: function(s, parts["z"]), jnp.asarray(1.5), {"z": jnp.zeros(shape)})
    assert found == {"z": None}


def test_several_vectors():
    """Each by itself: one that all rows have does not spoil another."""
    parts = {"a": jnp.zeros(LEVELS), "b": jnp.zeros((2, 20)), "c": jnp.zeros(())}
    found = columns_of_rows(lambda s, z: s * z["a"][GROUPS] + X @ z["b"].sum(1) + z["c"], jnp.asarray(1.5), parts)
    assert found["b"] is None
    np.testing.assert_array_equal(found["a"], GROUPS[:, None])
    np.testing.assert_array_equal(found["c"], np.zeros((N, 1)))
