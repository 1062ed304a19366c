"""`certificates/dual`: a small Gaussian process by dense algebra; errors as they are written."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from provi.certificates.bounds import LOCAL, GapBound, log_det_gap
from provi.certificates.dual import bounds as dual
from provi.certificates.dual import dual_pass as passes
from provi.certificates.dual.dual_pass import Prior
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.targets.likelihoods import BernoulliLogit, BernoulliProbit, Poisson
from support.formulas import fresh, same

RNG = np.random.default_rng(6)
COUNT = 4
HALF = RNG.normal(size=(COUNT, COUNT))
GRAM = HALF @ HALF.T / COUNT + 0.3 * np.eye(COUNT)
MEAN = np.array([0.1, -0.2, 0.3, 0.0])
LABELS = np.array([1.0, 0.0, 1.0, 1.0])
A, S = np.array([0.2, -0.1, 0.3, 0.1]), np.array([0.2, 0.1, 0.25, 0.0])
V = np.linalg.inv(np.linalg.inv(GRAM) + np.diag(S))


class Pair(NamedTuple):
    """Of slope and weight, as a pytree."""

    slope: Any
    weight: Any


class Target(SimpleNamespace):
    """What of a target the passes read."""


def family(**more):
    return DualGaussian(jnp.asarray(GRAM), jnp.asarray(MEAN), **more)


@pytest.fixture(autouse=True)
def of_any_target(monkeypatch):
    monkeypatch.setattr(DualGaussian, "check_target", lambda self, target: None)


def held(likelihood=None, response=LABELS, unit=0.0, mean_error=None):
    target = Target(likelihood=likelihood or BernoulliLogit(), response=response)
    at = passes.dual_pass(target, family(), DualPoint(jnp.asarray(A), jnp.asarray(S)))
    if unit:
        prior = dataclasses.replace(at.prior, unit=unit)
        at = dataclasses.replace(at, prior=prior)
    return at


def prior(unit=0.02):
    return Prior(GRAM, MEAN, np.diag(GRAM), unit, np.full(COUNT, 0.01))


def test_errors_of_products_with_the_prior(coarse):
    eps = coarse(passes)
    size, vector = np.diag(GRAM), np.array([0.5, -1.0, 2.0, 0.1])
    expected = 8 * 4 * eps * np.abs(GRAM) @ np.abs(vector)
    expected += [
        0.02 * math.sqrt(k) * sum(math.sqrt(m) * abs(x) for m, x in zip(size, vector, strict=True)) for k in size
    ]
    assert np.allclose(prior().product_error(vector), expected)
    trace = np.trace(np.eye(4) + np.diag(np.sqrt(S)) @ GRAM @ np.diag(np.sqrt(S)))
    assert prior().trace(S) == pytest.approx(trace)
    assert prior().factor_error(S) == pytest.approx((7 * eps + 0.02) * trace)
    assert passes.log_det_rounding(prior(), S) == pytest.approx(2 * (7 * eps + 0.02) * trace)


def test_factors_of_sites():
    root = np.diag(np.sqrt(S))
    inner = np.eye(4) + root @ GRAM @ root
    lower, half = passes.site_factor(GRAM, S)
    assert np.allclose(lower @ lower.T, inner) and np.allclose(half, np.linalg.solve(lower, root @ GRAM))
    assert passes.log_det_of_sites(GRAM, S) == pytest.approx(np.linalg.slogdet(inner)[1])
    assert np.allclose(passes.inner_factor(GRAM, np.sqrt(S)), lower)


def test_the_prior_in_double(coarse):
    eps = coarse(passes)
    stored = passes.prior_in_double(family())
    assert np.array_equal(stored.gram, GRAM) and stored.unit == 0 and np.array_equal(stored.size, np.diag(GRAM))
    assert np.array_equal(stored.mean, MEAN) and np.allclose(stored.mean_error, 4 * eps * np.abs(MEAN))
    design = RNG.normal(size=(4, 6))
    full = np.tril(RNG.normal(size=(6, 6)))
    for factor in (full, np.array([0.5, 1.0, 2.0, 1.5, 0.3, 0.2])):
        matrix = full if factor.ndim == 2 else np.diag(factor)
        gram, mean = design @ matrix @ matrix.T @ design.T, np.linspace(-1, 1, 6)
        for dtype in (np.float64, np.float32):
            model = SimpleNamespace(design=design, prior=SimpleNamespace(factor=factor, mean=mean), prior_mean=mean,
                                    gram=gram.astype(dtype))  # fmt: skip
            found = (
                passes.prior_in_double.__wrapped__(model) if hasattr(passes.prior_in_double, "__wrapped__") else None
            )
            found = passes.prior_in_double(model) if found is None else found
            assert np.allclose(found.gram, gram, rtol=1e-12) and found.gram.dtype == np.float64
            assert found.unit == 4 * 6 * eps and np.allclose(found.mean, design @ mean)
            sizes = np.abs(design) @ np.abs(matrix)
            assert np.allclose(found.size, np.sum(sizes**2, axis=1))
            assert np.allclose(found.mean_error, 24 * eps * np.abs(design) @ np.abs(mean))


def test_a_pass_at_a_gaussian_process(monkeypatch, coarse):
    """V = (K^-1 + S)^-1, m = m_0 + K a; moments by quadrature; errors as written."""
    at = held()
    centre = MEAN + GRAM @ A
    assert np.allclose(at.covariance, V) and np.allclose(at.variance, np.diag(V)) and np.allclose(at.centre, centre)
    sign = 2 * LABELS - 1
    for k in range(COUNT):

        def mean(f, k=k):
            return integrate.quad(
                lambda t: f(sign[k] * (centre[k] + math.sqrt(V[k, k]) * t)) * stats.norm.pdf(t), -9, 9
            )[0]

        assert at.gradient[k] - A[k] == pytest.approx(-sign[k] * mean(lambda x: special.expit(-x)), abs=1e-8)
        assert at.weight[k] == pytest.approx(mean(lambda x: special.expit(x) * special.expit(-x)), abs=1e-8)
    assert np.allclose(at.excess, at.weight - S) and at.gram is at.prior.gram
    assert at.log_det == pytest.approx(np.linalg.slogdet(np.eye(4) + GRAM * S)[1])
    # Errors: of the prior, then of the moments, and what the first do to the second.
    eps = coarse(passes)
    known = prior(0.02)
    monkeypatch.setattr(passes, "prior_in_double", lambda family: known)
    moments = SimpleNamespace(slope=np.array([0.3, -0.4, 0.1, 0.2]), weight=np.array([0.2, 0.1, -1e-9, 0.3]))
    errors = SimpleNamespace(slope=np.full(4, 0.01), weight=np.full(4, 0.02))
    first, second, rate = np.full(4, 0.5), np.full(4, 0.7), np.full(4, 1.5)
    monkeypatch.setattr(passes, "_moments", lambda *_: (moments, errors, (first, second, rate)))
    monkeypatch.setattr(BernoulliLogit, "shift_error", lambda self, centre, y: np.full(4, 0.005))
    monkeypatch.setattr(passes.jax.tree, "map", lambda f, x, *rest: x)
    at = held()
    assert np.allclose(at.centre_error, known.product_error(A) + 0.01 + 0.005)
    variance_error = (8 * 4 * eps + 2 * 0.02) * np.diag(GRAM) + 2 * known.factor_error(S) * np.diag(V)
    assert np.allclose(at.variance_error, variance_error)
    growth = 2 * np.exp(1.5 * (at.centre_error + 1.5 * variance_error))
    moved = growth * (np.abs(moments.weight) * at.centre_error + 0.5 * 0.5 * variance_error)
    assert np.allclose(at.gradient_error, 0.01 + 8 * eps * (np.abs(moments.slope) + np.abs(A)) + moved)
    moved = growth * (0.5 * at.centre_error + 0.7 * variance_error)
    assert np.allclose(at.weight_error, 0.02 + 8 * eps * np.abs(moments.weight) + moved)
    assert np.array_equal(at.weight, [0.2, 0.1, 0.0, 0.3]) and np.allclose(at.gradient, A + moments.slope)


@pytest.mark.parametrize("weights", [None, np.array([0.3, 0.0, 0.2, 0.5])])
def test_the_norm_of_the_gradient_in_the_metric_of_sites(weights, coarse):
    at = held(unit=0.003)
    c = at.gradient
    metric = GRAM if weights is None else np.linalg.inv(np.linalg.inv(GRAM) + np.diag(weights))
    eps = coarse(passes)
    error = at.prior.product_error(c)
    rounding = 2 * np.abs(c) @ error
    if weights is not None:
        root = np.sqrt(weights)
        solved = np.linalg.solve(np.eye(4) + GRAM * np.outer(root, root), root * (GRAM @ c))
        rounding += 4 * np.abs(root * solved) @ error + at.prior.factor_error(weights) * solved @ solved
    assert passes.sited_norm(at, weights) == pytest.approx(c @ metric @ c + rounding, rel=1e-9) and eps


def test_how_the_weight_moves_with_mean_and_variance(monkeypatch):
    """Bounds on the derivatives of E l'' by differences of quadrature; with M, without, and without a spread."""
    centre, variance = np.array([0.3, -1.0]), np.array([0.8, 0.0])

    def found(likelihood, y):
        given = [jnp.asarray(x) for x in (centre, variance, y)]
        weight = fresh(likelihood.moments)(*given).weight
        return [np.asarray(x) for x in fresh(passes._sensitivities)(likelihood, *given, jnp.abs(weight))], np.asarray(
            weight
        )

    (first, second, rate), weight = found(Poisson(), np.array([1.0, 2.0]))
    assert np.allclose(rate, 1) and np.allclose(first, weight) and np.allclose(second[0], 0.5 * weight[0])
    assert np.allclose(second[1], weight[1])
    # Of a narrow q the differences cancel, and no derivative is bounded by zero: it was, at a variance of zero.
    variance[1] = 1e-18
    (first, second, _), weight = found(Poisson(), np.array([1.0, 2.0]))
    assert np.all(first >= 0.999999 * weight) and np.all(second >= 0.499999 * weight)
    variance[1] = 0.0
    logit = BernoulliLogit()

    def mean(f, m, v):
        return integrate.quad(lambda t: f(m + math.sqrt(v) * t) * stats.norm.pdf(t), -9, 9)[0]

    def curve(x):
        return special.expit(x) * special.expit(-x)

    (first, second, rate), weight = found(logit, np.array([1.0, 0.0]))
    step = 1e-4
    slope = (mean(curve, 0.3 + step, 0.8) - mean(curve, 0.3 - step, 0.8)) / (2 * step)
    bent = (mean(curve, 0.3, 0.8 + step) - mean(curve, 0.3, 0.8 - step)) / (2 * step)
    assert first[0] == pytest.approx(abs(slope), rel=1e-5) and second[0] == pytest.approx(abs(bent), rel=1e-5)
    assert np.allclose(rate, logit.self_concordance) and first[1] == pytest.approx(weight[1])
    probit = BernoulliProbit()
    monkeypatch.setattr(BernoulliProbit, "bend", lambda self, y: (0.1 + 0 * y, 1.7 + 0 * y))
    (first, second, rate), weight = found(probit, np.array([1.0, 0.0]))
    bend, width = (np.asarray(x) for x in probit.bend(jnp.asarray([1.0, 0.0])))
    spread = np.sqrt(variance)
    grows = (1 + (np.abs(centre - bend) + spread) / width) / width
    inverse = np.array([1 / spread[0], 1e100])
    assert np.allclose(rate, grows)
    assert np.allclose(first, np.minimum(12 * weight * inverse, grows * weight))
    assert np.allclose(second, np.minimum(72 * weight * inverse**2, grows**2 * weight))
    wide = [jnp.asarray([x]) for x in (0.0, 400.0, 1.0)]
    first, second, _ = (float(x[0]) for x in fresh(passes._sensitivities)(probit, *wide, jnp.asarray([0.3])))
    assert (first, second) == (pytest.approx(12 * 0.3 / 20), pytest.approx(72 * 0.3 / 400))


def test_the_negative_elbo(monkeypatch, coarse):
    at = with_errors(held(unit=0.003))
    values, errors = (np.asarray(x) for x in passes._values(at.likelihood, at.centre, at.variance, at.response))
    monkeypatch.setattr(passes, "dual_pass", lambda *_: at)
    eps = coarse(passes)
    found, error = passes.dual_negative_elbo(None, family(), DualPoint(jnp.asarray(A), jnp.asarray(S)))
    # KL(N(m, V) || N(m_0, K)) by its closed form.
    kl = 0.5 * (
        np.trace(np.linalg.solve(GRAM, V)) - 4 + A @ GRAM @ A + np.linalg.slogdet(GRAM)[1] - np.linalg.slogdet(V)[1]
    )
    assert found == pytest.approx(values.sum() + kl)
    trace, mean = S @ at.variance, A @ GRAM @ A
    slope = np.abs(at.gradient - A) + at.gradient_error
    expected = np.sum(errors + slope * at.centre_error + (at.weight + at.weight_error) * at.variance_error)
    expected += np.abs(A) @ at.prior.product_error(A) + S @ at.variance_error + passes.log_det_rounding(at.prior, S)
    expected += 8 * 4 * eps * (np.abs(values).sum() + abs(trace) + abs(mean) + at.log_det)
    assert error == pytest.approx(expected, rel=1e-9)
    means = passes.mean_terms(at.likelihood, at.centre, at.variance, at.response)
    assert np.allclose(means[0], values) and np.allclose(means[2], np.logaddexp(0, -(2 * LABELS - 1) * at.centre))


def with_errors(at, **more):
    weights, slopes = np.array([0.001, 0.002, 0.0, 0.001]), np.array([0.01, 0.02, 0.0, 0.03])
    errors = dict(weight_error=weights, gradient_error=slopes, variance_error=np.full(4, 0.01))
    return dataclasses.replace(at, **errors, centre_error=np.full(4, 0.02), **more)


def test_the_part_of_the_covariance(coarse):
    at = with_errors(held())
    s_matrix = np.linalg.cholesky(V).T @ (np.linalg.inv(GRAM) + np.diag(at.weight)) @ np.linalg.cholesky(V)
    exact = log_det_gap(np.linalg.eigvalsh(s_matrix))
    eps = coarse(dual, passes)
    excess, variance = at.weight - S, np.diag(V)
    value = exact + passes.log_det_rounding(at.prior, at.weight) + passes.log_det_rounding(at.prior, S)
    value += np.sum(np.abs(excess) * (0.01 + 4 * eps * variance))
    error = np.sum(at.weight_error * (variance + 0.01))
    least = min(1.0, *(at.weight[:3] / S[:3]))
    expected = value + error * np.sum(np.abs(excess) * variance) / least + 0.5 * (error / (least - error)) ** 2
    assert dual.covariance_part(at) == pytest.approx(expected, rel=1e-9)
    for share, finite in ((0.499, True), (0.501, False)):
        worse = dataclasses.replace(at, weight_error=np.array([share * least / (variance[0] + 0.01), 0, 0, 0]))
        assert math.isfinite(dual.covariance_part(worse)) == finite
    assert dual.least_ratio(np.array([0.1, 0.5]), np.array([0.2, 0.0])) == 0.5
    assert (
        dual.least_ratio(np.array([3.0, 0.5]), np.array([0.2, 0.0])) == 1.0 == dual.least_ratio(np.ones(1), np.zeros(1))
    )


def test_linearisation():
    at = with_errors(held())
    error = np.sum(at.gradient_error * np.sqrt(np.diag(GRAM)))
    expected = 0.5 * (math.sqrt(at.gradient @ GRAM @ at.gradient) + error) ** 2 + 0.25
    found = dual.linearisation_bound(at, 0.25)
    assert found.value == pytest.approx(expected, rel=1e-9) and same(found, "linearisation (b)", found.value)


def test_the_least_eigenvalue_on_a_region(coarse):
    at, weights = with_errors(held(), precision=np.array([0.5, 0.6, 0.25, 0.0])), np.array([0.3, 0.2, 0.4, 0.1])
    covariance = np.linalg.inv(np.linalg.inv(GRAM) + np.diag(at.precision))
    less = np.maximum(at.precision - weights, 0)
    middle = np.diag(np.sqrt(less)) @ covariance @ np.diag(np.sqrt(less))
    eps = coarse(dual)
    direct = 1 - np.linalg.eigvalsh(middle)[-1] - np.sum(less) * 0.01 - 8 * 4 * eps
    ratio = min(0.3 / 0.5, 0.2 / 0.6)
    assert direct > ratio and dual._least_eigenvalue(at, covariance, weights) == pytest.approx(direct, rel=1e-9)
    assert dual._least_eigenvalue(at, 9 * covariance, weights) == pytest.approx(ratio)


def test_the_local_bound_asks_for_what_the_formula_says(monkeypatch, coarse):
    at, asked = with_errors(held()), {}
    weights = np.array([0.15, 0.2, 0.18, 0.1])

    def region(covariance, size, norm, at_radius):
        asked.update(covariance=covariance, size=size, norm=norm, at=at_radius(0.5))
        return GapBound(LOCAL, 1.0, "proven")

    def sites(likelihood, centre, spread, radius, slack, response):
        asked.update(spread=spread, radius=float(radius), slack=slack)
        return weights

    monkeypatch.setattr(dual, "region_bound", region)
    monkeypatch.setattr(dual, "site_weights", sites)
    assert dual.local_bound(at, 0.3) == GapBound(LOCAL, 1.0, "proven")
    variance, excess = np.diag(V), at.weight - S
    error = np.sum(at.gradient_error * np.sqrt(variance))
    square = sum(excess[i] * excess[j] * V[i, j] ** 2 for i in range(4) for j in range(4))
    square += 2 * np.sum(np.abs(excess) * np.sqrt((variance + 0.01) * 0.01)) ** 2
    size = math.sqrt(square) + np.sum(at.weight_error * (variance + 0.01))
    assert asked["covariance"] == 0.3 and asked["size"] == pytest.approx(size, rel=1e-9)
    assert asked["norm"] == pytest.approx(math.sqrt(at.gradient @ V @ at.gradient) + error, rel=1e-9)
    assert np.allclose(asked["spread"], np.sqrt(variance)) and asked["radius"] == 0.5
    assert np.allclose(asked["slack"], 0.02 + 0.1)
    smallest = dual._least_eigenvalue(at, V, weights)
    mean = 0.5 * (math.sqrt(passes.sited_norm(at, weights)) + error / math.sqrt(smallest)) ** 2
    assert asked["at"] == pytest.approx((smallest, mean), rel=1e-9)
    for least in (0.0, -1.0):
        monkeypatch.setattr(dual, "_least_eigenvalue", lambda *_, x=least: x)
        dual.local_bound(at, 0.3)
        assert asked["at"] == (least, math.inf)
    probit = dual.local_bound(with_errors(held(BernoulliProbit())), 0.3)
    assert same(probit, LOCAL, math.inf, "the link is not self-concordant")


def test_curvature_of_sites_on_a_region():
    at, slack = held(), np.array([0.01, 0.02, 0.03, 0.04])
    found = np.asarray(
        passes.site_weights(at.likelihood, at.centre, np.sqrt(at.variance), np.asarray(0.4), slack, at.response)
    )
    for k in range(COUNT):
        q = at.likelihood.self_concordance * (math.sqrt(V[k, k]) * 0.4 + slack[k])
        deviation = math.sqrt(V[k, k] / (1 + q))
        m0, m1, m2 = (integrate.quad(lambda t, j=j, k=k, d=deviation: t**j * special.expit(x := at.centre[k] + d * t)
                                     * special.expit(-x) * stats.norm.pdf(t), -9, 9)[0] for j in range(3))  # fmt: skip
        assert found[k] == pytest.approx(math.exp(-1.5 * q) / math.sqrt(1 + q) * (m0 - m1**2 / m2), rel=1e-6)


def test_moved_sites_as_they_are_written():
    weight, variance, error = np.array([0.2, 0.1, 0.0]), np.array([0.5, 0.01, 2.0]), np.array([0.1, 0.02, 0.0])
    moved, largest = np.array([0.05, 0.0, 0.2]), 0.25
    slope, change = dual._moved(Poisson(), math.inf, weight, variance, error, moved)
    assert np.allclose(slope, weight * (np.exp(0.5 * error + moved) - 1)) and slope is change
    for likelihood, constant in ((BernoulliLogit(), BernoulliLogit().self_concordance), (BernoulliProbit(), None)):
        slope, change = dual._moved(likelihood, largest, weight, variance, error, moved)
        for k in range(3):
            left, root = max(variance[k] - error[k], 0.0), math.sqrt(2 / math.pi)
            fourth = math.inf if left == 0 and error[k] else 0.5 * error[k] * largest / left
            third = math.inf if left == 0 and error[k] else 0.5 * error[k] * largest * root / math.sqrt(left)
            sideways = 0.0 if moved[k] == 0 else moved[k] * largest * root / math.sqrt(left)
            grown = min(fourth + sideways, largest)
            if constant is not None:
                third = min(third, 0.5 * error[k] * constant * min(weight[k] + grown, largest))
            assert change[k] == pytest.approx(grown)
            assert slope[k] == pytest.approx(third + moved[k] * min(weight[k] + grown, largest))


def iterative(monkeypatch, moments=None, errors=None, variance=None, squared=0.3, unit=0.004, solver=None,
              likelihood=None, room=True, s=S):  # fmt: skip
    """`iterative_bounds` at what is given."""
    known, likelihood = prior(unit), likelihood or BernoulliLogit()
    moments = moments or SimpleNamespace(
        slope=np.array([-0.2, 0.11, -0.28, -0.12]), weight=np.array([0.19, 0.12, 0.24, 0.01])
    )
    errors = errors or SimpleNamespace(slope=np.full(4, 0.001), weight=np.full(4, 0.002))
    variance = np.diag(V) if variance is None else variance
    made = []
    moments, errors = (Pair(x.slope, x.weight) for x in (moments, errors))
    monkeypatch.setattr(dual, "prior_in_double", lambda family, numbers: known)
    monkeypatch.setattr(
        dual, "_evaluate_factored", lambda *given: (variance, 0.01 * variance, moments, errors, squared)
    )
    monkeypatch.setattr(
        dual, "_evaluate", lambda *given: made.append(given) or (variance, 0.01 * variance, moments, errors, squared)
    )
    monkeypatch.setattr(dual, "factors_fit", lambda size, itemsize, room_left: room and itemsize == 8)
    target = Target(likelihood=likelihood, response=LABELS)
    point = DualPoint(jnp.asarray(A), jnp.asarray(s))
    (found,) = dual.iterative_bounds(target, family(), point, solver)
    return found, made, (known, moments, errors, variance)


def expected_iterative(parts, eps, squared=0.3, pad=0.0, s=S, likelihood=None):
    known, moments, errors, variance = parts
    likelihood, size = likelihood or BernoulliLogit(), np.diag(GRAM)
    relative, root = 8 * 4 * eps, np.sqrt(np.diag(GRAM))
    strain = pad * known.trace(s)
    error = 0.01 * variance / (1 - strain) + variance * known.factor_error(s)
    error = error + relative * size + 2 * (known.unit + pad) * (size + variance * (s @ size))
    far = root * (root @ np.abs(A))
    moved = (relative + known.unit) * far + known.mean_error
    moved = moved + np.asarray(likelihood.shift_error(np.abs(MEAN) + far, LABELS))
    slope_error, weight_error = dual._moved(
        likelihood, float(likelihood.curvature[1]), moments.weight, variance, error, moved
    )
    slope_error = slope_error + errors.slope + relative * np.abs(moments.slope)
    weight_error = weight_error + errors.weight + relative * moments.weight
    c = A + moments.slope
    norm = math.sqrt(squared + (relative + known.unit) * (root @ np.abs(c)) ** 2) + slope_error @ root
    upper, excess = variance + error, moments.weight - s
    more = np.maximum(excess + weight_error, 0) @ upper * (1 + relative)
    less = np.maximum(weight_error - excess, 0) @ upper * (1 + relative)
    if less >= 1:
        return math.inf
    return norm**2 / 2 + more - math.log(1 + more) - less - math.log(1 - less)


def test_the_bound_by_traces(monkeypatch, coarse):
    eps = coarse(dual, passes)
    monkeypatch.setattr(dual, "ROUNDING", 8.0)
    for squared in (0.3, 0.0):
        found, made, parts = iterative(monkeypatch, squared=squared)
        assert not made and same(found, "linearisation (b), by traces", found.value)
        assert found.value == pytest.approx(expected_iterative(parts, eps, squared), rel=1e-9)
    assert iterative(monkeypatch, squared=-0.1)[0].value == pytest.approx(found.value)
    far = SimpleNamespace(slope=np.zeros(4), weight=np.zeros(4))
    found, _, parts = iterative(monkeypatch, far, s=S * 9)
    assert found.value == expected_iterative(parts, eps, s=S * 9) == math.inf and "S may not be" in found.detail
    for name, value in (("slope", np.full(4, np.nan)), ("weight", np.full(4, np.inf))):
        broken = SimpleNamespace(**{"slope": np.zeros(4), "weight": np.ones(4), name: value})
        assert "beyond the quadrature" in iterative(monkeypatch, broken)[0].detail
    assert "rounding of this kernel" in iterative(monkeypatch, unit=math.inf)[0].detail


def test_the_bound_by_traces_of_a_solver(monkeypatch, coarse):
    eps = coarse(dual, passes)
    residual = np.full(COUNT, 0.001)
    solver = dual.site_solver(jnp.asarray(GRAM), np.asarray(1e-9))
    rank = solver.factor.shape[1]
    found, made, parts = iterative(monkeypatch, solver=solver, unit=1e-4)
    pad = rank * (eps + 1e-4)
    assert pad * parts[0].trace(S) < 0.5
    assert found.value == pytest.approx(expected_iterative(parts, eps, pad=pad), rel=1e-9) and len(made) == 1
    assert np.allclose(made[0][0].residual, np.asarray(solver.residual) + pad * np.diag(GRAM)) and made[0][6] == 1e-6
    # One of its own where there is no room for a factor, or the given one is not in float64.
    monkeypatch.setattr(dual, "target_jitter", lambda target: 0.25)
    monkeypatch.setattr(dual, "site_solver", lambda gram, jitter: made.append(float(jitter)) or solver)
    for given, room in (
        (None, False),
        (jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, solver), True),
    ):
        again, there, _ = iterative(monkeypatch, solver=given, room=room, unit=1e-4)
        assert again.value == pytest.approx(found.value) and made[-1] == 0.25 and len(there) == 1
    too = 0.51 / (rank * parts[0].trace(S)) - eps
    assert "too large for float64" in iterative(monkeypatch, solver=solver, unit=too)[0].detail
    assert "too large for float64" not in iterative(monkeypatch, solver=solver, unit=0.97 * too)[0].detail
    assert residual is not None


def test_who_has_no_bound(monkeypatch):
    steep = SimpleNamespace(log_concave=False, name="some", plain=None, curvature=(0, 1.0))
    target, point = Target(likelihood=steep, response=LABELS), DualPoint(jnp.asarray(A), jnp.asarray(S))
    (found,) = dual.iterative_bounds(target, family(), point)
    assert same(found, dual.NAME, math.inf, "the some likelihood is not log-concave")
    assert [b.detail for b in dual.dual_bounds(target, family(), point)] == [
        "the some likelihood is not log-concave"
    ] * 2
    rooted = family(root=jnp.eye(4))
    concave = Target(likelihood=BernoulliLogit(), response=LABELS)
    assert all(
        b.value == math.inf
        for b in (*dual.iterative_bounds(concave, rooted, point), *dual.dual_bounds(concave, rooted, point))
    )
    steep.log_concave, steep.curvature = True, (0, math.inf)
    assert "not bounded" in dual.iterative_bounds(target, family(), point)[0].detail
    steep.plain = Poisson()
    monkeypatch.setattr(dual, "prior_in_double", lambda *_: dataclasses.replace(prior(), unit=math.inf))
    assert "rounding of this kernel" in dual.iterative_bounds(target, family(), point)[0].detail  # it went on


def test_what_is_passed_on(monkeypatch):
    target, point = Target(likelihood=BernoulliLogit(), response=LABELS), DualPoint(jnp.asarray(A), jnp.asarray(S))
    at = held()
    bounds = dual.dual_bounds(target, family(), point)
    covariance = dual.covariance_part(at)
    assert bounds == (dual.linearisation_bound(at, covariance), dual.local_bound(at, covariance))
    assert [b.name for b in bounds] == list(dual.NAMES) and dual.LARGEST_FACTORISED == 5000
    marks = (GapBound("iterative", 1.0, "proven"),)
    monkeypatch.setattr(dual, "iterative_bounds", lambda *_: marks)
    monkeypatch.setattr(dual, "LARGEST_FACTORISED", 3)
    assert dual.dual_bounds(target, family(), point) is marks
    monkeypatch.setattr(dual, "LARGEST_FACTORISED", 4)
    assert dual.dual_bounds(target, family(), point) == bounds
    monkeypatch.setattr(dual, "factors_fit", lambda size, itemsize, room: not (size == 4 and itemsize == 8))
    assert dual.dual_bounds(target, family(), point) is marks
    monkeypatch.setattr(dual, "factors_fit", lambda *_: True)
    monkeypatch.setattr(dual, "is_streamed", lambda gram: True)
    assert dual.dual_bounds(target, family(), point) is marks
    monkeypatch.setattr(dual, "is_streamed", lambda gram: False)
    for name in ("gradient", "weight", "gradient_error", "weight_error"):
        monkeypatch.setattr(dual, "dual_pass", lambda *_, n=name: dataclasses.replace(at, **{n: np.full(4, np.inf)}))
        found = dual.dual_bounds(target, family(), point)
        assert [(b.name, b.value) for b in found] == [(n, math.inf) for n in dual.NAMES] and "quadrature" in found[
            0
        ].detail
    for error, words in ((np.linalg.LinAlgError, "jitter"), (OverflowError, "too far")):

        def fails(*_, error=error):
            raise error

        monkeypatch.setattr(dual, "dual_pass", fails)
        assert words in dual.dual_bounds(target, family(), point)[1].detail


def test_evaluations_on_the_device():
    likelihood = BernoulliLogit()
    solver = dual.site_solver(jnp.asarray(GRAM), np.asarray(1e-9))
    factored = dual._evaluate_factored(jnp.asarray(GRAM), likelihood, LABELS, MEAN, A, S, 0.125)
    iterated = dual._evaluate(solver, likelihood, LABELS, MEAN, A, S, np.asarray(1e-9))
    centre = MEAN + GRAM @ A
    for variance, _, moments, errors, squared in (factored, iterated):
        assert np.allclose(variance, np.diag(V), atol=1e-6)
        direct = likelihood.moments(jnp.asarray(centre), jnp.asarray(variance), jnp.asarray(LABELS))
        assert np.allclose(moments.slope, direct.slope) and np.allclose(moments.weight, direct.weight)
        c = A + np.asarray(moments.slope)
        assert float(squared) == pytest.approx(c @ GRAM @ c) and np.all(np.asarray(errors.slope) < 1e-6)
    assert np.allclose(factored[1], np.diag(V) * 0.125)


def test_refuted_sites(monkeypatch):
    from provi.certificates.linear import refutation

    asked = []
    monkeypatch.setattr(refutation, "link_counterexample", lambda *given: asked.append(given) or "found")
    point = DualPoint(jnp.asarray(A), jnp.asarray(S))
    target = Target(likelihood=BernoulliLogit(), response=LABELS)
    assert dual.refuted_site(target, family(), point) is None
    monkeypatch.setattr(BernoulliLogit, "grounds", ("declared", "by a user"))
    assert dual.refuted_site(target, family(), point) == "found"
    assert (
        np.allclose(asked[0][1], MEAN + GRAM @ A)
        and np.allclose(asked[0][2], np.diag(V))
        and np.array_equal(asked[0][3], LABELS)
    )
    monkeypatch.setattr(dual, "is_streamed", lambda gram: True)
    assert dual.refuted_site(target, family(), point) == "found"
    assert np.allclose(asked[1][1], MEAN + GRAM @ A) and np.allclose(asked[1][2], np.diag(V))
    monkeypatch.setattr(BernoulliLogit, "log_concave", False)
    assert dual.refuted_site(target, family(), point) is None
