"""`certificates/linear/bounds.py`: each bound from its definition, by other algebra, search or quadrature."""

import dataclasses
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, linalg, optimize, special, stats

from provi.certificates.bounds import LOCAL, GapBound
from provi.certificates.linear import bounds as linear
from provi.certificates.linear.bounds import NAMES, WhitenedPass
from provi.families import Gaussian, Laplace, StudentT
from provi.families.location_scale import LocationScale
from provi.targets import LogisticRegression, PoissonRegression, ProbitRegression
from provi.targets.row_sums import Rows
from support import linear_models
from support.formulas import fresh, same

RNG = np.random.default_rng(3)
DESIGN = RNG.normal(size=(5, 2))
LABELS = np.array([0, 1, 1, 0, 1])
LOC, ROOT = np.array([0.3, -0.6]), np.array([[0.7, 0.0], [0.2, 0.5]])


def symmetric(dim=3, size=0.3, seed=0):
    half = np.random.default_rng(seed).normal(size=(dim, dim))
    return size * (half + half.T) / 2


def some_pass(dim=3, diagonal=False, **changed):
    """A pass that nothing was computed for: numbers with errors."""
    lower = np.eye(dim) * 0.4 + symmetric(dim, 0.1, 1)
    prior = np.eye(dim) * 0.3 + symmetric(dim, 0.05, 2)
    curvature = np.eye(dim) + symmetric(dim, 0.2, 3)
    held = dict(
        loc=np.zeros(dim), root=np.eye(dim), prior=prior, lower=lower, likelihood=curvature - prior,
        gradient=np.linspace(0.1, 0.4, dim), curvature=curvature, gradient_error=0.01, curvature_error=0.02,
        diagonal=diagonal, gram=curvature - prior, gram_error=0.03, deficits=None,
    )  # fmt: skip
    return WhitenedPass(**{**held, **changed})


def test_rounded_down_takes_off_the_error_and_the_rounding(coarse):
    matrix = symmetric(4, 1.0)
    assert np.array_equal(linear.rounded_down(matrix, math.inf), matrix)
    unit = coarse(linear)
    taken = 0.25 + 16 * 4 * unit * np.abs(np.diag(matrix)).sum()
    assert np.allclose(linear.rounded_down(matrix, 0.25), matrix - taken * np.eye(4), rtol=0, atol=1e-14)


def test_the_part_of_the_mean():
    at, curvature = some_pass(), np.eye(3) + symmetric()
    norm = math.sqrt(at.gradient @ np.linalg.inv(curvature) @ at.gradient)
    assert linear.mean_part(at, curvature, 0.5) == pytest.approx((norm + 0.01 / math.sqrt(0.5)) ** 2 / 2, rel=1e-12)
    for smallest in (0.0, -0.1):
        assert linear.mean_part(at, curvature, smallest) == math.inf
    assert linear.mean_part(at, -curvature, 0.5) == math.inf  # without a factor


@pytest.mark.parametrize("diagonal", [False, True])
def test_strong_convexity_is_a_dual_norm_in_mean_and_scale(diagonal):
    """The sup of <R, D> - <D, HD> / 2: by Sylvester's equation, or entry by entry."""
    at = some_pass(diagonal=diagonal)
    residual, least = at.curvature - np.eye(3), float(np.linalg.eigvalsh(at.lower)[0])
    if diagonal:
        solved = np.diag(np.diag(residual) / np.diag(at.lower))
        least_weight = np.diag(at.lower).min()
    else:
        solved, least_weight = linalg.solve_sylvester(at.lower / 2, at.lower / 2, residual), least
    square = float(np.sum(residual * solved)) if not diagonal else float(np.diag(residual) @ np.diag(solved))
    covariance = (math.sqrt(square) + 0.02 / math.sqrt(least_weight)) ** 2 / 2
    expected = linear.mean_part(at, at.lower, least) + covariance
    found = linear.strong_convexity_bound(at)
    assert same(found, NAMES[0], expected)
    for lower in (np.diag([0.0, 1, 1]), np.diag([-0.2, 1, 1])):
        nothing = linear.strong_convexity_bound(dataclasses.replace(at, lower=lower))
        assert (nothing.value, nothing.detail) == (math.inf, "no positive curvature bound")


