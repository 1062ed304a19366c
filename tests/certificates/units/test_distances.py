"""`certificates/distance`: q in its own coordinates, and what is made of the dual bound, with its parts given."""

import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from provi.certificates.bounds import GapBound
from provi.certificates.distance import any_density, dual_form, marginals, nested, posterior, problems, tight
from provi.certificates.distance.bound import PosteriorBound
from provi.certificates.distance.conjugate import Conjugates
from provi.certificates.distance.dual_bound import DualBound, Energy, skewed_bound
from provi.certificates.dual import dual_pass as passes
from provi.certificates.linear import refutation
from provi.families import Gaussian, Laplace, LocationScale, StudentT
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.targets import LinearRegression, LogDensity, LogisticRegression, PoissonRegression
from provi.targets.likelihoods import BernoulliLogit
from support.formulas import fresh

RNG = np.random.default_rng(12)
DESIGN, LABELS = RNG.normal(size=(6, 2)), np.array([0, 1, 1, 0, 1, 1])
LOC, COVARIANCE = np.array([0.2, -0.1]), np.array([[0.3, 0.1], [0.1, 0.2]])
FAMILY = Gaussian(2)
POINT = FAMILY.point_from_covariance(LOC, COVARIANCE)
EPS = 2.0**-52


def energy_of(potential):
    """E phi - phi(m) over N(LOC, COVARIANCE), by quadrature."""
    x, w = np.polynomial.hermite_e.hermegauss(40)
    root, w = np.linalg.cholesky(COVARIANCE), w / w.sum()
    mean = sum(
        a * b * potential(LOC + root @ [s, t]) for s, a in zip(x, w, strict=True) for t, b in zip(x, w, strict=True)
    )
    return mean - potential(LOC)


def test_a_linear_model_in_the_coordinates_of_q():
    target = LogisticRegression(DESIGN, LABELS, prior_scale=2.0)
    held, energy = problems.linear_problem(target, FAMILY, POINT)
    sign = 2 * LABELS - 1

    def potential(z):
        return np.sum(np.logaddexp(0, -sign * (DESIGN @ z))) + z @ z / 8

    assert energy.value == pytest.approx(energy_of(potential), abs=1e-7) and 0 < energy.error < 1e-6
    assert np.allclose(held.root @ held.root.T, COVARIANCE) and np.allclose(held.centre, DESIGN @ LOC)
    assert np.allclose(held.prior_curvature, held.root.T @ held.root / 4) and np.allclose(
        held.prior_gradient, held.root.T @ LOC / 4
    )
    assert held.largest_weight == 0.25 and not held.quadratic and held.multiples is None
    assert problems.linear_problem(LinearRegression(DESIGN, LABELS * 1.0), FAMILY, POINT)[0].quadratic
    poisson = problems.linear_problem(PoissonRegression(DESIGN, LABELS), FAMILY, POINT)[0]
    assert poisson.largest_weight == math.inf and not poisson.quadratic
    value, size = fresh(problems._likelihood_at)(target, LOC)
    each = np.logaddexp(0, -sign * (DESIGN @ LOC))
    assert float(value) == pytest.approx(each.sum()) == float(size)


