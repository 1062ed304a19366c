"""The default methods: which one is chosen, that the tolerance is reached and proven, and how a run explains itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.families import Gaussian, Laplace, LocationScale
from provi.fit import choose
from provi.structures import linear
from provi.structures.base import Request, certificate_seed
from provi.structures.stopping import MOST_PASSES
from provi.targets import HierarchicalLogisticRegression, LogDensity
from support.linear_models import DIM, best_gaussian, linear_model, objective

REQUEST = Request(0.01, 0.99, provi.Budget(), 0, {"progress": False})


@pytest.fixture(scope="module", autouse=True)
def _compile_fast():
    """Compilation is most of the time here."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def hierarchical():
    rng = np.random.default_rng(0)
    design = rng.normal(size=(40, 2))
    return HierarchicalLogisticRegression(design, rng.integers(0, 2, 40), rng.integers(0, 2, 40))


def density(dim=2, **claims):
    return LogDensity(lambda z: -0.5 * jnp.sum(z**2) - jnp.sum(jnp.logaddexp(0.0, z)), dim, **claims)


class Chosen(Exception):
    """Raised by the stand-ins of the ways to run."""


def chosen(monkeypatch, target, family):
    """The structure, and the stopping rule's way to run that it takes."""

    def stand_in(name):
        def method(structure, *rest):
            assert structure.family == family and rest[-1] == REQUEST and structure.target.dim == target.dim
            raise Chosen(name)

        return method

    for name in ("run_proven", "run_sampled", "run_rounds"):
        for module in ("linear", "black_box", "whitened"):
            monkeypatch.setattr(f"provi.structures.{module}.{name}", stand_in(name), raising=False)
    with pytest.raises(Chosen) as caught:
        choose(target, family).run(None, REQUEST)
    return type(choose(target, family)).__name__, caught.value.args[0]


@pytest.mark.parametrize(
    ("target", "family", "expected"),
    [
        (linear_model("logistic"), Gaussian(DIM), ("Linear", "run_proven")),
        (linear_model("poisson"), Gaussian(DIM, "diagonal"), ("Linear", "run_proven")),
        (linear_model("logistic"), LocationScale(DIM, Laplace()), ("Linear", "run_proven")),
        (linear_model("logistic"), Gaussian(DIM, "low_rank"), ("Linear", "run_rounds")),
        (hierarchical(), Gaussian(6), ("Linear", "run_proven")),
        (density(), Gaussian(2), ("BlackBox", "run_sampled")),
        (density(), Gaussian(2, "symmetric"), ("BlackBox", "run_sampled")),
        (density(), Gaussian(2, "diagonal"), ("WhitenedRounds", "run_rounds")),
        (density(), LocationScale(2, Laplace()), ("WhitenedRounds", "run_rounds")),
    ],
)
def test_the_method_follows_the_structure(monkeypatch, target, family, expected):
    assert chosen(monkeypatch, target, family) == expected


def test_a_large_linear_model_has_no_dense_matrices(monkeypatch):
    monkeypatch.setattr(linear, "LARGEST_LINEAR", 2)
    assert chosen(monkeypatch, linear_model("logistic"), Gaussian(DIM)) == ("Linear", "run_sampled")


def gap_of(target, fit):
    best = best_gaussian(target, fit.posterior.family.scale == "diagonal")
    return objective(target, fit.posterior.mean, fit.posterior.covariance) - objective(target, *best)


@pytest.mark.parametrize(("kind", "tol"), [("logistic", 1.0), ("linear", 1e-6), ("poisson", 1e-6), ("probit", 1e-4)])
def test_the_tolerance_is_reached_and_proven(kind, tol):
    target = linear_model(kind)
    fit = provi.fit(target, tol=tol)
    assert fit.outcome is provi.Outcome.TOLERANCE and fit.certificate.status == "proven"
    assert fit.certificate.confidence is None and fit.certificate.gap <= tol
    assert gap_of(target, fit) <= fit.certificate.gap + 1e-11
    assert "proven" in fit.message and f"{tol:g}" in fit.message
    # The last recorded ELBO is the exact one of the returned point, up to what it says of its own error.
    assert fit.history["elbo"][-1] == fit.elbo.value
    assert fit.elbo.standard_error == pytest.approx(target.value_error * (target.num_terms - fit.elbo.value))


