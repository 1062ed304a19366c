"""What a run of the proximal-gradient iteration records, refuses and survives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import KLToPrior, ProximalGradient, Split
from provi.families.exponential import (
    DiagonalGaussian,
    Gamma,
    UnitGaussian,
)
from provi.geometry.divergences import KL, Euclidean


def curved(w):
    """Concave in the variance: once v > 1 the step in (m, v) has no minimum for a large beta."""
    return 0.5 * w[0] ** 2 - 5 * w[1]


def test_a_step_without_minimum_leaves_the_point_and_says_so():
    """V^-1 = V_old^-1 - 10 beta is negative: nothing to minimise, no NaN in the iterate."""
    method = ProximalGradient(DiagonalGaussian(1), KL(), Split(curved), [0.01, 5.0, 0.01], "moments")
    answer = method.run([1.0, 0.5], 3, keep_path=True)
    assert np.asarray(answer.solved).tolist() == [True, False, True]
    np.testing.assert_array_equal(answer.path[2], answer.path[1])
    assert np.isnan(answer.step_lengths[1]) and np.isinf(answer.gap_bounds[1])
    assert np.all(np.isfinite(answer.last)) and np.all(np.isfinite(answer.objective))


class Quadratic(eqx.Module):
    """(m - centre)^2 + v, counting how often it is compiled."""

    centre: jax.Array
    traces = 0

    def __call__(self, w):
        type(self).traces += 1
        return (w[0] - self.centre) ** 2 + w[1]


def moments_method(step_size, centre=1.0, prior=(0.0, -0.5)):
    split = Split(Quadratic(jnp.asarray(centre)), penalty=KLToPrior(jnp.asarray(prior)))
    return ProximalGradient(DiagonalGaussian(1), KL(), split, step_size, "moments")


def test_records_equal_what_the_path_says():
    """Lengths, alpha, smoothness and objective recomputed from the path in NumPy."""
    sizes = np.array([0.3, 0.2, 0.5, 0.1])
    answer = moments_method(sizes).run(np.array([2.0, 3.0]), 4, keep_path=True)
    path = np.asarray(answer.path)
    change = np.diff(path, axis=0)
    length = np.linalg.norm(change, axis=1)
    np.testing.assert_allclose(answer.step_lengths, length / sizes, rtol=1e-12)
    np.testing.assert_array_equal(answer.step_sizes, sizes)
    variance = path[:, 1]
    inner = change[:, 0] ** 2 / variance[:-1] + 0.5 * change[:, 1] * (1 / variance[:-1] - 1 / variance[1:])
    np.testing.assert_allclose(answer.measured_alpha, inner / length**2, rtol=1e-10)
    np.testing.assert_allclose(answer.measured_smoothness, 2 * np.abs(change[:, 0]) / length, rtol=1e-10)
    objective = (path[:, 0] - 1) ** 2 + variance + 0.5 * (variance + path[:, 0] ** 2 - 1 - np.log(variance))
    np.testing.assert_allclose(answer.objective, objective, rtol=1e-12)
    np.testing.assert_array_equal(answer.last, path[-1])
    assert answer.path.shape == (5, 2) and moments_method(sizes).run([2.0, 3.0], 4).path is None


def test_numbers_that_change_do_not_recompile():
    moments_method(0.3).run([2.0, 3.0], 4)
    before = Quadratic.traces
    for step_size, centre, prior in [(0.1, 1.0, (0.0, -0.5)), (0.3, 2.0, (0.0, -0.5)), (0.3, 1.0, (0.5, -2.0))]:
        moments_method(step_size, centre, prior).run([1.0, 3.0], 4)
    assert Quadratic.traces == before


def test_a_function_and_an_array_give_the_same_schedule():
    by_function = moments_method(lambda k: 0.5 / (k + 1.0)).run([2.0, 3.0], 4)
    by_array = moments_method(0.5 / np.arange(1.0, 5.0)).run([2.0, 3.0], 4)
    np.testing.assert_allclose(by_function.last, by_array.last, rtol=1e-14)


def test_single_precision_stays_single():
    answer = moments_method(0.3).run(np.array([2.0, 3.0], np.float32), 4)
    assert answer.last.dtype == answer.step_lengths.dtype == answer.objective.dtype == jnp.float32
    np.testing.assert_allclose(answer.last, moments_method(0.3).run([2.0, 3.0], 4).last, rtol=1e-5)


def noisy(w, key):
    return w + jax.random.normal(key, w.shape)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: moments_method(-0.1), "step_size must be a positive"),
        (lambda: moments_method([0.1, 0.2]).run([1.0, 1.0], 3), "step_size has 2 entries"),
        (lambda: moments_method(0.1).run([1.0, -1.0], 3), "w0 is not a member"),
        (lambda: moments_method(0.1).run([1.0], 3), "w0 has 1 entries"),
        (lambda: moments_method(0.1).run([1.0, np.nan], 3), "w0 has 1 entries that are NaN"),
        (lambda: moments_method(0.1).run([1.0, 1.0], 0), "num_steps must be at least 1"),
        (lambda: ProximalGradient(Gamma(), KL(), Split(), 0.1, "moments"), "coordinates='moments'"),
        (
            lambda: ProximalGradient(UnitGaussian(2), Euclidean(), Split(gradient=noisy), 0.1).run([1.0, 1.0], 3),
            "key is missing",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