def test_the_error_of_the_energy(monkeypatch):
    target = LogisticRegression(DESIGN, LABELS)
    prior = SimpleNamespace(scale=np.array([[0.5, 0.0], [0.2, 0.4]]), curvature=np.eye(2), gradient=np.ones(2),
                            curvature_error=0.25, gradient_error=0.5)  # fmt: skip
    monkeypatch.setattr(problems, "whitened_prior", lambda *_: prior)
    unit = 2.0**-12
    monkeypatch.setattr(problems, "EPS", unit)
    for mean, here in ((5.0, 3.0), (-4.0, -1.0)):
        monkeypatch.setattr(problems, "mean_likelihood", lambda *_, m=mean: (m, 0.125))
        monkeypatch.setattr(problems, "_likelihood_at", lambda *_, h=here: (h, 7.0))
        held, energy = problems.linear_problem(target, FAMILY, POINT)
        value = mean - here + 0.5 * 0.45
        error = (
            0.125
            + 6 * unit * 7
            + 4 * unit * (abs(mean) + abs(here))
            + 0.5 * 0.25 * math.sqrt(2)
            + 8 * unit * abs(value)
        )
        assert (energy.value, energy.error) == (pytest.approx(value), pytest.approx(error))
        assert held.curvature_error == 0.25 and held.gradient_error == 0.5
    for broken in ((math.nan, 0.1), (1.0, math.inf)):
        monkeypatch.setattr(problems, "mean_likelihood", lambda *_, b=broken: b)
        assert problems.linear_problem(target, FAMILY, POINT) is None


def test_any_density_in_the_coordinates_of_q():
    curvature = np.diag([0.5, 1.0])
    root = np.linalg.cholesky(COVARIANCE)

    def upper_of(target):
        held, energy = problems.density_problem(target, POINT, curvature)
        assert energy.value is None and energy.error == 0 and held.lower is curvature and np.allclose(held.root, root)
        return energy.upper

    regression = LogisticRegression(DESIGN, LABELS)
    steep = LogDensity(lambda z: -jnp.sum(jnp.logaddexp(0.0, z**4)) - jnp.sum(z**2), 2)
    for target, most in ((regression, regression.curvature_bounds()[1]), (steep, None)):
        found = upper_of(target)
        if most is None:
            assert found is None
        else:
            seen = root.T @ most @ root
            assert np.allclose(found, seen + 1e-12 * np.trace(seen) * np.eye(2), rtol=1e-13, atol=0)
            assert np.trace(found - seen) > 1e-12 * np.trace(seen)
    smooth = LogDensity(lambda z: -jnp.sum(jnp.logaddexp(0.0, z**4)) - jnp.sum(z**2), 2, smoothness=50.0)
    assert np.allclose(upper_of(smooth), 50 * root.T @ root)


def test_the_curvature_that_is_known():

    def quartic(z):
        return -jnp.sum(jnp.logaddexp(0.0, z**4))

    assert problems.curvature_lower_bound(LogDensity(quartic, 2)) is None
    assert np.array_equal(problems.curvature_lower_bound(LogDensity(quartic, 2, strong_convexity=0.5)), 0.5 * np.eye(2))
    assert problems.curvature_lower_bound(LogDensity(quartic, 2, strong_convexity=0.0)) is None
    assert np.allclose(
        problems.curvature_lower_bound(LogisticRegression(DESIGN, LABELS, prior_scale=2.0)), np.eye(2) / 4
    )


def found_of(kl=0.5, **more):
    return DualBound(
        **{**dict(kl=kl, proven=True, estimate=0.3, log_mass=1.5, num_pairs=600, num_evaluations=9), **more}
    )


def test_what_is_reported_of_a_dual_bound():
    variances = np.array([0.5, 2.0])
    found = posterior.reported(found_of(), variances, 0.9, True)
    assert found == PosteriorBound(0.5, (math.sqrt(0.5), math.sqrt(2.0)), 0.9, 1200, "proven", 0.3)
    assert posterior.reported(found_of(proven=False), variances, 0.9, True).status == "statistical"
    assert posterior.reported(found_of(), variances, 0.9, False).status == "statistical"
    assert posterior.reported(None, variances, 0.9, True) is None
    assert posterior.reported(found_of(math.inf), variances, 0.9, True) is None