@pytest.mark.parametrize("diagonal", [False, True])
def test_j_of_every_matrix_within_the_error(diagonal, coarse):
    at = some_pass(diagonal=diagonal)
    worst = 0.0
    for seed in range(200):  # above all of them
        away = symmetric(3, 1.0, seed)
        away = np.diag(np.diag(away)) if diagonal else away
        moved = np.linalg.eigvalsh((np.diag(np.diag(at.curvature)) if diagonal else at.curvature)
                                   + 0.02 * away / np.linalg.norm(away))  # fmt: skip
        worst = max(worst, float(np.sum(moved - 1 - np.log(moved))))
    assert worst <= linear.log_det_part(at) <= 1.2 * worst
    unit = coarse(linear)
    values = np.diag(at.curvature) if diagonal else np.linalg.eigvalsh(at.curvature)
    error = 0.02 + 16 * 3 * unit * values.max()
    expected = np.sum(values - 1 - np.log(values)) + error * math.sqrt(np.sum((1 - 1 / values) ** 2))
    expected += 0.5 * (error / (values.min() - error)) ** 2
    assert linear.log_det_part(at) == pytest.approx(expected, rel=1e-12)
    # Finite while the least eigenvalue is above twice the error.
    for share, finite in ((2.01, True), (1.99, False)):
        near = dataclasses.replace(at, curvature=np.diag([share * 0.1, 0.1, 0.1][:1] + [1.0, 1.0]),
                                   curvature_error=0.1 - 16 * 3 * unit)  # fmt: skip
        assert math.isfinite(linear.log_det_part(near)) == finite


def test_the_prior_part_of_a_diagonal_scale_is_a_sup_over_competitors(coarse):
    at = some_pass(diagonal=True, curvature_error=0.0)
    slope, precision = np.diag(at.likelihood), np.diag(at.prior)
    total, best = 0.0, []
    for a, p in zip(slope, precision, strict=True):
        found = optimize.minimize_scalar(
            lambda b, a=a, p=p: -(a * (1 - b) + p / 2 * (1 - b**2) + math.log(b)),
            bounds=(1e-3, 30), method="bounded", options={"xatol": 1e-12},
        )  # fmt: skip
        total, best = total - found.fun, [*best, found.x]
    best = np.asarray(best)
    assert linear.prior_part(at) == pytest.approx(total, rel=1e-9)
    unit = coarse(linear)
    error = 0.05 + 16 * unit * math.sqrt(np.sum((np.abs(slope) + precision) ** 2))
    size = np.sum((np.abs(slope) + precision) * (1 + best**2) + np.abs(np.log(best)))
    expected = (
        total + error * math.sqrt(np.sum((1 - best) ** 2)) + error**2 / 2 / precision.min() + 16 * 3 * unit * size
    )
    assert linear.prior_part(dataclasses.replace(at, curvature_error=0.05)) == pytest.approx(expected, rel=1e-7)
    for least in (0.0, -0.1):
        assert linear.prior_part(dataclasses.replace(at, prior=np.diag([least, 1, 1.0]))) == math.inf


def test_the_prior_part_of_all_covariances_is_a_sup_over_competitors(coarse):
    """In prior units, over all C', from many starts: <A, C - C'> + h(C) - h(C'), at the best rotation."""
    at = some_pass(2, curvature_error=0.0)
    lower = np.linalg.cholesky(at.prior)
    own, gradient = lower.T, np.linalg.inv(lower) @ at.likelihood

    def h(c):
        return 0.5 * np.sum(c**2) - np.log(abs(np.linalg.det(c)))

    def value(entries):
        other = np.reshape(entries, (2, 2))
        return -(np.sum(gradient * own) - np.linalg.svd(gradient @ other.T)[1].sum() + h(own) - h(other))

    best = min((optimize.minimize(value, RNG.normal(size=4), method="BFGS", options={"gtol": 1e-9}) for _ in range(6)),
               key=lambda found: found.fun)  # fmt: skip
    assert linear.prior_part(at) == pytest.approx(-best.fun, rel=1e-7)
    # What an error of the matrix and rounding add.
    unit = coarse(linear)
    singular = np.linalg.svd(gradient)[1]
    spread = (np.sqrt(singular**2 + 4) - singular) / 2
    left, _, right = np.linalg.svd(gradient)
    other = left @ np.diag(spread) @ right
    size = np.abs(gradient * own).sum() + np.sum(own**2) + 2 + np.abs(np.log(np.diag(lower))).sum()
    error = 0.05 + 16 * 2 * unit * np.linalg.norm(own) * np.linalg.norm(gradient)
    error /= math.sqrt(np.linalg.eigvalsh(at.prior)[0])
    expected = -best.fun + error * np.linalg.norm(own - other) + error**2 / 2 + 16 * 2 * unit * size
    assert linear.prior_part(dataclasses.replace(at, curvature_error=0.05)) == pytest.approx(expected, rel=1e-6)
    assert linear.prior_part(dataclasses.replace(at, prior=-at.prior)) == math.inf


