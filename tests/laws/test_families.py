"""What holds for every family, exponential ones too: own precision, one program, batches of points, moments, files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from laws.contracts import assert_equal_bits, assert_one_program, floating
from laws.members import EXPONENTIAL, FAMILIES
from provi.result.posterior import Posterior
from support.members import DIM, SCALES, family_of, point_of, quick_jit

by_row = pytest.mark.parametrize("name", FAMILIES)
by_exponential = pytest.mark.parametrize("name", EXPONENTIAL)
by_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32])


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """Each program is run once or twice."""


def everything(key, family, point):
    draws, log_q = family.sample_and_log_prob(key, point, 4)
    return {
        "mean": family.mean(point),
        "covariance": family.covariance(point),
        "deviation": family.marginal_standard_deviation(point),
        "entropy": family.entropy(point),
        "draws": draws,
        "log_q": log_q,
        "log_prob": jax.vmap(lambda z: family.log_prob(point, z))(draws),
        "slope": jax.grad(lambda p: family.log_prob(p, jax.lax.stop_gradient(draws[0])))(point),
    }


batched = quick_jit(jax.vmap(everything, in_axes=(None, None, 0)))


@by_row
@by_dtype
def test_everything_has_the_type_of_the_point(name, dtype):
    family, point = FAMILIES[name](dtype, 1.0)
    family.check_point(point)
    assert floating(jax.eval_shape(everything, jax.random.key(0), family, point)) == {np.dtype(dtype)}
    draws = jax.eval_shape(lambda key, f, p: f.sample(key, p, 4), jax.random.key(0), family, point)
    assert floating(draws) == {np.dtype(dtype)} and draws.shape == (4, family.dim)
    if hasattr(family, "point"):
        assert floating(family.point(np.zeros(family.dim), 1.0, dtype)) == {np.dtype(dtype)}


@by_row
def test_one_program_for_all_points(name):
    assert_one_program(FAMILIES[name](np.float64, 1.0), FAMILIES[name](np.float64, 2.0))


@by_row
def test_batched_over_points_and_consistent_with_itself(name):
    family, point = FAMILIES[name](np.float64, 1.0)
    other, key = jax.tree.map(lambda leaf: 1.3 * leaf, point), jax.random.key(3)
    first, second = (
        batched(key, family, jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair))
        for pair in ((point, other), (other, point))
    )
    for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, two[::-1], rtol=1e-9, atol=1e-11)  # each point by itself
    found = {what: np.asarray(value)[0] for what, value in first.items() if what != "slope"}
    np.testing.assert_allclose(found["mean"], family.mean(point), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["entropy"], family.entropy(point), rtol=1e-10)
    np.testing.assert_allclose(found["log_q"], found["log_prob"], rtol=1e-8)
    np.testing.assert_allclose(found["deviation"] ** 2, np.diagonal(found["covariance"]), rtol=1e-8)
    assert np.linalg.eigvalsh(found["covariance"])[0] > 0
    assert found["mean"].shape == (family.dim,) == found["draws"].shape[1:]


@pytest.fixture(scope="module")
def fitted():
    """Any fit, whose posterior is replaced by each family's."""
    return provi.fit(provi.targets.Gaussian(np.zeros(2)), progress=False)


@by_row
@by_dtype
def test_a_saved_fit_comes_back(name, dtype, fitted, tmp_path):
    family, point = FAMILIES[name](dtype, 1.0)
    names = tuple(f"z[{i}]" for i in range(family.dim))
    fit = dataclasses.replace(fitted, posterior=Posterior(family, point, names, None), target=None)
    fit.save(tmp_path / "fit.safetensors")
    again = provi.load(tmp_path / "fit.safetensors")
    assert_equal_bits(again.posterior.point, point)
    assert type(again.posterior.family) is type(family) and again.posterior.names == names
    assert_equal_bits(again.posterior.family, family)
    np.testing.assert_array_equal(again.history.as_array(), fit.history.as_array())
    assert (again.elbo, again.outcome, again.certificate.gap) == (fit.elbo, fit.outcome, fit.certificate.gap)


@pytest.mark.parametrize("kind", SCALES)
@by_dtype
def test_every_operation_of_a_scale_has_its_type(kind, dtype):
    scale = point_of(family_of("normal", kind), dtype).scale

    def operations(scale, u, v):
        return (
            scale.apply(u),
            scale.pull_back(v, u),
            scale.precision_times(u, scale.factorise()),
            scale.standardise(v[0]),
            scale.log_det(),
            scale.log_det_gradient(),
            scale.covariance(),
        )

    u, v = (jax.ShapeDtypeStruct((2, size), dtype) for size in (scale.base_dim, DIM))
    assert floating(jax.eval_shape(operations, scale, u, v)) == {np.dtype(dtype)}


def exponential_maps(family, key, free):
    natural = family.from_unconstrained(free)
    mean = family.mean_from_natural(natural)
    draws = family.sample(key, natural, 2)
    outcome = jax.tree.map(lambda x: x[0], draws)
    return {
        "natural": natural,
        "mean": mean,
        "again": family.natural_from_mean(mean),
        "free": family.to_unconstrained(natural),
        "fisher": family.fisher(natural),
        "entropy": family.entropy(natural),
        "kl": family.kl(natural, natural),
        "log_prob": family.log_prob(natural, outcome),
        # Whole numbers have no floating type to keep.
        "statistic": family.statistic(outcome) if jnp.issubdtype(outcome.dtype, jnp.floating) else natural,
    }


@by_exponential
@by_dtype
def test_exponential_families_keep_the_type(name, dtype):
    family = EXPONENTIAL[name]
    assert jax.tree.leaves(family) == []  # sizes only: static under jit
    free = jax.ShapeDtypeStruct((family.size,), dtype)
    found = jax.eval_shape(lambda key, free: exponential_maps(family, key, free), jax.random.key(0), free)
    assert floating(found) == {np.dtype(dtype)}


@by_exponential
def test_exponential_families_in_single_precision_and_in_batches(name):
    family = EXPONENTIAL[name]
    free = np.random.default_rng(0).normal(size=(2, family.size)).astype(np.float32)
    found = quick_jit(jax.vmap(lambda row: exponential_maps(family, jax.random.key(0), row)))(jnp.asarray(free))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    np.testing.assert_allclose(found["again"], found["natural"], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found["free"], free, rtol=1e-4, atol=1e-4)
    assert np.abs(found["kl"]).max() < 1e-5
    assert (np.linalg.eigvalsh(found["fisher"])[:, 0] > 0).all()
