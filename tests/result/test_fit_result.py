"""What a fit remembers and says: target, call, diagnosis, predictions, the file it is saved to."""

import dataclasses
import pickle

import numpy as np
import pytest
from scipy import stats

import provi
from provi.result import load
from support.statistics import assert_mean

RNG = np.random.default_rng(5)
X = RNG.normal(size=(25, 2))
Y = X @ [1.0, -0.5] + 0.5 * RNG.normal(size=25)


@pytest.fixture(scope="module")
def target():
    return provi.targets.LinearRegression(X, Y, 0.5, names=["a", "b"])


@pytest.fixture(scope="module")
def fit(target):
    return provi.fit(target, tol=0.01, seed=3)


def test_a_fit_remembers_how_it_was_made(fit, target):
    assert fit.target is target and fit.posterior.target is target and fit.guarantee is None
    assert "LinearRegression, 2 parameters" in fit.call and "tol=0.01" in fit.call and "seed=3" in fit.call


def test_a_theorem_is_remembered(target):
    family = provi.families.Gaussian(2)
    algorithm = provi.algorithms.ProxSGD.from_theorem(target, family, budget=200, num_draws=2)
    found = provi.fit(target, family, algorithm)
    assert found.guarantee is algorithm.guarantee and "from_theorem" in found.call


def test_words(fit):
    fresh = dataclasses.replace(fit, posterior=dataclasses.replace(fit.posterior))
    assert "k-hat" not in str(fresh) and "ELBO" in str(fresh) and "proven" in str(fresh)
    assert repr(fresh).startswith("<provi.Fit") and len(repr(fresh)) < 200
    fresh.diagnose(500)
    assert "k-hat" in str(fresh)


def test_a_fit_prints_its_gap_its_distance_and_what_the_intervals_hold(fit):
    shown = str(fit).splitlines()
    assert shown[1].startswith("ELBO") and "gap at most" in shown[1]
    assert shown[2:4] == list(fit.certificate.lines[1:])
    assert shown[2].startswith("KL(q || posterior) at most") and "; log evidence in [" in shown[2]
    assert shown[3].startswith("Every 94% interval holds at least 93.9% of the posterior")
    assert fit.evidence == fit.certificate.evidence
    assert fit.evidence.lower <= fit.target.log_evidence() <= fit.evidence.upper
    # The intervals of the table are those of the line below it; where nothing is known there is no line.
    assert any(note.startswith("Every 50% interval holds at least 49%") for note in fit.posterior.summary(0.5).notes)
    unknown = dataclasses.replace(fit, certificate=dataclasses.replace(fit.certificate, distance=None))
    assert unknown.posterior.bound is None and not any("interval" in n for n in unknown.posterior.summary().notes)


def test_a_fit_does_not_wait_for_the_distance(target):
    fresh = provi.fit(target, tol=0.01, seed=4)
    assert not fresh.certificate.distance.known and repr(fresh) and not fresh.posterior.distance.known
    assert fresh.certificate.kl is not None and fresh.posterior.distance.known


def test_diagnosis_is_computed_once(fit):
    found = fit.diagnose(500)
    assert fit.diagnose(500) is found and fit.diagnose(500, seed=1) is not found
    # The posterior is Gaussian: q is nearly exact, and so is the evidence.
    assert found.log_evidence == pytest.approx(fit.target.log_evidence(), abs=0.05)
    assert found.pareto_k < 0.5


def test_diagnosis_in_dual_form_is_that_of_the_same_gaussian():
    """A Gaussian process with Gaussian noise: its posterior is in the family, and the evidence has a closed form."""
    target = provi.targets.GaussianProcess(X, Y, likelihood=provi.targets.likelihoods.GaussianNoise(0.5))
    found = provi.fit(target).diagnose(500)
    evidence = stats.multivariate_normal(np.zeros(25), np.asarray(target.gram) + 0.25 * np.eye(25)).logpdf(Y)
    assert found.log_evidence == pytest.approx(evidence, abs=0.02)
    assert found.effective_sample_size > 490 and found.fisher_sixth is None


def test_posterior_predictive_has_its_closed_form(fit):
    """y ~ N(Xm, XVX' + 0.25 I) under q; false-alarm rate 1e-6 a test."""
    drawn = fit.posterior_predictive(20_000, seed=2)["y"]
    mean, spread = X @ fit.posterior.mean, X @ fit.posterior.covariance @ X.T + 0.25 * np.eye(25)
    assert_mean(drawn, mean)
    assert_mean((drawn - mean) ** 2, np.diag(spread))
    assert_mean((drawn[:, 0] - mean[0]) * (drawn[:, 1] - mean[1]), spread[0, 1])
    np.testing.assert_array_equal(fit.posterior_predictive(5, 1)["y"], fit.posterior_predictive(5, 1)["y"])
    assert not np.allclose(fit.posterior_predictive(5, 1)["y"], fit.posterior_predictive(5, 2)["y"])


def test_a_density_without_data_says_so(fit):
    plain = dataclasses.replace(fit, target=provi.targets.Gaussian(np.zeros(2)))
    with pytest.raises(ValueError, match="does not say how its data are drawn"):
        plain.posterior_predictive()
    with pytest.raises(ValueError, match="log-likelihood of each datum"):
        plain.loo()


def test_saved_without_its_target_and_loaded_with_it(fit, target, tmp_path):
    fit.save(tmp_path / "fit.safetensors", target=False)
    bare = load(tmp_path / "fit.safetensors")
    assert bare.target is None and bare.call == fit.call
    for method in (bare.loo, bare.posterior_predictive, bare.to_arviz, bare.diagnose):
        with pytest.raises(ValueError, match="target"):
            method()
    whole = load(tmp_path / "fit.safetensors", target)
    assert whole.posterior.target is target and whole.loo(500).elpd == fit.loo(500).elpd
    added = dataclasses.replace(bare, target=target)
    assert added.posterior.target is target
    with pytest.raises(ValueError, match="another target: it has 2 parameters, target= has 3"):
        load(tmp_path / "fit.safetensors", provi.targets.Gaussian(np.zeros(3)))


def test_a_fit_can_be_pickled(fit):
    plain = dataclasses.replace(fit, certificate=dataclasses.replace(fit.certificate, recompute=None))
    again = pickle.loads(pickle.dumps(plain))
    np.testing.assert_array_equal(again.posterior.mean, fit.posterior.mean)
