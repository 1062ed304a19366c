"""Certificates of Gaussian processes and N-space linear models against the truth: none may be below it.

The truth comes from `support.dual_oracle`: extended precision, Gauss-Legendre panels, Newton's method.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi import kernels
from provi.algorithms import DualNaturalGradient
from provi.certificates.distance.dual_form import dual_posterior_bound
from provi.certificates.dual.bounds import dual_bounds
from provi.certificates.dual.dual_pass import dual_negative_elbo
from provi.families import DualPoint, dual_gaussian
from provi.result import Posterior
from provi.structures.dual import site_start
from provi.targets import GaussianProcess, GeneralisedLinearModel
from provi.targets.likelihoods import BernoulliLogit, BernoulliProbit, GaussianNoise, NegativeBinomial, Poisson
from support.dual_oracle import Oracle, link

LIKELIHOODS: dict[str, tuple[Any, float]] = {
    "logit": (BernoulliLogit(), 1.0),
    "probit": (BernoulliProbit(), 1.0),
    "poisson": (Poisson(), 1.0),
    "gaussian": (GaussianNoise(0.3), 0.3),
    "binomial": (NegativeBinomial(2.0), 2.0),
}
KERNELS = {
    "smooth": kernels.SquaredExponential(1.0, 2.0),
    "short": kernels.SquaredExponential(1e-3, 1.0),
    "long and wide": kernels.SquaredExponential(1e3, 1e3),
    "narrow": kernels.Matern32(0.5, 1e-2),
    "rough": kernels.Matern12(0.3, 5.0),
    "wide": kernels.Matern52(1.0, 100.0),
    "linear": kernels.Linear(3.0),
    "periodic": kernels.Periodic(1.0, 0.7, 10.0),
}
SIZE = 6


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
    """Compilation is most of the time here."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target with its family, and the truth about it."""

    target: Any
    family: Any
    oracle: Oracle

    @functools.cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray, float]:
        return self.oracle.best()

    def gap(self, a, s) -> tuple[float, float]:
        """F - F*, and the accuracy of this number: that of sums in float64."""
        value = self.oracle.negative_elbo(a, s)
        return value - self.best[2], 1e-12 * (1 + abs(value) + abs(self.best[2]))


