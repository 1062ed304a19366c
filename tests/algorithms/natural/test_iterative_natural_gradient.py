"""The path without factors against the one with them, its certificate against the true gap, and the choice of path."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.algorithms.natural.dual_natural_gradient import DualNaturalGradient
from provi.algorithms.natural.iterative_natural_gradient import IterativeNaturalGradient, estimated_elbo
from provi.certificates.dual.bounds import iterative_bounds
from provi.certificates.dual.dual_pass import dual_negative_elbo
from provi.families.dual_gaussian import DualPoint, dual_gaussian
from provi.families.site_solver import site_solver
from provi.kernels import Matern12, SquaredExponential
from provi.structures import dual
from provi.structures.dual import SMALLEST_ITERATIVE, iterate
from provi.targets import GaussianProcess
from provi.targets.likelihoods import BernoulliLogit, BernoulliProbit, Poisson, StudentT

SIZE, RANK = 270, 64
KERNELS = {"rough": Matern12(1.0, 3.0), "low rank": SquaredExponential(3.0, 3.0)}
advance = eqx.filter_jit(lambda algorithm, *parts: algorithm.step(None, *parts, jnp.ones(()))[0])


def problem(kernel, likelihood):
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((SIZE, 3))
    rate = np.exp(np.sin(2 * inputs[:, 0]))
    counts = rng.poisson(rate).astype(float)
    response = counts if isinstance(likelihood, Poisson) else (counts > 0).astype(float)
    target = GaussianProcess(inputs, response, kernel, likelihood, jitter=1e-4)
    family = dual_gaussian(target)
    return target, family, site_solver(family.gram, target.jitter, RANK)


def steps(algorithm, target, family, start, num):
    states = [algorithm.init(start)]
    for _ in range(num):
        states.append(advance(algorithm, states[-1], target, family))
    return states[1:]


@pytest.mark.parametrize("kind", KERNELS)
def test_optimum_descent_and_certificate(kind):
    """Both paths end at one point; F falls at each accepted step; the bound is never below the true gap."""
    target, family, solver = problem(KERNELS[kind], BernoulliLogit())
    exact = steps(DualNaturalGradient(), target, family, family.prior_point(), 25)[-1]
    best = float(exact.evaluation.negative_elbo)
    iterative = IterativeNaturalGradient(tolerance=1e-9, solver=solver)
    states = steps(iterative, target, family, family.prior_point(), 14)
    last = states[-1].point
    np.testing.assert_allclose(last.site_precision, exact.point.site_precision, atol=1e-7)
    np.testing.assert_allclose(last.dual_mean, exact.point.dual_mean, atol=1e-6)
    gaps = [dual_negative_elbo(target, family, state.point)[0] - best for state in states]
    assert all(later <= earlier + 1e-7 for earlier, later in zip(gaps, gaps[1:], strict=False))
    bounds = [iterative_bounds(target, family, state.point, solver)[0].value for state in states]
    assert all(gap <= bound for gap, bound in zip(gaps, bounds, strict=True))
    assert bounds[-1] < 1e-6
    factored = [iterative_bounds(target, family, state.point)[0].value for state in (states[2], states[-1])]
    assert gaps[2] <= factored[0] and gaps[-1] <= factored[1] < 1e-6
    assert factored[0] == pytest.approx(bounds[2], rel=1e-3)
    # Seven standard errors of 256 probes; the error of the trapezoid rule is in the run's own ELBO only.
    value, error = (float(x) for x in estimated_elbo(jax.random.key(0), target, family, last, solver))
    assert abs(value + best) < 7 * error + 1e-6
    low, unsure = iterative.recorded_elbo(states[-1])
    assert abs(float(low) + best) <= float(unsure) + 1e-6


@pytest.mark.parametrize("likelihood", [BernoulliProbit(), Poisson(), BernoulliLogit()])
def test_bound_is_sound_near_the_optimum(likelihood):
    """Points around the best one, in every direction of a and s, the errors of the variances included."""
    target, family, solver = problem(Matern12(1.0, 0.7), likelihood)
    state = steps(IterativeNaturalGradient(solver=solver), target, family, family.prior_point(), 9)[-1]
    best = dual_negative_elbo(target, family, state.point)[0]
    rng, found = np.random.default_rng(1), []
    for size in (1e-4, 1e-3, 3e-3):
        a, s = np.asarray(state.point.dual_mean), np.asarray(state.point.site_precision)
        a, s = a + 0.1 * size * rng.standard_normal(SIZE), s * np.exp(size * rng.standard_normal(SIZE))
        point = DualPoint(jnp.asarray(a), jnp.asarray(s))
        bound = iterative_bounds(target, family, point, solver)[0].value
        gap = dual_negative_elbo(target, family, point)[0] - best
        assert gap - 1e-9 <= bound
        found.append(bound)
    assert np.isfinite(found[0])


def test_fit_by_either_path_and_the_errors(monkeypatch):
    target, family, _ = problem(KERNELS["rough"], BernoulliLogit())
    exact = provi.fit(target, tol=0.01)
    monkeypatch.setattr(dual, "SMALLEST_ITERATIVE", 0)
    monkeypatch.setattr(dual, "iterate", lambda *_: True)
    monkeypatch.setattr(dual, "site_solver", lambda gram, jitter: site_solver(gram, jitter, RANK))
    fit = provi.fit(target, tol=0.01)
    assert fit.certificate.gap <= 0.01 and fit.certificate.status == "proven"
    assert fit.certificate.bounds[0].name == "linearisation (b), by traces"
    np.testing.assert_allclose(fit.posterior.mean, exact.posterior.mean, atol=0.05)
    assert abs(fit.elbo.value - exact.elbo.value) < 7 * fit.elbo.standard_error + 0.01
    with pytest.raises(ValueError, match="log-concave"):
        rough = problem(KERNELS["rough"], StudentT(4.0, 1.0))
        IterativeNaturalGradient().resolve(rough[0], rough[1])
    with pytest.raises(ValueError, match="dual family"):
        IterativeNaturalGradient().resolve(target, provi.families.Gaussian(SIZE))


def test_choice_by_memory_and_cost():
    gib = 2**30
    assert not iterate(10_000, 8, 64 * gib, low_rank=False)  # factors cost less
    assert iterate(10_000, 8, 64 * gib, low_rank=True)
    assert iterate(10_000, 8, 5 * gib, low_rank=False)  # 6 GiB for K's factors
    assert not iterate(SMALLEST_ITERATIVE - 1, 8, 64 * gib, low_rank=True)
    assert iterate(20_000, 4, 8 * gib, low_rank=False)


def test_no_room_for_the_kernel_matrix(monkeypatch):
    monkeypatch.setattr("provi.targets.gaussian_process.available_bytes", lambda: 10**5)
    with pytest.raises(ValueError, match="SparseGaussianProcess"):
        problem(KERNELS["rough"], BernoulliLogit())
