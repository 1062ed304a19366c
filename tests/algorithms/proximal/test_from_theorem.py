"""What `from_theorem` returns keeps its word: the accuracy is met, the budget is kept, the start is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.algorithms import MPSGD, ProjSGD, ProxSGD
from provi.estimators import Energy, Entropy, StickingTheLanding
from provi.families import Gaussian, Laplace, LocationScale
from provi.schedules import ConstantStep, GeometricAverage, LastIterate, NoiseWeightedAverage, StronglyConvexStep
from provi.targets import Gaussian as GaussianTarget
from provi.targets import LogDensity, LogisticRegression
from provi.targets.whitened import Whitened

RNG = np.random.default_rng(1)
X = RNG.normal(size=(30, 2))
LOGISTIC = LogisticRegression(X, X[:, 0] > 0)
GAUSSIAN = GaussianTarget(np.ones(2), [1.0, 0.5])
SYMMETRIC = Gaussian(2, "symmetric")
PLANS = {
    "prox_convex": (ProxSGD, {}),
    "prox_strong": (ProxSGD, {"theorem": "strongly_convex"}),
    "prox_decaying": (ProxSGD, {"theorem": "strongly_convex", "schedule": "decaying"}),
    "proj_convex": (ProjSGD, {}),
    "proj_strong": (ProjSGD, {"theorem": "strongly_convex"}),
    "proj_decaying": (ProjSGD, {"theorem": "strongly_convex", "schedule": "decaying"}),
    "proj_stl": (ProjSGD, {"theorem": "strongly_convex", "estimator": StickingTheLanding()}),
    "mpsgd": (MPSGD, {}),
    "mpsgd_preconditioned": (MPSGD, {"preconditioned": True}),
}
by_plan = pytest.mark.parametrize("plan", PLANS)


def spent(algorithm):
    return algorithm.guarantee.num_steps * int(algorithm.num_draws.value)


@by_plan
@pytest.mark.parametrize("target", [LOGISTIC, GAUSSIAN], ids=["logistic", "gaussian"])
@pytest.mark.parametrize("accuracy", [10.0, 0.5])
def test_the_bound_meets_the_accuracy(plan, target, accuracy):
    kind, options = PLANS[plan]
    guarantee = kind.from_theorem(target, SYMMETRIC, accuracy=accuracy, **options).guarantee
    assert 0 <= guarantee.bound <= accuracy
    assert guarantee.num_steps >= 1
    assert guarantee.status == "proven"


@by_plan
def test_the_number_of_steps_is_not_wasteful(plan):
    """A tenth of the budget does not meet the accuracy with the best settings for it."""
    kind, options = PLANS[plan]
    planned = kind.from_theorem(LOGISTIC, SYMMETRIC, accuracy=0.5, **options)
    assert spent(planned) >= 100  # fewer would be too few to speak of waste
    smaller = kind.from_theorem(LOGISTIC, SYMMETRIC, budget=spent(planned) // 10, **options)
    assert smaller.guarantee.bound > 0.5


@by_plan
@pytest.mark.parametrize("budget", [500, 10_001, 123_457])
def test_the_budget_is_kept(plan, budget):
    kind, options = PLANS[plan]
    algorithm = kind.from_theorem(LOGISTIC, SYMMETRIC, budget=budget, **options)
    assert 0.5 * budget <= spent(algorithm) <= budget
    assert np.isfinite(algorithm.guarantee.bound)
    curve = algorithm.guarantee.curve(np.arange(1, algorithm.guarantee.num_steps + 1))
    assert curve.shape == (algorithm.guarantee.num_steps,)
    assert curve[-1] == pytest.approx(algorithm.guarantee.bound, rel=1e-12)


def test_a_budget_too_small_for_any_progress_is_refused():
    with pytest.raises(ValueError, match="num_steps = 40 is too small.*Raise it"):
        ProjSGD.from_theorem(LOGISTIC, SYMMETRIC, budget=40, theorem="strongly_convex")


@pytest.mark.parametrize("num_draws", [2, 7])
@pytest.mark.parametrize("plan", ["prox_convex", "prox_strong", "proj_convex", "proj_strong"])
def test_several_draws_share_the_budget(plan, num_draws):
    kind, options = PLANS[plan]
    algorithm = kind.from_theorem(LOGISTIC, SYMMETRIC, budget=1000, num_draws=num_draws, **options)
    assert int(algorithm.num_draws.value) == num_draws
    assert algorithm.guarantee.num_steps == 1000 // num_draws


@by_plan
def test_a_larger_budget_gives_a_smaller_bound(plan):
    kind, options = PLANS[plan]
    bounds = [
        kind.from_theorem(LOGISTIC, SYMMETRIC, budget=budget, **options).guarantee.bound
        for budget in (10**4, 10**6, 10**8)
    ]
    assert bounds[0] > bounds[1] > bounds[2]


def test_the_settings_are_those_of_the_theorem():
    convex = ProxSGD.from_theorem(LOGISTIC, Gaussian(2), budget=1000)
    assert isinstance(convex.estimator, Energy) and isinstance(convex.step_size, ConstantStep)
    assert isinstance(convex.averaging, GeometricAverage) and convex.averaging.of == "after"
    assert convex.guarantee.metric == "gap"
    strong = ProxSGD.from_theorem(LOGISTIC, Gaussian(2), budget=1000, theorem="strongly_convex")
    assert isinstance(strong.averaging, LastIterate) and strong.guarantee.metric == "squared distance"
    mu = LOGISTIC.constants.strong_convexity.value
    for kind, factor in ((ProxSGD, 1.0), (ProjSGD, 0.5)):
        decaying = kind.from_theorem(LOGISTIC, SYMMETRIC, budget=1000, theorem="strongly_convex", schedule="decaying")
        assert isinstance(decaying.step_size, StronglyConvexStep)
        assert float(decaying.step_size.strong_convexity) == pytest.approx(factor * mu)
    projected = ProjSGD.from_theorem(LOGISTIC, SYMMETRIC, budget=1000)
    assert isinstance(projected.estimator, Entropy) and projected.averaging.of == "before"
    smoothness = LOGISTIC.constants.smoothness.value
    assert float(projected.smallest_scale) == pytest.approx(smoothness**-0.5)
    plain = MPSGD.from_theorem(LOGISTIC, SYMMETRIC, budget=1000)
    assert float(plain.step_size.value) == pytest.approx(1 / (2 * smoothness), rel=1e-9)
    assert float(plain.preconditioner.scale) == 1.0
    preconditioned = MPSGD.from_theorem(LOGISTIC, SYMMETRIC, budget=1000, preconditioned=True)
    assert 0 < float(preconditioned.preconditioner.scale) < 1


@pytest.mark.parametrize("strategy", ["decaying_step", "decaying_step_growing_batch", "growing_batch"])
def test_dynamic_strategies(strategy):
    algorithm = MPSGD.dynamic(LOGISTIC, SYMMETRIC, num_steps=50, strategy=strategy, exponent=0.2, num_draws=2)
    schedules = (algorithm.step_size, algorithm.num_draws)
    steps, draws = (np.array([float(f(np.asarray(t))) for t in range(50)]) for f in schedules)
    step_exponent, batch_exponent = {
        "decaying_step": (0.7, 0.0),
        "decaying_step_growing_batch": (0.5, 0.2),
        "growing_batch": (0.0, 1.2),
    }[strategy]
    k = np.arange(1, 51)
    np.testing.assert_allclose(steps, steps[0] * k**-step_exponent, rtol=1e-12)
    np.testing.assert_array_equal(draws, np.ceil(2 * k**batch_exponent - 1e-9))
    assert isinstance(algorithm.averaging, NoiseWeightedAverage)
    curve = algorithm.guarantee.curve(np.array([1, 10, 50]))
    assert curve[2] < curve[0] and curve[2] == pytest.approx(algorithm.guarantee.bound)


def test_a_declared_distance_weakens_the_status_and_replaces_the_bound():
    own = ProxSGD.from_theorem(LOGISTIC, Gaussian(2), budget=1000)
    declared = ProxSGD.from_theorem(
        LOGISTIC, Gaussian(2), budget=1000, initial_distance_squared=1e-3, reference_distance_squared=1e-3
    )
    assert own.guarantee.status == "proven" and declared.guarantee.status == "declared"
    assert declared.guarantee.bound < own.guarantee.bound


def test_other_bases_have_their_own_kurtosis():
    normal = ProxSGD.from_theorem(LOGISTIC, Gaussian(2), budget=1000)
    laplace = ProxSGD.from_theorem(LOGISTIC, LocationScale(2, Laplace()), budget=1000)
    assert laplace.guarantee.bound > normal.guarantee.bound


def test_a_far_start_has_a_larger_bound():
    family = Gaussian(2)
    near = ProxSGD.from_theorem(LOGISTIC, family, budget=1000, start=family.point([0, 0], 0.1))
    far = ProxSGD.from_theorem(LOGISTIC, family, budget=1000, start=family.point([50, 50], 0.1))
    assert far.guarantee.bound > near.guarantee.bound


def _softplus(z):
    return -jnp.sum(jax.nn.softplus(z))


def _log_cosh(z):
    return -jnp.sum(jnp.logaddexp(z, -z)) - jnp.logaddexp(z[0] + z[1], -z[0] - z[1])


@pytest.mark.parametrize("kind", [ProxSGD, ProjSGD, MPSGD])
def test_a_best_approximation_is_claimed_only_where_there_is_one(kind):
    """softplus is convex and smooth, and exp(-softplus) has no integral: E softplus(m + cu) - log c has no minimum."""
    far = {"budget": 1000, "initial_distance_squared": 1.0, "reference_distance_squared": 1.0}
    with pytest.raises(ValueError, match="nothing shows that there is one.*Declare growth_exponent="):
        kind.from_theorem(LogDensity(_softplus, 2, smoothness=1.0, log_concave=True), SYMMETRIC, **far)
    declared = LogDensity(_softplus, 2, smoothness=1.0, log_concave=True, growth_exponent=0.5)
    grounds = dict(kind.from_theorem(declared, SYMMETRIC, **far).guarantee.assumptions)
    reason = (
        "a best approximation exists: Growth of order 0.5 and a log-concave base (Labarriere et al. 2026, Theorem 1)."
    )
    assert grounds[reason] == "declared"
    # |z| at infinity, to be seen from the gradients: as good as the convexity that it rests on.
    proper = LogDensity(_log_cosh, 2, smoothness=4.0, log_concave=True)
    found = kind.from_theorem(proper, SYMMETRIC, **far).guarantee.assumptions[0]
    assert "Growth of order 1" in found[0] and found[1] == proper.constants.log_concave.status
    with pytest.raises(ValueError, match="growth_exponent must be"):
        LogDensity(_softplus, 2, growth_exponent=-1)


SKEWED = LogisticRegression(X @ np.array([[6.0, 1.0], [0.0, 0.3]]), X[:, 0] > 0, prior_scale=0.5)


@pytest.mark.parametrize("scale", ["triangular", "diagonal"])
def test_whitened_steps_are_those_of_the_whitened_target(scale):
    """By an independent way: the same algorithm on `Whitened`, its iterates taken back to z."""
    family = Gaussian(2, scale)
    plan = ProxSGD.from_theorem(SKEWED, family, budget=200, whiten=True)
    factor, start = np.asarray(plan.factor), plan.guarantee.start
    square = factor if scale == "triangular" else np.diag(factor)
    mode = np.asarray(start.loc)  # the start in x is at zero
    inner = dataclasses.replace(plan, factor=None, guarantee=None)
    plain = dataclasses.replace(plan, guarantee=None)
    target = Whitened(SKEWED, mode, factor)

    def after(algorithm, target, point):
        algorithm = algorithm.resolve(target, family)
        state = algorithm.init(point)
        for _ in range(3):
            state, _ = algorithm.step(jax.random.key(3), state, target, family, jnp.ones(()))
        return algorithm.output(state)

    smallest = float(np.asarray(start.scale.log_det_gradient().apply(jnp.eye(2)))[0, 0] * square[0, 0]) ** -1
    ours = after(plain, SKEWED, start)
    theirs = after(inner, target, family.point(np.zeros(2), smallest, jnp.float64))
    np.testing.assert_allclose(ours.loc, mode + square @ np.asarray(theirs.loc), rtol=1e-10, atol=1e-12)
    expected = square @ np.asarray(theirs.scale.apply(jnp.eye(2))).T
    np.testing.assert_allclose(np.asarray(ours.scale.apply(jnp.eye(2))).T, expected, rtol=1e-10, atol=1e-12)


def test_whitening_makes_the_bound_useful_and_it_holds():
    family = Gaussian(2, "triangular")
    plain, white = (ProxSGD.from_theorem(SKEWED, family, budget=20_000, whiten=w) for w in (False, True))
    assert white.guarantee.metric == "gap" and white.guarantee.status == "proven"
    assert white.guarantee.bound < plain.guarantee.bound / 10
    fit = provi.fit(SKEWED, family=family, algorithm=white, progress=False)
    best = provi.fit(SKEWED, family=family, tol=1e-6, progress=False)
    assert best.elbo.value - fit.elbo.value < white.guarantee.bound
    moved = ProxSGD.from_theorem(SKEWED, family, budget=20_000, whiten=True, start=plain.guarantee.start)
    assert moved.guarantee.start is plain.guarantee.start and moved.guarantee.bound > white.guarantee.bound


def test_whitening_says_what_it_is_not_for():
    with pytest.raises(ValueError, match="triangular"):
        ProxSGD.from_theorem(SKEWED, SYMMETRIC, budget=10, whiten=True)
    with pytest.raises(ValueError, match="whiten=True is for"):
        ProxSGD.from_theorem(SKEWED, Gaussian(2), budget=10, whiten=True, theorem="strongly_convex")
    with pytest.raises(ValueError, match="factor has shape"):
        ProxSGD(0.1, factor=np.eye(3)).resolve(SKEWED, Gaussian(2, "triangular"))
