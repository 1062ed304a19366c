"""`provi.fit` end to end: against exact posteriors and optima, its arguments, its outcomes, save and load."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import provi
from provi.certificates.build import with_guarantee
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import linear_model_optimum
from provi.fit import _check_arguments, choose
from provi.runtime.run import as_budget
from provi.schedules import ConstantStep, UniformSampling

pytestmark = pytest.mark.usefixtures("quick_compilation")


def logistic(dim=4, terms=150, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(terms, dim)).astype(dtype)
    response = (rng.random(terms) < 1 / (1 + np.exp(-design @ np.linspace(-1, 1, dim)))).astype(int)
    return provi.targets.LogisticRegression(design, response)


@pytest.fixture(scope="module")
def target():
    return logistic()


@pytest.fixture(scope="module")
def fitted(target):
    return provi.fit(target)


def test_default_reaches_the_best_gaussian(target, fitted):
    family = provi.families.Gaussian(4)
    best = float(linear_model_optimum(target, family).negative_elbo)
    gap = float(exact_negative_elbo(target, family, fitted.posterior.point)) - best
    assert 0 <= gap < 0.01
    # No Monte Carlo here: the reported error is a bound on that of the closed form.
    assert abs(fitted.elbo.value + best + gap) <= fitted.elbo.standard_error
    assert fitted.outcome is provi.Outcome.TOLERANCE
    assert gap <= fitted.certificate.gap <= 0.01


@pytest.mark.parametrize("scale", ["diagonal", "low_rank", "symmetric"])
def test_default_on_every_scale_beats_its_start(target, scale):
    family = provi.families.Gaussian(4, scale, rank=2)
    result = provi.fit(target, family, budget=provi.Budget(steps=120))
    if scale == "low_rank":
        # No oracle of its own: between the mean-field optimum and the full one.
        diagonal = linear_model_optimum(target, provi.families.Gaussian(4, "diagonal")).negative_elbo
        full = linear_model_optimum(target, provi.families.Gaussian(4)).negative_elbo
        slack = 5 * result.elbo.standard_error
        assert -float(diagonal) - 0.05 - slack < result.elbo.value < -float(full) + slack
    else:
        best = float(linear_model_optimum(target, family).negative_elbo)
        assert 0 <= float(exact_negative_elbo(target, family, result.posterior.point)) - best < 0.02


def test_linear_regression_recovers_the_exact_posterior():
    rng = np.random.default_rng(1)
    design = rng.normal(size=(50, 3))
    target = provi.targets.LinearRegression(design, design @ [1.0, -2.0, 0.5] + rng.normal(size=50))
    result = provi.fit(target)
    mean, covariance = target.exact_posterior()
    # The natural gradient of a linear regression is exact: the agreement is that of a deterministic method.
    np.testing.assert_allclose(result.posterior.mean, mean, atol=1e-8)
    np.testing.assert_allclose(result.posterior.covariance, covariance, atol=1e-8)
    assert abs(result.elbo.value - target.log_evidence()) < 1e-6


def test_target_that_is_not_log_concave_stays_safe():
    def banana(z):
        return -0.5 * (z[0] ** 2 / 4 + (z[1] - z[0] ** 2) ** 2 / 0.1)

    result = provi.fit(provi.targets.LogDensity(banana, 2), budget=provi.Budget(steps=150))
    assert np.isfinite(result.elbo.value)
    assert np.isfinite(result.posterior.covariance).all()
    # log Z of the banana is that of its two Gaussian factors; the ELBO must stay below it.
    log_evidence = 0.5 * np.log(2 * np.pi * 4) + 0.5 * np.log(2 * np.pi * 0.1)
    assert result.elbo.value < log_evidence + 5 * result.elbo.standard_error
    assert result.certificate.status == "none"


def test_theorem_algorithm_runs_from_its_own_start(target):
    family = provi.families.Gaussian(4)
    start = family.point(np.full(4, 0.3), 0.2)
    algorithm = provi.algorithms.ProxSGD.from_theorem(target, family, budget=400, num_draws=4, start=start)
    result = provi.fit(target, family, algorithm)
    assert result.num_steps == 100 and result.gradient_evaluations == 400
    assert result.certificate.theorem is not None and "Theorem 8" in result.certificate.theorem
    assert result.certificate.a_priori_bound == pytest.approx(algorithm.guarantee.bound)
    # A run cut short has the bound of the steps it took.
    short = provi.fit(target, family, algorithm, budget=200)
    assert short.num_steps == 50 and short.outcome is provi.Outcome.GRADIENT_BUDGET
    assert short.certificate.a_priori_bound == pytest.approx(float(algorithm.guarantee.curve(np.asarray([50]))[0]))
    assert short.certificate.a_priori_bound > result.certificate.a_priori_bound
    with pytest.raises(ValueError, match="pass start= to from_theorem"):
        provi.fit(target, family, algorithm, start=start)


def test_a_guarantee_serves_only_what_it_was_computed_for(target):
    family = provi.families.Gaussian(4)
    algorithm = provi.algorithms.ProxSGD.from_theorem(target, family, budget=20)
    changed = {"step_size": ConstantStep(1.0), "data_sampling": UniformSampling(5), "anchored": True}
    with pytest.raises(ValueError, match="another target"):
        provi.fit(logistic(seed=1), family, algorithm)
    with pytest.raises(ValueError, match="another family"):
        provi.fit(target, provi.families.LocationScale(4, provi.families.Laplace()), algorithm)
    for name, value in changed.items():
        with pytest.raises(ValueError, match="another choice of settings"):
            provi.fit(target, family, dataclasses.replace(algorithm, **{name: value}))
    # The same data in another object are the same target; without the guarantee the algorithm runs anywhere.
    assert provi.fit(logistic(), family, algorithm).certificate.a_priori_bound is not None
    freed = provi.fit(logistic(seed=1), family, dataclasses.replace(algorithm, guarantee=None), budget=20)
    assert freed.certificate.a_priori_bound is None


def test_rejected_steps_void_the_theorem(target):
    family = provi.families.Gaussian(4)
    algorithm = provi.algorithms.ProxSGD.from_theorem(target, family, budget=10)
    certificate = choose(target, family).certificate(algorithm.guarantee.start)
    ledger = with_guarantee(certificate, family, algorithm.guarantee, num_steps=10, rejected_steps=2)
    assert ledger.a_priori_bound is None and ledger.theorem is None
    assert any("2 non-finite step(s) were rejected" in note for note in ledger.notes)


def test_optax_baseline(target):
    result = provi.fit(target, algorithm=provi.algorithms.Optax(optax.adam(0.02)), budget=provi.Budget(steps=800))
    best = float(linear_model_optimum(target, provi.families.Gaussian(4)).negative_elbo)
    assert result.elbo.value == pytest.approx(-best, abs=0.3)


def test_float32_target_stays_float32():
    result = provi.fit(logistic(dtype=np.float32), budget=provi.Budget(steps=60))
    assert result.posterior.mean.dtype == np.float32
    assert result.posterior.sample(3, seed=0).dtype == np.float32


def test_leaves_the_users_precision_alone():
    with jax.enable_x64(False):
        result = provi.fit(logistic(), budget=provi.Budget(steps=30))
        assert result.posterior.mean.dtype == np.float64
        assert result.posterior.covariance.dtype == np.float64
        assert jnp.ones(2).dtype == jnp.float32


def test_same_seed_same_bits_other_seed_other_bits(target):
    algorithm = provi.algorithms.ProxSGD(0.01, 4)
    first, second, other = (
        provi.fit(target, algorithm=algorithm, budget=400, seed=seed).posterior.mean for seed in (3, 3, 4)
    )
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"family": provi.families.Gaussian(7)}, "family has dimension 7"),
        ({"budget": -5}, "budget must be at least 1"),
        ({"seed": -1}, "seed"),
        ({"resume": True}, "resume=True needs checkpoint="),
    ],
)
def test_bad_arguments_are_named(target, arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        provi.fit(target, **arguments)


def test_wrong_types_are_named(target):
    # Below the annotated entry point, which beartype guards in tests only.
    with pytest.raises(TypeError, match="LogDensity"):
        _check_arguments(lambda z: -z @ z, None, None)
    with pytest.raises(TypeError, match="family must be"):
        _check_arguments(target, "gaussian", None)
    with pytest.raises(TypeError, match="algorithm must be an instance"):
        _check_arguments(target, None, "adam")
    with pytest.raises(ValueError, match="budget must be a whole number"):
        as_budget(2.5)


def test_bad_start_is_named():
    bounded = provi.targets.LogDensity(lambda z: jnp.log(z[0]) - z[0], 1, start=np.ones(1))
    family = provi.families.Gaussian(1)
    with pytest.raises(ValueError, match="at the start"):
        provi.fit(bounded, family, provi.algorithms.ProxSGD(0.01), start=family.point([-1.0], 0.1))


def test_the_target_knows_where_to_start():
    # Gamma(5, 1) in its own variable: log density -inf at zero, so the default start must be the target's.
    target = provi.targets.LogDensity(lambda z: 4 * jnp.log(z[0]) - z[0], 1, start=np.full(1, 2.0))
    result = provi.fit(target, algorithm=provi.algorithms.ProxSGD(1e-3), budget=provi.Budget(steps=50))
    assert abs(result.posterior.mean[0] - 2.0) < 0.5


def test_mean_field_in_many_dimensions():
    precision = np.linspace(0.5, 50.0, 3000)
    target = provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(jnp.asarray(precision) * (z - 1) ** 2), 3000)
    result = provi.fit(target, budget=provi.Budget(steps=60))
    assert result.posterior.family.scale == "diagonal"
    np.testing.assert_allclose(result.posterior.mean, 1.0, atol=1e-4)
    np.testing.assert_allclose(result.posterior.standard_deviation, precision**-0.5, rtol=1e-4)


def test_save_and_load_round_trip(fitted, tmp_path):
    path = tmp_path / "fit.safetensors"
    fitted.save(path)
    loaded = provi.load(path)
    assert (loaded.posterior.mean == fitted.posterior.mean).all()
    assert (loaded.posterior.covariance == fitted.posterior.covariance).all()
    assert loaded.posterior.names == fitted.posterior.names
    assert loaded.elbo == fitted.elbo and loaded.outcome is fitted.outcome
    assert loaded.certificate == fitted.certificate
    assert (loaded.history.as_array() == fitted.history.as_array()).all()


def test_load_refuses_other_files(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "other")
    with pytest.raises(ValueError, match="not a fit"):
        provi.load(tmp_path / "other")


def test_ledger_is_json_and_table(fitted):
    data = json.loads(fitted.certificate.to_json())
    assert data["status"] == "proven" and 0 <= data["gap"] <= 0.01
    statuses = {row["statement"]: row["status"] for row in data["assumptions"]}
    assert statuses["strong convexity mu"] == "proven"
    text = str(fitted.certificate)
    assert "strong convexity mu" in text and "Proven: within" in text