def problem(kind, kernel, jitter=1e-6, size=SIZE, mean=0.0, labels="random", seed=0, dtype=np.float64) -> Problem:
    rng = np.random.default_rng(seed)
    inputs, latent = rng.normal(size=(size, 1)), 1.5 * rng.normal(size=size)
    if labels == "duplicates":
        inputs[size // 2 :] = inputs[: size - size // 2]
    if kind in ("logit", "probit"):
        y = np.ones(size) if labels == "equal" else (latent > 0).astype(float)
    else:
        y = latent if kind == "gaussian" else rng.poisson(np.exp(latent)).astype(float)
    likelihood, parameter = LIKELIHOODS[kind]
    target = GaussianProcess(inputs.astype(dtype), y, kernel, likelihood, jitter=jitter, mean=mean)
    gram, response = np.asarray(target.gram, float), np.asarray(target.response, float)
    oracle = Oracle(kind, parameter, gram, np.full(size, float(target.mean)), response)
    return Problem(target, dual_gaussian(target), oracle)


def members(case: Problem, rng):
    """(a, s) from 1e-9 to several times away from the best, the prior, far off, and moved where K hardly sees it."""
    a, s, _ = case.best
    for size in (1.0, 0.1, 1e-2, 1e-4, 1e-9, 0.0):
        yield a + size * rng.normal(size=len(a)) * (0.1 + np.abs(a)), s * np.exp(size * rng.normal(size=len(a)))
    yield np.zeros_like(a), np.zeros_like(a)
    yield a, np.zeros_like(a)
    yield 30 * rng.normal(size=len(a)), 10 ** rng.uniform(-4, 2, len(a))
    yield a + 1e4 * np.linalg.eigh(np.asarray(case.oracle.gram, float))[1][:, 0], s


def check_bounds(case: Problem, seed=0, dtype=np.float64) -> int:
    """Every bound at every member; how many members have a finite one."""
    finite = 0
    for a, s in members(case, np.random.default_rng(seed)):
        a, s = a.astype(dtype), s.astype(dtype)
        gap, accuracy = case.gap(a.astype(float), s.astype(float))
        bounds = dual_bounds(case.target, case.family, DualPoint(jnp.asarray(a), jnp.asarray(s)))
        assert not any(bound.value < gap - accuracy for bound in bounds), (bounds, gap)
        finite += any(np.isfinite(bound.value) for bound in bounds)
    return finite


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_no_bound_is_below_the_truth(kind):
    finite, tried = 0, 0
    for seed, (name, kernel) in enumerate(KERNELS.items()):
        if kind == "poisson" and name in ("long and wide", "wide"):
            continue  # the mean of exp(eta) overflows at the members far off
        for jitter in (0.0, 1.0):
            finite += check_bounds(problem(kind, kernel, jitter, seed=seed), seed)
            tried += 10
    assert finite > 0.7 * tried, "a bound that is never finite is sound and useless"


@pytest.mark.parametrize("labels", ["equal", "duplicates"])
def test_equal_labels_and_duplicates(labels):
    for kind in ("logit", "probit"):
        for jitter in (0.0, 1e-6):
            assert check_bounds(problem(kind, KERNELS["wide"], jitter, labels=labels, mean=-3.0)) >= 5


def test_one_point():
    for kind in ("logit", "probit", "gaussian"):
        assert check_bounds(problem(kind, KERNELS["smooth"], size=1, mean=2.0)) >= 7


def test_forty_points():
    for kind, name in (("logit", "wide"), ("poisson", "smooth"), ("gaussian", "periodic")):
        assert check_bounds(problem(kind, KERNELS[name], size=40)) >= 5


def test_float32():
    """The member is that of the float32 numbers, the kernel matrix too; the proof is in float64."""
    for kind in ("logit", "poisson", "gaussian"):
        case = problem(kind, KERNELS["smooth"], 1e-3, dtype=np.float32)
        assert case.target.gram.dtype == np.float32
        assert check_bounds(case, dtype=np.float32) >= 7


def test_along_the_path_of_the_algorithm():
    for kind in ("logit", "poisson"):
        case = problem(kind, KERNELS["rough"], size=12)
        algorithm = DualNaturalGradient().resolve(case.target, case.family)
        step = jax.jit(lambda state, c=case, m=algorithm: m.step(None, state, c.target, c.family, 1.0)[0])
        state, best = algorithm.init(site_start(case.target, case.family)), np.inf
        for _ in range(30):
            state = step(state)
            gap, accuracy = case.gap(np.asarray(state.point.dual_mean), np.asarray(state.point.site_precision))
            bounds = [bound.value for bound in dual_bounds(case.target, case.family, state.point)]
            assert min(bounds) >= gap - accuracy
            best = min(best, *bounds)
        assert best < 1e-6


def test_near_the_optimum_the_bound_is_sharp():
    for kind in ("logit", "poisson", "gaussian"):
        case = problem(kind, KERNELS["smooth"])
        a, s, _ = case.best
        direction = np.random.default_rng(1).normal(size=SIZE)
        a, s = a + 1e-3 * direction, s * (1 + 1e-3 * direction)
        bounds = dual_bounds(case.target, case.family, DualPoint(jnp.asarray(a), jnp.asarray(s)))
        assert case.gap(a, s)[0] <= min(bound.value for bound in bounds) <= 2 * case.gap(a, s)[0]


def test_the_negative_elbo_is_within_its_stated_error():
    for kind in LIKELIHOODS:
        case = problem(kind, KERNELS["rough"])
        for a, s in members(case, np.random.default_rng(3)):
            value, error = dual_negative_elbo(case.target, case.family, DualPoint(jnp.asarray(a), jnp.asarray(s)))
            truth = case.oracle.negative_elbo(a, s)
            assert not np.isfinite(truth) or abs(value - truth) <= error + 1e-14 * abs(truth)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["logit", "gaussian", "poisson"])
