"""Rows of the papers' table on posteriors: each method by hand and as an assembly of the iteration."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from provi.algorithms import KLToPrior, Penalty, ProximalGradient, Split
from provi.families.exponential import (
    Coordinates,
    DiagonalGaussian,
    FullGaussian,
    Gamma,
    pack,
    unpack,
)
from provi.geometry.divergences import KL, QuadraticSymmetricKL
from provi.runtime import minimise_split
from provi.targets.likelihoods.bernoulli import SLOPES, WEIGHTS, softplus_moments

STEPS = 6


def run(family, divergence, split, step_size, start, coordinates="mean", steps=STEPS, seed=None):
    method, space = ProximalGradient(divergence, step_size), Coordinates(family, coordinates)
    return minimise_split(split, space, start, method, num_steps=steps, seed=seed, keep_path=True)


# A conditionally conjugate model: Poisson counts, a gamma prior on the rate. The mean-field optimum is the posterior.
COUNTS, PRIOR, FIRST = np.array([3.0, 0.0, 7.0, 2.0]), np.array([0.5, -1.5]), np.array([2.0, -2.0])
POSTERIOR = PRIOR + np.array([COUNTS.sum(), -COUNTS.size])


class ConjugateLikelihood(eqx.Module):
    """-E log p(counts | x) = -sum y E log x + n E x up to a constant, linear in the mean parameter."""

    counts: jax.Array

    def __call__(self, mean):
        return -jnp.sum(self.counts) * mean[0] + self.counts.size * mean[1]


class NegativeELBO(eqx.Module):
    """KL(q || posterior) of the natural parameter: -ELBO up to a constant."""

    posterior: jax.Array

    def __call__(self, natural):
        return Gamma().kl(natural, self.posterior)


def hoffman(r):
    """lambda <- r lambda + (1 - r) lambda_meanfield: stochastic variational inference with the whole data as batch."""
    natural = FIRST.copy()
    for _ in range(STEPS):
        natural = r * natural + (1 - r) * POSTERIOR
    return natural


def test_hoffman_svi_with_the_prior_in_the_penalty():
    """f = -E log p(y | x), h = KL to the prior, KL in the mean parameter: r = 1 / (1 + beta) exactly."""
    family, beta = Gamma(), 0.6
    split = Split(ConjugateLikelihood(jnp.asarray(COUNTS)), penalty=KLToPrior(jnp.asarray(PRIOR)))
    start = np.asarray(jax.jit(family.mean_from_natural)(jnp.asarray(FIRST)))
    answer = run(family, KL(), split, beta, start)
    expected = hoffman(1 / (1 + beta))
    mean = [special.digamma(expected[0]) - np.log(-expected[1]), -expected[0] / expected[1]]
    np.testing.assert_allclose(answer.last, mean, rtol=1e-11)


def test_natural_gradient_with_the_second_order_symmetric_divergence():
    """h = 0, the quadratic model of the symmetric KL: the factor 2 of errata 1 makes r = 1 - beta / 2."""
    beta = 0.6
    answer = run(
        Gamma(),
        QuadraticSymmetricKL(),
        Split(NegativeELBO(jnp.asarray(POSTERIOR))),
        2 * beta / (1 + beta),
        FIRST,
        "natural",
    )
    np.testing.assert_allclose(answer.last, hoffman(1 / (1 + beta)), rtol=1e-10)


class NegativeELBOOfMoments(eqx.Module):
    """-ELBO of a Gaussian in the mean parameter, for the target N(a, b)."""

    target: jax.Array

    def __call__(self, mean):
        return DiagonalGaussian(1).kl(DiagonalGaussian(1).natural_from_mean(mean), self.target)


def test_proximal_point():
    """h = -ELBO, f = 0, KL: for a target in the family the step is lambda <- r lambda + (1 - r) lambda_target."""
    family, beta = DiagonalGaussian(1), 0.8
    target = family.natural_from_moments(jnp.asarray([1.5, 0.3]))
    start = family.natural_from_moments(jnp.asarray([-0.5, 2.0]))
    split = Split(penalty=Penalty(NegativeELBOOfMoments(target)))
    answer = run(family, KL(), split, beta, np.asarray(family.mean_from_natural(start)), steps=3)
    share = (1 / (1 + beta)) ** 3
    expected = family.mean_from_natural(share * start + (1 - share) * target)
    np.testing.assert_allclose(answer.last, expected, rtol=1e-10)
    assert np.all(answer.solved)
    assert np.all(answer.gap_bounds < 1e-15)


# Khan 2015 on a small Gaussian-process classification: four points, Bernoulli-logit, eight-probit moments.
POINTS = np.linspace(-2, 2, 4)
KERNEL = 2.0 * np.exp(-0.5 * (POINTS[:, None] - POINTS[None, :]) ** 2) + 0.05 * np.eye(4)
SIGNS = np.array([-1.0, 1.0, 1.0, -1.0])
CLASSIFIER = FullGaussian(4)


def marginals(w, coordinates):
    mean, matrix = w[:4], unpack(w[4:], 4)
    return mean, jnp.diagonal(matrix) - (mean * mean if coordinates == "mean" else 0)


class Classification(eqx.Module):
    """f = sum_n E softplus(-y_n z_n) in the moments or in the mean parameter."""

    signs: jax.Array
    coordinates: str = eqx.field(static=True)

    def __call__(self, w):
        mean, variance = marginals(w, self.coordinates)
        return jnp.sum(softplus_moments(-self.signs * mean, variance).value)


def moments_by_hand(mean, variance):
    """alpha_n = df_n/dm_n and gamma_n = 2 df_n/dv_n by the formulas of the findings, in NumPy."""
    weights, slopes = np.array(WEIGHTS), np.array(SLOPES)
    u = -SIGNS * mean
    shrink = 1 / np.sqrt(1 + slopes[:, None] ** 2 * variance)
    t = slopes[:, None] * u * shrink
    alpha = -SIGNS * (weights @ special.ndtr(t))
    gamma = weights @ (slopes[:, None] * shrink * np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi))
    return alpha, gamma


def khan_by_hand(beta, form, steps):
    """Paper 002, (77) to (83): V^-1 <- r V^-1 + (1-r)(K^-1 + diag gamma), and the mean with A (after) or B (before)."""
    r, mean, precision = 1 / (1 + beta), np.zeros(4), np.linalg.inv(KERNEL)
    prior = np.linalg.inv(KERNEL)
    for _ in range(steps):
        alpha, gamma = moments_by_hand(mean, np.diagonal(np.linalg.inv(precision)))
        new = r * precision + (1 - r) * (prior + np.diag(gamma))
        metric = new if form == "A" else (1 - r) * prior + r * precision
        mean = mean - (1 - r) * np.linalg.solve(metric, prior @ mean + alpha)
        precision = new
    return mean, np.linalg.inv(precision)


@pytest.mark.parametrize(("coordinates", "form"), [("moments", "B"), ("mean", "A")])
def test_khan_2015(coordinates, form):
    """h = KL to the prior, KL, exact gradient: the B-form in (m, V), the A-form in the mean parameter."""
    start = jnp.concatenate([jnp.zeros(4), pack(jnp.asarray(KERNEL))])
    prior = CLASSIFIER.natural_from_moments(start)
    split = Split(Classification(jnp.asarray(SIGNS), coordinates), penalty=KLToPrior(prior))
    answer = run(CLASSIFIER, KL(), split, 0.5, np.asarray(start), coordinates)
    mean, covariance = khan_by_hand(0.5, form, STEPS)
    second = covariance + (np.outer(mean, mean) if coordinates == "mean" else 0)
    np.testing.assert_allclose(answer.last[:4], mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(unpack(answer.last[4:], 4), second, rtol=1e-10, atol=1e-10)
    assert answer.objective[-1] < answer.objective[0]
