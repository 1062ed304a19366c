"""What a run of the proximal-gradient iteration records, refuses and survives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms import KLToPrior, ProximalGradient, Split
from provi.families import Gaussian
from provi.families.exponential import Coordinates, DiagonalGaussian, Gamma, UnitGaussian
from provi.geometry.divergences import KL, Euclidean
from provi.runtime import Budget, minimise_split, run
from provi.runtime.record import Outcome
from provi.targets import LogisticRegression

MOMENTS = Coordinates(DiagonalGaussian(1), "moments")


def curved(w):
    """Concave in the variance: once v > 1 the step in (m, v) has no minimum for a large beta."""
    return 0.5 * w[0] ** 2 - 5 * w[1]


def test_a_step_without_minimum_leaves_the_point_and_says_so():
    """V^-1 = V_old^-1 - 10 beta is negative: nothing to minimise, no NaN in the iterate."""
    method = ProximalGradient(KL(), [0.01, 5.0, 0.01])
    answer = minimise_split(Split(curved), MOMENTS, [1.0, 0.5], method, num_steps=3, keep_path=True)
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


def run_moments(step_size, start, num_steps, centre=1.0, prior=(0.0, -0.5), **options):
    split = Split(Quadratic(jnp.asarray(centre)), penalty=KLToPrior(jnp.asarray(prior)))
    return minimise_split(split, MOMENTS, start, ProximalGradient(KL(), step_size), num_steps=num_steps, **options)


def test_records_equal_what_the_path_says():
    """Lengths, alpha, smoothness and objective recomputed from the path in NumPy."""
    sizes = np.array([0.3, 0.2, 0.5, 0.1])
    answer = run_moments(sizes, np.array([2.0, 3.0]), 4, keep_path=True)
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
    assert answer.path.shape == (5, 2) and run_moments(sizes, [2.0, 3.0], 4).path is None


def test_numbers_that_change_do_not_recompile():
    run_moments(0.3, [2.0, 3.0], 4)
    before = Quadratic.traces
    for step_size, centre, prior in [(0.1, 1.0, (0.0, -0.5)), (0.3, 2.0, (0.0, -0.5)), (0.3, 1.0, (0.5, -2.0))]:
        run_moments(step_size, [1.0, 3.0], 4, centre, prior)
    assert Quadratic.traces == before


def test_a_function_and_an_array_give_the_same_schedule():
    by_function = run_moments(lambda k: 0.5 / (k + 1.0), [2.0, 3.0], 4)
    by_array = run_moments(0.5 / np.arange(1.0, 5.0), [2.0, 3.0], 4)
    np.testing.assert_allclose(by_function.last, by_array.last, rtol=1e-14)


def test_single_precision_stays_single():
    answer = run_moments(0.3, np.array([2.0, 3.0], np.float32), 4)
    assert answer.last.dtype == answer.step_lengths.dtype == answer.objective.dtype == jnp.float32
    np.testing.assert_allclose(answer.last, run_moments(0.3, [2.0, 3.0], 4).last, rtol=1e-5)


def noisy(w, key):
    return w + jax.random.normal(key, w.shape)


def run_noisy(**options):
    space, method = Coordinates(UnitGaussian(2)), ProximalGradient(Euclidean(), 0.1)
    return minimise_split(Split(gradient=noisy), space, [1.0, 1.0], method, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ProximalGradient(KL(), -0.1), "step_size must be a positive"),
        (lambda: run_moments([0.1, 0.2], [1.0, 1.0], 3), "step_size has 2 entries"),
        (lambda: run_moments(0.1, [1.0, -1.0], 3), "w0 is not a member"),
        (lambda: run_moments(0.1, [1.0], 3), "w0 has 1 entries"),
        (lambda: run_moments(0.1, [1.0, np.nan], 3), "w0 has 1 entries that are NaN"),
        (lambda: run_moments(0.1, [1.0, 1.0], 0), "num_steps must be at least 1"),
        (lambda: Coordinates(Gamma(), "moments"), "coordinates='moments'"),
        (lambda: run_noisy(num_steps=3), "seed is missing"),
        (
            lambda: ProximalGradient(KL(), 0.1).resolve(LogisticRegression(np.eye(2), [0, 1]), Gaussian(2)),
            "LogisticRegression is none: call",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_noisy_run_resumes_bit_for_bit(tmp_path):
    """Interrupted by its budget after 3 steps and taken up again: the same path, bit for bit, the start's row too."""
    whole = run_noisy(num_steps=6, seed=2, keep_path=True)
    path = tmp_path / "run"
    first = run_noisy(num_steps=6, seed=2, keep_path=True, checkpoint=path, budget=Budget(steps=4))
    assert np.isnan(first.path[4:]).all() and np.isfinite(first.path[:4]).all()
    rest = run_noisy(num_steps=6, seed=2, keep_path=True, checkpoint=path, resume=True)
    np.testing.assert_array_equal(rest.path, whole.path)
    np.testing.assert_array_equal(rest.path[-1], rest.last)
    assert rest.objective is None and len(rest.history) == 0  # f is not known


def walled(w):
    """Not a number beyond m = 0.5."""
    return jnp.where(w[0] > 0.5, jnp.nan, -w[0] + w[1])


def test_a_step_that_is_not_finite_is_rejected_and_shortened():
    """m <- m + beta v: from 0 with beta = 1 to 1, beyond the wall; half of it is on the wall, and allowed."""
    answer = minimise_split(
        Split(walled), MOMENTS, [0.0, 1.0], ProximalGradient(KL(), 1.0), num_steps=2, keep_path=True
    )
    assert answer.outcome is Outcome.COMPLETED
    assert "1 non-finite step(s) rejected, the first at iteration 1, where the objective" in answer.message
    assert np.isnan(answer.path[1]).all() and np.asarray(answer.solved).tolist() == [False, True]
    np.testing.assert_allclose(answer.last, [0.5, 0.5], rtol=1e-14)
    np.testing.assert_allclose(answer.step_sizes[1], 0.5)


def test_the_loop_of_all_algorithms_runs_it():
    """`provi.runtime.run` itself: minus the objective is the history's ELBO, exact."""
    split = Split(Quadratic(jnp.asarray(1.0)), penalty=KLToPrior(jnp.asarray([0.0, -0.5])))
    result = run(
        ProximalGradient(KL(), 0.3), split, MOMENTS, jnp.asarray([2.0, 3.0]), seed=0, num_steps=5, progress=False
    )
    answer = run_moments(0.3, [2.0, 3.0], 4)
    np.testing.assert_array_equal(result.last, answer.last)
    assert result.elbo == (-answer.objective[-1], 0.0) and result.history["elbo"][-1] == -answer.objective[-1]