def test_the_distance_of_linear_models_and_densities(monkeypatch):
    asked = []
    monkeypatch.setattr(posterior, "dual_bound", lambda *held, **options: asked.append((held, options)) or found_of())
    target = LogisticRegression(DESIGN, LABELS, prior_scale=2.0)
    found = posterior.linear_posterior_bound(target, FAMILY, POINT, confidence=0.9, seed=3)
    assert found.coordinate_error == (2.0, 2.0) and found.confidence == 0.9  # sqrt(2 kl 4)
    assert asked[0][1] == {"delta": pytest.approx(0.1), "seed": 3, "most_evaluations": 250_000}
    assert posterior._evaluations(SimpleModel(10_000, 100)) == int(6e8 / (10_000 * 9))
    assert posterior._evaluations(SimpleModel(10**7, 100)) == 2000
    density = LogDensity(lambda z: -jnp.sum(jnp.logaddexp(0.0, z**4)), 2, strong_convexity=0.5)
    found = posterior.posterior_bound(density, FAMILY, POINT, confidence=0.9, seed=3)
    assert found.coordinate_error == pytest.approx((math.sqrt(2), math.sqrt(2))) and found.status == "proven"
    assert asked[1][1] == {"delta": pytest.approx(0.1), "seed": 3, "most_evaluations": 40_000}
    assert (
        posterior.posterior_bound(target, FAMILY, POINT, confidence=0.9, seed=3)
        and asked[2][1]["most_evaluations"] == 40_000
    )
    free = LogDensity(lambda z: -jnp.sum(jnp.logaddexp(0.0, z**4)), 2)
    assert posterior.posterior_bound(free, FAMILY, POINT, confidence=0.9, seed=3) is None
    monkeypatch.setattr(posterior, "any_posterior_bound", lambda *_, **options: (asked.append(options), found)[1])
    for base, known in ((Laplace(), True), (StudentT(4.0), False)):
        there = posterior.posterior_bound(density, LocationScale(2, base), POINT, confidence=0.8, seed=5)
        assert (there is found) == known
    assert asked[-1] == {"confidence": 0.8, "seed": 5}
    assert posterior.linear_posterior_bound(target, LocationScale(2, Laplace()), POINT, confidence=0.8, seed=5) is found
    for most, known in ((1, False), (2, True)):
        monkeypatch.setattr(posterior, "_LARGEST_DENSE", most)
        assert (posterior.posterior_bound(density, FAMILY, POINT, confidence=0.9, seed=3) is not None) == known
        assert (posterior.linear_posterior_bound(target, FAMILY, POINT, confidence=0.9, seed=3) is not None) == known
    monkeypatch.setattr(posterior, "linear_problem", lambda *_: None)
    assert posterior.linear_posterior_bound(target, FAMILY, POINT, confidence=0.9, seed=3) is None


def SimpleModel(terms, dim):
    """A model of so many rows and columns, of which nothing is computed."""
    return (
        LogisticRegression(np.broadcast_to(np.float32(1.0), (terms, dim)), np.arange(terms) % 2)
        if terms < 10**5
        else _large(dim)
    )


def _large(dim):
    model = LogisticRegression(np.eye(dim), np.arange(dim) % 2)
    object.__setattr__(model, "__class__", type("Large", (type(model),), {"num_terms": property(lambda self: 10**7)}))
    return model


GRAM = DESIGN @ DESIGN.T + 0.5 * np.eye(6)
A, S = 0.1 * RNG.normal(size=6), np.array([0.2, 0.1, 0.25, 0.05, 0.2, 0.15])
MEAN = np.linspace(-0.2, 0.2, 6)
PROCESS, SITES = DualGaussian(jnp.asarray(GRAM), jnp.asarray(MEAN)), DualPoint(jnp.asarray(A), jnp.asarray(S))
V = np.linalg.inv(np.linalg.inv(GRAM) + np.diag(S))


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setattr(DualGaussian, "check_target", lambda self, target: None)
    return SimpleNamespace(likelihood=BernoulliLogit(), response=LABELS * 1.0)


