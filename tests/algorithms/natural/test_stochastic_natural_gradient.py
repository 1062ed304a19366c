"""The stochastic natural gradient: by hand, against exact optima, and on targets that are hostile to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.base import without_guarantee
from provi.algorithms.natural.laplace import laplace_approximation
from provi.algorithms.natural.stochastic_natural_gradient import SignalFilter, StochasticNaturalGradient, best_step
from provi.data.loaders import breast_cancer
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import linear_model_optimum
from provi.estimators.whitened_residuals import PAIRS_AT_ONCE, residual_moments, whole_draws
from provi.families import Gaussian, LocationScale, StudentT
from provi.runtime.loop import estimate_elbo, guarded_step, initial_carry
from provi.targets import LogDensity, LogisticRegression, PoissonRegression
from support.members import point_of, quick_jit
from support.statistics import assert_mean

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.random(20) < 0.5


@quick_jit
def take_steps(key, algorithm, target, family, carry, num_steps):
    """The runtime's own step, compiled in half the time."""
    return jax.lax.fori_loop(0, num_steps, lambda _, carry: guarded_step(key, algorithm, target, family, carry), carry)


def after(num_steps, target, family, start, seed=0, algorithm=None):
    algorithm = without_guarantee((algorithm or StochasticNaturalGradient()).resolve(target, family))
    carry = initial_carry(algorithm, start)
    return take_steps(jax.random.key(seed), algorithm, target, family, carry, jnp.asarray(num_steps))


def one_step(algorithm, key, state, target, family):
    carry = initial_carry(algorithm, state.point)
    carry = take_steps(key, algorithm, target, family, eqx.tree_at(lambda c: c.state, carry, state), jnp.asarray(1))
    return carry.state, carry.info


def assert_positive_definite(point):
    assert np.isfinite(np.asarray(point.loc)).all()
    assert np.linalg.eigvalsh(np.asarray(point.scale.covariance()))[0] > 0


def hand_moments(key, target, point, num_chunks):
    """g and G from each half of the draws, and the pairs' log q - log p, one draw at a time."""
    loc, C = np.asarray(point.loc), np.asarray(point.scale.matrix)
    value_and_gradient = jax.jit(jax.value_and_grad(lambda z: target.potential(z)))
    halves, ratios = [], []
    for half in range(2):
        g, G = np.zeros(3), np.zeros((3, 3))
        for chunk in range(half * num_chunks, (half + 1) * num_chunks):
            for u in np.asarray(jax.random.normal(jax.random.fold_in(key, chunk), (PAIRS_AT_ONCE, 3))):
                values = []
                for v in (u, -u):
                    value, slope = value_and_gradient(loc + C @ v)
                    s = C.T @ np.asarray(slope) - v
                    g, G = g + s, G + (np.outer(s, v) + np.outer(v, s)) / 2
                    log_q = -0.5 * v @ v - 1.5 * np.log(2 * np.pi) - np.log(abs(np.linalg.det(C)))
                    values.append(float(value) + log_q)
                ratios.append(np.mean(values))
        halves.append((g / (2 * num_chunks * PAIRS_AT_ONCE), G / (2 * num_chunks * PAIRS_AT_ONCE)))
    return halves, np.asarray(ratios)


@pytest.mark.parametrize("scale", ["triangular", "symmetric"])
def test_one_step_is_the_formula(scale):
    target, family = LogisticRegression(X, Y), Gaussian(3, scale)
    start, key, algorithm = point_of(family), jax.random.key(3), StochasticNaturalGradient(200, largest_step=0.4)
    state, info = one_step(algorithm, key, algorithm.init(start), target, family)
    ((ga, Ga), (gb, Gb)), ratios = hand_moments(jax.random.fold_in(key, 0), target, start, num_chunks=2)
    g, G = (ga + gb) / 2, (Ga + Gb) / 2
    noise = [np.sum((x - y) ** 2) / 4 for x, y in ((ga, gb), (Ga, Gb))]
    signal = [max(np.sum(x * y), 0) for x, y in ((ga, gb), (Ga, Gb))]
    a, b = (min(0.4, v / (v + s)) for v, s in zip(signal, noise, strict=True))
    b = min(b, 1 / np.abs(np.linalg.eigvalsh(G)).max())
    K, C = np.eye(3) + b * G + b**2 / 2 * G @ G, np.asarray(start.scale.matrix)
    a = min(a, 1 / np.sqrt(g @ np.linalg.solve(K, g)))
    covariance = C @ np.linalg.inv(K) @ C.T
    np.testing.assert_allclose(info.step_size, b, rtol=1e-9)
    np.testing.assert_allclose(state.point.scale.covariance(), covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state.point.loc, start.loc - a * C @ np.linalg.solve(K, g), rtol=1e-9)
    np.testing.assert_allclose(info.norms[0], np.linalg.norm(g), rtol=1e-9)
    np.testing.assert_allclose(info.norms[1], np.linalg.norm(G), rtol=1e-9)
    np.testing.assert_allclose(state.loss, ratios.mean(), rtol=1e-10)
    assert int(info.cost) == 256
    left = [(1 - t) ** 2 * v + t**2 * s for t, v, s in zip((a, b), signal, noise, strict=True)]
    np.testing.assert_allclose(state.gap, left[0] / 2 + left[1] / 4, rtol=1e-9)


