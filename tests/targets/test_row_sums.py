"""Sums over rows: the weighted product of rows against one written out, and blocks against all rows at once."""

import jax
import numpy as np
import pytest

import provi
from provi.core import host_primitives
from provi.core.interpreter import compiled_only, instant_jit
from provi.targets import row_sums


@pytest.mark.parametrize("lowest", [0.0, -0.5])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_weighted_gram_is_the_sum_of_outer_products(lowest, compiled):
    rng = np.random.default_rng(0)
    rows, weights = rng.standard_normal((40, 3)), rng.uniform(lowest, 1.0, 40)
    assert (weights < 0).any() == (lowest < 0)
    wanted = sum(w * np.outer(x, x) for w, x in zip(weights, rows, strict=True))
    with jax.enable_x64(True):
        gram = instant_jit(lambda x, w: row_sums.weighted_gram(x, w))
        if compiled:
            with compiled_only():
                found = gram(rows, weights)
        else:
            found = gram(rows, weights)
    # At most 40 + 5 roundings of products whose magnitudes add up to this.
    size = sum(abs(w) * np.outer(abs(x), abs(x)) for w, x in zip(weights, rows, strict=True))
    assert (np.abs(np.asarray(found) - wanted) <= 45 * np.finfo(float).eps * size).all()


def test_a_model_in_blocks_is_the_model_at_once(monkeypatch):
    rng = np.random.default_rng(1)
    design = rng.standard_normal((9001, 3))  # blocks of 4096 and more rows, the last of which overlaps
    response = (rng.random(9001) < 0.4).astype(float)
    whole = provi.targets.LogisticRegression(design, response, prior_scale=1.0)
    assert row_sums.block_size(whole) > 9001
    one = provi.fit(whole, tol=0.01, seed=0, progress=False)
    monkeypatch.setattr(row_sums, "_NUMBERS_IN_CACHE", 1)
    parts = provi.targets.LogisticRegression(design[:, [0, 1, 2]], response, prior_scale=1.001)
    assert row_sums.block_size(parts) < 9001
    jax.clear_caches()
    two = provi.fit(parts, tol=0.01, seed=0, progress=False)
    deviation = np.sqrt(np.diag(np.asarray(one.posterior.covariance)))
    assert (np.abs(np.asarray(two.posterior.mean) - np.asarray(one.posterior.mean)) < 0.02 * deviation).all()
    assert two.certificate.status == "proven"


@pytest.mark.parametrize("shape", ["lower", "upper", "full"])
@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_numpy_carries_out_by_hand_is_what_is_compiled(shape, layout, dtype, monkeypatch):
    """Three chunks, the last of them short; and no product of the whole table is left to the interpreter."""
    rng = np.random.default_rng(0)
    table = np.asarray(rng.standard_normal((2500, 7)), dtype, order=layout)
    root = {"lower": np.tril, "upper": np.triu, "full": np.asarray}[shape](rng.standard_normal((7, 7))).astype(dtype)
    vector, weights = rng.standard_normal(7).astype(dtype), rng.random(2500).astype(dtype)
    monkeypatch.setitem(host_primitives.PRIMITIVES, "dot_general", None)

    def program(x, m, c, w):
        sums = row_sums.weighted_sums(x, w - 0.5, w), row_sums.weighted_sums(x, w, w - 0.5)
        return row_sums.products(x, c), row_sums.projections(x, m, c), sums, row_sums.magnitudes(x, c)

    with jax.enable_x64(True):
        found = jax.tree.leaves(instant_jit(program)(table, vector, root, weights))
        with compiled_only():
            wanted = jax.tree.leaves(instant_jit(program)(table, vector, root, weights))
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=2500 * np.finfo(dtype).eps * float(np.abs(y).max()))


def test_derivatives_and_batches_are_not_carried_out_as_the_function_itself():
    rng = np.random.default_rng(0)
    table, roots = rng.standard_normal((9, 3)), rng.standard_normal((2, 3, 3))

    def program(x, c):
        norm = lambda root: row_sums.projections(x, x[0], root)[1].sum()  # noqa: E731
        return jax.vmap(jax.value_and_grad(norm))(c)

    def batches(x, c):
        along = jax.vmap(lambda root: row_sums.products(x, root))(c), jax.vmap(row_sums.magnitudes)(c, c)
        return *along, row_sums.magnitudes(x, x[0])

    with jax.enable_x64(True):
        value, slope = instant_jit(program)(table, roots)
        for found, wanted in zip(
            instant_jit(batches)(table, roots),
            (np.einsum("nd,kde->kne", table, roots), np.abs(roots) @ roots, np.abs(table) @ table[0]),
            strict=True,
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(value, [np.sum((table @ root) ** 2) for root in roots], rtol=1e-13)
    np.testing.assert_allclose(slope, 2 * table.T @ table @ roots, rtol=1e-12)
