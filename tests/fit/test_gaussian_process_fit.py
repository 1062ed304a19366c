"""`provi.fit` of Gaussian processes and of linear models with more columns than rows, from end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from laws.contracts import compilations
from provi.families import DualGaussian, DualPoint, Gaussian
from provi.kernels import Matern32, SquaredExponential
from provi.result import Posterior
from provi.targets import GaussianProcess, LogisticRegression
from provi.targets.likelihoods import GaussianNoise, Poisson, StudentT
from support.dual_oracle import Oracle

SIZE = 12
RNG = np.random.default_rng(0)
X, LATENT = RNG.normal(size=(SIZE, 1)), 1.5 * RNG.normal(size=SIZE)
LABELS, COUNTS = (LATENT > 0).astype(float), RNG.poisson(np.exp(LATENT)).astype(float)


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
    """Compilation is most of the time here."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def process(kernel=None, y=LABELS, **options):
    return GaussianProcess(X, y, Matern32(0.8, 3.0) if kernel is None else kernel, **options)


def truth(target, kind="logit", parameter=1.0):
    gram, mean = np.asarray(target.gram, float), np.full(target.dim, float(target.mean))
    return Oracle(kind, parameter, gram, mean, np.asarray(target.response, float))


def numbers(fit):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(fit.posterior.point)]


@pytest.fixture(scope="module")
def fitted():
    target = process(mean=0.3)
    return target, provi.fit(target, tol=1e-4, progress=False)


def test_the_gap_is_proven_and_true(fitted):
    target, fit = fitted
    assert isinstance(fit.posterior.family, DualGaussian) and fit.outcome is provi.Outcome.TOLERANCE
    certificate, oracle = fit.certificate, truth(target)
    assert certificate.status == "proven" and certificate.confidence is None and certificate.gap <= 1e-4
    value = oracle.negative_elbo(*numbers(fit))
    assert 0 <= value - oracle.best()[2] <= certificate.gap
    assert abs(fit.elbo.value + value) <= fit.elbo.standard_error + 1e-12
    assert fit.posterior.names[:2] == ("f[0]", "f[1]") and fit.posterior.sample(3, seed=0).shape == (3, SIZE)


def test_certify_finds_the_same_gap_and_a_sharp_one_far_away(fitted):
    target, fit = fitted
    assert provi.certify(target, fit, compare=False).gap == pytest.approx(fit.certificate.gap, rel=1e-9)
    far = Posterior(fit.posterior.family, fit.posterior.family.prior_point(), fit.posterior.names)
    oracle = truth(target)
    gap = oracle.negative_elbo(np.zeros(SIZE), np.zeros(SIZE)) - oracle.best()[2]
    assert gap <= provi.certify(target, far).gap <= gap + 2e-3


def test_the_family_of_all_gaussians_in_its_own_coordinates_agrees(fitted):
    target, fit = fitted
    other = provi.fit(target, Gaussian(SIZE), tol=1e-4, progress=False)
    assert abs(other.elbo.value - fit.elbo.value) <= fit.certificate.gap + other.certificate.gap + 2e-6