def test_moments_are_unbiased():
    """Against quadrature-free facts of a quartic potential: E grad and E Hessian are polynomials in (m, C)."""
    family = Gaussian(3)
    point = point_of(family)
    target = LogDensity(lambda z: -jnp.sum(z**4) / 4 - jnp.sum(z**2) / 2, 3)
    m, C = np.asarray(point.loc), np.asarray(point.scale.matrix)
    variance = np.diag(C @ C.T)
    slope, curvature = m**3 + 3 * m * variance + m, np.diag(3 * (m**2 + variance) + 1)
    keys = jax.random.split(jax.random.key(0), 400)
    moments = quick_jit(jax.vmap(lambda key: residual_moments(key, target, family, point, jnp.asarray(128))))(keys)
    for half in range(2):
        assert_mean(moments.estimates[0][:, half], C.T @ slope)
        assert_mean(moments.estimates[1][:, half].reshape(400, 9), (C.T @ curvature @ C - np.eye(3)).reshape(9))
    energy = np.sum((m**4 + 6 * m**2 * variance + 3 * variance**2) / 4 + (m**2 + variance) / 2)
    entropy = 1.5 * np.log(2 * np.pi * np.e) + np.log(np.linalg.det(C))
    assert_mean(moments.loss, energy - entropy)
    # The variance of one pair is 64 times that of a mean over 64 pairs; 400 replicates fix it to 7 % (one sigma).
    np.testing.assert_allclose(64 * moments.loss.var(), moments.loss_variance.mean(), rtol=0.4)


def breast():
    table = breast_cancer()
    return LogisticRegression(np.column_stack([np.ones(569), table.features]), table.response)


def poisson():
    design = RNG.normal(size=(80, 10)) / 3
    return PoissonRegression(design, RNG.poisson(np.exp(design @ RNG.normal(size=10))))


def badly_scaled():
    """Columns over three decades: the condition number of the posterior covariance is about 1e6."""
    rng = np.random.default_rng(1)
    # The shape of `breast`, which saves a compilation.
    design = rng.normal(size=(569, 31)) * np.logspace(-2, 1, 31)[None, :]
    return LogisticRegression(design, rng.random(569) < 0.5, prior_scale=30.0)


def laplace_start(target, family):
    laplace = laplace_approximation(target, target.default_location)
    return family.point_from_covariance(laplace.mode, laplace.factor @ laplace.factor.T, target.dtype)


@pytest.mark.parametrize("problem", [breast, badly_scaled, poisson])
def test_reaches_a_hundredth_of_a_nat_and_knows_it(problem):
    target = problem()
    family = Gaussian(target.dim)
    start, best = laplace_start(target, family), linear_model_optimum(target, family).negative_elbo
    for seed in range(3):
        state = after(30, target, family, start, seed).state
        gap = float(exact_negative_elbo(target, family, state.point)) - best
        assert 0 <= gap <= 0.01
        assert gap / 5 - 1e-4 <= float(state.gap) <= 5 * gap + 1e-4
        assert float(state.noise) <= float(state.gap)


@pytest.mark.parametrize("scale", ["triangular", "symmetric"])
def test_gaussian_target_is_found_exactly(scale):
    """The residual is linear and vanishes at the optimum, so the noise does too."""
    factor = np.tril(RNG.normal(size=(4, 4))) + 2 * np.eye(4)
    precision, mean = np.linalg.inv(factor @ factor.T), np.arange(4.0)
    target = LogDensity(lambda z: -0.5 * (z - mean) @ jnp.asarray(precision) @ (z - mean), 4)
    family = Gaussian(4, scale)
    found = after(80, target, family, family.point(np.zeros(4))).state
    np.testing.assert_allclose(found.point.loc, mean, atol=1e-8)
    np.testing.assert_allclose(found.point.scale.covariance(), factor @ factor.T, rtol=1e-7, atol=1e-7)


