"""Limits of time and memory: what would take longer than is left is not begun, what does not fit is refused."""

import dataclasses
import importlib
import os
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.algorithms.natural.laplace import laplace_approximation
from provi.cli.certify import read_approximation
from provi.core.limits import NO_LIMIT, Clock
from provi.diagnostics.exact import line_rule
from provi.diagnostics.optimum import _narrow_enough
from provi.families.bases import gamma_draws
from provi.frontends.stan.front_end import _read_code
from provi.result.posterior import Posterior
from provi.runtime.loop import estimate_elbo, largest_array
from provi.structures import base, sampled


def target(dim=2):
    return provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(z**2) - jnp.sum(jnp.log1p(z**2)), dim)


def test_a_clock_pays_for_what_fits_into_the_time_that_is_left():
    now = time.monotonic()
    clock = Clock(now + 10.0, gradient=0.1, program=1.0)
    assert 9 < clock.left <= 10 and clock.limited
    assert clock.pays_for(50) and clock.pays_for(40, programs=5) and not clock.pays_for(50, programs=5)
    assert 45 < clock.gradients(0.5) <= 50
    assert Clock(now - 1.0).left == 0 and not Clock(now - 1.0).pays_for(0)
    assert NO_LIMIT.pays_for(1e30, 1e30) and NO_LIMIT.gradients() == np.inf
    waits = iter((0.15, 0.05))
    measured = clock.measured(lambda: time.sleep(next(waits)))
    assert 0.05 <= measured.gradient < 0.1 and 0.05 < measured.program < 0.2
    assert NO_LIMIT.measured(lambda: pytest.fail("not asked without a limit")) is NO_LIMIT


def slow_gradients(monkeypatch, seconds):
    """Gradients that are said to take so long."""
    monkeypatch.setattr(Clock, "measured", lambda clock, _: dataclasses.replace(clock, gradient=seconds))


@pytest.mark.parametrize("scale", ["triangular", "diagonal"])
def test_a_certificate_that_would_come_too_late_is_left_out_with_a_note(monkeypatch, scale):
    """Search and audit take 15,000 gradients that no budget counted: 15 s were 67 s where one takes 8 ms."""
    slow_gradients(monkeypatch, 0.01)
    monkeypatch.setattr(sampled, "find_negative_curvature", lambda *_, **__: pytest.fail("begun without the time"))
    draws = []
    monkeypatch.setattr(base, "estimate_elbo", lambda *given: draws.append(given[-1]) or estimate_elbo(*given))
    fit = provi.fit(target(), provi.families.Gaussian(2, scale), budget=provi.Budget(seconds=0.4))
    assert fit.outcome is provi.Outcome.TIME_BUDGET and fit.certificate.gap is None
    assert draws == [100]
    assert "did not pay for a certificate, which takes at least 150 s" in fit.certificate.notes[0]


def test_a_certificate_of_quick_gradients_is_made_within_the_budget():
    began = time.monotonic()
    density = provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(z**2) - jnp.sum(jnp.cosh(z)), 2)
    fit = provi.fit(density, budget=provi.Budget(seconds=600))
    assert fit.certificate.gap is not None and time.monotonic() - began < 600


def test_the_search_for_a_mode_ends_with_its_share_and_does_without_a_hessian():
    """Rosenbrock's valley: a hundred steps to the mode."""
    valley = provi.targets.LogDensity(lambda z: -100 * (z[1] - z[0] ** 2) ** 2 - (1 - z[0]) ** 2, 2, start=[-1.2, 1.0])
    whole = laplace_approximation(valley, valley.default_location)
    short = laplace_approximation(valley, valley.default_location, clock=Clock(time.monotonic() + 1e-9, 1.0, 1.0))
    assert whole.converged and np.allclose(whole.mode, 1, atol=1e-3)
    assert not short.converged and not np.allclose(short.mode, 1, atol=0.1)
    assert np.allclose(short.factor, short.factor[0, 0] * np.eye(2)) and 0 < short.factor[0, 0] < np.inf


