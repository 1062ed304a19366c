"""What holds for every target: own precision, one program, names, round trips, slopes, honest constants, its sums."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.contracts import assert_one_program, floating
from laws.members import TARGETS
from provi.core.arguments import double_precision
from provi.targets import AbstractFiniteSum, AbstractLinearModel
from support.members import flat

by_row = pytest.mark.parametrize("name", TARGETS)
NUM_POINTS = 12


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """Each program is run a few times."""


@functools.cache
def make(name, number=1.0):
    return TARGETS[name](np.float64, number)


def points(target):
    """Around the start, near and far; the start itself is the first."""
    rng, start = np.random.default_rng(1), np.asarray(target.default_location, np.float64)
    spread = np.repeat([0.0, 0.1, 1.0, 3.0], [1, 3, 4, 4])[:, None]
    return start + spread * rng.normal(size=(NUM_POINTS, target.dim))


@eqx.filter_jit
def everything(target, z):
    """Potentials, gradients and Hessians at all points: one program a row serves the laws below."""

    def one(point):
        return target.potential(point), jax.grad(target.potential)(point), jax.hessian(target.potential)(point)

    return jax.vmap(one)(z)


@eqx.filter_jit
def values(target, z):
    return jax.vmap(target.potential)(z)


@functools.cache
def at_points(name):
    target = make(name)
    return tuple(np.asarray(x) for x in everything(target, jnp.asarray(points(target))))


@by_row
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_follows_the_data_whatever_the_global_setting(name, dtype):
    """Double precision is off outside: what the target holds, its potential and its gradient keep the data's type."""
    with jax.enable_x64(False):
        target = TARGETS[name](dtype, 1.0)
        value, gradient = eval_entry_point(target)
        _ = target.constants, target.parameter_names
        assert jnp.zeros(1).dtype == jnp.float32
    assert np.dtype(target.dtype) == np.dtype(dtype)
    if dtype == np.float64:
        for leaf, other in zip(jax.tree.leaves(target), jax.tree.leaves(make(name)), strict=True):
            if hasattr(leaf, "dtype"):
                assert leaf.dtype == other.dtype
                np.testing.assert_allclose(leaf, other, rtol=1e-13, atol=1e-14)
    if isinstance(target, AbstractLinearModel):
        rows = tuple(jax.ShapeDtypeStruct((2,), dtype) for _ in range(3))
        for moments in (target.gaussian_moments, target.moment_errors):
            assert floating(eqx.filter_eval_shape(moments, *rows)) == {np.dtype(dtype)}
    assert floating((value, gradient)) == {np.dtype(dtype)}
    assert value.shape == () and gradient.shape == (target.dim,)


@double_precision
def eval_entry_point(target):
    z = jax.ShapeDtypeStruct((target.dim,), target.dtype)
    return eqx.filter_eval_shape(lambda t, z: jax.value_and_grad(t.potential)(z), target, z)


@by_row
def test_single_precision_is_near_double_precision(name):
    with jax.enable_x64(False):
        single = TARGETS[name](np.float32, 1.0)
    z = points(make(name))[:8]
    found = double_precision(values)(single, jnp.asarray(z, np.float32))
    expected = at_points(name)[0][:8]
    # Rounding of the sum's terms: a few thousand units of the largest of them; the tied groups divide by 1e-4.
    scale = 1 + np.abs(expected) + (np.abs(at_points(name)[2][:8]).max(axis=(1, 2)) * np.sum(z**2, axis=1))
    assert (np.abs(np.asarray(found) - expected) <= 1e-5 * scale).all()


@by_row
def test_one_program_for_all_data(name):
    first, second = make(name), make(name, 2.0)
    assert_one_program(first, second)
    # The numbers are not only there: the density is another.
    z = jnp.asarray(points(first))
    assert np.abs(np.asarray(values(first, z)) - np.asarray(values(second, z))).max() > 1e-6


@by_row
def test_every_parameter_has_a_name(name):
    target = make(name)
    names = target.parameter_names
    assert len(names) == target.dim == len(set(names)) and all(isinstance(n, str) and n for n in names)
    assert target.default_location.shape == (target.dim,) and np.isfinite(target.default_location).all()
    constrained = target.constrain(points(target)[3])
    assert flat(constrained).size == len(target.constrained_names) == len(set(target.constrained_names))
    for labels in target.axis_labels.values():
        for axis in labels.values():
            assert len(set(axis)) == len(axis)


