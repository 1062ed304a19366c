"""The data sets of Figures 1 and 2 of papers 000 and 002: settings as in their table, optimum, and what is measured."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from provi.algorithms.natural.dual_natural_gradient import evaluate
from provi.core.types import Scalar, Vector
from provi.data import load
from provi.families.dual_gaussian import DualGaussian, DualPoint, dual_gaussian
from provi.fit import fit
from provi.kernels import SquaredExponential
from provi.targets.gaussian_process import GaussianProcess

PROVEN = 1e-5
"""Nats to which the optima are found, with proof."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One column of the papers' table.

    `pgsvi` is beta N of paper 002 and of paper 000; `sgd` kappa and alpha_0 N; `rmsprop` alpha_0 and rho; `adadelta`
    alpha_0 and 1 - rho. The jitter is that of the authors' code: the papers do not name it. `first_sgd` and
    `first_adadelta` are tau and 1 - rho of paper 000, whose steps are (1 + k)^-tau and whose ADADELTA has no alpha_0.
    """

    data: str
    title: str
    log_length: float
    log_amplitude: float
    jitter: float
    batch: int
    samples: int
    pgsvi: tuple[float, float]
    sgd: tuple[float, float]
    adagrad: float
    rmsprop: tuple[float, float]
    adadelta: tuple[float, float]
    adam: float
    first_sgd: float
    first_adadelta: float


SONAR = Setting(
    data="sonar",
    title="Sonar",
    log_length=-1.0,
    log_amplitude=6.0,
    jitter=0.0001,
    batch=5,
    samples=2000,
    pgsvi=(0.2, 0.1),
    sgd=(0.8, 1200.0),
    adagrad=4.5,
    rmsprop=(0.1, 0.9),
    adadelta=(1.0, 5e-10),
    adam=0.04,
    first_sgd=0.8,
    first_adadelta=1e-9,
)
IONOSPHERE = Setting(
    data="ionosphere",
    title="Ionosphere",
    log_length=1.0,
    log_amplitude=2.5,
    jitter=0.01,
    batch=5,
    samples=500,
    pgsvi=(2.0, 0.4),
    sgd=(0.51, 25.0),
    adagrad=4.0,
    rmsprop=(0.04, 0.9999),
    adadelta=(0.1, 1e-11),
    adam=0.25,
    first_sgd=0.51,
    first_adadelta=1e-6,
)
USPS = Setting(
    data="usps_2v4_paper",
    title="USPS 2v4",
    log_length=2.5,
    log_amplitude=5.0,
    jitter=0.0001,
    batch=20,
    samples=2000,
    pgsvi=(2.59, 2.5),
    sgd=(0.6, 800.0),
    adagrad=8.0,
    rmsprop=(0.1, 0.9),
    adadelta=(1.0, 1e-12),
    adam=2.5,
    first_sgd=0.85,
    first_adadelta=1e-10,
)
TRUE_USPS = dataclasses.replace(USPS, data="usps_3v5", title="USPS 3v5")


class Problem(eqx.Module):
    """Training model, test data, and the least negative ELBO of all Gaussians with the proof of how near it is."""

    setting: Setting = eqx.field(static=True)
    target: GaussianProcess
    family: DualGaussian
    cross: Float[Array, "test terms"]
    test_variance: Float[Array, " test"]
    test_response: Float[Array, " test"]
    optimum: float = eqx.field(static=True)
    proven: float = eqx.field(static=True)

    @property
    def steps_a_pass(self) -> int:
        """Whole batches in the data; the few data that are left over belong to no batch of that pass."""
        return self.target.num_terms // self.setting.batch


def problem(setting: Setting) -> Problem:
    """The data set of `setting`, by `provi.data.load` (whose error says how to get it)."""
    data = load(setting.data)
    train, test = data.table("train"), data.table("test")
    return make_problem(setting, train.features, train.response, test.features, test.response)


def synthetic_problem(seed: int, batch: int = 5) -> Problem:
    """A small stand-in that needs no files: 40 labels of a smooth function in the plane, 20 for test."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-2, 2, size=(60, 2))
    labels = (np.sin(2 * inputs[:, 0]) + inputs[:, 1] + 0.5 * rng.normal(size=60) > 0).astype(int)
    setting = dataclasses.replace(
        IONOSPHERE, data="synthetic", title="Synthetic", log_length=0.0, log_amplitude=1.0, batch=batch, samples=100
    )
    return make_problem(setting, inputs[:40], labels[:40], inputs[40:], labels[40:])


