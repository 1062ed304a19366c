"""What holds for every likelihood: entry by entry, in the precision of the data, one program, finite, honest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.contracts import assert_one_program, floating
from laws.members import LIKELIHOODS
from support.members import quick_jit

by_row = pytest.mark.parametrize("name", LIKELIHOODS)
ETA = np.array([-30.0, -3.0, -0.2, 0.0, 1.7, 30.0])


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """Each program is run a few times."""


def everything(likelihood, mean, variance, y):
    triple = mean, variance, y
    found = likelihood.moments(*triple), likelihood.moment_errors(*triple), likelihood.log_predictive(*triple)
    known = () if type(likelihood).__name__ == "UserLikelihood" else likelihood.mean_response(mean, variance)
    return likelihood.potential(mean, y), *found, known


@quick_jit
def derivatives(likelihood, eta, y):
    def value(eta):
        return jnp.sum(likelihood.potential(eta, y))

    slope, bend = jax.jvp(jax.grad(value), (eta,), (jnp.ones_like(eta),))
    return likelihood.potential(eta, y), slope, bend


@by_row
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_everything_has_the_type_of_the_data(name, dtype):
    """Also where the likelihood's own numbers are of double precision."""
    likelihood = LIKELIHOODS[name].make(1.0)
    arrays = tuple(jax.ShapeDtypeStruct((20,), dtype) for _ in range(3))
    for member in (likelihood, jax.tree.map(lambda x: x.astype(dtype), likelihood)):
        shapes = jax.eval_shape(everything, member, *arrays)
        assert floating(shapes) == {np.dtype(dtype)}
        assert all(leaf.shape == (20,) for leaf in jax.tree.leaves(shapes))


@by_row
def test_one_program_for_all_numbers(name):
    first, second = (LIKELIHOODS[name].make(number) for number in (1.0, 2.0))
    assert_one_program(first, second, numbers_differ=bool(jax.tree.leaves(first)))


@by_row
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_potential_and_derivatives_are_finite_and_entry_by_entry(name, dtype):
    row = LIKELIHOODS[name]
    eta, y = np.repeat(ETA, 2).astype(dtype), np.resize(row.responses, 2 * len(ETA)).astype(dtype)
    found = derivatives(row.make(1.0), jnp.asarray(eta), jnp.asarray(y))
    order = np.random.default_rng(0).permutation(len(eta))
    permuted = derivatives(row.make(1.0), jnp.asarray(eta[order]), jnp.asarray(y[order]))
    for one, other in zip(found, permuted, strict=True):
        assert one.dtype == dtype and np.isfinite(one).all()
        np.testing.assert_array_equal(np.asarray(one)[order], other)


@by_row
def test_what_is_said_of_the_curvature_holds(name):
    row = LIKELIHOODS[name]
    likelihood = row.make(1.0)
    low, high = likelihood.curvature
    assert likelihood.log_concave == (low >= 0)
    for y in row.responses:
        smallest, largest = likelihood.curvature_given(np.array([y]))
        assert low <= smallest <= largest <= high
        bend = np.asarray(derivatives(likelihood, jnp.asarray(ETA), jnp.full(len(ETA), y))[2])
        assert bend.min() >= smallest - 1e-9 and bend.max() <= largest * (1 + 1e-9)


@by_row
def test_batched_over_rows(name):
    row = LIKELIHOODS[name]
    eta, y = jnp.asarray(np.stack([ETA, ETA[::-1]])), jnp.asarray(np.resize(row.responses, (2, len(ETA))))
    together = quick_jit(jax.vmap(row.make(1.0).potential))(eta, y)
    alone = [derivatives(row.make(1.0), *rows)[0] for rows in zip(eta, y, strict=True)]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-12, atol=1e-13)


@by_row
def test_responses_are_read(name):
    row = LIKELIHOODS[name]
    np.testing.assert_array_equal(row.make(1.0).read_response(list(row.responses), 2), row.responses)
    for bad, words in (([0.0, np.nan], "NaN"), ([1.0], "length 1"), ([[0.0, 1.0]], "axes")):
        with pytest.raises(ValueError, match=f"y .*{words}"):
            row.make(1.0).read_response(bad, 2)
