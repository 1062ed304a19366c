"""Natural gradients in dual form against the same steps written in dense matrices, and what they promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from provi.algorithms import DualNaturalGradient
from provi.families import DualPoint, Gaussian, dual_gaussian
from provi.kernels import Matern32
from provi.targets import GaussianProcess, GeneralisedLinearModel
from provi.targets.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    Poisson,
    StudentT,
)
from support.dual_oracle import Oracle
from support.members import quick_jit

SIZE = 4
RNG = np.random.default_rng(0)
X, LATENT = RNG.normal(size=(SIZE, 1)), RNG.normal(size=SIZE)
COUNTS, LABELS = RNG.poisson(2.0, SIZE).astype(float), (LATENT > 0).astype(float)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
STEP = quick_jit(lambda algorithm, state, target, family: algorithm.step(None, state, target, family, 1.0)[0])


def process(likelihood, y, amplitude=1.2, size=SIZE):
    inputs = X if size == SIZE else np.random.default_rng(1).normal(size=(size, 1))
    return GaussianProcess(inputs, y, Matern32(0.9, amplitude), likelihood, mean=0.2)


TARGETS = {"poisson": process(Poisson(), COUNTS), "probit": process(BernoulliProbit(), LABELS)}


def expected_potential(name, y, mean, variance):
    """The sum of E l for traced means and variances: Poisson's in closed form, the probit's by Gauss-Hermite."""
    if name == "poisson":
        return jnp.sum(jnp.exp(mean + variance / 2) - y * mean)
    eta = mean[:, None] + jnp.sqrt(variance)[:, None] * NODES[None, :]
    return -jnp.sum(jax.scipy.special.log_ndtr((2 * y - 1)[:, None] * eta) @ WEIGHTS)


def moments_of(target, point):
    """Mean and covariance of the point, by plain inverses."""
    gram, s = np.asarray(target.gram), np.asarray(point.site_precision)
    mean = float(target.mean) + gram @ np.asarray(point.dual_mean)
    return mean, np.linalg.inv(np.linalg.inv(gram) + np.diag(s))


def after_one_step(name, beta, form):
    """A point off the beginning, and the next one."""
    target = TARGETS[name]
    family = dual_gaussian(target)
    algorithm = DualNaturalGradient(beta, form=form, accelerate=False, adapt=False)
    start = DualPoint(jnp.asarray([0.3, -0.2, 0.1, 0.4]), jnp.asarray([0.5, 0.1, 0.0, 2.0]))
    state = STEP(algorithm, algorithm.init(start), target, family)
    assert int(state.stage) == 1 and (np.asarray(state.point.dual_mean) == np.asarray(start.dual_mean)).all()
    return target, start, STEP(algorithm, state, target, family).point


@pytest.mark.parametrize(("name", "beta"), [("poisson", 0.3), ("poisson", 5.0), ("probit", 1.0)])
def test_the_natural_form_is_mirror_descent_in_the_mean_parameters(name, beta):
    """lambda_+ = r lambda + (1 - r)(lambda_0 - grad f), f differentiated in (m, V + mm') by JAX."""
    target, start, found = after_one_step(name, beta, "natural")
    mean, covariance = moments_of(target, start)

    def f(first, second):
        return expected_potential(name, target.response, first, jnp.diagonal(second) - first**2)

    slope, curvature = quick_jit(jax.grad(f, (0, 1)))(jnp.asarray(mean), jnp.asarray(covariance + np.outer(mean, mean)))
    share, prior = beta / (1 + beta), np.linalg.inv(np.asarray(target.gram))
    precision = np.linalg.inv(covariance)
    next_precision = (1 - share) * precision + share * (prior + 2 * np.asarray(curvature))
    linear = (1 - share) * precision @ mean + share * (prior @ np.full(SIZE, 0.2) - np.asarray(slope))
    next_mean, next_covariance = moments_of(target, found)
    np.testing.assert_allclose(next_covariance, np.linalg.inv(next_precision), atol=1e-10)
    np.testing.assert_allclose(next_mean, np.linalg.solve(next_precision, linear), atol=1e-10)


def test_the_proximal_form_is_the_minimiser_by_brute_force():
    """<grad f, (m, V)> + KL(q || prior) + KL(q || q_k)/beta over the mean and a Cholesky factor."""
    name, beta = "poisson", 0.7
    target, start, found = after_one_step(name, beta, "proximal")
    mean, covariance = moments_of(target, start)
    slope, half = jax.grad(lambda m, v: expected_potential(name, target.response, m, v), (0, 1))(
        jnp.asarray(mean), jnp.asarray(np.diagonal(covariance))
    )
    anchors = [(np.full(SIZE, 0.2), np.asarray(target.gram), 1.0), (mean, covariance, 1 / beta)]
    anchors = [(jnp.asarray(m), jnp.asarray(np.linalg.inv(v)), weight) for m, v, weight in anchors]
    rows, columns = np.tril_indices(SIZE)

    def objective(x):
        lower = jnp.zeros((SIZE, SIZE)).at[rows, columns].set(x[SIZE:])
        value = jnp.sum(slope * x[:SIZE]) + jnp.sum(half * jnp.sum(lower**2, axis=1))
        for centre, precision, weight in anchors:
            shift = x[:SIZE] - centre
            trace = jnp.sum((precision @ lower) * lower) + shift @ precision @ shift
            value += weight * (0.5 * trace - jnp.sum(jnp.log(jnp.diagonal(lower))))
        return value

    first = jnp.concatenate([jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(covariance)[rows, columns])])
    gradient, hessian = quick_jit(jax.grad(objective)), quick_jit(jax.hessian(objective))
    x = optimize.minimize(quick_jit(objective), first, jac=gradient, method="BFGS").x
    for _ in range(5):  # Newton's method takes the last digits
        x = x - np.linalg.solve(hessian(x), gradient(x))
    lower = np.zeros((SIZE, SIZE))
    lower[rows, columns] = x[SIZE:]
    next_mean, next_covariance = moments_of(target, found)
    np.testing.assert_allclose(next_mean, x[:SIZE], atol=1e-10)
    np.testing.assert_allclose(next_covariance, lower @ lower.T, atol=1e-10)