def test_linearisation_takes_the_smaller_part_where_the_prior_counts(monkeypatch):
    def found(dim=2, log_det=5.0, prior=2.0, deficits=None):
        monkeypatch.setattr(linear, "log_det_part", lambda at: log_det)
        monkeypatch.setattr(linear, "prior_part", lambda at: prior)
        at = some_pass(dim, lower=np.eye(dim), gradient=np.zeros(dim), gradient_error=0.0, deficits=deficits)
        bound = linear.linearisation_bound(at)
        assert (bound.name, bound.status) == (NAMES[1], "proven")
        return bound.value

    assert found() == 2.0 and found(log_det=1.0) == 1.0 and found(deficits=np.zeros((3, 3))) == 5.0
    assert found(300) == 2.0 and found(301) == 5.0
    at = some_pass()
    least = float(np.linalg.eigvalsh(at.lower)[0])
    assert linear.linearisation_bound(at).value == pytest.approx(2 + linear.mean_part(at, at.lower, least), rel=1e-12)


def test_regions_by_the_way(monkeypatch, coarse):
    """The first region and share that hold the best member: the three numbers that decide, one pair after the other."""
    unit, gram = coarse(linear), np.eye(2) * 0.9
    at = some_pass(2, gram=gram, gram_error=0.1, prior=np.eye(2) * 0.2, curvature=np.eye(2) * 1.1,
                   gradient=np.array([0.01, 0.0]),
                   deficits=np.array([[0.5, 0.3, 0.02], [0.1, 0.2, 0.3], [0, 0, 0.0]]))  # fmt: skip
    covariance = linear.log_det_part(at)
    asked = []

    def needed(answer):
        def call(radius, size, smallest, mean):
            asked.append((radius, size, smallest, mean))
            return answer(len(asked))

        return call

    for number in (1, 5, 9, 99):
        asked.clear()
        monkeypatch.setattr(linear, "needed_radius", needed(lambda k, n=number: 0.0 if k == n else 9.0))
        found = linear.local_bound_by_the_way(at, 0.3)
        expected = []
        for radius, row in zip((0.1, 0.3, 1.0), at.deficits, strict=True):
            for share, deficit in zip((0.98, 0.9, 0.6), row, strict=True):
                lacking = share * 0.1 + 1.000001 * deficit
                smallest = 0.2 + share * 0.9 - lacking - 16 * 2 * unit * 2 * share * 0.9
                if smallest > 0:
                    mean = 0.5 * (0.01 / math.sqrt(smallest) + at.gradient_error / math.sqrt(smallest)) ** 2
                    expected.append((radius, 0.3, smallest, mean))
        assert len(expected) == 9 and np.allclose(asked, expected[:number], rtol=1e-10)
        if number == 99:
            assert found is None
        else:
            radius, _, _, mean = expected[number - 1]
            assert same(found, LOCAL, mean + covariance, f"on a region of radius {radius:.2g} around q")
    assert linear.local_bound_by_the_way(dataclasses.replace(at, deficits=None), 0.3) is None
    assert linear.local_bound_by_the_way(dataclasses.replace(at, curvature=-at.curvature), 0.3) is None
    never = dataclasses.replace(at, deficits=np.full((3, 3), 9.0))
    monkeypatch.setattr(linear, "needed_radius", lambda *_: 0.0)
    assert linear.local_bound_by_the_way(never, 0.3) is None  # no curvature is left


def logistic(**more):
    return LogisticRegression(DESIGN, LABELS, prior_scale=1.5, **more)