def test_float32_reaches_the_optimum():
    double = breast()
    target = LogisticRegression(np.asarray(double.design, np.float32), double.response)
    family = Gaussian(31)
    found = after(30, target, family, laplace_start(target, family)).state
    assert {leaf.dtype for leaf in jax.tree.leaves(found.point)} == {jnp.dtype("float32")}
    best = linear_model_optimum(double, family).negative_elbo
    assert float(exact_negative_elbo(double, family, found.point)) - best <= 0.01


def banana(z):
    return -(z[0] ** 2) / 8 - 5 * (z[1] - z[0] ** 2) ** 2 - jnp.sum(z[2:] ** 2) / 2


def funnel(z):
    return -(z[0] ** 2) / 18 - jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) / 2 - 4.5 * z[0]


def mixture(z):
    return jnp.logaddexp(-jnp.sum((z - 3) ** 2) / 2, -jnp.sum((z + 3) ** 2) / 2)


def student(z):
    return -6.5 * jnp.log1p(jnp.sum(z**2) / 3)


def rough(z):
    """Wild gradients at every scale, large noise, both signs of curvature."""
    return 50 * jnp.sum(jnp.sin(30 * z)) - 1e-3 * jnp.sum(z**4)


HOSTILE = (banana, funnel, mixture, student, rough)


def hostile(which, z):
    return jax.lax.switch(which, HOSTILE, z)


def hostile_target(density):
    # Which one is a leaf: all share one compilation.
    which = jnp.asarray(HOSTILE.index(density))
    return LogDensity(jax.tree_util.Partial(hostile, which), 10, start=np.full(10, 0.1))


@pytest.mark.parametrize(
    ("density", "lowest_elbo"),
    # The start has -264, -74, 9.19, 3.26; measured after 100 steps, 5 seeds: 7.32 to 7.34, -18.7 to -18.3 (still
    # rising), 9.189, 5.04.
    [(banana, 7.0), (funnel, -40.0), (mixture, 9.1), (student, 4.8)],
)
def test_safe_where_the_target_is_not_log_concave(density, lowest_elbo):
    target, family = hostile_target(density), Gaussian(10)
    carry = after(100, target, family, laplace_start(target, family), seed=1)
    assert_positive_definite(carry.state.point)
    assert int(carry.health.rejected) == 0
    elbo, _ = estimate_elbo(jax.random.key(0), target, family, carry.state.point, 4096)
    assert float(elbo) > lowest_elbo


@pytest.mark.parametrize("seed", range(3))
def test_positive_definite_whatever_the_gradients(seed):
    target, family = hostile_target(rough), Gaussian(10)
    for num_steps in (1, 3, 10, 40):
        assert_positive_definite(after(num_steps, target, family, family.point(np.ones(10)), seed).state.point)


def test_a_step_that_made_it_worse_is_taken_back():
    target, family = LogisticRegression(X, Y), Gaussian(3)
    algorithm = StochasticNaturalGradient(128)
    good = point_of(family)
    state, _ = one_step(algorithm, jax.random.key(0), algorithm.init(good), target, family)
    for bad in (family.point(np.full(3, 30.0)), family.point(np.full(3, 1e200))):
        spoiled = eqx.tree_at(lambda s: s.point, state, bad)
        back, info = one_step(algorithm, jax.random.key(0), spoiled, target, family)
        np.testing.assert_array_equal(back.point.loc, good.loc)
        assert float(back.largest_step) == float(state.largest_step) / 2
        assert np.isfinite(info.norms).all()
        assert not bool(back.can_return)


def test_refuses_other_families_and_settings():
    target = LogisticRegression(X, Y)
    for family in (Gaussian(3, "diagonal"), LocationScale(3, StudentT(5.0))):
        with pytest.raises(ValueError, match="needs a Gaussian family"):
            StochasticNaturalGradient().resolve(target, family)
    with pytest.raises(ValueError, match="largest_step"):
        StochasticNaturalGradient(largest_step=-1.0)
    assert int(whole_draws(jnp.asarray(129))) == 256


def test_a_first_measurement_below_zero_does_not_stop_the_filter():
    """The signal starts at a quarter of the noise at least; at zero no later measurement would count."""
    unknown = SignalFilter(jnp.asarray(jnp.inf), jnp.asarray(0.0))
    first = unknown.correct(jnp.asarray(-3.0), jnp.asarray(2.0))
    assert float(first.signal) == 0.5
    after = first.advance(best_step(first.signal, jnp.asarray(2.0)), jnp.asarray(2.0))
    assert float(after.correct(jnp.asarray(9.0), jnp.asarray(2.0)).signal) > float(after.signal)
    assert float(unknown.correct(jnp.asarray(7.0), jnp.asarray(2.0)).signal) == 7.0