def test_a_gaussian_process_in_the_coordinates_of_its_prior(process):
    """phi = sum of the terms + |v|^2 / 2 with eta = m_0 + L v: its mean under q by moments of each eta."""
    held, energy = dual_form.dual_problem(process, PROCESS, SITES)
    centre, sign = MEAN + GRAM @ A, 2 * LABELS - 1
    value = 0.0
    for k in range(6):

        def term(t, k=k):
            return np.logaddexp(0, -sign[k] * (centre[k] + math.sqrt(V[k, k]) * t))

        value += integrate.quad(lambda t: term(t) * stats.norm.pdf(t), -9, 9)[0] - term(0.0)  # noqa: B023
    lower = np.linalg.cholesky(GRAM)
    covariance = np.linalg.inv(np.eye(6) + lower.T @ np.diag(S) @ lower)
    assert energy.value == pytest.approx(value + np.trace(covariance) / 2, abs=1e-6) and 0 < energy.error < 1e-6
    root = np.linalg.solve(lower, held.root)  # R in the coordinates of v
    assert np.allclose(root @ root.T, covariance) and np.allclose(held.root @ held.root.T, V)
    assert np.allclose(held.prior_curvature, root.T @ root) and np.allclose(held.prior_gradient, root.T @ lower.T @ A)
    assert (
        held.largest_weight == 0.25 and not held.quadratic and held.design is None and np.allclose(held.centre, centre)
    )
    singular = DualGaussian(jnp.asarray(GRAM - 0.6 * np.eye(6)), jnp.asarray(MEAN))
    zero = DualPoint(jnp.asarray(A), jnp.zeros(6))
    assert dual_form.dual_problem(process, singular, zero) is None


def test_errors_of_a_gaussian_process(process, monkeypatch):
    unit = 2.0**-12
    monkeypatch.setattr(dual_form, "EPS", unit)
    at = passes.dual_pass(process, PROCESS, SITES)
    values, first = RNG.normal(size=6), RNG.normal(size=6)
    slope = np.abs(at.gradient - A) + at.gradient_error
    expected = np.sum(slope * at.centre_error + (at.weight + at.weight_error + S) * at.variance_error)
    expected += 6 * unit * (np.abs(values).sum() + np.abs(first).sum() + 6)
    moved = np.sqrt(np.diag(GRAM)) * (np.abs(A) + slope + S * np.sqrt(np.diag(V)))
    expected += 4 * (8 * unit + at.prior.unit) * moved.sum() ** 2
    assert dual_form._rounding(at, A, values, first) == pytest.approx(expected, rel=1e-9)
    held, _ = dual_form.dual_problem(process, PROCESS, SITES)
    lower = np.linalg.cholesky(GRAM)
    root = np.linalg.solve(lower, held.root)
    assert held.curvature_error == pytest.approx(24 * unit * np.sum(root**2))
    assert held.gradient_error == pytest.approx(24 * unit * np.linalg.norm(root) * np.linalg.norm(lower.T @ A))
    assert np.allclose(held.row_error, 24 * unit * np.sqrt(np.diag(GRAM)) * np.linalg.norm(root))


def test_the_distance_of_a_gaussian_process(process, monkeypatch):
    asked = []
    monkeypatch.setattr(dual_form, "dual_bound", lambda *held, **options: asked.append(options) or found_of())
    found = dual_form.dual_posterior_bound(process, PROCESS, SITES, confidence=0.9, seed=3)
    assert np.allclose(found.coordinate_error, np.sqrt(np.diag(GRAM))) and found.confidence == 0.9
    assert asked[0] == {"delta": pytest.approx(0.1), "seed": 3, "most_evaluations": 250_000}
    for most, known in ((5, False), (6, True)):
        monkeypatch.setattr(dual_form, "_LARGEST_SITES", most)
        assert (dual_form.dual_posterior_bound(process, PROCESS, SITES, confidence=0.9, seed=3) is not None) == known
    monkeypatch.setattr(dual_form, "WORK", 1e5 * 6**1.7)
    dual_form.dual_posterior_bound(process, PROCESS, SITES, confidence=0.9, seed=3)
    assert asked[-1]["most_evaluations"] in (99_999, 100_000)
    rooted = DualGaussian(jnp.asarray(GRAM), jnp.asarray(MEAN), root=jnp.eye(6))
    assert dual_form.dual_posterior_bound(process, rooted, SITES, confidence=0.9, seed=3) is None
    monkeypatch.setattr(dual_form, "dual_problem", lambda *_: None)
    assert dual_form.dual_posterior_bound(process, PROCESS, SITES, confidence=0.9, seed=3) is None
    monkeypatch.setattr(dual_form, "is_streamed", lambda gram: True)
    assert dual_form.dual_posterior_bound(process, PROCESS, SITES, confidence=0.9, seed=3) is None
    monkeypatch.setattr(BernoulliLogit, "log_concave", False)
    assert dual_form.dual_posterior_bound(process, PROCESS, SITES, confidence=0.9, seed=3) is None