def test_the_local_bound_asks_for_what_the_formula_says(monkeypatch, coarse):
    target, family = logistic(), Gaussian(2)
    gained, asked = np.array([[0.5, 0.1], [0.2, 0.4]]), {}

    def region(covariance, size, norm, at_radius):
        asked.update(covariance=covariance, size=size, norm=norm, at=at_radius(0.5))
        return GapBound(LOCAL, 1.0, "proven")

    monkeypatch.setattr(linear, "curvature_on_region", lambda double, loc, root, radius: (gained, 0.01))
    monkeypatch.setattr(linear, "region_bound", region)
    at = some_pass(2)
    unit = coarse(linear)
    for diagonal in (False, True):
        at = dataclasses.replace(at, diagonal=diagonal)
        assert linear.local_bound(target, family, at) == GapBound(LOCAL, 1.0, "proven")
        residual = at.curvature - np.eye(2)
        size = math.sqrt(np.sum(np.diag(residual) ** 2 if diagonal else residual**2)) + 0.02
        slack = 5 * unit * 0.9 + 0.01
        slack += 16 * 2 * unit * 0.9
        curvature = at.prior + np.array([[0.5, 0.15], [0.15, 0.4]]) - slack * np.eye(2)
        smallest = float(np.linalg.eigvalsh(curvature)[0])
        assert asked["covariance"] == linear.log_det_part(at) and asked["size"] == pytest.approx(size, rel=1e-12)
        assert asked["norm"] == pytest.approx(np.linalg.norm(at.gradient) + 0.01, rel=1e-14)
        assert asked["at"] == pytest.approx((smallest, linear.mean_part(at, curvature, smallest)), rel=1e-10)
    monkeypatch.setattr(linear, "local_bound_by_the_way", lambda at, size: GapBound("by the way", size, "proven"))
    assert same(linear.local_bound(target, family, at), "by the way", size)
    for model, members, reason in (
        (ProbitRegression(DESIGN, LABELS), family, "the link is not self-concordant"),
        (target, LocationScale(2, Laplace()), "for a normal base only"),
    ):
        assert linear.local_bound(model, members, at) == GapBound(LOCAL, math.inf, "proven", detail=reason)


def test_errors_of_a_pass_are_sums_over_rows(coarse):
    """g, the Gram matrix and both errors, a row at a time, from the module's docstring."""
    target = PoissonRegression(DESIGN, np.array([0, 1, 2, 0, 4]))
    unit = coarse(linear)
    slope, gram, slope_error, weight_error, deficits = fresh(linear._pass)(target, LOC, ROOT, None, False)
    expected_slope, expected_gram, total, weights = np.zeros(2), np.zeros((2, 2)), 0.0, 0.0
    rounding, constant = (5 + 8) * unit, target.self_concordance
    means, exactness = fresh(target.gaussian_moments), fresh(target.moment_errors)
    for row, y in zip(DESIGN, (0.0, 1.0, 2.0, 0.0, 4.0), strict=True):
        seen, centre = ROOT.T @ row, float(row @ LOC)
        variance = float(seen @ seen)
        held = [jnp.asarray([x]) for x in (centre, variance, y)]
        moments, errors = means(*held), exactness(*held)
        alpha, gamma = float(moments.slope[0]), float(moments.weight[0])
        assert gamma == pytest.approx(math.exp(centre + variance / 2)) and alpha == pytest.approx(gamma - y)
        spread = math.sqrt(variance)
        delta = 2 * 2 * unit * float(np.abs(row) @ np.sqrt((ROOT**2).sum(axis=1)))
        nu = 2 * 2 * unit * float(np.abs(row) @ np.abs(LOC))
        nu += float(np.ravel(target.likelihood.shift_error(held[0], held[2]))[0])
        far = 12.0 + constant * spread
        moved = gamma * (nu + far * delta)
        total += (float(errors.slope[0]) + rounding * abs(alpha) + moved) * spread + abs(alpha) * delta
        weights += (float(errors.weight[0]) + rounding * gamma) * variance
        weights += gamma * (2 * delta * spread + delta**2) + far * moved * spread
        expected_slope, expected_gram = expected_slope + alpha * seen, expected_gram + gamma * np.outer(seen, seen)
    assert np.allclose(slope, expected_slope) and np.allclose(gram, expected_gram)
    assert float(slope_error) == pytest.approx(total, rel=1e-10)
    assert float(weight_error) == pytest.approx(weights, rel=1e-10) and np.array_equal(deficits, 0)


