"""Sparse Jacobians from few directional derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.frontends.recognise.pattern import pattern_of
from provi.frontends.recognise.sparsity import columns_of_rows

RNG = np.random.default_rng(0)
N, LEVELS = 30, 12
GROUPS = RNG.integers(0, LEVELS, N)
X = RNG.normal(size=(N, 2))
FACTOR = jnp.asarray([[1.0, 0.0], [0.4, 2.0]])
ROWS = {
    "intercepts": (lambda z: X[:, 0] * z[GROUPS], (LEVELS,), 1),
    "slopes": (lambda z: jnp.sum((z @ FACTOR.T)[GROUPS] * X, axis=1), (LEVELS, 2), 2),
    "slopes, turned": (lambda z: jnp.sum((FACTOR @ z)[:, GROUPS].T * X, axis=1), (2, LEVELS), 2),
    "neighbours": (lambda z: jnp.diff(z)[np.arange(N) % (LEVELS - 1)] * X[:, 1], (LEVELS,), 2),
    "some rows": (lambda z: jnp.concatenate([z[GROUPS[:20]], jnp.ones(10)]), (LEVELS,), 1),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_jacobian_by_colours(name):
    function, shape, colours = ROWS[name]
    zero = jnp.zeros(shape)
    found = pattern_of(columns_of_rows(lambda _, parts: function(parts["z"]), (), {"z": zero})["z"], shape)
    assert found is not None and found.num_colours == colours
    _, push = jax.linearize(function, zero)
    values = found.values(jax.vmap(lambda v: push(v.reshape(shape)))(found.directions()))
    dense = np.zeros((N, zero.size))
    np.add.at(dense, (np.arange(N)[:, None], found.index), np.asarray(values))
    exact = jax.jacobian(lambda z: function(z.reshape(shape)))(zero.ravel())
    np.testing.assert_allclose(dense, exact, rtol=1e-14)


def test_no_pattern_where_it_is_no_use():
    assert pattern_of(None, (LEVELS,)) is None
    assert pattern_of(np.zeros((N, 1), int), (3,)) is None
    crossed = np.stack([RNG.permutation(LEVELS)[:2] for _ in range(500)])  # all pairs: no colouring of few colours
    assert pattern_of(crossed, (LEVELS,)) is None
