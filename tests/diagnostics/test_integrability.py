"""Densities that are none: said of them, and not said of heavy tails, far modes and starts far away."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

import provi
from provi.cli.answer import judge_fit
from provi.diagnostics.integrability import refute_integrability

SEPARABLE = np.array([[1.0, 1.0], [1.0, 2.0], [-1.0, 3.0], [-1.0, 5.0]])

IMPROPER = {
    "rising": (lambda z: jnp.sum(z**2) / 2, "z[0]"),
    "flat": (lambda z: 0.0 * jnp.sum(z), "z[0]"),
    "exponential": (lambda z: z[0] - z[1] ** 2, "along z[0], upwards"),
    "falling side": (lambda z: -z[0] - z[1] ** 2, "along z[0], downwards"),
    "one flat coordinate": (lambda z: -(z[0] ** 2), "along z[1]"),
    "like 1 / distance": (lambda z: -jnp.log1p(jnp.abs(z[0])) - z[1] ** 2, "along z[0]"),
    "a flat ridge": (lambda z: -((z[0] + z[1]) ** 2), "in the direction"),
    "separable data without a prior": (lambda z: jnp.sum(jax.nn.log_sigmoid(SEPARABLE @ z)), "z[1]"),
}

PROPER = {
    "Cauchy": lambda z: -jnp.sum(jnp.log1p(z**2)),
    "Cauchy, not a product": lambda z: -1.5 * jnp.log1p(jnp.sum(z**2)),
    "Student's t, 2 degrees": lambda z: -1.5 * jnp.sum(jnp.log1p(z**2 / 2)),
    "Student's t, 0.1 degrees": lambda z: -0.55 * jnp.sum(jnp.log1p(z**2 / 0.1)),
    "Laplace": lambda z: -jnp.sum(jnp.abs(z)),
    "far away": lambda z: -jnp.sum((z - 1e7) ** 2) / 2,
    "two far modes": lambda z: logsumexp(jnp.stack([-jnp.sum(z**2), -jnp.sum((z - 1e4) ** 2)])),
    "far wider than q": lambda z: -jnp.sum((z / 1e5) ** 2),
    "funnel": lambda z: -(z[0] ** 2) / 18 - 0.5 * z[1] ** 2 * jnp.exp(-z[0]) - z[0] / 2,
    "not a number far out": lambda z: -jnp.sum(jnp.log(jnp.exp(z) + jnp.exp(-z))),
    "a compact set": lambda z: jnp.where(jnp.max(jnp.abs(z)) < 3, 0.0, -jnp.inf),
}


def member(scale: str, loc: float = 0.0, width: float = 1.0):
    family = provi.families.Gaussian(2, scale)
    return family, family.point(np.full(2, loc), width, np.float64)


@pytest.mark.parametrize("name", IMPROPER)
def test_a_density_that_never_falls_is_refuted_with_its_direction(name):
    fn, direction = IMPROPER[name]
    for scale in ("triangular", "diagonal"):
        if scale == "diagonal" and name in ("a flat ridge", "separable data without a prior"):
            continue  # only along the axes of a q that has them
        family, point = member(scale)
        if name == "a flat ridge":
            point = family.point_from_covariance(np.zeros(2), np.array([[5.0, -4.9], [-4.9, 5.0]]), np.float64)
        found = refute_integrability(provi.targets.LogDensity(fn, 2), family, point, seed=1)
        assert found is not None and direction in found


def test_a_q_that_has_run_away_is_judged_from_the_start():
    """At 10^160 nothing can be computed of z^2; from the start it can."""
    target = provi.targets.LogDensity(lambda z: -(z[0] ** 2), 2)
    for width in (1e80, 1e160):
        family, point = member("diagonal", width=width)
        found = refute_integrability(target, family, point, seed=1)
        assert found is not None and "along z[1]" in found and "runs away" in found


@pytest.mark.parametrize("name", PROPER)
def test_no_false_alarm_on_heavy_tails_far_modes_and_bad_starts(name):
    target = provi.targets.LogDensity(PROPER[name], 2)
    for scale, width in (("triangular", 1.0), ("diagonal", 1e-2), ("triangular", 1e3)):
        family, point = member(scale, width=width)
        assert refute_integrability(target, family, point, seed=1) is None, (scale, width)


def test_heavy_tails_in_many_dimensions_and_in_single_precision_are_no_alarm():
    family = provi.families.Gaussian(40)
    for dtype in (jnp.float32, jnp.float64):
        target = provi.targets.LogDensity(lambda z: -1e4 - jnp.sum(jnp.log1p(z**2)), 40, dtype=dtype)
        assert refute_integrability(target, family, family.point(np.zeros(40), 1.0, dtype), seed=2) is None


def test_a_fit_whose_elbo_is_not_finite_is_no_outcome_to_use():
    """Gamma(2) without the constraint: finite at the start and at most draws, not a number at the others."""
    target = provi.targets.LogDensity(lambda z: jnp.sum(jnp.log(z) - z), 2, start=np.ones(2))
    family = provi.families.Gaussian(2)
    fit = provi.fit(target, family, start=family.point(np.ones(2), 0.32, np.float64), budget=600)
    assert np.isnan(fit.elbo.value)
    assert fit.outcome is provi.Outcome.NONFINITE and not fit.outcome.ok
    assert "nan at " in fit.message and "draws of q" in fit.message and "constraints=" in fit.message
    assert "z[0] = -" in fit.message or "z[1] = -" in fit.message
    certificate = fit.certificate
    assert (certificate.status, certificate.gap, certificate.kl) == ("none", None, None)
    assert certificate.assumptions[0].status == "violated" and not certificate.bounds
    verdict = judge_fit(fit, 0.01)
    assert verdict.exit_code == 1 and "ELBO is finite: violated" in verdict.sentence
    assert "constraints=" in str(fit) and "nan" in str(fit)


def test_a_fit_of_an_improper_density_says_so_and_has_no_certificate():
    target = provi.targets.LogDensity(lambda z: -(z[0] ** 2) / 2, 2, log_concave=True)
    fit = provi.fit(target, budget=600)
    assert fit.outcome is provi.Outcome.IMPROPER and not fit.outcome.ok
    assert "does not seem to be integrable: along z[1]" in fit.message and "prior" in fit.message
    assert fit.certificate.gap is None and fit.certificate.kl is None
    assert judge_fit(fit, 0.01).exit_code == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fit.certificate), "verify", lambda self, seed: self)
        assert fit.certificate.recompute(3).gap is None  # also when it is computed again


@pytest.mark.parametrize("name", ["flat", "one flat coordinate", "rising", "like 1 / distance"])
def test_improper_densities_are_told_at_an_early_look(name):
    """They took all 3000 steps, 14 million gradients, before the verdict."""
    fit = provi.fit(provi.targets.LogDensity(IMPROPER[name][0], 2))
    assert fit.outcome is provi.Outcome.IMPROPER and fit.num_steps <= 100
    assert "does not seem to be integrable" in fit.message and IMPROPER[name][1] in fit.message
    assert fit.certificate.gap is None and fit.gradient_evaluations < 200_000


def test_a_density_without_any_curvature_is_improper_for_every_family():
    """A smoothness of 0, which is proven, is no scale for steps: it was an error without the name of an argument."""
    flat = provi.targets.LogDensity(lambda z: 0.0 * jnp.sum(z), 2)
    for family in (provi.families.Gaussian(2, "diagonal"), provi.families.Student(2)):
        fit = provi.fit(flat, family, budget=provi.Budget(steps=100))
        assert fit.outcome is provi.Outcome.IMPROPER and fit.num_steps <= 100
