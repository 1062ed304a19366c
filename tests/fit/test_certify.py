"""`provi.certify`: every form of q, sharp however far q is, and what it refuses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.certificates import RefutedDeclarationError
from provi.certificates import certificate as counterexample_room
from provi.targets import LogDensity
from support.linear_models import DIM, best_gaussian, linear_model, objective

TARGET = linear_model("logistic")
BAD = np.array([3.0, -3.0, 2.0]), np.diag([2.0, 1.0, 0.5])
BAD[1][0, 1] = BAD[1][1, 0] = 0.4


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
    """Compilation is most of the time here."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def true_gap(loc, covariance, scale="triangular"):
    return objective(TARGET, loc, covariance) - objective(TARGET, *best_gaussian(TARGET, scale == "diagonal"))


@pytest.fixture(scope="module")
def certified():
    return provi.certify(TARGET, BAD)


def test_a_bad_pair_is_certified_to_one_per_cent(certified):
    gap = true_gap(*BAD)
    assert gap > 10 and gap <= certified.gap < 1.01 * gap
    assert certified.status == "proven" and certified.confidence is None
    assert [bound.name[-3:] for bound in certified.bounds] == ["(a)", "(b)", "(d)", "(g)"]
    # Without the comparison only the gradient at q speaks: sound and several times larger.
    direct = provi.certify(TARGET, BAD, compare=False)
    assert len(direct.bounds) == 3 and direct.gap > 1.5 * gap


def test_verify_of_a_deterministic_certificate_is_the_same(certified):
    other = certified.verify(5)
    assert other.gap == pytest.approx(certified.gap, rel=1e-12) and other.posterior != certified.posterior


def test_variances_mean_the_mean_field_family():
    variances = np.array([0.3, 0.2, 0.1])
    certificate = provi.certify(TARGET, (BAD[0], variances))
    gap = true_gap(BAD[0], np.diag(variances), "diagonal")
    assert gap <= certificate.gap < 1.01 * gap


def test_a_fit_its_posterior_and_its_moments_agree():
    fit = provi.fit(TARGET, budget=provi.Budget(steps=4))
    gap = true_gap(np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance))
    pair = (fit.posterior.mean, fit.posterior.covariance)
    gaps = [provi.certify(TARGET, q, compare=False).gap for q in (fit, fit.posterior, pair)]
    assert max(gaps) - min(gaps) < 1e-9 and gap <= min(gaps)


def test_a_very_wide_q_is_not_certified_below_the_truth():
    """Spreads near 300: the value of the objective itself must be right to much better than the gap's tolerance."""
    deviation = 200.0
    certificate = provi.certify(TARGET, (np.zeros(DIM), deviation**2 * np.eye(DIM)))
    # E softplus(+-sx), x ~ N(0, 1), is s/sqrt(2 pi) + pi^2/(12 s sqrt(2 pi)) up to O(s^-3), s the spread.
    design = np.asarray(TARGET.design)
    spread = deviation * np.linalg.norm(design, axis=1)
    likelihood = np.sum(spread / np.sqrt(2 * np.pi) + np.pi**2 / (12 * spread) * 2 / np.sqrt(2 * np.pi))
    prior, away = TARGET.prior.precision_matrix(), np.asarray(TARGET.prior.mean)
    value = likelihood + 0.5 * away @ prior @ away + 0.5 * deviation**2 * np.trace(prior) - DIM * np.log(deviation)
    gap = value - objective(TARGET, *best_gaussian(TARGET))
    assert gap - 1e-4 <= certificate.gap < gap + 2e-3


def test_a_black_box_is_certified_too():
    """The same density without its structure: 2048 draws at each member leave a few per cent."""
    density = LogDensity(lambda z: -TARGET.potential(z), DIM, log_concave=True)
    certificate, gap = provi.certify(density, BAD), true_gap(*BAD)
    assert certificate.status == "statistical" and certificate.confidence == 0.99
    assert gap <= certificate.gap < 1.1 * gap
    assert all(bound.confidence == 0.99 for bound in certificate.bounds)


def test_a_false_claim_is_refused_with_its_counterexample():
    """Two modes, declared log-concave: never a bound, also not through another member."""

    def mixture(z):
        return jax.nn.logsumexp(jnp.stack([-0.5 * jnp.sum((z - c) ** 2) for c in (-2.0, 2.0)]))

    target = LogDensity(mixture, 2, log_concave=True)
    with pytest.raises(RefutedDeclarationError, match="log_concave.*curvature -.* found at") as error:
        provi.certify(target, (np.zeros(2), 2 * np.eye(2)))
    certificate = error.value.certificate
    assert certificate.status == "none" and certificate.gap is None and certificate.kl is None
    found = certificate.counterexample
    assert isinstance(found, counterexample_room.Counterexample) and found.curvature < 0
    assert not any(bound.status == "proven" and math.isfinite(bound.value) for bound in certificate.bounds)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"target": 3.0}, TypeError, "target"),
        ({"confidence": 1.0}, ValueError, "confidence must lie between"),
        ({"confidence": 0.3}, ValueError, "confidence must lie between"),
        ({"seed": -1}, ValueError, "seed"),
        ({"q": (np.zeros(2), np.eye(2))}, ValueError, "dimension 3"),
        ({"q": (np.zeros(DIM), -np.ones(DIM))}, ValueError, "variances"),
        ({"q": (np.zeros(DIM), np.zeros((DIM, DIM)))}, ValueError, "covariance"),
        ({"q": "laplace"}, TypeError, "Pass a pair"),
        ({"budget": 0}, ValueError, "budget"),
    ],
)
def test_bad_arguments_are_named(changed, error, message):
    arguments = {"target": TARGET, "q": BAD, **changed}
    with pytest.raises(error, match=message):
        provi.certify(**arguments)


def test_a_posterior_of_another_dimension_is_named():
    other = provi.fit(linear_model("logistic", dim=2), budget=provi.Budget(steps=2))
    with pytest.raises(ValueError, match="q has dimension 2, but the target has 3"):
        provi.certify(TARGET, other)