def test_the_least_log_mean_by_search():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        half, exponents = rng.normal(size=(40, 2)), rng.normal(size=80) * 2
        u = np.concatenate([half, -half])
        best = optimize.minimize(lambda z, u=u, e=exponents: special.logsumexp(u @ z + e) - math.log(80), np.zeros(2),
                                 method="BFGS", options={"gtol": 1e-10})  # fmt: skip
        found = tight._least_log_mean(u, exponents)
        assert best.fun - 1.1e-6 < found < best.fun - 0.9e-6
    far = tight._least_log_mean(u, 900 + 30 * rng.normal(size=80))  # of a few draws that count
    assert np.isfinite(far)


def test_a_tight_bound_is_students(monkeypatch):
    held, energy = problems.linear_problem(LogisticRegression(DESIGN, LABELS), FAMILY, POINT)
    frame = SimpleNamespace(problem=held, log_det=(0.7, 0.01))
    monkeypatch.setattr(tight, "pilot_frame", lambda problem, rng, offset: (frame, 2.0))
    seen, uppers = [], np.random.default_rng(1).normal(size=(16, 20)) * 0.1

    def conjugates(problem, points, tolerance):
        seen.append((points, tolerance))
        return Conjugates(uppers[len(seen) - 1] + 0.5 * np.sum(points**2, axis=1), points, 1, 1)

    monkeypatch.setattr(tight, "conjugates", conjugates)
    monkeypatch.setattr(tight, "_least_log_mean", lambda u, exponents: float(exponents.sum()))
    options = dict(confidence=0.9, seed=5, group=10)
    found = tight.tight_bound(held, Energy(1.5, 0.25), **options)
    values = uppers.sum(axis=1)
    assert len(seen) == 16 and seen[0][1] == pytest.approx(0.01) and np.array_equal(seen[0][0][:10], -seen[0][0][10:])
    assert found.kl == pytest.approx(max(skewed_bound(values, 0.1) + 0.5 + 0.25 + 0.7 + 0.01, 0))
    assert found.estimate == pytest.approx(max(values.mean() + 0.5 + 0.7, 0)) and found.kl > 0 < found.estimate
    assert (found.num_samples, found.status, found.coordinate_error) == (320, "statistical", ())
    seen.clear()
    low = tight.tight_bound(held, Energy(-90.0), **options)
    assert (low.kl, low.estimate) == (0.0, 0.0) and tight.tight_bound(held, Energy(None), **options) is None
    monkeypatch.setattr(tight, "MOST_PAIRS", 8)
    seen.clear()
    monkeypatch.setattr(tight, "conjugates", lambda problem, points, tolerance: seen.append(len(points)))
    assert tight.tight_bound(held, Energy(1.0), **options) is None and seen == [16]
    monkeypatch.setattr(
        tight, "conjugates", lambda problem, points, tolerance: Conjugates(np.full(16, np.inf), points, 1, 1)
    )
    assert tight.tight_bound(held, Energy(1.0), **options) is None
    monkeypatch.setattr(tight, "pilot_frame", lambda *_: None)
    assert tight.tight_bound(held, Energy(1.0), **options) is None


