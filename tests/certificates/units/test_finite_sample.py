"""`monte_carlo/finite_sample.py`: each statement from its formula, and what they rest on by brute force."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from provi.certificates.bounds import log_det_gap, log_det_gap_from_norm
from provi.certificates.monte_carlo import finite_sample
from provi.certificates.monte_carlo.batch_sums import Frame
from provi.certificates.monte_carlo.finite_sample import Slopes
from provi.families import Gaussian, Laplace, LocationScale, Normal
from provi.targets import LinearRegression, LogDensity
from support.formulas import fresh

RNG = np.random.default_rng(5)
UNIT = 2.0**-52


def definite(dim, seed, least=0.2):
    half = np.random.default_rng(seed).normal(size=(dim, dim))
    return half @ half.T / dim + least * np.eye(dim)


def slack(matrix, unit=UNIT):
    return 8 * len(matrix) * unit * math.sqrt(np.sum(np.asarray(matrix) ** 2))


def test_statements_of_one_mean():
    """(1) solves d^2 = 2 a d + 2 s^2 l / n; (2) and (3) as they stand."""
    for spread, bound, count, delta in ((0.7, 2.0, 50, 0.01), (0.0, 3.0, 7, 0.2), (1.5, 0.1, 1000, 1e-4)):
        level = math.log(2 / delta)
        a = 2 * bound * level / (3 * count)
        d = finite_sample.deviation(spread, bound, count, delta)
        assert d**2 == pytest.approx(2 * a * d + 2 * spread**2 * level / count, rel=1e-12) and d >= 2 * a
        once = math.sqrt(2 * -math.log(delta) / count)
        root = finite_sample.bounded_root(spread**2, bound, count, delta)
        assert root == pytest.approx(min(spread + bound * once, bound), rel=1e-14)
        root = finite_sample.lipschitz_root(spread**2, bound, count, delta)
        assert root**2 == pytest.approx((spread + bound * once) ** 2 + bound**2 / count, rel=1e-13)


def test_moments_of_the_tail_by_quadrature():
    for dim, radius, power in ((1, 0.5, 1), (3, 2.0, 1), (3, 2.0, 2), (6, 0.0, 2), (2, 4.0, 2)):
        truth = integrate.quad(lambda r, p=power, d=dim: r**p * stats.chi.pdf(r, d), radius, radius + 40)[0]
        assert finite_sample.tail_moment(dim, radius, power) == pytest.approx(truth, rel=1e-8)


def test_the_cut_is_the_best_radius_of_its_grid():
    for dim, pairs, share in ((1, 1000, 0.01), (9, 20_000, 0.001), (4, 100, 0.1)):
        radii = [math.sqrt(dim) + k / 8 for k in range(97)]
        costs = [r**2 * 10 / 3 * math.log(2 / share) / pairs + finite_sample.tail_moment(dim, r, 2) for r in radii]
        assert finite_sample._cut(dim, pairs, share) == pytest.approx(radii[int(np.argmin(costs))], rel=1e-14)


def test_the_least_radius_is_that_of_draws_that_see_nothing():
    centre = np.diag([0.5, -0.4])
    for odd, pairs, share in ((0.3, 4000, 0.01), (2.0, 900, 0.02)):
        cut, steep = finite_sample._cut(2, pairs, share), odd / (0.6 - slack(centre))
        spread = cut * steep * math.hypot(math.sqrt(2 * math.log(1 / share) / pairs), 1 / math.sqrt(pairs))
        expected = steep * finite_sample.tail_moment(2, cut, 2)
        expected += finite_sample.deviation(spread, steep * cut**2, pairs, share)
        assert finite_sample._least_radius(odd, centre, 2, pairs, share) == pytest.approx(expected, rel=1e-12)
    assert finite_sample._least_radius(0.3, centre, 2, 0, 0.1) == math.inf
    assert math.isfinite(finite_sample._least_radius(0.3, centre, 2, 1, 0.1))


def test_the_smallest_eigenvalue_and_the_inverse_root(coarse):
    full, vector = definite(3, 1) - np.eye(3), np.array([0.3, -0.5, 0.2])
    root = finite_sample._inverse_root(full)
    assert np.allclose(root @ (np.eye(3) + full) @ root.T, np.eye(3)) and np.allclose(np.triu(root, 1), 0)
    assert np.allclose(finite_sample._inverse_root(vector) * (1 + vector), 1)
    unit = coarse(finite_sample)
    expected = 1 + np.linalg.eigvalsh(full)[0] - slack(full, unit)
    assert finite_sample._smallest(full) == pytest.approx(expected, rel=1e-12)
    assert finite_sample._smallest(vector) == pytest.approx(0.5 - slack(vector[:, None], unit), rel=1e-12)
    assert finite_sample._slack(full) == pytest.approx(slack(full, unit), rel=1e-13)


def test_slopes_of_the_odd_part(coarse):
    unit = coarse(finite_sample)
    low, high = definite(2, 3, 0.1), definite(2, 3, 0.1) + definite(2, 4)
    for centre in (np.array([0.2, -0.3]), np.array([[0.2, 0.1], [0.1, -0.3]]), np.eye(2) * 9, np.eye(2) * -0.9):
        seen = np.eye(2) + (np.diag(centre) if centre.ndim == 1 else centre)
        largest = max(np.linalg.eigvalsh(high - seen)[-1], np.linalg.eigvalsh(seen - low)[-1], 0)
        expected = largest + slack(high, unit) + slack(seen, unit)
        found = Slopes(low, high, np.eye(2), 1.0, "").odd(centre)
        assert found == pytest.approx(expected, rel=1e-12)
    same = Slopes(np.full(2, 2.0), np.full(2, 2.0), np.eye(2), 1.0, "")
    assert same.odd(np.ones(2)) == 0.0 and same.odd(np.eye(2)) == 0.0
    for low, high, expected in (([0.5, 0.9], [2.0, 4.0], 3.25), ([-3.0, 0.9], [2.0, 4.0], 4.5)):
        unequal = Slopes(np.array(low), np.array(high), np.eye(2), 1.0, "")
        assert unequal.odd(np.diag([0.5, -0.25])) == unequal.odd(np.array([0.5, -0.25])) == expected


def test_slopes_of_the_even_part_cover_every_difference(coarse):
    """|W D| / 2 over -width <= D <= width: against random D; and as it is written."""
    whitener, width = RNG.normal(size=(2, 2)), definite(2, 6, 0.0)
    root = np.linalg.cholesky(width)
    for given in (whitener, np.array([0.5, 2.0])):
        matrix = np.diag(given) if given.ndim == 1 else given
        found = finite_sample._even_slope(given, width)
        seen = 0.0
        for _ in range(300):
            half = RNG.normal(size=(2, 2))
            inner = (half + half.T) / np.linalg.norm(half + half.T, 2)
            seen = max(seen, np.linalg.norm(matrix @ root @ inner @ root.T, 2) / 2)
        assert 0.7 * found < seen <= found
        values, vectors = np.linalg.eigh(width)
        middle = (vectors * np.sqrt(values)) @ vectors.T
        narrow = np.linalg.norm(matrix @ middle, 2) * math.sqrt(values[-1])
        assert found == pytest.approx(min(narrow, np.linalg.norm(matrix, 2) * values[-1]) / 2, rel=1e-10)
        assert finite_sample._even_slope(given, np.array([0.3, 0.7])) == pytest.approx(
            np.linalg.norm(matrix, 2) * 0.7 / 2, rel=1e-14
        )
    assert finite_sample._even_slope(whitener, np.array([-0.3])) == 0.0
    turned = finite_sample._even_slope(np.eye(2), np.array([[1.0, 0.9], [0.9, 1.0]]))  # not its least eigenvalue
    assert turned == pytest.approx(0.95)
    # Nothing is narrower than the whitener where the width is round; its rounding counts, and 1e-12.
    assert finite_sample._even_slope(np.eye(2), np.eye(2)) > 0.5 * (1 + 5e-13)
    unit = coarse(finite_sample)
    rounded = 4.0 + slack(4 * np.eye(2), unit)
    assert finite_sample._even_slope(np.eye(2), 4 * np.eye(2)) == pytest.approx(rounded / 2, rel=1e-9)
    tiny = finite_sample._even_slope(np.eye(2), np.diag([4.0, -1.0]))
    assert tiny == pytest.approx((4 + slack(np.diag([4.0, -1.0]), unit)) / 2, rel=1e-9)


def frame(factor, whitener, claimed=0.0, loc=None, dtype=jnp.float64):
    factor = np.asarray(factor, float)
    loc = np.zeros(factor.shape[0]) if loc is None else loc
    held = (jnp.asarray(loc, dtype), jnp.asarray(factor, dtype))
    white = None if whitener is None else jnp.asarray(whitener, dtype)
    return Frame(*held, white, jnp.asarray(claimed, dtype))


def wavy(z):
    """A potential whose Hessian is between 0.5 and 1.5: its gradient has even and odd parts."""
    return 0.5 * jnp.sum(z**2) + 0.5 * jnp.sum(jnp.sin(z + jnp.asarray([0.3, -0.2]))) + 0.2 * z[0]


def density(**more):
    return LogDensity(lambda z: -wavy(z), 2, **more)


def test_known_slopes_are_the_bounds_of_the_hessian_in_the_coordinates_of_q(coarse):
    design = RNG.normal(size=(6, 2))
    target = LinearRegression(design, RNG.normal(size=6), noise_scale=0.5)
    family, factor = Gaussian(2), np.array([[0.6, 0.0], [-0.2, 0.4]])
    bounds = target.curvature_bounds()
    unit = coarse(finite_sample)
    for given in (factor, np.array([0.5, 0.8])):
        matrix = given if given.ndim == 2 else np.diag(given)
        found = finite_sample.known_slopes(target, family, frame(given, np.eye(2)))
        size = np.zeros((2, 2))
        for i in range(2):
            for j in range(2):
                size[i, j] = sum(abs(matrix[k, i]) * abs(bounds[1][k, m]) * abs(matrix[m, j])
                                 for k in range(2) for m in range(2))  # fmt: skip
        away = slack(size, unit) * np.eye(2)
        assert np.allclose(found.low, matrix.T @ bounds[0] @ matrix - away, rtol=1e-12)
        assert np.allclose(found.high, matrix.T @ bounds[1] @ matrix + away, rtol=1e-12)
        assert found.grounds == "proven bounds of the Hessian"
        assert found.even == finite_sample._even_slope(np.eye(2), found.high - found.low)
        assert np.array_equal(found.low, found.low.T) and np.array_equal(found.high, found.high.T)


def test_known_slopes_of_declared_numbers(coarse, monkeypatch):
    target = density(strong_convexity=0.8, smoothness=1.5)
    unit, family, factor = coarse(finite_sample), Gaussian(2), np.array([[0.6, 0.0], [-0.2, 0.4]])
    for given in (factor, np.array([0.5, 0.8])):
        found = finite_sample.known_slopes(target, family, frame(given, np.eye(2), 0.8))
        own = given.T @ given if given.ndim == 2 else np.diag(given**2)
        away = slack(own, unit) * np.eye(2)
        assert np.allclose(found.low, 0.8 * (own - away)) and np.allclose(found.high, 1.5 * (own + away))
        assert found.grounds == f"smoothness 1.5 ({target.constants.smoothness.status})"
    assert finite_sample.known_slopes(target, family, frame(factor, None)) is None
    assert finite_sample.known_slopes(target, LocationScale(2, Laplace()), frame(factor, np.eye(2))) is None
    assert finite_sample.known_slopes(target, family, frame(factor, np.eye(2), dtype=jnp.float32)) is None
    steep = LogDensity(lambda z: -wavy(z) - jnp.sum(z**4), 2)
    assert finite_sample.known_slopes(steep, family, frame(factor, np.eye(2))) is None
    monkeypatch.setattr(finite_sample, "LARGEST_DENSE", 1)
    many = finite_sample.known_slopes(target, family, frame([0.5, 0.8], [1.0, 2.0], 0.8))
    assert np.allclose(many.low, 0.8 * 0.25) and np.allclose(many.high, 1.5 * 0.64) and many.low.shape == (2,)
    monkeypatch.setattr(finite_sample, "LARGEST_DENSE", 2)
    assert finite_sample.known_slopes(target, family, frame([0.5, 0.8], [1.0, 2.0], 0.8)).low.shape == (2, 2)


def test_the_next_centre_promises_the_smaller_bound():
    """Zero, or the estimate of G, whichever ball has the smaller J; the estimate by other algebra."""

    def promised(estimate, width):
        width, norm = width / 2, math.sqrt(np.sum(estimate**2))
        values = 1 + (estimate if estimate.ndim == 1 else np.linalg.eigvalsh(estimate))
        around = log_det_gap(values) + norm * width + log_det_gap_from_norm(width)
        here = log_det_gap_from_norm(norm + width)
        return around, here, norm

    chosen = []
    for centre in (np.zeros((2, 2)), np.array([[0.4, 0.1], [0.1, -0.2]]), np.zeros(2), np.array([0.3, -0.4])):
        for moment in (np.array([[0.6, 0.2], [0.2, 0.3]]), np.array([[-0.4, 0.1], [0.1, 0.05]]), np.eye(2) * 0.05):
            for width in (0.01, 0.2, 0.9, 2.5):
                given = moment if centre.ndim == 2 else np.diag(moment).copy()
                if centre.ndim == 1:
                    estimate = centre + (1 + centre) * given
                else:
                    root = np.linalg.cholesky(np.eye(2) + centre)
                    estimate = root @ (np.eye(2) + given) @ root.T - np.eye(2)
                around, here, norm = promised(estimate, width)
                takes = around < here or (math.isinf(here) and norm > 0.5)
                found = finite_sample._next_centre(centre, given, width)
                assert np.allclose(found, estimate if takes else 0 * estimate, atol=1e-14)
                chosen.append(takes)
    assert set(chosen) == {True, False}
    far = finite_sample._next_centre(np.zeros(2), np.array([0.6, 0.1]), 3.0)
    assert np.allclose(far, [0.6, 0.1])  # both balls are too large, and zero is too far from the estimate
    assert not finite_sample._next_centre(np.zeros(2), np.array([0.3, 0.1]), 3.0).any()
    for least, taken in ((-0.949, True), (-0.951, False)):
        assert finite_sample._next_centre(np.zeros(2), np.array([least, 0.0]), 0.01).any() == taken


def sums_of(dim=2, **changed):
    held = dict(
        even=np.array([0.05, -0.02]), even_square=0.3, odd_square=0.2, location=np.array([0.03, 0.01]),
        location_square=0.25, moment=np.array([[0.02, 0.01], [0.01, -0.03]]), moment_square=0.15, size=2.0, excess=-1.0,
    )  # fmt: skip
    return SimpleNamespace(**{**held, **changed})


def test_numbers_for_slopes_count_at_their_largest():
    """In many dimensions K_0 and K_1 are multiples of the identity; rounding of the points counts by the largest."""
    sums, centre = sums_of(moment=np.array([0.02, -0.03])), np.array([0.04, -0.02])

    def value(high, moved):
        slopes = Slopes(np.full(2, 0.9), np.asarray(high), np.array([1.0, 0.8]), 0.05, "")
        return finite_sample._value(sums, slopes, centre, np.zeros(2), np.zeros(2), 4.0, 10**6, 0.001, moved)[0]

    flat, uneven = (value(high, 1e-3) for high in ([1.1, 1.1], [0.2, 1.1]))
    assert flat == uneven > value([1.1, 1.1], 0.0)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("case", range(4))
def test_the_value_of_a_check_is_what_seven_statements_give(full, case, coarse):
    """From the docstring of the module, with numbers of each kind small in turn: each minimum takes both sides."""
    unit = coarse(finite_sample)
    rng = np.random.default_rng(case)
    low, high = np.diag([0.9, 0.95]), np.diag([1.05, 1.15])
    whitener = np.array([[1.0, 0.0], [0.3, 0.9]]) if full else np.array([1.0, 0.8])
    slopes = Slopes(low, high, whitener, (0.05, 0.4, 0.05, 0.2)[case], "")
    centre = np.array([[0.04, 0.01], [0.01, -0.02]]) if full else np.array([0.04, -0.02])
    shift, origin = rng.normal(size=2) * (0.01, 0.5, 0.02, 2.0)[case], rng.normal(size=2) * 0.02
    radius, pairs, share, moved = 4.0, (100_000, 4_000, 900_000, 50_000)[case], 0.001, 1e-6
    moment = np.array([[0.02, 0.01], [0.01, -0.03]]) if full else np.array([0.02, -0.03])
    squares = ((1e-5, 0.1, 1e-6, 1e-4), (0.02, 1e-6, 0.4, 1e-3), (1e-7, 1e-7, 1e-7, 1e-7), (1.0, 0.5, 0.01, 2e-3))[case]
    sums = sums_of(moment=moment, location_square=squares[0], even_square=squares[1], moment_square=squares[2],
                   odd_square=squares[3])  # fmt: skip
    value, following = finite_sample._value(sums, slopes, centre, shift, origin, radius, pairs, share, moved)

    matrix = whitener if full else np.diag(whitener)
    norm = np.linalg.norm(matrix, 2)
    rounding = 64 * unit * 2.0 + 4 * moved * 1.15
    away = np.linalg.norm(matrix @ (origin - shift))
    reach = away + slopes.even * radius
    once = math.sqrt(2 * math.log(1 / share) / pairs)
    one = min(math.sqrt(squares[0]) + reach * once, reach)
    other = math.hypot(math.sqrt(squares[1]) + slopes.even * once, slopes.even / math.sqrt(pairs))
    cut = np.linalg.norm(matrix @ shift + sums.location) + finite_sample.deviation(min(one, other), reach, pairs, share)
    cut += away * stats.chi2.sf(radius**2, 2) + slopes.even * finite_sample.tail_moment(2, radius, 1)
    whole = np.linalg.norm(matrix @ sums.even) + slopes.even * once
    location = min(cut, whole) + norm * rounding
    smallest = finite_sample._smallest(centre)
    steep = slopes.odd(centre) / smallest
    bounded = min(math.sqrt(squares[2]) + steep * radius**2 * once, steep * radius**2)
    if full:
        rate = slopes.odd(centre) / math.sqrt(smallest)
        lipschitz = radius / math.sqrt(smallest)
    else:
        rate, lipschitz = steep, radius
    lipschitz *= math.hypot(math.sqrt(squares[3]) + rate * once, rate / math.sqrt(pairs))
    width = finite_sample.deviation(min(bounded, lipschitz), steep * radius**2, pairs, share)
    width += steep * finite_sample.tail_moment(2, radius, 2) + math.sqrt(2) * rounding / smallest
    ball = np.linalg.norm(moment) + width
    values = 1 + (np.linalg.eigvalsh(centre) if full else centre)
    covariance = math.inf
    if ball < 1:
        covariance = log_det_gap(values) + np.linalg.norm(centre) * ball - ball - math.log(1 - ball)
    assert value == pytest.approx(location**2 / 2 + covariance, rel=1e-9)
    assert np.allclose(following, finite_sample._next_centre(centre, moment, width))


def test_values_that_are_not_finite_bound_nothing():
    slopes = Slopes(np.eye(2), np.eye(2), np.eye(2), 0.1, "")
    rest = (slopes, np.ones((2, 2)), np.zeros(2), np.zeros(2), 4.0, 1000, 0.01, 0.0)
    for name, value in (("even", np.array([np.inf, 0])), ("moment", np.full((2, 2), np.nan)), ("even_square", np.inf),
                        ("odd_square", np.nan)):  # fmt: skip
        value, centre = finite_sample._value(sums_of(**{name: value}), *rest)
        assert value == math.inf and not centre.any() and centre.shape == (2, 2)


@pytest.mark.parametrize("full", [True, False])
def test_sums_are_means_over_pairs(full):
    """The draws made again, and every mean a pair at a time."""
    target = density(strong_convexity=0.5, smoothness=1.5)
    factor = np.array([[0.8, 0.0], [0.3, 0.6]]) if full else np.array([0.8, 0.6])
    whitener = np.array([[1.1, 0.0], [0.2, 0.7]]) if full else np.array([1.1, 0.7])
    held = frame(factor, whitener, 0.5, np.array([0.2, -0.1]))
    centre = np.array([[0.1, 0.05], [0.05, -0.2]]) if full else np.array([0.1, -0.2])
    inverse, shift, origin = finite_sample._inverse_root(centre), np.array([0.1, 0.2]), np.array([-0.1, 0.05])
    key, chunk, radius, odd = jax.random.key(3), 2, 1.2, 0.7
    arrays = [jnp.asarray(x) for x in (centre, inverse, shift, origin, radius, odd)]
    found = fresh(finite_sample._sums)(key, target, Normal(), held, *arrays, jnp.asarray(7), jnp.asarray(2), chunk)
    matrix = factor if full else np.diag(factor)
    white, inner = (whitener, inverse) if full else (np.diag(whitener), np.diag(inverse))
    spin = centre if full else np.diag(centre)
    gradient = jax.jit(jax.vmap(jax.grad(wavy)))
    rows = []
    for index in (7, 8):
        u = np.asarray(Normal().sample(jax.random.fold_in(key, index), 32 * chunk, 2, jnp.float64))
        plus, minus = (np.asarray(gradient(np.asarray(held.loc) + s * u @ matrix.T)) @ matrix for s in (1, -1))
        rows += list(zip(u, plus, minus, strict=True))
    totals = dict(even=0, even_square=0, odd_square=0, location=0, location_square=0, moment=0, moment_square=0, size=0)
    excess = -math.inf
    moved = 4 * float(finite_sample.displacement(np.asarray(held.loc), factor)) * 1.7
    for u, plus, minus in rows:
        even, odd_part = (plus + minus) / 2, (plus - minus) / 2 - u - spin @ u
        length = math.sqrt(u @ u)
        inside = length <= radius
        y, left, right = white @ (even - shift), inner @ odd_part, inner @ u if full else u
        x = (np.outer(left, right) + np.outer(right, left)) / 2 if full else left * right
        totals["even"] += even
        totals["even_square"] += y @ y
        totals["odd_square"] += left @ left
        totals["location"] += y * inside
        totals["location_square"] += y @ y * inside
        totals["moment"] += x * inside
        totals["moment_square"] += np.sum(x**2) * inside
        size = math.sqrt(plus @ plus) + math.sqrt(minus @ minus)
        totals["size"] += size
        excess = max(excess, math.sqrt(odd_part @ odd_part) - odd * length - (1e-6 + moved) * (size + length + 1))
    for name, total in totals.items():
        assert np.allclose(getattr(found, name), total / len(rows), rtol=1e-9, atol=1e-13), name
    assert float(found.excess) == pytest.approx(excess, rel=1e-9)
    gradient_there = matrix.T @ np.asarray(jax.grad(wavy)(held.loc))
    assert np.allclose(fresh(finite_sample._gradient_at)(target, held), gradient_there)


def checks(monkeypatch, values, *, max_gradients=10**6, wanted=None, excess=-1.0, odd=0.1, origin=(0.1, 0.2), least=0.0,
           chunk=8, delta=0.05):  # fmt: skip
    """`finite_sample_bound` with its parts given: what each check was asked, and the result."""
    asked, valued = [], []
    target = density(strong_convexity=0.8, smoothness=1.5)
    slopes = Slopes(np.eye(2) * (1 - odd), np.eye(2) * (1 + odd), np.eye(2), 0.1, "some grounds")

    def sums(key, target, base, frame, centre, inverse, shift, origin, radius, odd, first, count, chunk):
        asked.append(dict(centre=np.asarray(centre), inverse=np.asarray(inverse), shift=np.asarray(shift),
                          radius=float(radius), odd=float(odd), first=int(first), count=int(count)))  # fmt: skip
        return sums_of(excess=np.asarray(excess), even=np.array([0.1 * len(asked), 0.0]))

    def value(sums, slopes, centre, shift, origin, radius, pairs, share, moved):
        valued.append((pairs, share, shift, moved))
        return values[len(valued) - 1], np.eye(2) * 0.01 * len(valued)

    monkeypatch.setattr(finite_sample, "_sums", sums)
    monkeypatch.setattr(finite_sample, "_on_host", lambda sums: sums)
    monkeypatch.setattr(finite_sample, "_value", value)
    monkeypatch.setattr(finite_sample, "_gradient_at", lambda *_: np.asarray(origin))
    monkeypatch.setattr(finite_sample, "_least_radius", lambda *_: least)
    held = frame(np.eye(2), np.eye(2), 0.8, np.array([3.0, 0.0]))
    found = finite_sample.finite_sample_bound(
        jax.random.key(0),
        target,
        Gaussian(2),
        held,
        slopes,
        chunk,
        delta=delta,
        max_gradients=max_gradients,
        wanted=wanted,
    )
    return found, asked, valued


def test_checks_follow_one_another_with_four_times_the_draws(monkeypatch):
    found, asked, valued = checks(monkeypatch, [9.0, 5.0, 4.49, 4.48])
    assert [pairs for pairs, *_ in valued] == [1024, 4096, 16384, 65536]
    assert found.value == 4.48 and found.num_gradients == 1 + 2 * (1024 + 4096 + 16384 + 65536)
    assert found.detail == "some grounds; holds for any number of draws"
    assert [share for _, share, *_ in valued] == [0.05 / 2 ** (k + 1) / 7 for k in range(4)]
    assert [each["first"] for each in asked] == [2**29, 2**29 + 4, 2**29 + 20, 2**29 + 84]
    assert [each["count"] for each in asked] == [4, 16, 64, 256]
    assert np.allclose(asked[0]["shift"], [0.1, 0.2]) and np.allclose(asked[2]["shift"], [0.2, 0.0])
    assert not asked[0]["centre"].any() and np.allclose(asked[1]["centre"], 0.01 * np.eye(2))
    assert np.allclose(asked[1]["inverse"], np.eye(2) / math.sqrt(1.01))
    assert asked[1]["odd"] == pytest.approx(0.11, rel=1e-9)
    assert asked[0]["radius"] == finite_sample._cut(2, 1024, 0.05 / 14)
    assert valued[0][3] == pytest.approx(3 * UNIT)
    # A check that lowers it by a tenth at least is followed by another one; or it was enough.
    assert len(checks(monkeypatch, [9.0, 8.2, 1.0])[2]) == 2 and len(checks(monkeypatch, [9.0, 8.0, 7.9])[2]) == 3
    found, *_ = checks(monkeypatch, [9.0, 9.5])
    assert found.value == 9.0
    assert len(checks(monkeypatch, [9.0, 4.0, 3.0], wanted=4.0)[2]) == 2
    assert checks(monkeypatch, [9.0, 4.0, 3.0, 2.9], wanted=2.0)[0].value == 2.9
    large = checks(monkeypatch, [9.0, 8.9], chunk=64)[2]
    assert large[0][0] == 32 * 64


def test_the_last_check_takes_all_that_is_left(monkeypatch):
    found, _, valued = checks(monkeypatch, [9.0, 1.0, 0.1, 0.01], max_gradients=2 * 1024 * 4 - 2 + 1)
    assert [pairs for pairs, *_ in valued] == [4096 - 256]  # a whole number of chunks of all batches
    assert found.num_gradients == 1 + 2 * 3840
    _, _, valued = checks(monkeypatch, [9.0, 1.0, 0.1, 0.01], max_gradients=2 * 1024 * 4 + 1)
    assert [pairs for pairs, *_ in valued] == [1024, 3072]
    _, _, valued = checks(monkeypatch, [9.0, 1.0, 0.1, 0.01], max_gradients=2 * 1024 * 21 + 1)
    assert [pairs for pairs, *_ in valued] == [1024, 4096, 16384]
    _, _, valued = checks(monkeypatch, [9.0, 1.0, 0.1, 0.01], max_gradients=2 * 1024 * 16 + 1)
    assert [pairs for pairs, *_ in valued] == [1024, 15 * 1024]
    # What is left for one more chunk of all batches is not worth a check.
    for left in (1, 2):
        _, _, valued = checks(monkeypatch, [9.0, 1.0, 0.1, 0.01], max_gradients=2 * 256 * left + 2 * 1024 + 1)
        assert len(valued) == 1
    _, _, valued = checks(monkeypatch, [9.0, 1.0, 0.1, 0.01], max_gradients=2 * 256 + 1)
    assert [pairs for pairs, *_ in valued] == [256]
    for found, *_ in (
        checks(monkeypatch, [9.0], max_gradients=2 * 256),
        checks(monkeypatch, [9.0], least=1.0),
        checks(monkeypatch, [math.inf] * 9),
    ):
        assert found.value == math.inf
        assert found.detail.endswith(
            "; infinite: too few draws for so steep a potential, or q too far from the optimum"
        )
    assert len(checks(monkeypatch, [9.0, 8.9], least=0.999)[2]) == 2
    assert not checks(monkeypatch, [9.0], least=1.0)[2] and checks(monkeypatch, [9.0], least=1.0)[0].num_gradients == 1


def test_it_is_refused_where_draws_contradict_the_claim(monkeypatch):
    found, _, valued = checks(monkeypatch, [1.0], excess=1e-9)
    assert (found.value, found.num_gradients) == (math.inf, 1 + 2048) and "refused" in found.detail and not valued
    assert checks(monkeypatch, [1.0, 0.95], excess=0.0)[0].value == 0.95
    found, asked, _ = checks(monkeypatch, [1.0], origin=(np.inf, 0.0))
    assert (found.value, found.num_gradients) == (math.inf, 1) and "gradient at the mean" in found.detail and not asked


def test_constants():
    assert special.gammaincc(1, 2) == pytest.approx(stats.chi2.sf(4, 2))
    assert (finite_sample.FIRST_PAIRS, finite_sample.GROWTH, finite_sample.ROUNDING) == (1024, 4, 64)
