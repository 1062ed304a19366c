"""`distance/dual_bound.py`: each statement from its formula; the search with its parts given."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, special, stats

from provi.certificates.distance import dual_bound as dual
from provi.certificates.distance.conjugate import Conjugates, RowProblem, inverse_hessians
from provi.certificates.distance.dual_bound import DualBound, Energy
from provi.certificates.distance.problems import linear_problem
from provi.families import Gaussian
from provi.targets import LinearRegression, LogisticRegression

RNG = np.random.default_rng(8)
DESIGN = RNG.normal(size=(6, 2))
LABELS = np.array([0, 1, 1, 0, 1, 1])


def problem(kind="logistic", spread=0.5):
    target = LogisticRegression(DESIGN, LABELS) if kind == "logistic" else LinearRegression(DESIGN, DESIGN @ [1.0, 2.0])
    family = Gaussian(2)
    covariance = spread * np.array([[0.5, 0.1], [0.1, 0.3]])
    found = linear_problem(target, family, family.point_from_covariance(np.array([0.2, 0.1]), covariance))
    assert found is not None
    return found


def test_an_empirical_bernstein_bound():
    values = RNG.random(20)
    variance = sum((x - y) ** 2 for x in values for y in values) / (2 * 20 * 19)
    expected = values.mean() + math.sqrt(2 * variance * 3.0 / 20) + 7 * 0.8 * 3.0 / (3 * 19)
    assert dual.bernstein_bound(values, 0.8, 3.0) == pytest.approx(expected, rel=1e-13)


def test_students_bound_with_johnsons_correction():
    for values in (RNG.exponential(size=15), -RNG.exponential(size=15)):
        count, spread = 15, values.std(ddof=1)
        t = stats.t.isf(0.01, count - 1)
        lean = max(float(np.mean((values - values.mean()) ** 3)) / spread**3, 0.0)
        expected = values.mean() + spread / math.sqrt(count) * (t + lean * (2 * t**2 + 1) / (6 * math.sqrt(count)))
        assert dual.skewed_bound(values, 0.01) == pytest.approx(expected, rel=1e-12)
    t = stats.t.isf(0.01, 8)
    assert dual.skewed_bound(np.full(9, 2e12), 0.01) - 2e12 == pytest.approx(2 * t / 3, rel=1e-3)
    assert dual.skewed_bound(np.zeros(9), 0.01) == pytest.approx(1e-100 * t / 3)


def test_log_of_a_mean_without_overflow():
    values = np.array([-3.0, 0.5, 1.2])
    assert dual.log_mean_exp(values) == pytest.approx(math.log(sum(math.exp(x) for x in values) / 3), rel=1e-13)
    assert dual.log_mean_exp(values + 900) == pytest.approx(dual.log_mean_exp(values) + 900, rel=1e-13)


def clopper_pearson(hits, count, level):
    """The largest probability at which so few hits are not too few."""
    if hits >= count:
        return 1.0
    return optimize.brentq(lambda p: stats.binom.cdf(hits, count, p) - level, 1e-15, 1 - 1e-15, xtol=1e-15)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.3, 0.4), (-1.5, 0.9)])
def test_the_lower_bound_of_a_log_mean(low, high):
    values = np.concatenate([RNG.normal(size=199) * 0.5, [-np.inf, np.nan, low, -50.0, 40.0]])
    delta, count = 0.02, len(values)
    clipped = [math.exp(min(max(-1e9 if math.isnan(x) else x, low), high) - high) for x in values]
    width, logs = 1 - math.exp(low - high), math.log(2 / (0.5 * delta))
    mean = -dual.bernstein_bound(-np.asarray(clipped), width, logs)
    below = sum(not x >= low for x in values)
    mean -= math.exp(low - high) * clopper_pearson(below, count, 0.5 * delta)
    assert dual.log_mean_lower_bound(values, low, high, delta) == pytest.approx(math.log(mean) + high, rel=1e-8)


def test_no_lower_bound_where_the_mean_may_be_zero():
    assert dual.log_mean_lower_bound(np.zeros(3), -1.0, 1.0, 0.01) == -math.inf
    assert dual.log_mean_lower_bound(np.full(500, -9.0), -1.0, 1.0, 0.01) == -math.inf  # all are below the clip
    assert dual.log_mean_lower_bound(np.full(9000, -0.9), -1.0, 1.0, 0.01) > -1.5


def test_the_tail_of_a_quadratic_is_above_the_worst_event():
    """Closed form for one weight: the event is v^2 >= c, of probability p."""
    for start in (-4.0, 0.5, 3.0):
        for probability in (1e-3, 0.02):
            bound = dual.quadratic_tail(np.array([0.8]), start, probability)
            c = stats.norm.isf(probability / 2)
            # E[v^2; |v| > c] = 2 (c pdf(c) + sf(c)), of a standard normal.
            truth = start * probability + 0.4 * 2 * (c * stats.norm.pdf(c) + stats.norm.sf(c))
            assert truth <= bound
            if start > 0:
                assert bound < 2 * truth
    weights = np.array([0.8, 0.3, -0.5])

    def at(theta, start, probability):
        moment = -0.5 * sum(math.log(1 - theta * w) for w in weights) + theta * start
        level = moment - math.log(probability)
        return (probability * level if level >= 1 else math.exp(moment - 1)) / theta

    for start, probability in ((0.5, 0.01), (-30.0, 0.4), (-2.0, 0.9), (1.0, 1.0)):
        grid = [10 ** (-6 + k / 299 * (math.log10(1 - 1e-6) + 6)) / 0.8 for k in range(300)]
        expected = min(at(theta, start, probability) for theta in grid)
        assert dual.quadratic_tail(weights, start, probability) == pytest.approx(expected, rel=1e-8)
    for flat in (np.array([0.0, -1.0]), np.array([-0.5])):
        assert dual.quadratic_tail(flat, 2.0, 0.1) == pytest.approx(0.2)
        assert dual.quadratic_tail(flat, -2.0, 0.1) == 0.0


def test_what_an_error_is_compared_with():
    values = np.array([0.1, 0.4, 0.2, 0.9])
    usual = -math.log(np.mean(np.exp(-values)))
    assert dual._scale(values, 0.3, -0.1) == pytest.approx(abs(0.2 + usual)) and dual._scale(values, 0.3, -2.0) > 1
    assert dual._scale(values, 0.0, -usual) == 1e-6
    low, high = np.percentile(values, 25), np.percentile(values, 75)
    assert dual._scale(values, 0.3, None) == pytest.approx(max(usual, high - low))
    assert dual._scale(values - usual, 0.3, None) == pytest.approx(high - low)
    assert dual._scale(np.zeros(4), 5.0, None) == 1e-6


@pytest.mark.parametrize("count", [300, 5000])
def test_the_clip_is_what_the_pilot_promises_best(count):
    pilot, delta = np.concatenate([RNG.normal(size=40) * 0.3, [2.0, -1.5]]), 0.01
    spread, logs = math.sqrt(np.mean((pilot - pilot.mean()) ** 2)), math.log(4 / delta)
    high = np.median(pilot) + max(5 * (2.0 - np.median(pilot)), 6 * spread)

    def promise(low):
        weights = [math.exp(low - max(x, low)) for x in pilot]
        mean, variance = np.mean(weights), np.mean(np.square(weights)) - np.mean(weights) ** 2
        mean -= math.sqrt(2 * variance * logs / count) + 7 * (1 - math.exp(low - high)) * logs / (3 * count)
        mean -= math.exp(low - high) * math.log(1 / (0.5 * delta)) / count
        return low - math.log(mean) if mean > 0 else math.inf

    ordered = np.sort(pilot)
    lows = [np.interp(q * 41, np.arange(42), ordered) for q in (0, 0.02, 0.05, 0.1, 0.2, 0.4)]
    lows += [ordered[0] - k * spread for k in (0.5, 1, 2)]
    best = min(lows, key=promise)
    assert dual._clip(pilot, delta, count) == pytest.approx((best, high, promise(best)), rel=1e-9)
    # One that is nearly constant: the deviations decide, or a distance from zero.
    low, high, _ = dual._clip(np.tile([1.0, -1.0], 20), delta, count)
    assert high == pytest.approx(6.0)
    assert dual._clip(np.ones(40), delta, count)[1] - 1 == pytest.approx(1e-12, rel=1e-3)


def test_the_lows_that_are_tried():
    """Pilots of other shapes and numbers of draws; which of the lows is chosen, by their place in the list."""
    chosen = set()
    for seed in range(80):
        rng = np.random.default_rng(seed)
        pilot, share = rng.normal(size=64) * 0.02, rng.uniform(0, 0.5)
        pilot = np.where(rng.random(64) < share, pilot - rng.uniform(0.1, 3), pilot)
        low = dual._clip(pilot, 0.01, int(10 ** rng.uniform(2.3, 5)))[0]
        quantiles = np.asarray([np.percentile(pilot, q) for q in (0, 2, 5, 10, 20, 40)])
        assert np.min(np.abs(quantiles - low)) < 1e-12
        chosen.add(int(np.argmin(np.abs(quantiles - low))))
    assert chosen >= {0, 1, 2, 3}


def test_draws_are_doubled_until_noise_is_small_or_they_are_spent(monkeypatch):
    asked = []

    def clip(pilot, delta, count):
        asked.append(count)
        return 0.1, 0.9, 1.0 + 100 / count

    monkeypatch.setattr(dual, "_clip", clip)
    pilot = np.full(4, 1.0)  # of which -log E exp(-Y) is 1
    assert dual._plan(pilot, 1.0, 0.01, 10**6, 0.05) == (2048, 0.1, 0.9) and asked == [512, 1024, 2048]
    asked.clear()
    assert dual._plan(pilot, 2.0, 0.01, 10**6, 0.05)[0] == 1024
    assert dual._plan(pilot, 0.0, 0.01, 1500, 0.05)[0] == 1500 and dual._plan(pilot, 0.0, 0.01, 512, 0.05)[0] == 512


def test_half_a_step_is_its_root():
    half = RNG.normal(size=(3, 3))
    step = half @ half.T + np.eye(3)
    root = dual._half_step(step)
    assert np.allclose(root @ root, step) and np.allclose(root, root.T)


def expected_step(first, second):
    product = (first + second) / 2
    share = min(max(np.sum(first * second) / np.sum(product**2), 0.0), 1.0)
    values, vectors = np.linalg.eigh(np.eye(len(first)) + product)
    values = np.minimum(np.maximum(values, 0.2), 5.0)
    gain = share * sum(x - 1 - math.log(x) for x in values) / 2
    return vectors @ np.diag(values ** (0.35 * share)) @ vectors.T, gain


def test_a_step_of_the_frame_from_hessians(monkeypatch):
    held, _ = problem()
    u, w = RNG.normal(size=(10, 2)), RNG.normal(size=(10, 2))
    for most, work in ((128, 1e9), (4, 1e9), (128, 6 * 4 * 5 + 8 * 5)):
        monkeypatch.setattr(dual, "_MOST_HESSIANS", most)
        monkeypatch.setattr(dual, "_HESSIAN_WORK", work)
        monkeypatch.setattr(dual, "_FEWEST_HESSIANS", 2)
        every = max(1, math.ceil(10 * (6 * 4 + 8) / work))
        inverses = inverse_hessians(held, w[::every][:most]) - np.eye(2)
        step, gain = dual._dual_step(held, u, w)
        expected, promised = expected_step(inverses[::2].mean(axis=0), inverses[1::2].mean(axis=0))
        assert np.allclose(step, expected) and gain == pytest.approx(promised)
    # Too much work for Hessians: from the draws and where they are mapped to.
    monkeypatch.setattr(dual, "_HESSIAN_WORK", 2 * (6 * 4 + 8) - 1)
    for scale in (0.3, 30.0, -3.0):
        places = u + scale * (u @ np.array([[0.3, 0.1], [0.0, 0.2]]) + 0.1 * RNG.normal(size=u.shape))
        halves = []
        for rows in (range(1, 10, 2), range(0, 10, 2)):
            mean = sum(np.outer(places[k] - u[k], u[k]) for k in rows) / 5
            halves.append((mean + mean.T) / 2)
        step, gain = dual._dual_step(held, u, places)
        expected, promised = expected_step(*halves)
        assert np.allclose(step, expected) and gain == pytest.approx(promised) and promised > 0
    opposite = u + np.where(np.arange(10) % 2 == 1, 1, -1)[:, None] * u
    assert np.allclose(dual._dual_step(held, u, opposite)[0], np.eye(2))  # noise alone
    monkeypatch.setattr(dual, "_HESSIAN_WORK", 2 * (6 * 4 + 8))
    assert not np.allclose(dual._dual_step(held, u, u)[0], np.eye(2), atol=1e-3)
    identity, none = dual._dual_step(held, u, np.full_like(u, np.nan))
    assert np.array_equal(identity, np.eye(2)) and none == 0.0
    assert np.allclose(dual._dual_step(held, u, u)[0], dual._dual_step(held, u, u)[0].T)


def test_y_of_a_frame(monkeypatch):
    """(f*(u) + f*(-u)) / 2 - |u|^2 / 2, infinite where it is no number."""
    held, _ = problem()
    seen = []

    def conjugates(problem, points, tolerance):
        seen.append((problem, points, tolerance))
        upper = np.arange(1.0, 7.0)
        upper[5] = np.nan
        return Conjugates(upper, points + 1, 3, 17)

    monkeypatch.setattr(dual, "conjugates", conjugates)
    half = RNG.normal(size=(3, 2))
    values, places, evaluations = dual._Frame(held).values(half, 0.01)
    sizes = np.sum(half**2, axis=1) / 2
    assert values == pytest.approx([2.5 - sizes[0], 3.5 - sizes[1], math.inf]) and evaluations == 17
    assert np.allclose(places, np.concatenate([half, -half]) + 1) and seen[0][0] is held and seen[0][2] == 0.01
    monkeypatch.setattr(dual, "conjugates", lambda *_: None)
    assert dual._Frame(held).values(half, 0.01) is None


def test_the_log_det_of_a_frame(coarse):
    held, _ = problem()
    unit, factor = coarse(dual), np.array([[2.0, 0.3], [0.1, 0.7]])
    frame = dual._Frame(held, factor)
    values = np.linalg.svd(factor)[1]
    assert frame.log_det == pytest.approx((math.log(1.4 - 0.03), 16 * 4 * unit * values[0] / values[1]))
    assert dual._Frame(held).log_det == pytest.approx((0.0, 64 * unit)) and dual._Frame(held).problem is held
    assert np.allclose(frame.problem.root, held.root @ factor)


def test_a_gaussian_posterior_needs_no_draws(coarse):
    """KL by its closed form; and what rounding may add, as it is written."""
    held, energy = problem("linear")
    design, covariance = DESIGN, 0.5 * np.array([[0.5, 0.1], [0.1, 0.3]])
    precision = design.T @ design + np.eye(2)
    mean = np.linalg.solve(precision, design.T @ design @ [1.0, 2.0])
    away = np.array([0.2, 0.1]) - mean
    kl = 0.5 * (np.trace(precision @ covariance) - 2 + away @ precision @ away)
    kl -= 0.5 * (np.linalg.slogdet(precision)[1] + np.linalg.slogdet(covariance)[1])
    found = dual._quadratic_bound(held, energy)
    assert found.kl == pytest.approx(kl, rel=1e-9) and found.estimate == pytest.approx(kl, rel=1e-9)
    assert (found.proven, found.num_pairs, found.num_evaluations) == (True, 0, 1)
    assert found.log_mass == pytest.approx(kl - energy.value + 1)
    unit = coarse(dual)
    slope, error = (np.asarray(dual.evaluate(held, np.zeros((1, 2)))[k])[0] for k in (1, 3))
    inverse = inverse_hessians(held, np.zeros((1, 2)))[0]
    values = np.linalg.eigvalsh(inverse)
    relative = (6 + 16 * 2) * 2 * unit * values[1] / values[0]
    length = math.sqrt(slope @ slope) + error
    rough = dual._quadratic_bound(held, energy)
    first = 0.5 * slope @ inverse @ slope + values[1] * length * (error + relative * length)
    assert rough.log_mass == pytest.approx(first + 0.5 * np.log(values).sum() + relative, rel=1e-10)
    assert rough.kl == pytest.approx(energy.value - 1 + rough.log_mass + energy.error, rel=1e-12)
    assert dual._quadratic_bound(held, Energy(None)) is None
    low = dual._quadratic_bound(held, Energy(-1e3, 0.5))
    assert (low.kl, low.estimate) == (0.0, 0.0)
    between = dual._quadratic_bound(held, Energy(1 - rough.log_mass - 0.2, 0.5))
    assert between.kl == pytest.approx(0.3) and between.estimate == 0.0


def test_which_bound_is_taken(monkeypatch):
    held, energy = problem()
    marks = [DualBound(float(k), True, 0.0, 0.0, 0, 0) for k in range(2)]
    monkeypatch.setattr(dual, "_quadratic_bound", lambda *_: marks[0])
    monkeypatch.setattr(dual, "_sampled_bound", lambda *given: seen.append(given) or marks[1])
    seen = []
    options = dict(delta=0.1, seed=3, most_evaluations=50)
    assert dual.dual_bound(held, energy, **options) is marks[1] and seen[0][2:] == (0.1, 3, 50)
    quadratic, its = problem("linear")
    assert dual.dual_bound(quadratic, its, **options) is marks[0]
    assert dual.quick_bound(quadratic, its, delta=0.1, seed=3, pairs=50) is marks[0]

    def fails(*_):
        raise np.linalg.LinAlgError("no")

    monkeypatch.setattr(dual, "_sampled_bound", fails)
    assert dual.dual_bound(held, energy, **options) is None


def quick(monkeypatch, values, energy, pairs=64):
    held, _ = problem()
    asked = []

    def of(self, half, tolerance):
        asked.append((half, tolerance))
        return None if values is None else (values(half), half, 123)

    monkeypatch.setattr(dual._Frame, "values", of)
    return dual.quick_bound(held, energy, delta=0.02, seed=5, pairs=pairs), asked


def test_a_quick_bound_has_its_clips_from_a_pilot_of_its_own(monkeypatch):
    def values(half):
        return 0.1 * half[:, 0] + 0.2

    for pairs in (64, 9000):
        found, asked = quick(monkeypatch, values, Energy(1.5, 0.25), pairs)
        half, tolerance = asked[0]
        assert half.shape == (32 + pairs, 2) and tolerance == pytest.approx(0.005 * max(5 / pairs, 1e-3))
        assert np.array_equal(half, np.random.default_rng(5).standard_normal((32 + pairs, 2)))
        y = values(half)
        low, high, _ = dual._clip(y[:32], 0.02, pairs)
        mass = -dual.log_mean_lower_bound(-y[32:], -high, -low, 0.02)
        middle = -math.log(np.mean(np.exp(-np.clip(y[32:], low, high))))
        assert found.log_mass == pytest.approx(mass) and (found.num_pairs, found.num_evaluations) == (pairs, 123)
        assert found.kl == pytest.approx(0.5 + 0.25 + mass) and found.estimate == pytest.approx(0.5 + middle)
        assert found.proven
    low, _ = quick(monkeypatch, values, Energy(-50.0, 0.25))
    assert (low.kl, low.estimate) == (0.0, 0.0)
    assert quick(monkeypatch, None, Energy(1.0))[0] is None
    for broken, known in ((3, True), (4, False)):  # of 32: nine tenths are needed
        found, _ = quick(monkeypatch, lambda h, n=broken: np.where(np.arange(len(h)) < n, np.inf, 0.3), Energy(1.0))
        assert (found is not None) == known


def search(monkeypatch, rounds, scales=None, steps=None, offset=1.0):
    """`_pilot`, with Y of each round, what it promises and the steps given: the factors it went to, and its result."""
    held, _ = problem()
    factors, tolerances, halved = [], [], []

    def of(self, half, tolerance):
        factors.append(np.array(self.factor))
        tolerances.append(tolerance)
        assert half.shape == (128, 2)
        found = rounds[len(factors) - 1]
        return None if found is None else (np.full(128, found) if np.isscalar(found) else found, half, 700)

    def step(problem, u, places):
        k = len(halved)
        halved.append(u)
        return (np.eye(2) * 2, 1e9) if steps is None else steps[min(k, len(steps) - 1)]

    monkeypatch.setattr(dual._Frame, "values", of)
    monkeypatch.setattr(dual._Frame, "log_det", (0.0, 0.0))
    monkeypatch.setattr(dual, "_dual_step", step)
    monkeypatch.setattr(dual, "_scale", lambda values, log_det, offset: 1.0 if scales is None else scales)
    frame = dual._Frame(held)
    return dual._pilot(frame, np.random.default_rng(0), offset), factors, tolerances, halved


def wide(level):
    return level + 9.0 * np.sign(np.arange(128) - 63.5)


def test_the_pilot_goes_on_while_it_gains(monkeypatch):
    found, factors, tolerances, halved = search(monkeypatch, [wide(x) for x in (9, 8, 7, 6, 5, 4, 3, 2, 1)])
    assert len(factors) == 8 and [f[0, 0] for f in factors] == [2.0**k for k in range(8)]
    assert tolerances == pytest.approx([0.005] * 8) and found[3] == 8 * 700
    assert np.allclose(found[1], wide(2)) and found[2] == math.ceil(700 / 256) and found[0].factor[0, 0] == 128
    assert halved[0].shape == (256, 2) and np.array_equal(halved[0][:128], -halved[0][128:])
    # It ends where it gained too little, where Y is steady, or where no gain is promised.
    assert len(search(monkeypatch, [wide(9), wide(8.981), wide(1)])[1]) == 2
    assert len(search(monkeypatch, [wide(9), wide(8.979), wide(1), wide(0.999)])[1]) == 4
    for spread, rounds in ((0.39, 1), (0.41, 3)):
        values = [x + spread * np.sign(np.arange(128) - 63.5) for x in (9, 8, 7.99)]
        assert len(search(monkeypatch, values)[1]) == rounds
    for gain, rounds in ((0.019, 1), (0.021, 2)):
        assert len(search(monkeypatch, [wide(9), wide(8.99)], steps=[(np.eye(2), gain)])[1]) == rounds
    # Of another scale, all of it.
    assert len(search(monkeypatch, [wide(9), wide(8.81), wide(1)], scales=10.0)[1]) == 2
    assert search(monkeypatch, [wide(9), wide(8.81)], scales=10.0)[2] == pytest.approx([0.005, 0.05])


def test_the_pilot_halves_a_step_that_was_too_long(monkeypatch):
    found, factors, *_ = search(monkeypatch, [wide(9), wide(10), wide(11), wide(12), wide(0)])
    assert [f[0, 0] for f in factors] == pytest.approx([1, 2, 2**0.5, 2**0.25]) and found[0].factor[0, 0] == 1
    assert np.allclose(found[1], wide(9)) and found[3] == 4 * 700
    found, factors, *_ = search(monkeypatch, [wide(9), wide(10), wide(8), wide(7.99)])
    assert found[0].factor[0, 0] == pytest.approx(2**0.5 * 2) and len(factors) == 4
    assert search(monkeypatch, [None])[0] is None and search(monkeypatch, [wide(9), None])[0] is None
    assert search(monkeypatch, [np.full(128, np.inf)])[0] is None
    some = wide(9)
    for broken, known in ((12, True), (13, False)):  # nine tenths of 128
        found = search(monkeypatch, [np.where(np.arange(128) < broken, np.inf, some), wide(50), wide(50), wide(50)])[0]
        assert (found is not None) == known
    assert found is None
    values = np.where(np.arange(128) < 12, np.inf, some)
    assert np.allclose(search(monkeypatch, [values, wide(50), wide(50), wide(50)])[0][1], some[12:])
    far = search(monkeypatch, [wide(9), wide(1)], steps=[(np.full((2, 2), np.nan), 1e9)])
    assert len(far[1]) == 1 and far[0][2] == 3


def test_the_pilot_weighs_the_determinant(monkeypatch):
    held, _ = problem()
    calls = []

    def of(self, half, tolerance):
        calls.append(self.factor[0, 0])
        return (wide(9.0 - 2 * (len(calls) > 1)), half, 256)

    monkeypatch.setattr(dual._Frame, "values", of)
    monkeypatch.setattr(dual, "_dual_step", lambda *_: (np.eye(2) * 2, 1e9))
    found = dual._pilot(dual._Frame(held), np.random.default_rng(0), None)
    # 7 + 2 log 2 is below 9, so it is the best; what follows is not below it.
    assert found[0].factor[0, 0] == 2 and calls == pytest.approx([1, 2, 4, 2 * 2**0.5, 2 * 2**0.25])
    frame, scale = dual.pilot_frame(held, np.random.default_rng(0), 0.5)
    assert scale == pytest.approx(dual._scale(wide(7.0), frame.log_det[0], 0.5))
    monkeypatch.setattr(dual, "_pilot", lambda *_: None)
    assert dual.pilot_frame(held, np.random.default_rng(0), 0.5) is None


def sampled(monkeypatch, energy, *, most=10**6, values=lambda half: 0.1 * half[:, 0] + 0.3, drawn=(1.0, 0.4, 0.2)):
    held, _ = problem()
    seen = SimpleNamespace(plan=None, half=None, tolerance=None)
    pilot = np.random.default_rng(1).normal(size=128) * 0.1 + 0.3

    class Frame:
        log_det = (0.7, 0.01)

        def values(self, half, tolerance):
            seen.half, seen.tolerance = half, tolerance
            return None if values is None else (values(half), half, 1111)

    def plan(pilot, scale, level, affordable, width):
        seen.plan = (scale, level, affordable, width)
        return 600, 0.05, 0.9

    monkeypatch.setattr(dual, "_pilot", lambda frame, rng, offset: (Frame(), pilot, 5, 99))
    monkeypatch.setattr(dual, "_plan", plan)
    monkeypatch.setattr(dual, "_scale", lambda values, log_det, offset: 2.0 + (0 if offset is None else offset))
    monkeypatch.setattr(dual, "_energy_from_draws", lambda *given: seen.__dict__.update(delta=given[4]) or drawn)
    return dual._sampled_bound(held, energy, 0.04, 7, most), seen


def test_a_sampled_bound_is_put_together(monkeypatch):
    found, seen = sampled(monkeypatch, Energy(1.5, 0.25))
    y = 0.1 * seen.half[:, 0] + 0.3
    mass = 0.7 + 0.01 - dual.log_mean_lower_bound(-y, -0.9, -0.05, 0.04)
    middle = -math.log(np.mean(np.exp(-np.clip(y, 0.05, 0.9))))
    assert seen.half.shape == (600, 2) and seen.tolerance == pytest.approx(0.005 * 2.5)
    assert seen.plan == (2.5, 0.04, 32_768, 0.15)
    assert found.log_mass == pytest.approx(mass) and found.kl == pytest.approx(0.5 + 0.25 + mass) and found.proven
    assert found.estimate == pytest.approx(0.5 + 0.7 + middle)
    assert (found.num_pairs, found.num_evaluations) == (600, 99 + 1111)
    assert sampled(monkeypatch, Energy(1.5), most=20_000)[1].plan[2] == 2000
    assert sampled(monkeypatch, Energy(1.5), most=100)[1].plan[2] == 512
    low, _ = sampled(monkeypatch, Energy(-50.0))
    assert (low.kl, low.estimate) == (0.0, 0.0)
    assert sampled(monkeypatch, Energy(1.5), values=None)[0] is None
    # From draws: half of what may go wrong for each; proven unless that is more than twice as much.
    for sure, proven in ((1.0, True), (50.0, False)):
        found, seen = sampled(monkeypatch, Energy(None), drawn=(sure, 0.4, 0.2))
        assert seen.plan == (2.0, 0.02, 32_768, 0.05) and seen.delta == 0.02
        mass = 0.71 - dual.log_mean_lower_bound(-y, -0.9, -0.05, 0.02)
        assert found.proven == proven and found.kl == pytest.approx((sure if proven else 0.4) + mass)
        assert found.num_evaluations == 99 + 1111 + 1200 and found.estimate == pytest.approx(0.2 + 0.7 + middle)
    for share, proven in ((1.999, True), (2.001, False)):
        mass_now = found.log_mass
        sure = share * (0.4 + mass_now) - mass_now
        assert sampled(monkeypatch, Energy(None), drawn=(sure, 0.4, 0.2))[0].proven == proven
    for above, proven in ((0.9e-6, True), (1.1e-6, False)):
        assert sampled(monkeypatch, Energy(None), drawn=(above - mass_now, -9.0, 0.2))[0].proven == proven
    monkeypatch.setattr(dual, "_pilot", lambda *_: None)
    assert dual._sampled_bound(problem()[0], Energy(1.5), 0.04, 7, 1000) is None


def test_the_energy_from_draws(monkeypatch):
    held, _ = problem()
    half = np.random.default_rng(2).normal(size=(50, 2))
    pilot = np.random.default_rng(3).normal(size=128) * 0.1 + 0.5
    values = np.random.default_rng(4).normal(size=50) * 0.1 + 0.5
    values[7] = 9.0

    def run(upper, pilot=pilot, values=values, delta=0.02):
        given = iter((pilot, values))
        monkeypatch.setattr(dual, "_pair_energies", lambda problem, half: next(given))
        return dual._energy_from_draws(held, Energy(None, 0.0, upper), np.random.default_rng(0), half, delta)

    upper = np.diag([1.5, 1.2])
    for one in (pilot, np.where(np.arange(128) < 3, 0.9, np.tile([0.49, 0.51], 64)), np.full(128, 0.5)):
        centre, spread = np.median(one), math.sqrt(np.mean((one - np.mean(one)) ** 2))
        reach = max(5 * max(one.max() - centre, centre - one.min()), 6 * spread, 1e-12)
        clipped = np.clip(values, centre - reach, centre + reach)
        above = int(np.sum(values > centre + reach))
        bound = dual.bernstein_bound(clipped, 2 * reach, math.log(2 / 0.01))
        weights = np.array([0.2, 0.5])
        bound += dual.quadratic_tail(weights + 1.5e-10, -(centre + reach), clopper_pearson(above, 50, 0.01))
        found = run(upper, one)
        assert found == pytest.approx((bound, dual.skewed_bound(values, 0.02), np.mean(values)), rel=1e-7)
    two_sided = np.tile([0.5 - 0.1, 0.5 + 0.1], 64)  # deviations decide
    centre, reach = 0.5, 0.6
    bound = dual.bernstein_bound(np.clip(values, -0.1, 1.1), 1.2, math.log(200))
    bound += dual.quadratic_tail(np.array([0.2, 0.5]) + 1.5e-10, -1.1, clopper_pearson(1, 50, 0.01))
    assert run(upper, two_sided)[0] == pytest.approx(bound, rel=1e-7)
    assert run(None) == (math.inf, dual.skewed_bound(values, 0.02), np.mean(values))
    assert run(upper, np.full(128, np.nan))[0] == math.inf
    assert run(upper, values=np.full(50, np.inf)) == (math.inf, math.inf, math.inf)


def test_energies_of_pairs_are_those_of_the_potential(monkeypatch):
    held, _ = problem()
    half = RNG.normal(size=(11, 2))
    errors = []

    def at(w):
        value, _, error, _ = (np.asarray(x) for x in dual.evaluate(held, w[None]))
        errors.append(float(error[0]))
        eta = np.asarray(held.centre) + DESIGN @ held.root @ w
        sign = 2 * LABELS - 1
        logistic = np.sum(np.logaddexp(0, -sign * eta) - np.logaddexp(0, -sign * np.asarray(held.centre)))
        direct = logistic + 0.5 * w @ held.prior_curvature @ w + held.prior_gradient @ w
        assert direct == pytest.approx(float(value[0]), abs=1e-12)
        return direct + float(error[0])

    expected = [(at(u) + at(-u)) / 2 - u @ u / 2 for u in half]
    monkeypatch.setattr(RowProblem, "chunk", 8)
    assert np.allclose(dual._pair_energies(held, half), expected, rtol=0, atol=1e-15 + 1e-2 * max(errors))
    assert np.all(dual._pair_energies(held, half) - expected > -1e-3 * max(errors) - 1e-15)


def test_constants():
    assert (dual.FEWEST_PAIRS, dual.MOST_PAIRS) == (512, 32_768) and Energy(1.0) == Energy(1.0, 0.0, None)
    assert special.betaincinv(1, 10, 0.9) == pytest.approx(clopper_pearson(0, 10, 0.1))