def test_the_marginals_of_a_direction(monkeypatch):
    """E max over signs of phi + phi*(s +- ta) - <x, s +- ta>, from pairs, as it is written."""
    held, energy = problems.linear_problem(LogisticRegression(DESIGN, LABELS), FAMILY, POINT)
    half = RNG.normal(size=(9, 2))
    u, tilt, upper = np.concatenate([half, -half]), np.array([0.3, -0.2]), RNG.normal(size=36)
    asked = []
    monkeypatch.setattr(marginals, "conjugates", lambda problem, points, tolerance: asked.append((points, tolerance))
                        or Conjugates(upper, points, 1, 1))  # fmt: skip
    each = np.array([max(upper[k] - u[k] @ tilt, upper[18 + k] + u[k] @ tilt) - u[k] @ u[k] / 2 for k in range(18)])
    expected = skewed_bound((each[:9] + each[9:]) / 2, 0.05) + 1.5 + 0.25 - 1
    assert marginals._one(held, Energy(1.5, 0.25), u, tilt, 0.95) == pytest.approx(expected)
    assert np.allclose(asked[0][0], np.concatenate([u + tilt, u - tilt])) and asked[0][1] == pytest.approx(1.3e-4)
    assert marginals._one(held, Energy(None), u, tilt, 0.95) == math.inf
    # The size of the tilt is that of the KL, or of a millionth; directions are the rows of R, of unit length.
    tilts = []
    monkeypatch.setattr(
        marginals, "_one", lambda problem, energy, u, tilt, confidence: tilts.append(tilt) or float(len(tilts))
    )
    target, root = LogisticRegression(DESIGN, LABELS), np.linalg.cholesky(COVARIANCE)
    for kl, size in ((0.08, 0.4), (0.0, math.sqrt(2e-6))):
        tilts.clear()
        found = marginals.marginal_distances(target, FAMILY, POINT, kl=kl)
        assert np.allclose(found, [1 / size, 2 / size])
        assert np.allclose(tilts, size * root / np.linalg.norm(root, axis=1)[:, None])
    with pytest.raises(ValueError, match="Gaussian q"):
        marginals.marginal_distances(target, LocationScale(2, Laplace()), POINT, kl=0.1)
    monkeypatch.setattr(marginals, "linear_problem", lambda *_: None)
    with pytest.raises(ValueError, match="not finite"):
        marginals.marginal_distances(target, FAMILY, POINT, kl=0.1)