GRID, MASSES = np.polynomial.hermite_e.hermegauss(60)
MASSES = MASSES / MASSES.sum()


def second(eta):
    return special.expit(eta) * special.expit(-eta)


def kappa(centre, spread, radius, slack, offset=None):
    """The least curvature of a logistic row on the region, by quadrature; smoothed by the variance `offset`."""
    q = spread * radius + slack
    deviation = spread / math.sqrt(1 + q)

    def smooth(eta):
        if offset is None:
            return second(eta)
        return second(eta + math.sqrt(offset) * GRID) @ MASSES

    m0, m1, m2 = (integrate.quad(lambda t, j=j: t**j * smooth(centre + deviation * t) * stats.norm.pdf(t), -9, 9)[0]
                  for j in range(3))  # fmt: skip
    return math.exp(-1.5 * q) / math.sqrt(1 + q) * (m0 - m1**2 / m2)


def test_curvature_on_a_region_and_what_rows_lack(coarse):
    target, radius = logistic(), 0.4
    unit = coarse(linear)
    spreads = np.linalg.norm(DESIGN @ ROOT, axis=1)
    delta = 4 * unit * np.abs(DESIGN) @ np.sqrt((ROOT**2).sum(axis=1))
    nu = 4 * unit * np.abs(DESIGN) @ np.abs(LOC)
    nu = nu + np.asarray(target.likelihood.shift_error(jnp.asarray(DESIGN @ LOC), jnp.asarray(LABELS)))
    kappas = np.array([kappa(c, s, radius, n + (1 + radius) * d)
                       for c, s, n, d in zip(DESIGN @ LOC, spreads, nu, delta, strict=True)])  # fmt: skip
    gained, error = fresh(linear.curvature_on_region)(target, LOC, ROOT, np.asarray(radius))
    rows = DESIGN @ ROOT
    assert np.allclose(gained, rows.T @ (kappas[:, None] * rows), rtol=1e-7)
    assert float(error) == pytest.approx(np.sum(kappas * (2 * spreads + delta) * delta), rel=1e-6)
    weight = np.array([0.3, 0.2, 0.05, 0.25, 0.1])
    block = Rows(jnp.asarray(DESIGN), jnp.asarray(LABELS, float))
    lacks = fresh(linear._deficits)(target, block, weight, DESIGN @ LOC, spreads, delta, nu, radius)
    expected = [np.maximum(share * weight - kappas, 0) * (spreads + delta) ** 2 for share in (0.98, 0.9, 0.6)]
    assert np.allclose(lacks, expected, rtol=1e-6) and np.count_nonzero(expected) not in (0, 15)
    # In a pass: summed over the rows, region by region.
    found = fresh(linear._pass)(target, LOC, ROOT, None, True)[4]
    gamma = np.asarray(
        fresh(target.gaussian_moments)(jnp.asarray(DESIGN @ LOC), jnp.asarray(spreads**2), block.response).weight
    )
    for j, radius in enumerate((0.1, 0.3, 1.0)):
        each = fresh(linear._deficits)(target, block, gamma, DESIGN @ LOC, spreads, delta, nu, radius)
        assert np.allclose(found[j], np.asarray(each).sum(axis=1), rtol=1e-9)


def test_local_curvature_of_rows_smoothed_by_an_offset():
    target, spreads = logistic(), np.linalg.norm(DESIGN @ ROOT, axis=1)
    rows, centre = jnp.asarray(DESIGN @ ROOT), jnp.asarray(DESIGN @ LOC)
    for offset in (None, np.array([0.5, 0.1, 1.0, 2.0, 0.3])):
        given = None if offset is None else jnp.asarray(offset)
        found = fresh(linear.local_curvature)(target, rows, centre, jnp.asarray(spreads), 0.3, given)
        kappas = np.array([kappa(c, s, 0.3, 0.0, None if offset is None else offset[k])
                           for k, (c, s) in enumerate(zip(DESIGN @ LOC, spreads, strict=True))])  # fmt: skip
        assert np.allclose(found, np.asarray(rows).T @ (kappas[:, None] * np.asarray(rows)), rtol=1e-6)
    # Without any spread all is in the offset, or nothing at all.
    zero = jnp.zeros(1)
    for variance in (0.7, 0.0):
        m0, m1, m2, _ = fresh(linear.smoothed_moments)(target, jnp.asarray([0.4]), zero, jnp.asarray([variance]))
        truth = integrate.quad(lambda e, v=variance: second(0.4 + math.sqrt(v) * e) * stats.norm.pdf(e), -9, 9)[0]
        assert np.allclose([m0, m1, m2], [[truth], [0.0], [truth]], atol=1e-9)


