"""Gaussian-process blocks: their modes where data are sharp, extreme hyperparameters, and nodes that rounding broke."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import provi
from provi.algorithms.natural.corrected import log_evidence
from provi.kernels import Matern32, SquaredExponential
from provi.structures.nested import Search
from provi.targets import LatentGaussian, latent

RNG = np.random.default_rng(0)
INPUTS = np.sort(RNG.uniform(0, 10, 40))
LENGTH, HEIGHT = latent.LogNormal(0.5, 0.7), latent.LogNormal(0.0, 0.7)


def shares(prior, low, high, num=61):
    logs = np.linspace(low, high, num)
    return logs, stats.norm.logpdf(logs, float(prior.mean), float(prior.sd)) + np.log(logs[1] - logs[0])


def test_sharp_data_are_found():
    """Little noise: at fixed standardised effects the ELBO bends a thousand times more than where they follow."""
    noise, y = 0.01, np.sin(INPUTS) + 0.01 * RNG.normal(size=40)
    block = latent.GaussianProcess(INPUTS, SquaredExponential(), priors={"length_scale": LENGTH, "amplitude": HEIGHT})
    target = LatentGaussian(y, provi.targets.likelihoods.GaussianNoise(noise), blocks=block)
    found = provi.fit(target)
    (lengths, p), (heights, q) = shares(LENGTH, 0.2, 1.6), shares(HEIGHT, -1.8, 2.8)
    logs = np.empty((61, 61))
    for i, length in enumerate(np.exp(lengths)):
        gram = np.exp(-0.5 * ((INPUTS[:, None] - INPUTS) / length) ** 2) + 1e-6 * np.eye(40)
        eigenvalues, vectors = np.linalg.eigh(gram)
        turned = vectors.T @ y
        total = np.exp(2 * heights)[:, None] * eigenvalues + noise**2
        logs[i] = p[i] + q - 0.5 * np.sum(turned**2 / total + np.log(2 * np.pi * total), axis=1)
    np.testing.assert_allclose(float(found.elbo), special.logsumexp(logs), atol=0.02)
    weights = special.softmax(logs)
    marginals = found.posterior.hyperparameters
    for name, values in (
        ("length_scale(f)", np.exp(lengths)[:, None] + 0 * heights),
        ("amplitude(f)", np.exp(heights) + 0 * lengths[:, None]),
    ):
        mean = np.sum(weights * values)
        sd = np.sqrt(np.sum(weights * (values - mean) ** 2))
        assert abs(marginals[name].mean - mean) < 0.05 * sd and abs(marginals[name].sd / sd - 1) < 0.05


@pytest.mark.parametrize("kernel", [SquaredExponential(), Matern32()])
def test_many_inputs_and_extreme_priors_end_with_numbers(kernel):
    inputs = RNG.uniform(0, 10, 150)
    wide = {"length_scale": latent.LogNormal(0.0, 4.0), "amplitude": latent.HalfNormal(1e3)}
    block = latent.GaussianProcess(inputs, kernel, priors=wide)
    found = provi.fit(LatentGaussian(RNG.poisson(np.exp(np.sin(inputs))), "poisson", blocks=block))
    assert np.isfinite(float(found.elbo)) and "nan" not in found.message
    assert all(np.isfinite([x.mean, x.sd]).all() for x in found.posterior.hyperparameters.values())
    assert np.isfinite(found.posterior.effects["f"].sd).all()


@pytest.mark.parametrize("theta", [(1e-300, 1.0), (1e300, 1.0), (1.0, 1e-300), (1.0, 1e300), (0.0, 1.0), (1.0, 0.0)])
def test_extreme_hyperparameters_have_factors(theta):
    block = latent.GaussianProcess(INPUTS, SquaredExponential())
    assert np.isfinite(np.asarray(block.factor(jnp.asarray(theta)))).all()


def test_evidence_of_broken_nodes():
    weights = np.array([[0.1, -0.1], [np.nan, 0.0], [-np.inf, 0.0], [-np.inf, -np.inf]])
    found = log_evidence(weights, np.full(2, -np.log(2)))
    assert np.isfinite(found[[0, 2]]).all() and (found[[1, 3]] == -np.inf).all()
    assert (log_evidence(weights[[1]], np.full(2, -np.log(2))) == -np.inf).all()


def test_broken_nodes_are_left_out(monkeypatch):
    block = latent.GaussianProcess(INPUTS, SquaredExponential())
    target = LatentGaussian(np.sin(INPUTS) > 0, "bernoulli", blocks=block)
    plain, original = provi.fit(target), Search._corrected

    def broken(self, nodes, fitted, seed):
        evidence, moments = original(self, nodes, fitted, seed)
        lightest = np.argmin(fitted.point.elbo)
        return np.where(np.arange(len(nodes)) == lightest, -np.inf, evidence), moments

    monkeypatch.setattr(Search, "_corrected", broken)
    found = provi.fit(target)
    assert found.outcome is plain.outcome
    np.testing.assert_allclose(float(found.elbo), float(plain.elbo), atol=1e-2)
    monkeypatch.setattr(Search, "_corrected", lambda *args: (np.nan * original(*args)[0], original(*args)[1]))
    with pytest.raises(ValueError, match="The evidence is not finite at any"):
        provi.fit(target)
