"""Mini-batch PG-SVI: its formulae in N-space and D-space, its batches, its estimators, and what it refuses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import provi
from provi.algorithms import PGSVI, DualNaturalGradient
from provi.algorithms.base import without_guarantee
from provi.algorithms.natural.pgsvi import ESTIMATORS, drawn_moments
from provi.algorithms.natural.pgsvi_spaces import SiteSpace
from provi.diagnostics import exact_negative_elbo
from provi.families import DualPoint, Gaussian, dual_gaussian
from provi.kernels import SquaredExponential
from provi.schedules.batch_sizes import NoiseBatch
from provi.targets import GaussianProcess
from provi.targets.likelihoods import BernoulliLogit, Poisson, StudentT
from support.linear_models import DIM, linear_model
from support.members import quick_jit
from support.statistics import assert_mean

KEY = jax.random.key(3)
RNG = np.random.default_rng(5)
INPUTS = RNG.normal(size=(12, 2))
LABELS = (INPUTS.sum(axis=1) + 0.3 * RNG.normal(size=12) > 0).astype(int)
PROCESS = GaussianProcess(INPUTS, LABELS, SquaredExponential(1.0, 2.0), jitter=1e-2)


@quick_jit
def one_step(key, algorithm, state, target, family):
    return algorithm.step(key, state, target, family, jnp.ones(()))[0]


def steps(algorithm, target, family, start, num, key=KEY):
    algorithm = without_guarantee(algorithm.resolve(target, family))
    states = [algorithm.init(start)]
    for _ in range(num):
        states.append(one_step(key, algorithm, states[-1], target, family))
    return states


def somewhere(target=PROCESS):
    generator = np.random.default_rng(1)
    size = target.num_terms
    return DualPoint(jnp.asarray(0.3 * generator.normal(size=size)), jnp.asarray(generator.random(size)))


@pytest.mark.parametrize("form", ["natural", "proximal"])
def test_all_data_with_exact_moments_is_the_full_batch_method(form):
    family, num = dual_gaussian(PROCESS), 3
    mine = PGSVI(step_size=0.7, batch_size=12, form=form)
    full = DualNaturalGradient(0.7, form=form, accelerate=False, adapt=False)
    ours = steps(mine, PROCESS, family, somewhere(), num)[-1]
    # The full-batch method evaluates its start first.
    theirs = steps(full, PROCESS, family, somewhere(), num + 1)[-1]
    np.testing.assert_allclose(ours.point.dual_mean, theirs.point.dual_mean, atol=1e-10)
    np.testing.assert_allclose(ours.point.site_precision, theirs.point.site_precision, atol=1e-10)
    assert int(ours.place) == 36 and int(ours.clipped) == 0


@pytest.mark.parametrize("form, scale", [("natural", "triangular"), ("proximal", "symmetric")])
def test_weight_space_step_is_the_formula(form, scale):
    target, family, beta = linear_model("logistic"), Gaussian(DIM, scale), 0.8
    loc, root = np.array([0.4, -0.9, 0.2]), np.array([[0.6, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.1, 0.3, 0.4]])
    start = family.point_from_covariance(loc, root @ root.T)
    state = steps(PGSVI(step_size=beta, batch_size=30, form=form), target, family, start, 1)[-1]
    design = np.asarray(target.design)
    variance = np.sum((design @ root) ** 2, axis=1)
    moments = target.likelihood.moments(jnp.asarray(design @ loc), jnp.asarray(variance), target.response)
    prior, precision, share = target.prior.precision_matrix(), np.linalg.inv(root @ root.T), beta / (1 + beta)
    after = precision + share * (prior + design.T @ (np.asarray(moments.weight)[:, None] * design) - precision)
    inner = after if form == "natural" else precision + share * (prior - precision)
    gradient = prior @ (loc - np.asarray(target.prior.mean)) + design.T @ np.asarray(moments.slope)
    np.testing.assert_allclose(state.cache, after, atol=1e-10)
    np.testing.assert_allclose(state.point.scale.covariance(), np.linalg.inv(after), atol=1e-10)
    np.testing.assert_allclose(state.point.loc, loc - share * np.linalg.solve(inner, gradient), atol=1e-10)


@pytest.mark.parametrize("form, batch", [("natural", 7), ("proximal", "noise")])
def test_both_spaces_have_the_same_iterates(form, batch):
    """From the prior, with the same batches: 30 data, so that passes end inside the run."""
    target = linear_model("logistic")
    rule = NoiseBatch(30, smallest=4, replacement=False) if batch == "noise" else batch
    algorithm = PGSVI(rho=0.6, batch_size=rule, form=form)
    sites, weights = dual_gaussian(target), Gaussian(DIM)
    start = weights.point_from_covariance(np.asarray(target.prior.mean), np.linalg.inv(target.prior.precision_matrix()))
    first = steps(algorithm, target, sites, sites.prior_point(), 9)[-1]
    second = steps(algorithm, target, weights, start, 9)[-1]
    np.testing.assert_allclose(sites.mean(first.point), second.point.loc, atol=1e-10)
    np.testing.assert_allclose(sites.covariance(first.point), second.point.scale.covariance(), atol=1e-10)
    assert int(first.batch) == int(second.batch)
    assert int(first.batch) == 7 if batch == 7 else int(first.batch) > 4


def test_the_mean_over_all_batches_is_the_full_batch_step():
    """In natural parameters (a + s d, s), where the A-form is linear in the batch."""
    target = GaussianProcess(INPUTS[:5], LABELS[:5], SquaredExponential(1.0, 2.0), jitter=1e-2)
    space, point, gram = SiteSpace(target, dual_gaussian(target)), somewhere(target), np.asarray(target.gram)

    @quick_jit
    def moved(space, point, indices):
        cache, scale = space.cache(point), 5 / len(indices)
        mean, variance, y = space.marginals(point, cache, indices)
        moments = space.target.likelihood.moments(mean, variance, y)
        slope, weight, _ = space.gather(indices, scale * moments.slope, scale * moments.weight)
        return space.move(point, cache, slope, weight, jnp.asarray(0.4), "natural")[0]

    def after(batch):
        new = moved(space, point, jnp.asarray(batch))
        a, s = np.asarray(new.dual_mean), np.asarray(new.site_precision)
        return np.concatenate([a + s * (gram @ a), s])

    batches = [after(batch) for batch in itertools.combinations(range(5), 2)]
    np.testing.assert_allclose(np.mean(batches, axis=0), after(range(5)), atol=1e-12)
    assert np.ptp(batches, axis=0).max() > 1e-3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_drawn_moments_are_unbiased(estimator):
    mean, variance, y = jnp.asarray([0.3, -0.8]), jnp.asarray([0.5, 0.09]), jnp.asarray([1.0, 0.0])
    keys, likelihood = jax.random.split(KEY, 4000), Poisson()
    draw = quick_jit(jax.vmap(lambda key: drawn_moments(key, likelihood, mean, variance, y, 20, estimator)))
    drawn, exact = draw(keys), likelihood.moments(mean, variance, y)
    for name in ("value", "slope", "weight"):
        assert_mean(getattr(drawn, name), getattr(exact, name), alarm=1e-6)


def test_the_estimators_noise_is_in_the_stated_order():
    mean, variance, y = jnp.asarray([0.3]), jnp.asarray([2.0]), jnp.asarray([1.0])
    spreads = {}
    for estimator in ESTIMATORS:
        draw = jax.vmap(lambda key, e=estimator: drawn_moments(key, BernoulliLogit(), mean, variance, y, 10, e))
        spreads[estimator] = float(np.std(quick_jit(draw)(jax.random.split(KEY, 2000)).weight))
    assert 2 * spreads["price"] < 1.5 * spreads["reparameterised"] < spreads["score"]


def test_the_proximal_form_is_the_brute_force_argmin():
    target = GaussianProcess(INPUTS[:3], LABELS[:3], SquaredExponential(1.0, 2.0), jitter=1e-2)
    family, point, beta = dual_gaussian(target), somewhere(target), 0.6
    space, rng = SiteSpace(target, family), np.random.default_rng(2)
    slope, weight = jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.random(3))
    move = quick_jit(lambda s: s.move(point, s.cache(point), slope, weight, jnp.asarray(beta), "proximal")[0])
    moments = quick_jit(lambda q: (family.mean(q), family.covariance(q)))
    old_mean, old_covariance = moments(point)

    def divergence(mean, root, other_mean, other_covariance):
        precision, away = jnp.linalg.inv(other_covariance), mean - other_mean
        trace = jnp.trace(precision @ root @ root.T) + away @ precision @ away
        return 0.5 * (trace - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))) + 0.5 * jnp.linalg.slogdet(other_covariance)[1]

    rows = np.tril_indices(3)

    def parts(x):
        root = jnp.zeros((3, 3)).at[rows].set(x[3:])
        return x[:3], root - jnp.diag(jnp.diagonal(root)) + jnp.diag(jnp.exp(jnp.diagonal(root)))

    def proximal_objective(x):
        mean, root = parts(x)
        linear = jnp.sum(slope * mean) + 0.5 * jnp.sum(weight * jnp.sum(root**2, axis=1))
        prior = divergence(mean, root, jnp.zeros(3), target.gram)
        return linear + prior + divergence(mean, root, old_mean, old_covariance) / beta

    value_and_slope, hessian = (
        quick_jit(jax.value_and_grad(proximal_objective)),
        quick_jit(jax.hessian(proximal_objective)),
    )
    x = minimize(lambda x: tuple(map(np.asarray, value_and_slope(x))), np.zeros(9), jac=True, method="BFGS").x
    for _ in range(3):
        x = x - np.linalg.solve(hessian(x), value_and_slope(x)[1])
    mean, root = quick_jit(parts)(x)
    new_mean, new_covariance = moments(move(space))
    np.testing.assert_allclose(new_mean, mean, atol=1e-8)
    np.testing.assert_allclose(new_covariance, root @ root.T, atol=1e-8)


def test_a_stalled_pass_halves_the_step_and_the_record_never_falls():
    target, family = linear_model("logistic"), Gaussian(DIM)
    start = family.point(np.zeros(DIM), 1.0)
    algorithm = PGSVI(rho=20.0, batch_size=5, halve_on_stall=True)
    states = steps(algorithm, target, family, start, 48)
    recorded = [float(state.record.negative_elbo) for state in states]
    assert np.isinf(recorded[:6]).all() and np.isfinite(recorded[6:]).all()  # a pass is six steps
    assert (np.diff(recorded[6:]) <= 0).all()
    halvings = [float(state.halving) for state in states]
    for before, after in itertools.pairwise(range(6, 49, 6)):
        better = float(exact_negative_elbo(target, family, states[after].point)) < recorded[before]
        assert halvings[after] == halvings[before] / (1 if better else 2)
    assert halvings[-1] < 1
    best = algorithm.output(states[-1])
    assert float(exact_negative_elbo(target, family, best)) == pytest.approx(recorded[-1], abs=1e-6)
    assert -algorithm.recorded_elbo(states[-1])[0] == recorded[-1]


def test_a_growing_batch_ends_at_all_data_and_at_a_proven_optimum():
    algorithm = PGSVI(rho=1.0, batch_size=NoiseBatch(12, smallest=3, replacement=False))
    fit = provi.fit(PROCESS, algorithm=algorithm, budget=provi.Budget(steps=60), tol=1e-6)
    assert fit.history["num_draws"][0] == 3 and fit.history["num_draws"][-1] == 12
    assert fit.certificate.status == "proven" and fit.certificate.gap < 1e-6
    assert fit.gradient_evaluations < 60 * 12


def test_every_datum_is_seen_once_a_pass_and_a_batch_that_does_not_fit_begins_the_next():
    """Sites of data not yet seen are zero: after a pass of 2 x 5 of 12 data, ten are positive."""
    family = dual_gaussian(PROCESS)
    states = steps(PGSVI(rho=0.5, batch_size=5), PROCESS, family, family.prior_point(), 3)
    seen = [int((np.asarray(state.point.site_precision) > 0).sum()) for state in states]
    assert seen[:3] == [0, 5, 10] and [int(state.place) for state in states] == [0, 5, 12, 17]


@pytest.mark.parametrize("options", [{"rho": 0.6}, {"step_size": 0.2}])
def test_the_first_step_weights_the_batch_by_its_share_of_the_data(options):
    """From the prior s_+ = (1-r) (N/M) E t'' on the batch, with beta = rho M/N = 0.2."""
    family = dual_gaussian(PROCESS)
    state = steps(PGSVI(batch_size=4, **options), PROCESS, family, family.prior_point(), 1)[-1]
    prior = PROCESS.likelihood.moments(jnp.zeros(12), jnp.diagonal(PROCESS.gram), PROCESS.response)
    sites, expected = np.asarray(state.point.site_precision), 0.2 / 1.2 * 12 / 4 * np.asarray(prior.weight)
    seen = sites > 0
    assert seen.sum() == 4
    np.testing.assert_allclose(sites[seen], expected[seen], rtol=1e-12)


def test_negative_sites_are_clipped_and_counted():
    family = dual_gaussian(PROCESS)
    algorithm = PGSVI(rho=1.0, batch_size=4, num_samples=2)
    states = steps(algorithm, PROCESS, family, family.prior_point(), 6)
    assert int(states[-1].clipped) > 0
    assert all((np.asarray(state.point.site_precision) >= 0).all() for state in states)
    assert all(np.isfinite(state.point.dual_mean).all() for state in states)
    weights = steps(algorithm, linear_model("logistic"), Gaussian(DIM), Gaussian(DIM).point(np.zeros(DIM), 1.0), 6)[-1]
    assert int(weights.clipped) > 0 and np.linalg.eigvalsh(weights.cache).min() > 0


def test_a_likelihood_that_is_not_log_concave_keeps_negative_sites():
    target = GaussianProcess(INPUTS, 3 * INPUTS[:, 0], SquaredExponential(1.0, 2.0), StudentT(3.0, 0.5), jitter=1e-2)
    family = dual_gaussian(target)
    ours = steps(PGSVI(step_size=0.3, batch_size=12), target, family, family.prior_point(), 20)
    full = DualNaturalGradient(0.3, accelerate=False, adapt=False)
    theirs = steps(full, target, family, family.prior_point(), 21)[-1]
    np.testing.assert_allclose(ours[-1].point.site_precision, theirs.point.site_precision, atol=1e-10)
    assert min(float(state.point.site_precision.min()) for state in ours) < 0 and int(ours[-1].clipped) == 0


def test_it_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="exactly one of step_size"):
        PGSVI()
    with pytest.raises(ValueError, match="exactly one of step_size"):
        PGSVI(step_size=0.1, rho=0.1)
    with pytest.raises(ValueError, match="rho must be"):
        PGSVI(rho=-1.0)
    for name in ("estimator", "form", "sampling"):
        with pytest.raises(ValueError, match=f"{name} must be one of"):
            PGSVI(rho=0.1, **{name: "other"})
    target = linear_model("logistic")
    for family in (Gaussian(DIM, "diagonal"), dual_gaussian(PROCESS)):
        with pytest.raises(ValueError, match="PGSVI needs"):
            PGSVI(rho=0.1).resolve(target, family)
    for batch in (31, NoiseBatch(31)):
        with pytest.raises(ValueError, match="there are 30 data"):
            PGSVI(rho=0.1, batch_size=batch).resolve(target, Gaussian(DIM))
