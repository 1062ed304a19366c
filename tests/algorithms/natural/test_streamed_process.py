"""Gaussian processes whose kernel matrix is not stored: equal to the dense path, sound, and small in memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.algorithms import PGSVI
from provi.algorithms.base import without_guarantee
from provi.algorithms.natural.pgsvi_spaces import StreamedSpace
from provi.certificates.dual.bounds import iterative_bounds
from provi.certificates.dual.dual_pass import dual_negative_elbo
from provi.families import DualPoint, dual_gaussian
from provi.families.site_solver import site_solver
from provi.kernels import Linear, Matern12, Matern32, Matern52, Periodic, SquaredExponential
from provi.kernels.rows import entry_rounding
from provi.structures.dual import streamed_working_point, working_point
from provi.targets import GaussianProcess
from provi.targets.likelihoods import StudentT

RNG = np.random.default_rng(4)
SIZE = 60
INPUTS = RNG.normal(size=(SIZE, 2))
LABELS = (INPUTS.sum(axis=1) + RNG.normal(size=SIZE) > 0).astype(float)
KERNEL = Matern12(1.0, 2.0)
DENSE = GaussianProcess(INPUTS, LABELS, KERNEL, jitter=1e-3)
STREAMED = GaussianProcess(INPUTS, LABELS, KERNEL, jitter=1e-3, stream=True)
SOLVER = site_solver(STREAMED.gram, 1e-3, 8)


def stepped(algorithm, target, num):
    family = dual_gaussian(target)
    algorithm = without_guarantee(algorithm.resolve(target, family))
    if target is STREAMED:  # a poor preconditioner, or there would be nothing to iterate
        algorithm = dataclasses.replace(algorithm, space=StreamedSpace(target, family, SOLVER))
    step = jax.jit(lambda state: algorithm.step(jax.random.key(1), state, target, family, jnp.ones(()))[0])
    state = algorithm.init(DualPoint(jnp.full(SIZE, 0.1), jnp.full(SIZE, 0.2)))
    for _ in range(num):
        state = step(state)
    return state


@pytest.mark.parametrize("form", ["natural", "proximal"])
def test_steps_are_those_of_the_stored_matrix(form):
    method = PGSVI(step_size=0.3, batch_size=13, form=form)
    ours, theirs = (stepped(method, target, 4).point for target in (STREAMED, DENSE))
    # Variances to 1e-5 relative, solutions to a residual of 1e-8.
    np.testing.assert_allclose(ours.dual_mean, theirs.dual_mean, atol=2e-5)
    np.testing.assert_allclose(ours.site_precision, theirs.site_precision, atol=2e-5)


def test_fit_and_predictions_are_those_of_the_stored_matrix(tmp_path):
    dense, streamed = (provi.fit(target, tol=1e-6, progress=False) for target in (DENSE, STREAMED))
    assert streamed.certificate.gap is not None and streamed.certificate.gap <= 1e-6
    assert abs(streamed.elbo.value - dense.elbo.value) <= 1e-5
    np.testing.assert_allclose(streamed.posterior.mean, dense.posterior.mean, atol=5e-3)
    deviations = dense.posterior.standard_deviation
    np.testing.assert_allclose(streamed.posterior.standard_deviation, deviations, atol=2e-3)
    new = RNG.normal(size=(5, 2))
    np.testing.assert_allclose(streamed.predict(new).mean, dense.predict(new).mean, atol=1e-3)
    streamed.save(tmp_path / "fit")
    np.testing.assert_array_equal(provi.load(tmp_path / "fit").posterior.mean, streamed.posterior.mean)


def test_bound_is_sound_and_counts_the_rounding_of_entries():
    family, dense = dual_gaussian(STREAMED), dual_gaussian(DENSE)
    best = provi.fit(DENSE, tol=1e-9, progress=False).posterior.point
    least = dual_negative_elbo(DENSE, dense, best)[0]
    for size in (0.3, 0.03, 1e-3):
        move = size * RNG.normal(size=SIZE)
        point = DualPoint(best.dual_mean + 0.1 * move, best.site_precision * (1 + 0.3 * np.tanh(move)))
        bound = iterative_bounds(STREAMED, family, point, SOLVER)[0].value
        assert bound >= dual_negative_elbo(DENSE, dense, point)[0] - least


def test_bound_is_withheld_for_a_kernel_of_unknown_rounding(monkeypatch):
    monkeypatch.setattr("provi.certificates.dual.dual_pass.entry_rounding", lambda *_: None)
    family = dual_gaussian(STREAMED)
    found = iterative_bounds(STREAMED, family, family.prior_point())[0]
    assert found.value == np.inf and "rounding" in str(found.detail)


@pytest.mark.parametrize(
    "kernel",
    [
        SquaredExponential(0.7, 2.0),
        Matern12(0.3, 1.5),
        Matern32(0.7, 1.0),
        Matern52(0.7, 1.0),
        Linear(0.8, 0.3),
        Periodic(1.3, 0.6, 1.2),
        Linear(1.0) + Matern32(0.5, 2.0) * SquaredExponential(1.0, 1.0),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_entries_round_by_no_more_than_is_said(kernel):
    single = INPUTS.astype(np.float32)
    exact = np.asarray(kernel.matrix(jnp.asarray(single, jnp.float64)))
    rounded = np.asarray(kernel.matrix(jnp.asarray(single)), np.float64)
    root, unit = np.sqrt(np.diagonal(exact)), entry_rounding(kernel, 2, np.float32)
    assert unit is not None
    assert (np.abs(rounded - exact) <= unit * root[:, None] * root[None, :]).all()


def test_working_point_by_conjugate_gradients():
    family, solver = dual_gaussian(STREAMED), SOLVER
    response, weight = RNG.normal(size=SIZE), RNG.uniform(0.5, 2.0, SIZE)
    ours, theirs = (
        streamed_working_point(family, solver, response, weight),
        working_point(dual_gaussian(DENSE), response, weight),
    )
    np.testing.assert_allclose(ours.dual_mean, theirs.dual_mean, atol=1e-4)


def test_a_step_holds_no_matrix_of_the_size_of_the_kernel():
    size = 4000
    inputs = np.random.default_rng(0).normal(size=(size, 2))
    target = GaussianProcess(inputs, (inputs[:, 0] > 0).astype(float), SquaredExponential(1.0, 1.0), stream=True)
    family = dual_gaussian(target)
    algorithm = without_guarantee(PGSVI(rho=0.2, batch_size=20).resolve(target, family))
    state = algorithm.init(family.prior_point())

    def step(algorithm, state, target, family):
        return algorithm.step(jax.random.key(0), state, target, family, jnp.ones(()))[0]

    memory = jax.jit(step).lower(algorithm, state, target, family).compile().memory_analysis()
    if memory is None:
        pytest.skip("the backend does not say what memory a program takes")
    assert memory.temp_size_in_bytes + memory.argument_size_in_bytes < 8 * size**2 / 2


def test_what_is_refused():
    with pytest.raises(ValueError, match="log-concave"):
        GaussianProcess(INPUTS, LABELS, KERNEL, StudentT(4.0, 1.0), stream=True)
    with pytest.raises(ValueError, match="halve_on_stall"):
        PGSVI(rho=0.2, halve_on_stall=True).resolve(STREAMED, dual_gaussian(STREAMED))