def test_any_density(monkeypatch):
    """A Gaussian posterior and q a Gaussian: the bracket holds log Z, which is known; and each end as it is written."""
    target = LogDensity(lambda z: -0.5 * jnp.sum(jnp.asarray([1.0, 4.0]) * z**2), 2)
    truth = math.log(2 * math.pi) - math.log(2.0)
    noise = np.random.default_rng(0).normal(size=(9216, 2))

    def sample(key, count):
        return jnp.asarray((noise[:1024] if count == 1024 else noise[1024:]) * [1.1, 0.5])

    def log_prob(z):
        return -0.5 * jnp.sum((z / jnp.asarray([1.1, 0.5])) ** 2) - math.log(2 * math.pi * 0.55)

    seen = []
    evidence = any_density._log_evidence
    monkeypatch.setattr(any_density, "_log_evidence", lambda *given: seen.append(given[2:]) or evidence(*given))
    found = any_density.any_posterior_bound(target, sample, log_prob, confidence=0.98, seed=1)
    x = noise[1024:] * [1.1, 0.5]
    elbo = (
        -0.5 * (x[:, 0] ** 2 + 4 * x[:, 1] ** 2)
        + 0.5 * np.sum((x / [1.1, 0.5]) ** 2, axis=1)
        + math.log(2 * math.pi * 0.55)
    )
    bracket = found.evidence
    assert bracket.lower == pytest.approx(-skewed_bound(-elbo, 0.01)) and bracket.lower <= truth <= bracket.upper + 1e-9
    assert found.kl == pytest.approx(bracket.upper - bracket.lower) and found.estimate == pytest.approx(
        bracket.upper - elbo.mean()
    )
    assert (
        np.allclose(found.coordinate_error, np.sqrt(2 * found.kl * np.array([1.0, 0.25]))) and found.num_samples == 8192
    )
    assert seen[0][1] == pytest.approx(0.01) and (found.status, bracket.status) == ("statistical", "statistical")
    monkeypatch.setattr(any_density, "_log_evidence", lambda *_: -50.0)
    low = any_density.any_posterior_bound(target, sample, log_prob, confidence=0.98, seed=1)
    assert (low.kl, low.estimate) == (0.0, 0.0)
    monkeypatch.setattr(any_density, "_log_evidence", lambda *_: None)
    assert any_density.any_posterior_bound(target, sample, log_prob, confidence=0.98, seed=1) is None
    with pytest.raises(ValueError, match="not finite"):
        any_density.any_posterior_bound(
            target, lambda key, count: jnp.full((count, 2), jnp.nan), log_prob, confidence=0.9, seed=1
        )
    steep = LogDensity(lambda z: -jnp.sum(jnp.logaddexp(0.0, z**4)), 2)
    assert any_density.any_posterior_bound(steep, sample, log_prob, confidence=0.98, seed=1) is None


def test_the_evidence_from_its_mass(monkeypatch):
    target = LogDensity(lambda z: -0.5 * jnp.sum(jnp.asarray([1.0, 4.0]) * z**2) - 3.0, 2)
    pilot, asked = RNG.normal(size=(500, 2)) + 1.0, []
    monkeypatch.setattr(
        any_density,
        "dual_bound",
        lambda problem, energy, **options: asked.append((problem, energy, options)) or found_of(),
    )
    found = any_density._log_evidence(target, np.eye(2), pilot, 0.01, 7)
    mean, spread = pilot.mean(axis=0), np.cov(pilot.T)
    here = 0.5 * (mean[0] ** 2 + 4 * mean[1] ** 2) + 3
    expected = 1.5 - here + math.log(2 * math.pi) + 0.5 * np.linalg.slogdet(spread)[1]
    assert found == pytest.approx(expected, abs=1e-8)
    assert asked[0][2] == {"delta": 0.01, "seed": 7, "most_evaluations": 40_000} and asked[0][1] == Energy(0.0)
    for broken in (None, found_of(log_mass=math.inf)):
        monkeypatch.setattr(any_density, "dual_bound", lambda *_, b=broken, **__: b)
        assert any_density._log_evidence(target, np.eye(2), pilot, 0.01, 7) is None


def test_conventions_of_samplers():
    def log_prob(x):
        return -(x**2)

    def zeros(shape):
        return jnp.zeros((*shape, 2))

    for call in (
        lambda key, shape: zeros(shape),
        lambda *, seed, sample_shape: zeros(sample_shape),
        lambda shape, *, seed: zeros(shape),
    ):
        sample, density = any_density.as_sampler(SimpleNamespace(sample=call, log_prob=log_prob), 2)
        assert sample(None, 5).shape == (5, 2) and float(density(jnp.asarray([1.0, 2.0]))) == -5
    assert any_density.as_sampler(SimpleNamespace(sample=1, log_prob=log_prob), 2) is None
    assert any_density.as_sampler(SimpleNamespace(sample=call), 2) is None
    with pytest.raises(ValueError, match="vectors of 2 numbers"):
        any_density.as_sampler(SimpleNamespace(sample=call, log_prob=log_prob), 3)
    with pytest.raises(TypeError, match="sample takes neither"):
        any_density.as_sampler(SimpleNamespace(sample=lambda: 1, log_prob=log_prob), 2)