def make_problem(setting: Setting, inputs: Any, labels: Any, test_inputs: Any, test_labels: Any) -> Problem:
    """The model, and its optimum by the full-batch method."""
    inputs, test_inputs = (np.asarray(x, np.float64) for x in (inputs, test_inputs))
    kernel = SquaredExponential(np.exp(setting.log_length), np.exp(setting.log_amplitude))
    target = GaussianProcess(inputs, labels, kernel, jitter=setting.jitter)
    best = fit(target, tol=PROVEN, progress=False)
    cross, variance = _cross(kernel, target.inputs, jnp.asarray(test_inputs))
    response = jnp.asarray(np.asarray(test_labels, np.float64))
    gap = best.certificate.gap
    proven = float("nan") if gap is None else float(gap)
    return Problem(setting, target, dual_gaussian(target), cross, variance, response, -float(best.elbo.value), proven)


@eqx.filter_jit
def _cross(kernel: Any, inputs: Any, test_inputs: Any) -> Any:
    return kernel.matrix(test_inputs, inputs), kernel.diagonal(test_inputs)


class Judgement(eqx.Module):
    """The negative ELBO, exact, and the mean test log-loss in bits: 1 is tossing a coin."""

    negative_elbo: Scalar
    test_bits: Scalar


def log_loss_bits(problem: Problem, mean: Vector, variance: Vector) -> Scalar:
    """-mean log2 p(y | x) of the test data, whose function values have these moments."""
    positive = jnp.maximum(variance, jnp.zeros_like(variance))
    values = problem.target.likelihood.log_predictive(mean, positive, problem.test_response)
    return -jnp.mean(values) / jnp.log(jnp.asarray(2.0))


@eqx.filter_jit
def judge_dual(problem: Problem, point: DualPoint) -> Judgement:
    """Predictive mean k'a and variance k** - |L^-1 S^(1/2) k|^2."""
    factor = problem.family.factorise(point)
    value = evaluate(problem.target, problem.family, point, factor).negative_elbo
    half = solve_triangular(factor.lower, jnp.sqrt(point.site_precision)[:, None] * problem.cross.T, lower=True)
    variance = problem.test_variance - jnp.sum(half**2, axis=0)
    return Judgement(value, log_loss_bits(problem, problem.cross @ point.dual_mean, variance))


class Factors(eqx.Module):
    """What the methods on (m, C) need of K once: its Cholesky factor, its inverse, and K^-1 k* of the test data."""

    lower: Float[Array, "terms terms"]
    inverse: Float[Array, "terms terms"]
    weights: Float[Array, "terms test"]


@eqx.filter_jit
def factors(problem: Problem) -> Factors:
    """For the baselines only: ProVI itself never inverts K."""
    lower = jnp.linalg.cholesky(problem.target.gram)
    inverse = cho_solve((lower, True), jnp.eye(lower.shape[0], dtype=lower.dtype))
    return Factors(lower, (inverse + inverse.T) / 2, cho_solve((lower, True), problem.cross.T))


@eqx.filter_jit
def judge_root(problem: Problem, parts: Factors, mean: Vector, root: Any) -> Judgement:
    r"""The same for N(m, CC'): $KL = \tfrac12(\mathrm{tr}\,K^{-1}CC' + m'K^{-1}m - N) + \log|K|/2 - \log|C|$."""
    target = problem.target
    likelihood = jnp.sum(target.likelihood.moments(mean, jnp.sum(root**2, axis=1), target.response).value)
    quadratic = jnp.sum(root * (parts.inverse @ root)) + mean @ parts.inverse @ mean - mean.shape[0]
    log_dets = jnp.sum(jnp.log(jnp.diagonal(parts.lower))) - jnp.sum(jnp.log(jnp.diagonal(root)))
    spread = problem.test_variance - jnp.sum(problem.cross.T * parts.weights, axis=0)
    spread = spread + jnp.sum((root.T @ parts.weights) ** 2, axis=0)
    bits = log_loss_bits(problem, parts.weights.T @ mean, spread)
    return Judgement(likelihood + 0.5 * quadratic + log_dets, bits)
