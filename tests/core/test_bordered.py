"""Bordered block matrices against dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.bordered import Bordered, factorise

SHAPES = {
    "chain": (5, 3, 2, True),
    "groups": (6, 2, 3, False),
    "large groups": (4, 5, 2, False),
    "chain alone": (4, 5, 0, True),
    "dense": (0, 0, 4, False),
    "intercepts": (7, 1, 2, False),
}


def _matrix(count, width, border, chained, seed=0):
    rng = np.random.default_rng(seed)
    size = count * width + border
    half = rng.normal(size=(size, size))
    full = half @ half.T + 5 * size * np.eye(size)
    block = np.repeat(np.arange(count), width)
    apart = np.abs(np.subtract.outer(block, block)) > (1 if chained else 0)
    full[: count * width, : count * width][apart] = 0.0
    blocks = full[: count * width, : count * width].reshape(count, width, count, width)
    diagonal = np.array([blocks[k, :, k] for k in range(count)]).reshape(count, width, width)
    below = np.array([blocks[k + 1, :, k] for k in range(count - 1)]) if chained else None
    corner = full[count * width :, count * width :]
    beside = full[: count * width, count * width :].reshape(count, width, border)
    return full, Bordered(*(None if x is None else jnp.asarray(x) for x in (diagonal, below, beside, corner)))


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("shape", SHAPES)
def test_solutions_determinants_draws_and_variances(shape):
    count, width, border, chained = SHAPES[shape]
    dense, matrix = _matrix(*SHAPES[shape])
    factor, inverse = factorise(matrix), np.linalg.inv(dense)
    assert float(factor.log_det) == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-12)
    rng, size = np.random.default_rng(1), len(dense)

    def parts(x):
        return jnp.asarray(x[: count * width].reshape(count, width)), jnp.asarray(x[count * width :])

    def whole(pair):
        return np.concatenate([np.ravel(part) for part in pair])

    x = rng.normal(size=size)
    np.testing.assert_allclose(whole(factor.solve(*parts(x))), inverse @ x, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(whole(matrix.multiply(*parts(x))), dense @ x, rtol=1e-10)
    root = np.stack([whole(factor.root(*parts(unit))) for unit in np.eye(size)], axis=1)
    np.testing.assert_allclose(root @ root.T, inverse, rtol=1e-9, atol=1e-15)
    if count:
        block = rng.integers(0, count - 1, 20)
        reach = 2 * width if chained else width
        index = block[:, None] * width + rng.integers(0, reach, (20, 2))
        values, outer = rng.normal(size=(20, 2)), rng.normal(size=(20, border))
        rows = np.zeros((20, size))
        np.add.at(rows, (np.arange(20)[:, None], index), values)
        rows[:, count * width :] = outer
        found = factor.row_variances(jnp.asarray(index), jnp.asarray(values), jnp.asarray(outer))
        np.testing.assert_allclose(found, np.einsum("ni,ij,nj->n", rows, inverse, rows), rtol=1e-9)