@pytest.mark.parametrize("form", ["natural", "proximal"])
def test_one_long_step_on_a_gaussian_likelihood_is_the_exact_posterior(form):
    """For the proximal form too, from the prior: there D = 0 in the mean's equation only if the sites are 0."""
    target = process(GaussianNoise(0.3), LATENT)
    family = dual_gaussian(target)
    algorithm = DualNaturalGradient(1e300, form=form, accelerate=False, adapt=False)
    state = algorithm.init(family.prior_point())
    for _ in range(2):
        state = STEP(algorithm, state, target, family)
    gram, noise = np.asarray(target.gram), 0.09 * np.eye(SIZE)
    gain = np.linalg.solve(gram + noise, gram).T
    mean, covariance = moments_of(target, state.point)
    np.testing.assert_allclose(covariance, gram - gain @ gram, atol=1e-12)
    if form == "natural":
        np.testing.assert_allclose(mean, 0.2 + gain @ (LATENT - 0.2), atol=1e-12)
        evidence = stats.multivariate_normal(np.full(SIZE, 0.2), gram + noise).logpdf(LATENT)
        assert float(state.evaluation.negative_elbo) == pytest.approx(-evidence, abs=1e-11)
    else:
        # One KL-proximal step of infinite size linearises at the prior: it goes to K alpha, far past the posterior.
        np.testing.assert_allclose(mean, 0.2 + gram @ (LATENT - 0.2) / 0.09, rtol=1e-10)


def divergence(target, p, q):
    """KL(p || q) by plain inverses."""
    (first, spread), (second, wide) = moments_of(target, p), moments_of(target, q)
    ratio, shift = np.linalg.solve(wide, spread), second - first
    return 0.5 * (np.trace(ratio) - SIZE + shift @ np.linalg.solve(wide, shift) - np.linalg.slogdet(ratio)[1])


