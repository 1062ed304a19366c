"""Sums over rows: the weighted product of rows against one written out, and blocks against all rows at once."""

import jax
import numpy as np
import pytest

import provi
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