def test_an_elbo_of_many_data_is_computed_some_draws_at_a_time(monkeypatch):
    """4096 draws of a potential of 400,000 data asked for 37 GiB."""
    loop = importlib.import_module("provi.runtime.loop")
    data = jnp.linspace(-1.0, 1.0, 1000)
    density = provi.targets.LogDensity(lambda z: -0.5 * jnp.sum((data * z[0] - z[1]) ** 2) - jnp.sum(z**2), 2)
    assert largest_array(density.potential, jnp.zeros(2)) == 8000
    family = provi.families.Gaussian(2)
    point, key = family.point(np.zeros(2), 1.0, np.float64), jax.random.key(0)
    at_once = estimate_elbo(key, density, family, point, 64)
    monkeypatch.setattr(loop, "LARGEST_ARRAY", 5 * 8000)
    traced = loop.estimate_elbo.__wrapped__  # its programs are kept
    text = str(jax.make_jaxpr(lambda: traced(key, density, family, point, 65))())
    assert "5,1000" in text and "65,1000" not in text
    apart = eqx.filter_jit(traced)(key, density, family, point, 64)
    np.testing.assert_allclose(np.asarray(apart), np.asarray(at_once), rtol=1e-12)


def test_matrices_and_draws_that_do_not_fit_are_refused_with_their_size(monkeypatch):
    family = provi.families.Gaussian(300, "diagonal")
    q = Posterior(family, family.point(np.zeros(300)), tuple(map(str, range(300))))
    monkeypatch.setattr("provi.core.limits.host_bytes", lambda: 2**20)
    with pytest.raises(ValueError, match=r"covariance of 300 dimensions takes about 0.0 GiB, more than is free"):
        _ = q.covariance
    with pytest.raises(ValueError, match="1000000 draws of 300 dimensions takes about 6.7 GiB.*fewer at a time"):
        q.sample(10**6, 0)
    assert q.sample(10, 0).shape == (10, 300)
    with pytest.raises(ValueError, match="full scale of 2000 dimensions.*scale='diagonal'"):
        provi.families.Gaussian(2000).point(np.zeros(2000))


def test_what_draws_and_files_ask_for_is_compared_with_the_memory_there_is(monkeypatch, tmp_path):
    """Replicates, predictions at new rows, ArviZ's tables, a pair (mean, covariance) in a compressed archive."""
    rng = np.random.default_rng(0)
    design, labels = rng.normal(size=(30, 2)), np.tile([0.0, 1.0], 15)
    fit = provi.fit(provi.targets.LogisticRegression(design, labels), progress=False)
    np.savez_compressed(tmp_path / "q.npz", mean=np.zeros(2), covariance=np.zeros((600, 600)))
    monkeypatch.setattr("provi.core.limits.host_bytes", lambda: 2**20)
    for ask in (
        lambda: fit.posterior_predictive(num_draws=10_000),
        lambda: fit.posterior_predictive(design, num_draws=10_000),
        lambda: fit.to_arviz(num_draws=10_000),
        lambda: read_approximation(tmp_path / "q.npz"),
    ):
        with pytest.raises(ValueError, match="GiB, more than is free"):
            ask()
    assert fit.posterior_predictive(num_draws=10)["y"].shape == (10, 30)
    assert (tmp_path / "q.npz").stat().st_size < 10_000


def test_paths_that_would_be_read_for_ever_or_are_no_program_are_refused(tmp_path):
    os.mkfifo(tmp_path / "X.npy")
    with pytest.raises(FileNotFoundError, match="X: there is no file"):
        provi.targets.LogisticRegression.from_blocks(tmp_path / "X.npy", np.zeros(3))
    (tmp_path / "long.stan").write_bytes(b" " * (2**24 + 1))
    with pytest.raises(ValueError, match="more than 16 MiB"):
        _read_code(tmp_path / "long.stan")


def test_loops_that_nothing_can_end_are_ended():
    """Draws of a gamma law whose shape is no number, and a mean of exp(eta) that is infinite at any width."""
    draws = eqx.filter_jit(gamma_draws)(jax.random.key(0), jnp.asarray(jnp.nan), 3, jnp.float64)
    assert np.isnan(np.asarray(draws)).all()
    assert np.isfinite(
        np.asarray(eqx.filter_jit(gamma_draws)(jax.random.key(0), jnp.asarray(1.0), 100, jnp.float64))
    ).all()
    model = provi.targets.PoissonRegression(np.ones((2, 1)), [1.0, 2.0])
    found = eqx.filter_jit(_narrow_enough)(
        model, line_rule(model, provi.families.Gaussian(1)), jnp.asarray([800.0]), jnp.eye(1), False
    )
    assert not np.isfinite(float(found.objective))