def test_linear_models_with_more_columns_than_rows(kind, dtype):
    """Against the D-space optimum, whose K = X Sigma_0 X' is formed in float64 from the design as it is stored."""
    rng = np.random.default_rng(4)
    design, scale = rng.normal(size=(SIZE, 40)).astype(dtype), 10 ** rng.uniform(-1, 0.5, 40)
    eta = design @ rng.normal(size=40) / 6
    y = {"logit": eta > 0, "gaussian": eta, "poisson": rng.poisson(np.exp(np.clip(eta, -3, 3)))}[kind]
    likelihood, parameter = LIKELIHOODS[kind]
    target = GeneralisedLinearModel(design, y, likelihood, scale, prior_mean=np.full(40, 0.3))
    stored, factor = np.asarray(target.design, np.longdouble), np.asarray(target.prior.factor, np.longdouble)
    gram, mean = (stored * factor) @ (stored * factor).T, stored @ np.asarray(target.prior.mean, np.longdouble)
    oracle = Oracle(kind, parameter, gram, mean, np.asarray(target.response, float))
    case = Problem(target, dual_gaussian(target), oracle)
    assert check_bounds(case, dtype=dtype) >= 6
    if kind != "logit":
        return
    fit = provi.fit(target, tol=1e-4, progress=False)
    a, s = (np.asarray(x, float) for x in (fit.posterior.point.dual_mean, fit.posterior.point.site_precision))
    gap, accuracy = case.gap(a, s)
    assert fit.certificate.gap >= gap - accuracy
    assert dtype == np.float32 or fit.certificate.gap <= 1e-4


def test_the_numbers_of_another_target_get_no_certificate():
    """(a, s) and K of one model say nothing about another one, though every shape agrees."""
    case, other = problem("logit", KERNELS["smooth"]), problem("logit", KERNELS["wide"])
    posterior = Posterior(case.family, case.family.prior_point(), case.target.parameter_names)
    for attempt in (lambda: provi.certify(other.target, posterior), lambda: provi.fit(other.target, case.family)):
        with pytest.raises(ValueError, match="made for another target"):
            attempt()
    shifted = problem("logit", KERNELS["smooth"], mean=1.0)
    with pytest.raises(ValueError, match="made for another target"):
        dual_bounds(shifted.target, case.family, case.family.prior_point())


@pytest.mark.parametrize("kind", ["logit", "probit"])
def test_the_distance_to_the_posterior_is_above_the_true_divergence(kind):
    """One and two points, by quadrature. 24 bounds at 99%, whose margins for noise are loose enough that none fails."""
    rng = np.random.default_rng(5)
    for trial in range(12):
        size = 1 + trial % 2
        case = problem(kind, kernels.Matern12(1.0, 10 ** rng.uniform(-1, 1)), size=size, seed=trial)
        a, s, _ = case.best
        a, s = a + 0.3 * rng.normal(size=size) * (trial % 3), s * np.exp(0.5 * rng.normal(size=size))
        point = DualPoint(jnp.asarray(a), jnp.asarray(s))
        bound = dual_posterior_bound(case.target, case.family, point, confidence=0.99, seed=trial)
        truth = case.oracle.negative_elbo(a, s) + log_evidence(case)
        assert bound is not None and truth <= bound.kl <= 6 * truth + 0.01
        pinsker, other = np.sqrt(bound.kl / 2), np.sqrt(-np.expm1(-bound.kl))
        assert bound.total_variation == pytest.approx(min(pinsker, other))


def log_evidence(case: Problem) -> float:
    """log of the integral of prior times likelihood, on one axis or two: 30 panels with 20 nodes each."""
    lower, oracle = np.linalg.cholesky(case.oracle.gram), case.oracle
    edges = np.linspace(-10, 10, 31)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    axis, share = (edges[:-1, None] + (1 + nodes) / 3).ravel(), np.tile(weights / 3, 30)
    white = np.stack([x.ravel() for x in np.meshgrid(*[axis] * len(lower), indexing="ij")])
    shares = np.prod(np.stack([x.ravel() for x in np.meshgrid(*[share] * len(lower), indexing="ij")]), axis=0)
    potential = link(oracle.kind, oracle.parameter, oracle.mean[:, None] + lower @ white, oracle.y[:, None])[0]
    density = np.exp(-potential.sum(axis=0) - 0.5 * np.sum(white**2, axis=0)) * (2 * np.pi) ** (-len(lower) / 2)
    return float(np.log(density @ shares))