def test_moments_by_a_rule_are_trusted_where_it_was_tested(monkeypatch):
    target = logistic()
    nodes, weights = np.array([0.0, 1.0, 3.0]), np.array([0.3, 0.2, 0.15])
    rule = (jnp.asarray(nodes), jnp.asarray(weights))

    def found(spread, weights=rule[1], target=target, centre=0.2):
        given = jnp.asarray([centre]), jnp.asarray([spread**2]), jnp.asarray([1.0])
        moments, errors = fresh(linear.moments_and_errors)(target, *given, (rule[0], weights))
        return [float(x[0]) for x in (moments.value, moments.slope, moments.weight)], [
            float(x[0]) for x in (errors.value, errors.slope, errors.weight)
        ]

    moments, errors = found(0.5)
    largest = float(target.likelihood.largest_weight)
    assert errors == pytest.approx([1e-9 * largest * (1 + abs(x)) for x in moments], rel=1e-12)
    for bend in (0.5, 2.0):  # the link's, narrower or wider than a unit
        monkeypatch.setattr(type(target.likelihood), "bend", lambda self, y, b=bend: (0 * y, 0 * y + b))
        monkeypatch.setattr(type(target.likelihood), "largest_weight", bend)
        assert found(0.5)[1] == pytest.approx([1e-9 * bend * (1 + abs(x)) for x in moments], rel=1e-12)
        width = min(bend, 1.0)
        assert math.isfinite(found(9.99 * width)[1][0]) and not math.isfinite(found(10.01 * width)[1][0])
    monkeypatch.undo()
    width = min(float(target.likelihood.bend(jnp.asarray([1.0]))[1][0]), 1.0)
    assert math.isfinite(found(9.99 * width)[1][0]) and not math.isfinite(found(10.01 * width)[1][0])
    # A last node without weight, where the link is not small beside what the mean is: the mean may be infinite.
    value = moments[0]
    for scale, finite in ((0.99, True), (1.01, False)):

        def link(eta):
            return np.logaddexp(0, -eta)

        ends = 3.0 * (link(0.2 + 0.5 * 3.0) + link(0.2 - 0.5 * 3.0))
        # Of a weight so small, the moments are those of the other two nodes.
        few = [0.3, 0.2, 0.0]
        value = found(0.5, jnp.asarray(few))[0][0]
        last = scale * 1e-12 * (1 + abs(value)) / ends
        assert math.isfinite(found(0.5, jnp.asarray([0.3, 0.2, last]))[1][0]) == finite
    assert 0.9e-12 > last  # it is the link that decided, and not the weight
    assert math.isfinite(found(0.5, jnp.asarray([0.3, 0.2, 1.1e-12]))[1][0])
    exact, _ = fresh(linear.moments_and_errors)(
        target, jnp.asarray([0.2]), jnp.asarray([0.25]), jnp.asarray([1.0]), None
    )
    truth = integrate.quad(lambda t: np.logaddexp(0, -0.2 - 0.5 * t) * stats.norm.pdf(t), -12, 12)[0]
    assert float(exact.value[0]) == pytest.approx(truth, rel=1e-7)