@by_row
def test_constrain_and_unconstrain_are_inverses(name):
    target = make(name)
    draws = points(target)
    whole = target.constrain(draws)
    for row in (0, 2, 5):
        values = target.constrain(draws[row])
        assert all(isinstance(leaf, np.ndarray) and np.isfinite(leaf).all() for leaf in jax.tree.leaves(values))
        np.testing.assert_allclose(target.unconstrain(values), draws[row], rtol=1e-7, atol=1e-7)
        for one, all_rows in zip(jax.tree.leaves(values), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(all_rows[row], one, rtol=1e-12, atol=1e-13)


@by_row
def test_gradients_are_finite_slopes(name):
    """Against differences along a random line, and the batch against one point at a time."""
    target, z = make(name), points(make(name))
    value, gradient, hessian = at_points(name)
    assert np.isfinite(value).all() and np.isfinite(gradient).all() and np.isfinite(hessian).all()
    direction = np.random.default_rng(2).normal(size=z.shape)
    step = 1e-5
    up, down = (np.asarray(values(target, jnp.asarray(z + sign * step * direction))) for sign in (1, -1))
    slope = np.sum(gradient * direction, axis=1)
    rounding = 1e-15 * (1 + np.abs(value)) / step
    curvature = np.abs(np.einsum("ni,nij,nj->n", direction, hessian, direction))
    assert (np.abs((up - down) / (2 * step) - slope) <= 1e-6 * (np.abs(slope) + curvature) + 20 * rounding).all()
    alone = float(target.potential(jnp.asarray(z[3])))
    assert alone == pytest.approx(value[3], rel=1e-11, abs=1e-11)


@by_row
def test_constants_hold_at_every_point(name):
    """Eigenvalues of the Hessian lie between strong convexity and smoothness, matrices between the curvature bounds."""
    target, hessians = make(name), at_points(name)[2]
    hessians = (hessians + hessians.transpose(0, 2, 1)) / 2
    eigenvalues, constants = np.linalg.eigvalsh(hessians), target.constants
    # The brute-force Hessian has rounding of its own, of the size of its largest entry.
    slack = 1e-12 * np.abs(eigenvalues).max(axis=1)
    least, most = eigenvalues[:, 0] + slack, eigenvalues[:, -1] - slack
    if constants.log_concave.known:
        assert not constants.log_concave.value or (least >= 0).all()
    if constants.strong_convexity.known:
        assert (least >= constants.strong_convexity.value).all() and constants.log_concave.value is True
    if constants.smoothness.known:
        assert (most <= constants.smoothness.value).all() and np.abs(eigenvalues[:, 0]).max() <= most.max() + 1
    bounds = target.curvature_bounds()
    if bounds is not None:
        low, high = bounds
        assert (np.linalg.eigvalsh(hessians - low)[:, 0] >= -slack).all()
        assert high is None or (np.linalg.eigvalsh(high - hessians)[:, 0] >= -slack).all()
        np.testing.assert_allclose(target.curvature_lower_bound(), low, rtol=1e-9, atol=1e-12)
        assert constants.strong_convexity.value <= np.linalg.eigvalsh(low)[0] * (1 + 1e-9) + slack.max()


SUMS = [name for name in TARGETS if isinstance(make(name), AbstractFiniteSum)]


@eqx.filter_jit
def minibatches(target, z, batches):
    return jax.vmap(lambda rows: target.minibatch_potential(z, rows))(batches)


@pytest.mark.parametrize("name", SUMS)
def test_minibatches_are_unbiased_and_repeated_rows_count_twice(name):
    target = make(name)
    z, n = jnp.asarray(points(target)[5]), target.num_terms
    pairs = np.stack(np.meshgrid(np.arange(n), np.arange(n)), axis=-1).reshape(-1, 2)
    found = np.asarray(minibatches(target, z, jnp.asarray(pairs))).reshape(n, n)
    whole = at_points(name)[0][5]
    np.testing.assert_allclose(found.mean(), whole, rtol=1e-11)
    # Without replacement: the pairs above the diagonal.
    np.testing.assert_allclose(found[np.triu_indices(n, 1)].mean(), whole, rtol=1e-11)
    assert found.std() > 1e-4
    np.testing.assert_allclose(found, (np.diagonal(found)[:, None] + np.diagonal(found)[None, :]) / 2, rtol=1e-10)


@by_row
def test_a_linear_model_is_the_same_density(name):
    target = make(name)
    model = target.linear_model()
    if model is None or model is target:
        return
    assert model.parameter_names == target.parameter_names and model.dtype == target.dtype
    z = jnp.asarray(points(target))
    np.testing.assert_allclose(values(model, z), at_points(name)[0], rtol=1e-10, atol=1e-10)


@by_row
def test_data_and_likelihoods_fit_together(name):
    """Where a target knows its data: one number a datum, a draw in front, and replicates of the same shape."""
    target = make(name)
    draws = points(target)[:3]
    observed, likelihood, drawn = target.observed_data, target.log_likelihood(draws), target.predict(draws, 0)
    assert set(drawn) <= set(observed) and set(likelihood) <= set(observed)
    for variable, value in likelihood.items():
        assert value.shape[0] == 3 and np.isfinite(value).all()
        np.testing.assert_allclose(target.log_likelihood(draws[1])[variable], value[1], rtol=1e-12)
    for variable, value in drawn.items():
        assert value.shape == (3, *observed[variable].shape)
        np.testing.assert_array_equal(value, target.predict(draws, 0)[variable])
