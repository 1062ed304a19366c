"""Latent Gaussian models against dense Gaussian algebra: for Gaussian noise the evidence is a normal density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.algorithms.natural.conditional import MOST_STEPS, fit_conditional
from provi.core.arguments import double_precision
from provi.kernels import Matern32
from provi.targets import LatentGaussian, latent
from provi.targets.likelihoods import GaussianNoise

ROWS, LEVELS = 60, 12
RNG = np.random.default_rng(3)
INDEX = np.concatenate([np.arange(LEVELS), RNG.integers(0, LEVELS, ROWS - LEVELS)])
X = np.column_stack([np.ones(ROWS), RNG.normal(size=ROWS)])
Y = RNG.normal(size=ROWS)
EDGES = np.array([(i, i + 1) for i in range(LEVELS - 1)] + [(0, 5), (3, 9), (2, 11)])


def _walk(order):
    """The covariance of a scaled intrinsic walk by its pseudo-inverse, and the trend's."""
    difference = np.diff(np.eye(LEVELS), order, axis=0)
    inverse = np.linalg.pinv(difference.T @ difference)
    inverse /= np.exp(np.mean(np.log(np.diag(inverse))))
    time = np.arange(LEVELS) - (LEVELS - 1) / 2
    trend = 2.5**2 * LEVELS * np.outer(time, time) / (time @ time) if order == 2 else 0.0
    return lambda scale: scale**2 * inverse + trend


def _besag():
    laplacian = np.zeros((LEVELS, LEVELS))
    for i, j in EDGES:
        laplacian[[i, j], [i, j]] += 1
        laplacian[i, j] = laplacian[j, i] = -1
    inverse = np.linalg.pinv(laplacian)
    return inverse / np.exp(np.mean(np.log(np.diag(inverse))))


def _seasonal(period):
    window = np.array([[float(0 <= j - i < period) for j in range(LEVELS)] for i in range(LEVELS - period + 1)])
    inverse = np.linalg.pinv(window.T @ window)
    inverse /= np.exp(np.mean(np.log(np.diag(inverse))))
    pattern = np.eye(period)[np.arange(LEVELS) % period]
    basis = np.linalg.qr(pattern[:, :-1] - pattern[:, -1:])[0]
    free = 2.5**2 * LEVELS / (period - 1) * basis @ basis.T
    return lambda scale: scale**2 * inverse + free


def _slopes(first, second, correlation):
    return np.array([[first**2, correlation * first * second], [correlation * first * second, second**2]])


_SLOPE = RNG.normal(size=ROWS)
_POINTS = RNG.normal(size=(LEVELS, 2))
_PRECISION = (lambda a: a @ a.T + np.eye(LEVELS))(RNG.normal(size=(LEVELS, LEVELS)))
CHOICE = np.eye(LEVELS)[INDEX]
_PAIRS = np.einsum("ni,nj->nij", CHOICE, np.column_stack([np.ones(ROWS), _SLOPE])).reshape(ROWS, -1)

CASES = {
    "independent": (latent.Independent(INDEX), [0.7], CHOICE, lambda s: s**2 * np.eye(LEVELS)),
    "slopes": (
        latent.Independent(INDEX, covariates=np.column_stack([np.ones(ROWS), _SLOPE])),
        [0.7, 1.3, -0.4],
        _PAIRS,
        lambda a, b, r: np.kron(np.eye(LEVELS), _slopes(a, b, r)),
    ),
    "walk 1": (latent.RandomWalk(INDEX), [0.6], CHOICE, _walk(1)),
    "walk 2": (latent.RandomWalk(INDEX, 2), [0.6], CHOICE, _walk(2)),
    "besag": (latent.Besag(INDEX, EDGES), [0.8], CHOICE, lambda s: s**2 * _besag()),
    "bym2": (
        latent.BYM2(INDEX, EDGES),
        [0.8, 0.3],
        CHOICE,
        lambda s, phi: s**2 * (phi * _besag() + (1 - phi) * np.eye(LEVELS)),
    ),
    "ar1": (
        latent.AR1(INDEX),
        [0.9, 0.6],
        CHOICE,
        lambda s, rho: s**2 * rho ** np.abs(np.subtract.outer(np.arange(LEVELS), np.arange(LEVELS))),
    ),
    "seasonal": (latent.Seasonal(INDEX, 4), [0.5], CHOICE, _seasonal(4)),
    "custom": (latent.Custom(INDEX, _PRECISION), [0.5], CHOICE, lambda s: s**2 * np.linalg.inv(_PRECISION)),
}