@pytest.mark.parametrize("kind", ["logistic", "linear", "poisson"])
def test_a_pass_puts_prior_and_terms_together(kind, monkeypatch):
    target = linear_models.linear_model(kind, terms=12)
    family, covariance = Gaussian(3), np.diag([0.2, 0.1, 0.3]) + 0.02
    loc = np.array([0.1, -0.3, 0.4])
    at = linear.whitened_pass(target, family, family.point_from_covariance(loc, covariance))
    root = at.root
    assert np.allclose(root @ root.T, covariance)
    gradient, precision = linear_models.gradients(target, loc, covariance)
    prior = root.T @ target.prior.precision_matrix() @ root
    assert np.allclose(at.gradient, root.T @ gradient, atol=1e-8)
    assert np.allclose(at.curvature, root.T @ precision @ root, atol=1e-8)
    assert np.allclose(at.gram, at.curvature - prior, atol=1e-8) and not at.diagonal and at.deficits is None
    least = {"linear": 1.0, "logistic": 0.0, "poisson": 0.0}[kind]
    assert np.allclose(at.lower, prior + least * at.gram, atol=1e-8) and np.allclose(at.prior, prior, atol=1e-8)
    assert np.allclose(at.prior + at.likelihood, at.curvature, atol=0, rtol=1e-14)
    assert 0 < at.gradient_error < 1e-7 and 0 < at.gram_error < at.curvature_error < 1e-7
    # Errors of the prior and of the terms are added; of the global bound, that of its share of the terms.
    held = SimpleNamespace(curvature=prior, curvature_error=0.25, gradient=np.ones(3), gradient_error=0.5)
    monkeypatch.setattr(linear, "whitened_prior", lambda *_: held)
    gram = at.gram + np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0.0]])
    monkeypatch.setattr(linear, "_pass", lambda *_: (np.full(3, 2.0), gram, 0.125, 0.0625, np.ones((3, 3))))
    added = linear.whitened_pass(target, family, family.point_from_covariance(loc, covariance))
    assert (added.gradient_error, added.curvature_error, added.gram_error) == (0.625, 0.3125, 0.0625)
    assert np.array_equal(added.gradient, np.full(3, 3.0)) and np.allclose(added.gram, at.gram)
    assert np.allclose(added.prior, linear.rounded_down(prior, 0.25))
    expected = linear.rounded_down(prior + least * at.gram, 0.25 + least * 0.0625)
    assert np.allclose(added.lower, expected, rtol=1e-12)
    diagonal = Gaussian(3, "diagonal")
    assert linear.whitened_pass(target, diagonal, diagonal.point_from_covariance(loc, np.diag([1.0, 2, 3]))).diagonal


def test_regions_are_looked_at_where_a_pass_is_long(monkeypatch):
    seen = []
    monkeypatch.setattr(linear, "_pass", lambda t, loc, root, rule, regions: seen.append(regions) or (
        np.zeros(2), np.eye(2), 0.0, 0.0, np.ones((3, 3))))  # fmt: skip
    point = Gaussian(2).point_from_covariance(LOC, np.eye(2))
    for block, target, family in (
        (4, logistic(), Gaussian(2)), (5, logistic(), Gaussian(2)), (4, ProbitRegression(DESIGN, LABELS), Gaussian(2)),
        (4, logistic(), LocationScale(2, StudentT(9.0))),
    ):  # fmt: skip
        monkeypatch.setattr(linear, "block_size", lambda target, block=block: block)
        at = linear.whitened_pass(target, family, point)
        assert (at.deficits is not None) == seen[-1]
    assert seen == [True, False, False, False]


def test_nothing_is_bounded_where_a_mean_is_not_finite(monkeypatch):
    at, target, family, seen = some_pass(2), logistic(), Gaussian(2), []
    monkeypatch.setattr(linear, "local_bound", lambda *_: GapBound(LOCAL, 3.0, "proven"))
    point = family.point_from_covariance(LOC, np.eye(2))
    for name, value in (("gradient", np.array([0.0, np.inf])), ("curvature", np.full((2, 2), np.nan)),
                        ("gradient_error", math.inf), ("curvature_error", math.nan)):  # fmt: skip
        monkeypatch.setattr(linear, "whitened_pass", lambda *_, n=name, v=value: dataclasses.replace(at, **{n: v}))
        bounds = linear.linear_model_bounds(target, family, point)
        assert [(b.name, b.value) for b in bounds] == [(name, math.inf) for name in NAMES]
        assert all("infinite" in b.detail for b in bounds)
    monkeypatch.setattr(linear, "whitened_pass", lambda *_: at)
    bounds = linear.linear_model_bounds(target, family, point)
    expected = linear.strong_convexity_bound(at), linear.linearisation_bound(at), GapBound(LOCAL, 3.0, "proven")
    assert bounds == expected
    monkeypatch.setattr(linear, "on_grounds_of", lambda *given: seen.append(given) or given[1])
    linear.linear_model_bounds(target, family, point)
    linear.linear_model_bounds(target, LocationScale(2, Laplace()), point)
    assert [given[2] for given in seen] == [True, False] and all(given[1] == expected for given in seen)
