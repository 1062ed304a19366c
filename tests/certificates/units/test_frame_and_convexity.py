"""`monte_carlo/whitened_frame.py` and `monte_carlo/convexity.py`: by dense algebra at a few points."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from provi.certificates.certificate import Counterexample
from provi.certificates.monte_carlo import convexity
from provi.certificates.monte_carlo import whitened_frame as whitened
from provi.certificates.monte_carlo.batch_sums import NUM_BATCHES, Frame, curvature_excess, pair_gradients
from provi.certificates.monte_carlo.whitened_frame import Growth
from provi.families import Gaussian, LocationScale, Normal
from provi.families.location_scale import Point
from provi.families.scales import Diagonal, LowRank, Triangular
from provi.targets import LinearRegression, LogDensity
from provi.targets.base import Constants, declared, estimated, proven, unknown, violated
from support.formulas import fresh

RNG = np.random.default_rng(9)
FACTOR = np.array([[0.8, 0.0], [0.3, 0.6]])


def frame(factor=FACTOR, loc=(0.2, -0.4), claimed=0.0):
    return Frame(jnp.asarray(loc), jnp.asarray(factor), None, jnp.asarray(claimed))


@pytest.mark.parametrize("full", [True, False])
def test_the_whitener_of_a_matrix_and_of_a_number(full, coarse, monkeypatch):
    factor = FACTOR if full else np.array([0.8, -0.6])
    matrix = factor if full else np.diag(factor)
    target = LinearRegression(RNG.normal(size=(5, 2)), np.zeros(5))
    least = target.curvature_bounds()[0]
    unit = coarse(whitened)
    found = whitened._from_matrix(target, factor)
    size = math.sqrt(np.sum((np.abs(matrix).T @ np.abs(least) @ np.abs(matrix)) ** 2))
    seen = matrix.T @ least @ matrix - 8 * unit * size * np.eye(2)
    assert np.allclose(np.linalg.inv(found.T @ found), seen) and np.allclose(np.triu(found, 1), 0)
    root = whitened._from_number(0.25, factor)
    root = root if full else np.diag(root)
    assert np.allclose(np.linalg.inv(root.T @ root), 0.25 * matrix.T @ matrix)
    assert whitened._from_number(0.0, factor) is None and whitened._from_number(-1.0, factor) is None
    assert whitened._from_matrix(LogDensity(lambda z: jnp.sum(z**4), 2), factor) is None
    monkeypatch.setattr(type(target), "curvature_bounds", lambda self: (np.diag([1.0, 0.0]), None))
    assert whitened._from_matrix(target, np.ones(2)) is None
    for most, known in ((1, False), (2, True)):
        monkeypatch.setattr(type(target), "curvature_bounds", lambda self: (np.eye(2), None))
        monkeypatch.setattr(whitened, "LARGEST_DENSE", most)
        assert (whitened._from_matrix(target, np.ones(2)) is not None) == known


def test_the_frame_of_a_member(monkeypatch):
    point = Point(jnp.asarray([0.5, 1.0]), Triangular(jnp.asarray(FACTOR)))
    target = LinearRegression(RNG.normal(size=(5, 2)), np.zeros(5))
    held, grounds = whitened.whitened_frame(target, point)
    assert np.allclose(held.whitener, whitened._from_matrix(target, FACTOR)) and np.allclose(held.factor, FACTOR)
    assert np.allclose(held.loc, [0.5, 1.0]) and grounds.convexity == "proven"
    assert grounds.curvature == "a proven lower bound of the Hessian" and grounds.distance is None
    assert float(held.claimed) == pytest.approx(float(target.constants.strong_convexity.value))
    monkeypatch.setattr(whitened, "_from_matrix", lambda *_: None)
    held, grounds = whitened.whitened_frame(target, point)
    claimed = float(held.claimed)
    assert np.allclose(held.whitener, np.linalg.inv(FACTOR).T / math.sqrt(claimed))
    assert grounds.curvature == f"strong convexity {claimed:.4g} (proven)"
    free = LogDensity(lambda z: -jnp.sum(jnp.sqrt(1 + z**2)), 2)
    held, grounds = whitened.whitened_frame(free, point)
    assert held.whitener is None and grounds.curvature is None and float(held.claimed) == 0


def test_what_is_claimed():
    def constants(strong):
        return Constants(unknown(""), strong, unknown(""))

    assert (
        whitened.claimed_convexity(constants(proven(0.5, "")))
        == whitened.claimed_convexity(constants(declared(0.5)))
        == 0.5
    )
    assert (
        whitened.claimed_convexity(constants(estimated(0.5, "")))
        == whitened.claimed_convexity(constants(unknown("")))
        == 0
    )
    assert [whitened._convexity(x) for x in (proven(True, ""), declared(True), estimated(True, ""), unknown(""))] == [
        "proven", "declared", "unknown", "unknown"]  # fmt: skip
    assert whitened._convexity(violated(False, "")) == whitened._convexity(estimated(False, "")) == "violated"


def test_the_factor_of_a_scale():
    wide = np.array([[0.5], [-0.3]])
    factor = whitened.scale_factor(Point(jnp.zeros(2), LowRank(jnp.asarray([1.0, 0.7]), jnp.asarray(wide))))
    assert np.allclose(factor @ factor.T, np.diag([1.0, 0.49]) + wide @ wide.T) and np.allclose(np.triu(factor, 1), 0)
    assert np.array_equal(whitened.scale_factor(Point(jnp.zeros(2), Diagonal(jnp.asarray([1.0, 2.0])))), [1, 2])


def test_growth_bounds_how_far_the_best_mean_is():
    """The largest v + slack over b that satisfies the inequality, by a fine grid."""
    cone = Growth(0.8, -2.0, 3, 0.7)
    b = np.linspace(1e-3, 60, 200_001)
    for energy in (1.0, 5.0, 20.0):
        far = 2 / 0.8 * (energy + 2.0 + 3 * np.log(b / math.sqrt(3)) - 0.4 * 0.7 * b)
        assert cone.reach(energy) == pytest.approx(max(far.max(), 1.0), rel=1e-6)
    assert cone.reach(-90.0) == 1.0


def expected_growth(potential, gradient, factor, loc, kurtosis):
    found, energy = [], None
    for radius in (1.5, 3.0, 6.0):
        ends = [radius * sign * np.eye(2)[i] for sign in (1, -1) for i in range(2)]
        values = [potential(loc + factor @ x) for x in ends]
        slopes = np.array([factor.T @ gradient(loc + factor @ x) for x in ends])
        energy = np.mean(values) if energy is None else energy
        w, m = (slopes[:2] - slopes[2:]) / 2, (slopes[:2] + slopes[2:]) / 2
        slope = 0.999 * (np.linalg.eigvalsh((w + w.T) / 2)[0] - np.linalg.svd(m)[1][0]) / math.sqrt(2)
        offset = min(v - s @ x for v, s, x in zip(values, slopes, ends, strict=True))
        if slope > 0:
            found.append(Growth(slope, offset, 2, kurtosis**-0.5))
    return min(found, key=lambda g: g.reach(energy)) if found else None


@pytest.mark.parametrize("tilt", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_the_cone_is_the_best_of_three_radii(tilt, scale, monkeypatch):
    def density(z):
        return -jnp.sum(jnp.sqrt(1 + z**2)) - tilt * z[0]

    def gradient(z):
        return z / np.sqrt(1 + z**2) + np.array([tilt, 0.0])

    loc, factor = np.array([0.1, 0.3]), scale * FACTOR
    found, spent = whitened.growth(LogDensity(density, 2), Gaussian(2), frame(factor, loc))
    expected = expected_growth(lambda z: np.sum(np.sqrt(1 + z**2)) + tilt * z[0], gradient, factor, loc, 3.0)
    assert spent == 12 and (found is None) == (expected is None)
    if found is not None:
        assert [found.slope, found.offset, found.dim, found.mean_absolute] == pytest.approx(
            [expected.slope, expected.offset, 2, 3**-0.5]
        )
    monkeypatch.setattr(whitened, "LARGEST_DENSE", 1)
    assert whitened.growth(LogDensity(density, 2), Gaussian(2), frame(factor, loc)) == (None, 0)


def test_the_cone_where_a_radius_is_out_of_bounds(monkeypatch):
    target = LogDensity(lambda z: -jnp.sum(jnp.sqrt(1 + z**2)), 2)
    tangents, calls = whitened._tangents, []

    def broken(target, frame, points):
        calls.append(float(np.abs(np.asarray(points)).max()))
        values, slopes = (np.array(x) for x in tangents(target, frame, points))
        if calls[-1] == kind[0]:
            (values if kind[1] else slopes)[0] = np.inf
        return values, slopes

    monkeypatch.setattr(whitened, "_tangents", broken)
    for kind in ((3.0, True), (3.0, False)):  # noqa: B007
        calls.clear()
        found, spent = whitened.growth(target, Gaussian(2), frame(np.eye(2), (0.0, 0.0)))
        assert spent == 8 and calls == [1.5, 3.0] and found is not None
    kind = (1.5, True)
    assert whitened.growth(target, Gaussian(2), frame(np.eye(2), (0.0, 0.0))) == (None, 4)


def test_the_mean_of_a_coordinate_is_at_least_this():
    for base, density in ((Normal(), stats.norm), (None, stats.norm)):
        family = Gaussian(2) if base is None else LocationScale(1, base)
        whole = 2 * integrate.quad(lambda x, d=density: x * d.pdf(x), 0, 12)[0]
        assert whitened._mean_absolute(family) == pytest.approx(3**-0.5) and whitened._mean_absolute(family) <= whole


@pytest.mark.parametrize("full", [True, False])
def test_ritz_values_of_so_few_dimensions_are_eigenvalues(full):
    target = LogDensity(lambda z: -jnp.sum(jnp.cos(z)) - 0.3 * z[0] * z[1] * z[2], 3)

    def hessian(z):
        off = 0.3 * np.array([[0, z[2], z[1]], [z[2], 0, z[0]], [z[1], z[0], 0]])
        return np.diag(-np.cos(z)) + off

    factor = np.tril(RNG.normal(size=(3, 3))) if full else np.array([0.5, 1.0, 1.5])
    matrix, loc = factor if full else np.diag(factor), np.array([0.1, 0.2, -0.3])
    arrays = (jnp.asarray(loc), jnp.asarray(factor), jnp.asarray(0.2))
    for count, few in ((12, 1), (16, 2), (1, 0), (2, 1)):
        key = jax.random.key(4)
        points, directions, excess, largest = (np.asarray(x) for x in fresh(convexity._least_curvatures)(
            key, target, Normal(), *arrays, count))  # fmt: skip
        draws = np.array(Normal().sample(jax.random.split(key)[0], count, 3, jnp.float64))
        draws[0] = 0
        near = draws[1 : 1 + few]
        every = np.concatenate([draws, *(k * near for k in (2, 4, 8, 32, 128))])
        assert np.allclose(points, loc + every @ matrix.T)
        for z, direction, value, most in zip(points, directions, excess, largest, strict=True):
            seen = matrix.T @ (hessian(z) - 0.2 * np.eye(3)) @ matrix
            values, vectors = np.linalg.eigh(seen)
            size = np.abs(values).max()
            assert value == pytest.approx(values[0], abs=1e-8 * size) and most == pytest.approx(size)
            along = np.linalg.solve(matrix, direction)
            assert np.linalg.norm(along) == pytest.approx(1) and abs(along @ vectors[:, 0]) == pytest.approx(
                1, abs=1e-6
            )


def ritz_pair(product, start):
    """Of one place."""
    rows = jnp.asarray(start)[None]
    found = fresh(lambda s: convexity._smallest_ritz_pairs(lambda _, v: product(v), s, s))(rows)
    return (np.asarray(x)[0] for x in found)


def test_lanczos_takes_so_many_products(monkeypatch):
    values = np.linspace(1, 9, 9)
    calls = []

    def product(v):
        calls.append(1)
        return values * v

    monkeypatch.setattr(convexity, "PRODUCTS", 3)
    start = RNG.normal(size=9)
    vector, least, largest = ritz_pair(product, start)
    basis, _ = np.linalg.qr(np.stack([start, values * start, values**2 * start], axis=1))
    ritz, inner = np.linalg.eigh(basis.T @ (values[:, None] * basis))
    assert least == pytest.approx(ritz[0]) and largest == pytest.approx(ritz[-1])
    assert abs(vector @ basis @ inner[:, 0]) == pytest.approx(1)
    # A space that is exhausted: what is left is rounding, and changes nothing.
    monkeypatch.setattr(convexity, "PRODUCTS", 24)
    vector, least, largest = ritz_pair(lambda v: -2.0 * v, start)
    assert (least, largest) == (pytest.approx(-2.0), pytest.approx(2.0)) and np.linalg.norm(vector) == pytest.approx(1)


def least(excess, largest, directions=None, **more):
    """`find_negative_curvature` with what it looks at given."""
    count = len(excess)
    points = np.arange(2.0 * count).reshape(count, 2)
    directions = np.tile([3.0, 4.0], (count, 1)) if directions is None else directions
    seen = []

    def found(key, target, base, loc, factor, claimed, num_points):
        seen.append((np.asarray(loc), np.asarray(factor), float(claimed), num_points))
        return points, directions, np.asarray(excess), np.asarray(largest)

    return found, points, seen


def test_the_worst_place_refutes(monkeypatch):
    target = LogDensity(lambda z: -jnp.sum(z**2) - jnp.sum(jnp.cos(z)), 2, strong_convexity=0.5)
    family = Gaussian(2)
    point = family.point_from_covariance(np.array([1.0, 2.0]), np.array([[0.5, 0.1], [0.1, 2.0]]))
    factor = whitened.scale_factor(point)
    claimed = whitened.claimed_convexity(target.constants)
    assert claimed > 0
    found, points, seen = least([0.1, -0.2, -0.3, -9.0, np.nan], [1.0, 0.1, 3.0, np.inf, 1.0])
    monkeypatch.setattr(convexity, "_least_curvatures", found)
    result = convexity.find_negative_curvature(target, family, point, seed=0)
    assert np.array_equal(result.point, points[1]) and np.allclose(result.direction, [0.6, 0.8])
    assert result.curvature == pytest.approx(-0.2 / 25 + claimed) and result.claimed == claimed
    assert seen[0][3] == 16 and seen[0][2] == claimed and np.allclose(seen[0][1], factor)
    free = LogDensity(lambda z: -jnp.sum(jnp.sqrt(1 + z**2)), 2)
    monkeypatch.setattr(convexity, "_least_curvatures", least([-1.0], [0.0])[0])
    assert convexity.find_negative_curvature(free, family, point, seed=0) is None  # of no size at all
    monkeypatch.setattr(convexity, "_least_curvatures", found)
    widest = claimed * (factor**2).sum(axis=0).max()
    for share, refuted in ((0.999, True), (1.001, False)):
        tolerance = share * 0.2 / (0.1 + widest)
        result = convexity.find_negative_curvature(target, family, point, seed=0, tolerance=tolerance)
        assert (result is not None and np.array_equal(result.point, points[1])) == refuted
    root = math.sqrt(2.0**-52)
    for share, refuted in ((1.01, True), (0.99, False)):
        found, *_ = least([-share * root * (2.0 + widest)], [2.0])
        monkeypatch.setattr(convexity, "_least_curvatures", found)
        assert (convexity.find_negative_curvature(target, family, point, seed=0) is not None) == refuted
    diagonal = Gaussian(2, "diagonal")
    there = diagonal.point_from_covariance(np.zeros(2), np.diag([0.3, 2.0]))
    found, *_ = least([-0.2], [0.1])
    monkeypatch.setattr(convexity, "_least_curvatures", found)
    for share, refuted in ((0.999, True), (1.001, False)):
        tolerance = share * 0.2 / (0.1 + claimed * 2.0)
        assert (
            convexity.find_negative_curvature(target, diagonal, there, seed=0, tolerance=tolerance) is not None
        ) == refuted
    with pytest.raises(ValueError, match="dimension 3"):
        convexity.find_negative_curvature(target, Gaussian(3), there, seed=0)
    with pytest.raises(ValueError, match="num_points"):
        convexity.find_negative_curvature(target, diagonal, there, seed=0, num_points=0)


def test_between_two_modes_the_slope_falls():
    """A double well along a segment: where the average curvature of a piece is least, by hand."""
    target = LogDensity(lambda z: -((z[0] ** 2 - 1) ** 2) - z[1] ** 2, 2)
    places = np.array([[-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = convexity.counterexample_between(target, places, 4)
    nodes = np.linspace(-1, 1, 33)
    slopes = 4 * nodes * (nodes**2 - 1)
    values = (nodes**2 - 1) ** 2
    size = np.abs(slopes[:-1]) + np.abs(slopes[1:]) + (np.abs(values[:-1]) + np.abs(values[1:])) / 2
    ratios = np.diff(slopes) / size
    k = int(np.argmin(ratios))
    assert found.point[0] == pytest.approx(nodes[k]) and found.direction == pytest.approx([1 / 16, 0.0])
    assert found.curvature == pytest.approx(np.diff(slopes)[k] * 16) and found.claimed == 0.0
    assert convexity.counterexample_between(target, places, 4, tolerance=-0.999 * ratios[k]) is not None
    assert convexity.counterexample_between(target, places, 4, tolerance=-1.001 * ratios[k]) is None
    claiming = LogDensity(lambda z: -((z[0] ** 2 - 1) ** 2) - z[1] ** 2, 2, strong_convexity=0.7)
    less = convexity.counterexample_between(claiming, places, 4)
    ratios = (np.diff(slopes) - 0.7 / 16) / size
    k = int(np.argmin(ratios))
    assert less.claimed == 0.7 and less.point[0] == pytest.approx(nodes[k])
    assert less.curvature == pytest.approx(np.diff(slopes)[k] * 16)
    convex = LogDensity(lambda z: -jnp.sum(z**2), 2)
    assert convexity.counterexample_between(convex, places, 4) is None
    # The least convex of all segments, whatever their order.
    flat = np.array([[-0.2, 0.0], [0.2, 0.0], [-1.0, 3.0]])
    each = [convexity.counterexample_between(target, flat[list(pair)], 4) for pair in ((0, 1), (0, 2), (1, 2))]
    whole = convexity.counterexample_between(target, flat, 4)
    assert whole is not None and any(np.array_equal(whole.point, x.point) for x in each if x is not None)


def test_the_segment_that_refutes(monkeypatch):
    """The least convex pair of the draws made again."""
    target = LogDensity(lambda z: jnp.sum(jnp.cos(2 * z)) - 0.1 * jnp.sum(z**2), 2)
    held, key, chunk = frame(claimed=0.1), jax.random.key(2), 2
    shifts = 0.1 * RNG.normal(size=(NUM_BATCHES, 2))
    found = convexity.refuting_segment(key, target, Normal(), held, shifts, range(3, 5), chunk)
    u, values, plus, minus = fresh(pair_gradients)(
        jax.random.fold_in(key, 3), target, Normal(), held, jnp.asarray(shifts), chunk
    )
    excess, curvature = (np.asarray(x) for x in fresh(curvature_excess)(held, u, values, plus, minus))
    b, i = np.unravel_index(np.argmin(excess), excess.shape)
    ends = [np.asarray(held.loc) + FACTOR @ (shifts[b] + sign * np.asarray(u)[b, i]) for sign in (-1, 1)]
    assert np.allclose(found.point, ends[0]) and np.allclose(found.direction, ends[1] - ends[0])
    assert found.curvature == pytest.approx(curvature[b, i]) and found.claimed == pytest.approx(0.1)
    calls = []

    def pairs(key, target, base, frame, shifts, index, chunk):
        calls.append(int(index))
        return 5.0 - 1.5 * len(calls), float(len(calls)), np.ones(2), np.zeros(2)

    monkeypatch.setattr(convexity, "_least_convex_pair", pairs)
    given = (key, target, Normal(), held, shifts)
    assert convexity.refuting_segment(*given, range(3, 9), chunk).curvature == 4.0 and calls == [3, 4, 5, 6]
    calls.clear()
    assert convexity.refuting_segment(*given, range(3, 5), chunk).curvature == 2.0
    monkeypatch.setattr(
        convexity, "_least_convex_pair", lambda *g: (float(int(g[5])), float(int(g[5])), np.ones(2), np.zeros(2))
    )
    assert convexity.refuting_segment(*given, range(3, 5), chunk).curvature == 3.0
    with pytest.raises(ValueError, match="chunks is empty"):
        convexity.refuting_segment(*given, range(3, 3), chunk)
    assert isinstance(found, Counterexample)