@pytest.mark.parametrize("kind", ["process", "student", "linear"])
def test_save_and_load(kind, fitted, tmp_path):
    if kind == "process":
        target, fit = fitted
    elif kind == "student":
        target = process(y=LATENT, likelihood=StudentT(3.0, 0.5))
        fit = provi.fit(target, progress=False)
        assert fit.certificate.status == "none" and "not log-concave" in fit.certificate.assumptions[0].reason
    else:
        target = LogisticRegression(RNG.normal(size=(SIZE, 20)), LABELS, prior_covariance=np.diag(np.arange(1.0, 21)))
        fit = provi.fit(target, tol=1e-3, progress=False)
    fit.save(tmp_path / "fit.safetensors")
    again = provi.load(tmp_path / "fit.safetensors")
    for one, other in zip(jax.tree.leaves(again.posterior), jax.tree.leaves(fit.posterior), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("mean", "covariance", "standard_deviation"):
        np.testing.assert_array_equal(getattr(again.posterior, name), getattr(fit.posterior, name))
    np.testing.assert_array_equal(again.posterior.sample(2, seed=1), fit.posterior.sample(2, seed=1))
    assert again.certificate.gap == fit.certificate.gap and again.elbo == fit.elbo
    if kind != "student":
        assert provi.certify(target, again, compare=False).gap == pytest.approx(fit.certificate.gap, rel=1e-9)


def test_resume_bit_for_bit(fitted, tmp_path):
    target, fit = fitted
    path = tmp_path / "run.safetensors"
    short = provi.fit(target, tol=1e-4, budget=provi.Budget(steps=3), progress=False, checkpoint=path)
    assert short.num_steps == 3 < fit.num_steps
    resumed = provi.fit(target, tol=1e-4, progress=False, checkpoint=path, resume=True)
    assert resumed.num_steps == fit.num_steps and resumed.certificate.gap == fit.certificate.gap
    for one, other in zip(numbers(resumed), numbers(fit), strict=True):
        np.testing.assert_array_equal(one, other)


def test_float32():
    target = GaussianProcess(X.astype(np.float32), LABELS, Matern32(0.8, 3.0), jitter=1e-3)
    fit = provi.fit(target, progress=False)
    assert fit.posterior.mean.dtype == np.float32 and fit.outcome is provi.Outcome.TOLERANCE
    oracle = truth(target)
    assert oracle.negative_elbo(*numbers(fit)) - oracle.best()[2] <= fit.certificate.gap <= 0.01


def test_a_gaussian_likelihood_is_exact_regression():
    target = process(y=LATENT, likelihood=GaussianNoise(0.2))
    fit = provi.fit(target, tol=1e-8, progress=False)
    gram = np.asarray(target.gram)
    gain = np.linalg.solve(gram + 0.04 * np.eye(SIZE), gram).T
    np.testing.assert_allclose(fit.posterior.mean, gain @ LATENT, atol=1e-7)
    np.testing.assert_allclose(fit.posterior.covariance, gram - gain @ gram, atol=1e-7)
    assert fit.num_steps <= 40


@pytest.mark.parametrize("amplitude", [1.0, 30.0, 1000.0])
def test_counts_under_a_prior_whose_mean_rate_is_astronomical(amplitude):
    target = process(SquaredExponential(1.0, amplitude), COUNTS, likelihood=Poisson())
    fit = provi.fit(target, progress=False)
    assert fit.outcome is provi.Outcome.TOLERANCE
    oracle = truth(target, "poisson")
    assert oracle.negative_elbo(*numbers(fit)) - oracle.best()[2] <= fit.certificate.gap


@pytest.mark.parametrize("length", [1e-6, 1e6])
@pytest.mark.parametrize("jitter", [0.0, 1e-6])
def test_extreme_length_scales_equal_labels_and_duplicates(length, jitter):
    inputs = np.r_[X[:6], X[:6]]
    for y in (LABELS, np.ones(SIZE)):
        target = GaussianProcess(inputs, y, SquaredExponential(length, 10.0), jitter=jitter)
        fit = provi.fit(target, progress=False)
        oracle = truth(target)
        assert fit.outcome is provi.Outcome.TOLERANCE
        assert -1e-9 <= oracle.negative_elbo(*numbers(fit)) - oracle.best()[2] <= fit.certificate.gap


def test_a_start_is_used_and_checked(fitted):
    target, fit = fitted
    again = provi.fit(target, tol=1e-4, start=fit.posterior.point, progress=False)
    assert again.num_steps == 1 and again.certificate.gap <= fit.certificate.gap * (1 + 1e-9)
    zero = jnp.zeros(SIZE)
    with pytest.raises(ValueError, match="none may be negative"):
        provi.fit(target, start=DualPoint(zero, zero - 1), progress=False)
    lost = provi.fit(target, start=DualPoint(zero + jnp.nan, zero), progress=False)
    assert lost.outcome is provi.Outcome.NONFINITE and lost.certificate.gap is None


def test_other_values_need_no_other_program(fitted):
    """Labels, kernel, jitter, mean and tolerance are values: a second fit of the same size shares the programs."""
    del fitted
    variations = [process(mean=0.3), process(Matern32(0.2, 9.0), 1 - LABELS, jitter=0.1, mean=-1.0)]
    provi.fit(variations[0], tol=1e-3, progress=False)
    with compilations() as found:
        provi.fit(variations[1], tol=1e-5, progress=False)
        assert not found
        provi.fit(GaussianProcess(X[:3], LABELS[:3], Matern32(0.8, 3.0)), progress=False)
        assert found, "another size is another program, and seen here"