def _kernel_case():
    order = np.unique(_POINTS, axis=0)
    place = np.array([np.flatnonzero((order == point).all(axis=1))[0] for point in _POINTS])

    def covariance(amplitude, length):
        gram = np.asarray(Matern32(length_scale=length, amplitude=amplitude).matrix(jnp.asarray(order)))
        return gram + 1e-6 * gram.max() * np.eye(LEVELS)

    names = [name for name in ("amplitude", "length_scale")]
    block = latent.GaussianProcess(_POINTS[INDEX], Matern32())
    ordered = [name.split("(")[0] for name in block.priors]
    values = dict(zip(names, [0.9, 1.4], strict=True))
    theta = [values[name] for name in ordered]
    return block, theta, np.eye(LEVELS)[place[INDEX]], lambda *t: covariance(*(t[ordered.index(n)] for n in names))


@double_precision
def _elbo(target, theta):
    layout = target.layout
    warm = jnp.zeros((layout.count, layout.width)), jnp.zeros(layout.border), jnp.zeros(target.num_rows)
    fit = jax.jit(lambda t: fit_conditional(target, t, warm, jnp.asarray(True), 1e-9, MOST_STEPS))(jnp.asarray(theta))
    return fit, float(fit.point.elbo)


def _free(target, values):
    return np.array([p.unconstrain(v) for p, v in zip(target.hyperpriors.values(), values, strict=True)])


@pytest.mark.parametrize("inside", [True, False], ids=["eliminated", "dense"])
@pytest.mark.parametrize("name", [*CASES, "kernel"])
def test_the_elbo_of_a_gaussian_model_is_its_evidence(name, inside, monkeypatch):
    block, theta, design, covariance = _kernel_case() if name == "kernel" else CASES[name]
    if not inside:
        monkeypatch.setattr("provi.targets.latent.layout._TRIED", 0)
    target = LatentGaussian(Y, GaussianNoise(0.8), fixed=X, fixed_scale=1.5, blocks=[block], offset=0.1 * X[:, 1])
    assert (target.layout.count > 0) == (inside and name != "kernel")
    fit, elbo = _elbo(target, _free(target, theta))
    marginal = 0.8**2 * np.eye(ROWS) + 1.5**2 * X @ X.T + design @ covariance(*theta) @ design.T
    exact = stats.multivariate_normal.logpdf(Y, 0.1 * X[:, 1], marginal)
    # The ridge of an intrinsic precision, 1e-8 of its diagonal, is what is left.
    assert elbo == pytest.approx(exact, abs=2e-5)
    assert float(fit.decrement) < 1e-8


def test_several_blocks_and_unknown_noise_are_one_gaussian_model():
    items = RNG.integers(0, 7, ROWS)
    blocks = [
        latent.Independent(INDEX, name="subject"),
        latent.Independent(items, name="item"),
        latent.RandomWalk(INDEX),
    ]
    target = LatentGaussian(Y, "gaussian", fixed=X, fixed_scale=[1.0, 2.0], blocks=blocks)
    assert list(target.hyperpriors) == ["sd(subject)", "sd(item)", "sd(walk)", "sigma"]
    _, elbo = _elbo(target, _free(target, [0.7, 0.5, 0.6, 0.9]))
    other = np.eye(7)[items]
    marginal = 0.9**2 * np.eye(ROWS) + X @ np.diag([1.0, 4.0]) @ X.T + 0.5**2 * other @ other.T
    marginal += CHOICE @ (0.7**2 * np.eye(LEVELS) + _walk(1)(0.6)) @ CHOICE.T
    assert elbo == pytest.approx(stats.multivariate_normal.logpdf(Y, np.zeros(ROWS), marginal), abs=2e-5)


def test_the_joint_density_is_normalised_like_the_conditional_one():
    """exp(-potential) integrates over the effects to prior times evidence: here a Gaussian integral."""
    target = LatentGaussian(Y, GaussianNoise(0.8), fixed=X, blocks=[latent.RandomWalk(INDEX), latent.AR1(INDEX)])
    theta = _free(target, [0.6, 0.9, 0.5])
    with jax.enable_x64(True):
        z = jnp.concatenate([jnp.asarray(theta), jnp.zeros(target.num_effects)])
        energy, gradient = target.potential(z), jax.grad(target.potential)(z)[3:]
        hessian = jax.hessian(target.potential)(z)[3:, 3:]
        log_prior = float(target.log_hyperprior(jnp.asarray(theta)))
    value = -float(energy) + 0.5 * float(gradient @ np.linalg.solve(hessian, gradient))
    value += 0.5 * target.num_effects * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(hessian)[1]
    _, elbo = _elbo(target, theta)
    assert value - log_prior == pytest.approx(elbo, abs=1e-6)