def test_the_mean_field_family_too():
    target = linear_model("logistic")
    fit = provi.fit(target, Gaussian(DIM, "diagonal"), tol=1e-4)
    assert fit.outcome is provi.Outcome.TOLERANCE
    assert gap_of(target, fit) <= fit.certificate.gap + 1e-11 <= 1e-4 + 1e-11


def test_a_budget_is_respected_and_nothing_false_is_claimed():
    target = linear_model("logistic")
    steps = provi.fit(target, budget=provi.Budget(steps=2))
    assert steps.num_steps == 2 and steps.outcome is provi.Outcome.COMPLETED
    assert steps.certificate.gap > 0.01 and gap_of(target, steps) <= steps.certificate.gap
    for budget in (5, 8, 12):  # certificates and their failed tries are paid for out of the budget
        passes = provi.fit(target, budget=budget, tol=1e-13)
        assert passes.gradient_evaluations <= budget and passes.outcome is provi.Outcome.GRADIENT_BUDGET
    seconds = provi.fit(target, budget=provi.Budget(seconds=1e-9))
    assert seconds.num_steps == 1 and seconds.outcome is provi.Outcome.TIME_BUDGET


def test_a_start_is_used():
    target, family = linear_model("logistic"), Gaussian(DIM)
    fit = provi.fit(target, start=family.point_from_covariance(*best_gaussian(target)))
    assert fit.num_steps <= 3 and fit.certificate.gap < 1e-6


def test_a_stall_is_explained():
    """No bound can be 1e-30 in double precision: the run ends when nothing moves any more, and says so."""
    target = linear_model("logistic")
    fit = provi.fit(target, tol=1e-30)
    assert fit.outcome is provi.Outcome.COMPLETED and fit.num_steps < MOST_PASSES / 5
    assert "no step lowers the negative ELBO any more" in fit.message and "above tol = 1e-30" in fit.message
    assert 0 < fit.certificate.gap < 1e-8


def test_hierarchical_goes_through_the_linear_model():
    target = hierarchical()
    fit = provi.fit(target, tol=1e-4)
    assert fit.outcome is provi.Outcome.TOLERANCE and fit.certificate.confidence is None
    assert fit.posterior.names == target.parameter_names and fit.certificate.names == target.parameter_names
    loc, covariance = best_gaussian(target.linear_model())
    # A gap of 1e-4 nats moves a mean by at most sqrt(2e-4) of its deviation, and a variance by about twice that.
    deviation = np.asarray(fit.posterior.standard_deviation)
    assert (np.abs(fit.posterior.mean - loc) / deviation).max() < 0.03
    np.testing.assert_allclose(deviation, np.sqrt(np.diagonal(covariance)), rtol=0.03)


def test_a_black_box_reaches_the_tolerance_with_confidence():
    fit = provi.fit(density(log_concave=True), tol=0.05)
    # The program shows strong convexity and smoothness, so that the bound is proven.
    assert fit.outcome is provi.Outcome.TOLERANCE and fit.certificate.status == "proven"
    assert fit.certificate.gap <= 0.05 and 0.99 <= fit.certificate.confidence < 1
    assert "confidence" in fit.message and fit.gradient_evaluations > fit.certificate.num_gradients


def test_seeds_of_certificates_differ():
    seeds = {certificate_seed(seed, attempt) for seed in range(20) for attempt in range(20)}
    assert len(seeds) == 400 and certificate_seed(3, 4) == certificate_seed(3, 4)