@pytest.mark.parametrize("accelerate", [False, True])
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("poisson", process(Poisson(), COUNTS, 3.0)),
        ("probit", process(BernoulliProbit(), LABELS, 30.0)),
    ],
)
def test_every_accepted_step_descends_by_what_is_promised(name, target, accelerate):
    """F - F_+ >= (1 + 1/beta) KL(q || q_+), all of it computed apart from the library; half of it with acceleration,
    and a tenth of KL for a mixed step."""
    family, algorithm = dual_gaussian(target), DualNaturalGradient(accelerate=accelerate)
    oracle = Oracle(name, 2.0, np.asarray(target.gram), np.full(SIZE, 0.2), np.asarray(target.response))
    state, accepted, sizes = STEP(algorithm, algorithm.init(family.prior_point()), target, family), 0, set()
    for _ in range(40):
        before, beta, mixed = state.point, float(state.step_size), accelerate and int(state.memory.count) > 0
        state = STEP(algorithm, state, target, family)
        sizes.add(beta)
        if (np.asarray(state.point.dual_mean) == np.asarray(before.dual_mean)).all():
            assert float(state.step_size) == beta / 2
            continue
        accepted += 1
        old, new = (oracle.negative_elbo(p.dual_mean, p.site_precision) for p in (before, state.point))
        share = 0.1 if mixed else (0.5 if accelerate else 1.0) * (1 + 1 / beta)
        assert old - new >= share * divergence(target, before, state.point) - 1e-12 * (1 + abs(old))
    assert accepted >= 8 and len(sizes) > 2
    left = new - oracle.best()[2]
    assert left < (1e-6 if accelerate else 0.1)


def test_many_columns_as_in_the_space_of_the_columns():
    """Five steps of fixed size in N-space against the D x D recursion."""
    columns = 9
    rng = np.random.default_rng(2)
    design = rng.normal(size=(SIZE, columns))
    factor = np.tril(rng.normal(size=(columns, columns))) + 3 * np.eye(columns)
    target = GeneralisedLinearModel(
        design, LABELS, BernoulliLogit(), prior_covariance=factor @ factor.T, prior_mean=0.1
    )
    family, algorithm = dual_gaussian(target), DualNaturalGradient(1.5, accelerate=False, adapt=False)
    state = STEP(algorithm, algorithm.init(family.prior_point()), target, family)
    prior = np.linalg.inv(factor @ factor.T)
    mean, precision, share = np.full(columns, 0.1), prior, 1.5 / 2.5
    for _ in range(5):
        state = STEP(algorithm, state, target, family)
        variance = np.einsum("nd,de,ne->n", design, np.linalg.inv(precision), design)
        at = target.likelihood.moments(jnp.asarray(design @ mean), jnp.asarray(variance), target.response)
        precision = (1 - share) * precision + share * (prior + design.T @ (np.asarray(at.weight)[:, None] * design))
        mean = mean - share * np.linalg.solve(precision, prior @ (mean - 0.1) + design.T @ np.asarray(at.slope))
        np.testing.assert_allclose(family.mean(state.point), mean, atol=1e-10)
        np.testing.assert_allclose(family.covariance(state.point), np.linalg.inv(precision), atol=1e-10)


def test_a_likelihood_that_is_not_log_concave_ends_at_a_stationary_point_with_negative_sites():
    target = process(StudentT(3.0, 0.3), np.array([0.0, 6.0, -0.5, 0.3]))
    family, algorithm = dual_gaussian(target), DualNaturalGradient()
    state, values = algorithm.init(family.prior_point()), []
    for _ in range(60):
        state = STEP(algorithm, state, target, family)
        values.append(float(state.evaluation.negative_elbo))
    assert (np.diff(values) <= 1e-12).all() and np.asarray(state.point.site_precision).min() < 0
    mean, covariance = moments_of(target, state.point)
    at = target.likelihood.moments(jnp.asarray(mean), jnp.asarray(np.diagonal(covariance).copy()), target.response)
    np.testing.assert_allclose(state.point.dual_mean, -np.asarray(at.slope), atol=1e-6)
    np.testing.assert_allclose(state.point.site_precision, at.weight, atol=1e-6)


def test_what_does_not_fit_is_refused():
    target = TARGETS["probit"]
    family = dual_gaussian(target)
    with pytest.raises(ValueError, match="needs the dual family"):
        DualNaturalGradient().resolve(target, Gaussian(SIZE))
    with pytest.raises(ValueError, match="form must be one of natural, proximal"):
        DualNaturalGradient(form="other").resolve(target, family)
    with pytest.raises(ValueError, match="made for another target"):
        DualNaturalGradient().resolve(process(BernoulliProbit(), LABELS, 2.0), family)
    robust = process(StudentT(), LATENT)
    with pytest.raises(ValueError, match="form='proximal' needs a log-concave likelihood"):
        DualNaturalGradient(form="proximal").resolve(robust, dual_gaussian(robust))
    assert not DualNaturalGradient(form="proximal").resolve(target, family).accelerate
