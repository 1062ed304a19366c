"""Bounds on KL(q || posterior) and brackets of the evidence against the truth: none may be below, or miss, it.

`python -m provi_lab.bench.distance` runs more problems, up to 500 dimensions, and counts; its oracle is used here. The
bounds are proven at confidence 0.99, by inequalities for any number of draws, which are so loose that misses are far
rarer than one in a hundred: none is allowed.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi import kernels
from provi.certificates.distance.dual_bound import dual_bound
from provi.certificates.distance.dual_form import dual_posterior_bound
from provi.certificates.distance.posterior import linear_posterior_bound
from provi.certificates.distance.problems import linear_problem
from provi.families import Gaussian, dual_gaussian
from provi.targets import GaussianProcess, GeneralisedLinearModel, LinearRegression, LogDensity, LogisticRegression
from provi.targets.likelihoods import BernoulliLogit
from provi_lab.bench.distance_oracle import (
    LinearPosterior,
    grid_log_evidence,
    importance_truth,
    line_log_evidence,
    truth,
)
from provi_lab.bench.distance_problems import linear, model
from provi_lab.bench.distance_trials import _wall as wall

TERMS, FAMILY = 6, Gaussian(1)


def at(target, mean, covariance, seed=0, confidence=0.99):
    family = Gaussian(len(mean))
    point = family.point_from_covariance(np.asarray(mean), np.asarray(covariance))
    return linear_posterior_bound(target, family, point, confidence=confidence, seed=seed)


def hostile(trial):
    """One dimension, six terms: steep ones, weak priors, far prior means, large counts; five kinds of q."""
    rng = np.random.default_rng([18, trial])
    link = ("logit", "logit", "poisson")[trial % 3]
    x = 10 ** rng.uniform(-1, 5 if link == "logit" else 0) * rng.normal(size=(TERMS, 1))
    sd, mean = 10 ** rng.uniform(-1, 4 if link == "logit" else 1), rng.uniform(-5, 5)
    if link == "logit":
        y = (rng.random(TERMS) < rng.choice([0.1, 0.5, 1.0])).astype(float)
    else:
        y = np.floor(10 ** rng.uniform(0, 6, TERMS))
    target, posterior = model(link, x, y, sd, mean=mean)
    mode, spread = posterior.mode()
    members = [
        (posterior.prior_mean, posterior.prior_covariance),
        (mode, spread),
        (mode + 0.7 * np.sqrt(spread[0]), 1.5 * spread),
        (mode, 0.3 * spread),
        (mode, min(3.0, float(posterior.prior_covariance[0, 0] / spread[0, 0])) * spread),
    ]
    return target, posterior, *members[trial % 5]


def test_hostile_problems_on_a_line():
    finite, below = 0, []
    for trial in range(60):
        target, posterior, mean, covariance = hostile(trial)
        found = linear_problem(target, FAMILY, FAMILY.point_from_covariance(mean, covariance))
        bound = None if found is None else dual_bound(*found, delta=0.01, seed=trial, most_evaluations=10_000)
        kl = line_log_evidence(posterior) - posterior.elbo(mean, covariance)
        if bound is None or not math.isfinite(bound.kl) or not math.isfinite(kl):
            continue
        finite += 1
        if bound.kl < kl - 1e-9 - 1e-11 * abs(kl):
            below.append((trial, bound, kl))
        assert bound.proven
    assert not below
    assert finite >= 50, "a bound that is never there is sound and useless"


@pytest.mark.parametrize("link, sd", [("logit", 1.0), ("logit", 100.0), ("poisson", 10.0)])
def test_planes(link, sd):
    """Two dimensions, twenty terms; fits, and Gaussians that are shifted, narrow and wide."""
    for seed in range(2):
        target, posterior = linear(link, 20, 2, sd, seed=seed, signal=1.0)
        mode, spread = posterior.mode()
        evidence = grid_log_evidence(posterior, 24)
        assert evidence == pytest.approx(grid_log_evidence(posterior, 16), abs=1e-8)
        for shift, width in ((0.0, 1.0), (0.5, 1.0), (0.0, 0.5), (0.2, 2.0)):
            mean, covariance = mode + shift * np.linalg.cholesky(spread)[:, 0], width * spread
            bound = at(target, mean, covariance, seed)
            kl = evidence - posterior.elbo(mean, covariance)
            assert bound is not None and bound.kl >= kl - 1e-7, (seed, shift, width)
            if sd < 100:
                assert bound.kl <= 8 * kl + 0.05


def test_one_term_out_of_reach_of_all_draws():
    """Issue 18: certified at 2e-32 on 57 of 60 seeds, where the truth is 7.13; no draw of the prior met the term."""
    target = LogisticRegression(np.asarray([[1e5]]), [1], prior_mean=3.45)
    posterior = LinearPosterior(np.asarray([[1e5]]), np.ones(1), "logit", np.asarray([3.45]), np.eye(1))
    exact = truth(posterior, np.asarray([3.45]), np.eye(1))
    assert exact.kl == pytest.approx(7.13, abs=0.01)
    for seed in range(8):
        bound = provi.certify(target, ([3.45], [[1.0]]), seed=seed, compare=False).posterior
        assert bound is not None and exact.kl <= bound.kl <= 1.2 * exact.kl and bound.status == "proven"


def test_a_process_of_large_amplitude_at_its_prior():
    """Issue 18: 95 of 100 bounds were below the truth."""
    target = GaussianProcess(np.zeros((1, 1)), np.ones(1), kernels.SquaredExponential(1.0, 100.0), jitter=0.0)
    posterior = LinearPosterior(np.eye(1), np.ones(1), "logit", np.zeros(1), 1e4 * np.eye(1))
    family = dual_gaussian(target)
    exact = truth(posterior, np.zeros(1), 1e4 * np.eye(1))
    for seed in range(8):
        bound = dual_posterior_bound(target, family, family.prior_point(), confidence=0.99, seed=seed)
        assert bound is not None and exact.kl <= bound.kl <= 1.2 * exact.kl


def test_hard_problems_after_a_fit():
    """Issue 18: 193 of 1,177 such problems were missed far more often than one time in a hundred."""
    for trial in range(5):
        rng = np.random.default_rng([5, trial])
        x, sd = 10 ** rng.uniform(1, 4) * rng.normal(size=(3, 1)), 10 ** rng.uniform(0, 2)
        target, posterior = model("logit", x, rng.integers(0, 2, 3).astype(float), sd, mean=rng.uniform(-3, 3))
        fit = provi.fit(target, progress=False)
        mean, covariance = np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance)
        exact, bound = truth(posterior, mean, covariance), fit.certificate.posterior
        assert bound is None or bound.kl >= exact.kl - exact.error
        assert fit.evidence.lower - exact.error <= exact.log_evidence <= fit.evidence.upper + exact.error


def test_walls_as_black_boxes_with_declared_constants():
    """z^2 / 2 and a wall that few draws of q reach: what is called proven holds, and most has a bound."""
    known = 0
    for trial in range(8):
        target, posterior, mean, covariance, _, evidence = wall(np.random.default_rng([3, trial]))
        bound = provi.certify(target, (mean, covariance), seed=trial, compare=False).posterior
        kl = evidence - posterior.elbo(mean, covariance)
        known += bound is not None
        assert bound is None or bound.status != "proven" or bound.kl >= kl - 1e-8
    assert known >= 4


def test_dual_and_linear_form_agree():
    """The same posterior as a Gaussian process and as a linear model: other coordinates, the same quantity."""
    rng = np.random.default_rng(8)
    inputs, y = rng.normal(size=(12, 1)), rng.integers(0, 2, 12).astype(float)
    process = GaussianProcess(inputs, y, kernels.Matern32(1.0, 2.0), jitter=1e-3)
    gram = np.asarray(process.gram)
    dual = provi.fit(process, progress=False)
    mean, covariance = np.asarray(dual.posterior.mean), np.asarray(dual.posterior.covariance)
    target = GeneralisedLinearModel(np.eye(12), y, BernoulliLogit(), prior_covariance=gram)
    first, second = dual.certificate.posterior, at(target, mean, covariance)
    assert first is not None and second is not None
    assert first.estimate == pytest.approx(second.estimate, rel=0.2, abs=5e-3)
    posterior = LinearPosterior(np.eye(12), y, "logit", np.zeros(12), gram)
    exact = importance_truth(posterior, mean, covariance, 100_000, 0)
    assert exact.reliable and min(first.kl, second.kl) >= exact.kl - 4 * exact.error
    assert max(first.kl, second.kl) <= 5 * exact.kl


def test_the_evidence_of_conjugate_models_is_bracketed():
    for seed, (terms, dim, sd) in enumerate([(10, 1, 1.0), (30, 3, 100.0), (5, 12, 2.0)]):
        target, posterior = linear("gaussian", terms, dim, sd, seed=seed)
        bracket = provi.fit(target, progress=False).evidence
        assert bracket.status == "proven"
        assert bracket.lower <= posterior.exact_log_evidence() <= bracket.upper
        assert bracket.width < 5e-3
    # And as `LinearRegression`, whose constants are its own.
    rng = np.random.default_rng(1)
    design, y = rng.normal(size=(15, 2)), rng.normal(size=15)
    bracket = provi.fit(LinearRegression(design, y, noise_scale=0.5), progress=False).evidence
    exact = LinearPosterior(design, y, "gaussian", np.zeros(2), np.eye(2), 0.5).exact_log_evidence()
    assert bracket.lower <= exact <= bracket.upper


@pytest.mark.parametrize("link, parameter", [("logit", 1.0), ("poisson", 1.0), ("binomial", 2.0), ("probit", 1.0)])
def test_the_evidence_by_quadrature_is_bracketed(link, parameter):
    """Every constant of prior and likelihood is in it."""
    target, posterior = linear(link, 20, 2, 2.0, seed=4, parameter=parameter, signal=1.0)
    fit, evidence = provi.fit(target, progress=False), grid_log_evidence(posterior, 24)
    kl = evidence - posterior.elbo(np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance))
    assert fit.evidence.lower - 1e-7 <= evidence <= fit.evidence.upper
    assert fit.evidence.width < 6 * kl + 0.02


def test_single_precision_data():
    """Of the numbers as they are stored; columns that cancel to four digits are a hard case."""
    rng = np.random.default_rng(9)
    design = rng.normal(size=(40, 2))
    design[:, 1] = design[:, 0] + 1e-4 * design[:, 1]
    y = (rng.random(40) < 0.5).astype(np.float32)
    target = LogisticRegression(design.astype(np.float32), y, prior_scale=3.0)
    assert target.dtype == np.float32
    fit = provi.fit(target, progress=False)
    exact_design = design.astype(np.float32).astype(float)
    posterior = LinearPosterior(exact_design, y.astype(float), "logit", np.zeros(2), 9 * np.eye(2))
    mean, covariance = np.asarray(fit.posterior.mean, float), np.asarray(fit.posterior.covariance, float)
    kl, bound = grid_log_evidence(posterior, 24) - posterior.elbo(mean, covariance), fit.certificate.posterior
    # The moments are themselves rounded to float32.
    assert bound is not None and kl - 1e-5 <= bound.kl <= 10 * kl + 0.02


def test_a_black_box_has_the_bound_of_its_linear_model():
    """With declared constants, and the normalising constant of its prior in it."""
    target, posterior = linear("logit", 20, 2, 1.0, seed=6)
    density = LogDensity(jax.tree_util.Partial(_log_density, posterior.design, posterior.response), 2, 1.0, 30.0)
    mode, spread = posterior.mode()
    kl = grid_log_evidence(posterior, 24) - posterior.elbo(mode, spread)
    plain, hidden = at(target, mode, spread), provi.certify(density, (mode, spread), compare=False).posterior
    assert plain is not None and hidden is not None
    assert min(plain.kl, hidden.kl) >= kl and max(plain.kl, hidden.kl) <= 8 * kl + 0.02


def _log_density(design, response, z):
    eta = design @ z
    return jnp.sum(response * eta - jax.nn.softplus(eta)) - 0.5 * jnp.sum(z**2) - math.log(2 * math.pi)
