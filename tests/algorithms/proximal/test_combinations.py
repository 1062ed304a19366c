"""Parts that do not fit together are refused before any work, and the message names the remedy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi.algorithms import MPSGD, Optax, ProjSGD, ProxSGD
from provi.estimators import Energy, Entropy, ScoreFunction, StickingTheLanding
from provi.families import Gaussian, LocationScale, StudentT, Uniform
from provi.runtime import Budget, run
from provi.schedules import UniformSampling
from provi.targets import Gaussian as GaussianTarget
from provi.targets import LogDensity, PoissonRegression

TARGET = GaussianTarget(np.zeros(2), [1.0, 4.0])
RNG = np.random.default_rng(0)
POISSON = PoissonRegression(RNG.normal(size=(20, 2)), RNG.poisson(1.0, size=20))
SYMMETRIC = Gaussian(2, "symmetric")


@pytest.mark.parametrize(
    ("algorithm", "family", "message"),
    [
        (ProxSGD(0.1, estimator=Entropy()), Gaussian(2), r"count twice.*Use estimator=provi.estimators.Energy\(\)"),
        (ProxSGD(0.1, estimator=StickingTheLanding()), Gaussian(2), "count twice"),
        (ProxSGD(0.1), Gaussian(2, "low_rank"), "low_rank.*use ProjSGD or Optax"),
        (ProxSGD(0.1, estimator=ScoreFunction()), LocationScale(2, Uniform()), "biased for the uniform"),
        (ProjSGD(0.1, estimator=Energy()), SYMMETRIC, r"leaves the entropy out.*Entropy\(\)"),
        (ProjSGD(0.1, estimator=ScoreFunction()), SYMMETRIC, "leaves the entropy out"),
        (MPSGD(0.1, estimator=Energy()), SYMMETRIC, "MPSGD needs the gradient of the whole objective"),
        (ProjSGD(0.1), Gaussian(2), "not a convex set.*Use scale='symmetric' or 'diagonal', or ProxSGD"),
        (MPSGD(0.1), Gaussian(2), "not a convex set"),
        (
            ProjSGD(0.1, estimator=StickingTheLanding()),
            LocationScale(2, Uniform(), "symmetric"),
            r"biased.*Entropy\(\)",
        ),
        (Optax(optax.sgd(0.1), estimator=Energy()), Gaussian(2), "Optax needs the gradient of the whole objective"),
        (Optax(optax.sgd(0.1)), LocationScale(2, Uniform()), "biased for the uniform"),
    ],
)
def test_estimator_scale_and_algorithm_must_fit(algorithm, family, message):
    with pytest.raises(ValueError, match=message):
        algorithm.resolve(TARGET, family)


ALL = [ProxSGD(0.1), ProjSGD(0.1), MPSGD(0.1), Optax(optax.sgd(0.1))]


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: type(a).__name__)
def test_dimensions_must_agree(algorithm):
    with pytest.raises(ValueError, match="family has dimension 3, but the target has 2"):
        algorithm.resolve(TARGET, Gaussian(3, "symmetric"))


@pytest.mark.parametrize("kind", [ProxSGD, ProjSGD, MPSGD])
def test_data_sampling_needs_data(kind):
    with pytest.raises(ValueError, match="data_sampling needs a target with data terms; Gaussian has none"):
        kind(0.1, data_sampling=UniformSampling(2)).resolve(TARGET, SYMMETRIC)


def test_data_sampling_of_optax_needs_data():
    with pytest.raises(ValueError, match="data_sampling needs"):
        Optax(optax.sgd(0.1), data_sampling=UniformSampling(2)).resolve(TARGET, SYMMETRIC)


@pytest.mark.parametrize("kind", [ProjSGD, MPSGD])
def test_an_unknown_smoothness_needs_a_floor(kind):
    target = LogDensity(lambda z: -jnp.sum(z**4), 2)
    for unknown in (target, POISSON):
        with pytest.raises(ValueError, match="smoothness of the target, which is unknown.*Pass smallest_scale="):
            kind(0.1).resolve(unknown, SYMMETRIC)
    resolved = kind(0.1, smallest_scale=0.3).resolve(target, SYMMETRIC)
    assert float(resolved.smallest_scale) == 0.3


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_bad_numbers(bad):
    with pytest.raises(ValueError, match="step_size must be"):
        ProxSGD(bad)
    with pytest.raises(ValueError, match="num_draws must be"):
        ProxSGD(0.1, bad)
    with pytest.raises(ValueError, match="smallest_scale must be"):
        ProjSGD(0.1, smallest_scale=bad)
    with pytest.raises(ValueError, match="num_draws must be a whole number"):
        MPSGD(0.1, 2.5)


@pytest.mark.parametrize("kind", [ProxSGD, ProjSGD, MPSGD])
def test_theorems_refuse_what_they_do_not_cover(kind):
    with pytest.raises(ValueError, match="smoothness, which is unknown.*unbounded.*Remedy"):
        kind.from_theorem(POISSON, SYMMETRIC, budget=100)
    with pytest.raises(ValueError, match=r"kurtosis of StudentT\(df=3\) is infinite; use df above 4"):
        kind.from_theorem(TARGET, LocationScale(2, StudentT(3.0), "symmetric"), budget=100)
    with pytest.raises(ValueError, match="family has dimension 3"):
        kind.from_theorem(TARGET, Gaussian(3, "symmetric"), budget=100)
    with pytest.raises(ValueError, match="low_rank"):
        kind.from_theorem(TARGET, Gaussian(2, "low_rank"), budget=100)
    for goals in ({}, {"budget": 10, "accuracy": 0.1}):
        with pytest.raises(ValueError, match="exactly one of budget=.*and accuracy="):
            kind.from_theorem(TARGET, SYMMETRIC, **goals)
    with pytest.raises(ValueError, match="budget must be at least 1, not -5"):
        kind.from_theorem(TARGET, SYMMETRIC, budget=-5)
    with pytest.raises(ValueError, match="accuracy must be a positive number"):
        kind.from_theorem(TARGET, SYMMETRIC, accuracy=0.0)
    flat = LogDensity(lambda z: -jnp.sum(jnp.sqrt(1 + z**2)), 2, smoothness=1.0, log_concave=True)
    with pytest.raises(ValueError, match="Pass initial_distance_squared="):
        kind.from_theorem(flat, SYMMETRIC, budget=100)
    wavy = LogDensity(lambda z: -jnp.sum(jnp.sin(z)), 2, smoothness=1.0, log_concave=False)
    with pytest.raises(ValueError, match="log-concave"):
        kind.from_theorem(wavy, SYMMETRIC, budget=100)


@pytest.mark.parametrize("kind", [ProxSGD, ProjSGD])
def test_theorems_refuse_unknown_names(kind):
    with pytest.raises(ValueError, match="theorem must be"):
        kind.from_theorem(TARGET, SYMMETRIC, budget=100, theorem="magic")
    with pytest.raises(ValueError, match="schedule must be"):
        kind.from_theorem(TARGET, SYMMETRIC, budget=100, theorem="strongly_convex", schedule="magic")
    with pytest.raises(ValueError, match="does not pay for one step"):
        kind.from_theorem(TARGET, SYMMETRIC, budget=3, num_draws=4)


def test_projected_theorems_refuse_triangular_scales():
    for kind in (ProjSGD, MPSGD):
        with pytest.raises(ValueError, match="need scale='symmetric' or 'diagonal'"):
            kind.from_theorem(TARGET, Gaussian(2), budget=100)
    with pytest.raises(ValueError, match="strategy must be one of"):
        MPSGD.dynamic(TARGET, SYMMETRIC, num_steps=10, strategy="magic")
    with pytest.raises(ValueError, match="proven for the Gaussian base only"):
        ProjSGD.from_theorem(
            TARGET, LocationScale(2, StudentT(9.0), "symmetric"), budget=10, estimator=StickingTheLanding()
        )


def test_a_run_checks_its_start_its_steps_and_its_budget():
    family = Gaussian(2)
    for start in (Gaussian(2, "symmetric").point([0, 0]), Gaussian(3).point([0, 0, 0])):
        with pytest.raises(ValueError, match="start does not belong to the family"):
            run(ProxSGD(0.1), TARGET, family, start, seed=0, num_steps=5)
    for bad in (0, -3):
        with pytest.raises(ValueError, match="num_steps must be at least 1"):
            run(ProxSGD(0.1), TARGET, family, family.point([0, 0]), seed=0, num_steps=bad)
    for field in ("gradients", "steps", "seconds"):
        with pytest.raises(ValueError, match=f"budget.{field} must be"):
            Budget(**{field: -5.0 if field == "seconds" else -5})