class Plain:
    """A user's likelihood, and the second derivatives that were found and allowed of three data."""

    def __init__(self, found, limit):
        self.plain, self.found, self.limit = self, found, limit

    def seen(self, centre, response):
        return self, centre, response

    def contradiction(self, centre, variance, response):
        return centre + 1, jnp.asarray(self.found), jnp.asarray(self.limit)


def test_a_link_that_was_refuted():
    def refuted(found, limit):
        return refutation.link_counterexample(Plain(found, limit), [1.0, 2.0, 3.0], [1.0] * 3, [0.0, 5.0, 1.0])

    found = refuted([0.5, -0.3, math.nan], [0.5, 0.1, 0.0])
    assert (found.point[0], found.direction[0]) == (3.0, 5.0) and "at least 0.1" in str(found)
    assert (found.curvature, found.claimed) == (pytest.approx(-0.3), pytest.approx(0.1))
    assert refuted([1.0] * 3, [1.0] * 3) is None and "at most 1" in str(refuted([2.0] * 3, [1.0] * 3))
    assert refutation.link_counterexample(BernoulliLogit(), [1.0], [1.0], [1.0]) is None


def test_shares_of_draws_between_nodes():
    weights = np.array([0.64, 0.36, 0.0, 1e-9])
    roots = np.sqrt(weights)
    expected = [min(max(math.ceil(250 * r * roots.sum() / 32) * 32, 32), 1024) for r in roots]
    assert nested._shared_pairs(weights).tolist() == expected and expected[2] == 32
    assert nested._shared_pairs(np.full(400, 9.0)).max() == 1024


def test_attempts_at_a_node(monkeypatch):
    quick, last = [], []
    script = []
    monkeypatch.setattr(nested, "quick_bound", lambda p, e, **options: quick.append(options) or script[len(quick) - 1])
    monkeypatch.setattr(
        nested, "dual_bound", lambda p, e, **options: last.append(options) or found_of(0.1, estimate=0.1)
    )
    held = SimpleNamespace(root=np.zeros((50, 4)))
    node = getattr(nested._node_bound, "__wrapped__", nested._node_bound)

    def run(weight, *given):
        quick.clear(), last.clear()
        script[:] = given
        return node(held, Energy(1.0), weight, 64, 0.08, 5)

    loose = found_of(9.0, estimate=0.0)
    assert run(0.5, loose, found_of(8.0, estimate=0.0), None).kl == 0.1
    assert quick == [
        dict(delta=0.04, seed=5, pairs=64),
        dict(delta=0.02, seed=5 + 7919, pairs=256),
        dict(delta=0.01, seed=5 + 15838, pairs=1024),
    ]
    assert last == [dict(delta=0.005, seed=5 + 3 * 7919, most_evaluations=20_000)]
    # It is enough where what is not known counts for little, or for a tenth of the node.
    for weight, gap, attempts in ((1e-3, 0.09, 1), (0.5, math.log1p(0.099), 1), (0.5, math.log1p(0.101), 2),
                                  (1e-4, math.log1p(19.9), 1), (1e-4, math.log1p(20.1), 2)):  # fmt: skip
        run(weight, found_of(gap, estimate=0.0), found_of(0.0, estimate=0.0), None)
        assert len(quick) == attempts
    assert run(1.0, found_of(0.5, estimate=0.0), found_of(7.0, estimate=7.0), found_of(0.3, estimate=0.3)).kl == 0.3
    monkeypatch.setattr(nested, "dual_bound", lambda *_, **__: None)
    assert run(0.5, None, None, None) is None and run(0.5, found_of(math.inf, estimate=0.0), None, None) is None
    assert run(0.5, loose, None, None) is loose


def test_bounds_are_named():
    assert GapBound("a", 1.0, "proven").name == "a" and (posterior.WORK, posterior.FEWEST_EVALUATIONS) == (6e8, 2000)
    assert posterior.MOST_EVALUATIONS == 250_000 and EPS == np.finfo(float).eps
