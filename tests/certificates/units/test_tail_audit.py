"""`monte_carlo/tail_audit.py`: what lines hold beyond a radius, by quadrature; tangents, and what they refute."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from provi.certificates.monte_carlo import tail_audit as audit
from provi.certificates.monte_carlo.tail_audit import Tails
from provi.families import Gaussian, LocationScale, StudentT
from provi.families.location_scale import Point
from provi.families.scales import Diagonal, Triangular
from provi.targets import LogDensity
from provi.targets.base import Constants, declared, estimated, proven, unknown
from support.formulas import fresh

NODES = audit._grid()


def test_the_grid_is_fine_to_six_and_a_half_and_coarse_beyond():
    fine = [k / 10 for k in range(-65, 66)]
    far = [7.0 + k / 2 for k in range(11)]
    assert np.allclose(NODES, [*(-x for x in far[::-1]), *fine, *far]) and len(NODES) % 5 != 1


def line(slope, value=None):
    """One line along which the potential has these values and slopes."""
    values = np.zeros_like(NODES) if value is None else value(NODES)
    with np.errstate(invalid="ignore"):
        return audit._read(np.eye(1), np.zeros((1, 1)), values[None], slope(NODES)[None], np.zeros(1), np.ones(1), 1e-6)


def test_what_a_line_holds_beyond_each_radius():
    """Parts of E(t s(t))^2, E|s - t| and E|t||s - t|, by adaptive quadrature."""

    def slope(t):
        return t + 0.3 * t**3

    tails = line(slope)
    whole = 2 * integrate.quad(lambda t: (t * slope(t)) ** 2 * stats.norm.pdf(t), 0, 13)[0]
    beyond = 2 * integrate.quad(lambda t: (t * slope(t)) ** 2 * stats.norm.pdf(t), 4.05, 13)[0]
    assert tails.share == pytest.approx(beyond / whole, rel=1e-2)
    assert np.allclose(tails.radii, [t for t in NODES if t >= 0])
    for index in (0, 5, 20, 40):
        radius = tails.radii[index] - 0.05  # a node stands for the interval around it
        for found, power in ((tails.location, 0), (tails.covariance, 1)):
            part = integrate.quad(lambda t, p=power: t**p * 0.3 * abs(t**3) * stats.norm.pdf(t), max(radius, 0), 13)[0]
            assert found[index] == pytest.approx(2 * part, rel=2e-2)
    assert tails.location[0] == pytest.approx(2 * 0.3 * 2 / math.sqrt(2 * math.pi), rel=1e-3)  # E|t|^3
    assert np.all(np.diff(tails.location) <= 0)
    small = line(lambda t: 0.001 * t)  # of a whole below one
    part = 2 * integrate.quad(lambda t: (t * 0.001 * t) ** 2 * stats.norm.pdf(t), 4.05, 13)[0]
    assert small.share == pytest.approx(part, rel=2e-2)
    assert line(lambda t: np.where(t > 5, np.inf, t)).share == 1.0


def test_the_worst_line_counts_for_each():
    slopes = np.stack([NODES * 2, NODES + NODES**3, NODES])
    tails = audit._read(np.eye(3), np.zeros((3, 3)), 0 * slopes, slopes, np.zeros(3), np.ones(3), 1e9)
    each = [
        audit._read(np.eye(3)[:1], np.zeros((1, 3)), 0 * NODES[None], s[None], np.zeros(3), np.ones(3), 1e9)
        for s in slopes
    ]
    for name in ("location", "covariance"):
        assert np.allclose(getattr(tails, name), np.max([getattr(x, name) for x in each], axis=0))
    assert tails.share == max(x.share for x in each) > each[0].share


def test_hidden_is_what_lies_where_ten_draws_are_expected():
    radii = np.array([0.0, 1.0, 2.0, 3.0])
    tails = Tails(0.0, radii, np.array([4.0, 3.0, 2.0, np.inf]), np.array([8.0, 7.0, 6.0, 5.0]), None)
    for draws, index in ((20, 0), (31, 0), (32, 1), (219, 1), (220, 2), (3700, 2)):
        reach = stats.norm.isf(min(5 / draws, 0.25))
        assert np.searchsorted(radii, reach, side="right") - 1 == index
        assert tails.hidden(draws) == (tails.location[index], tails.covariance[index])
    assert tails.hidden(3706) == (math.inf, math.inf) and tails.hidden(1) == (4.0, 8.0)
    below = Tails(0.0, radii + 1.0, radii, radii + 2, None)
    assert below.hidden(1) == (0.0, 2.0)
    exactly = Tails(0.0, np.array([0.0, float(stats.norm.isf(0.05))]), radii[:2], radii[:2], None)
    assert exactly.hidden(101)[0] == 1.0 and exactly.hidden(99)[0] == 0.0


@pytest.mark.parametrize("full", [True, False])
def test_a_value_below_a_tangent_refutes_convexity(full):
    """A jump down between two nodes: where it is, and the average curvature there, by hand."""
    factor = np.array([[2.0, 0.0], [0.5, 1.0]]) if full else np.array([2.0, 1.0])
    loc, through = np.array([10.0, -5.0]), np.array([[0.3, 0.4], [0.0, 0.1]])
    lines = np.array([[0.6, 0.8], [1.0, 0.0]])
    values, slopes = np.tile(NODES**2 / 2, (2, 1)), np.tile(NODES, (2, 1))
    k = int(np.argmin(np.abs(NODES - 1.3)))
    values[1, k:] -= 0.4  # convex on either side
    found = audit._below_tangent(lines, through, values, slopes, loc, factor, 1e-6)
    matrix = factor if full else np.diag(factor)
    ends = [loc + matrix @ (through[1] + NODES[j] * lines[1]) for j in (k - 1, k)]
    assert np.allclose(found.point, ends[0]) and np.allclose(found.direction, ends[1] - ends[0]) and found.claimed == 0
    step, rise = NODES[k] - NODES[k - 1], values[1, k] - values[1, k - 1]
    above = min(rise - slopes[1, k - 1] * step, slopes[1, k] * step - rise)
    length = np.sum((ends[1] - ends[0]) ** 2)
    assert above < -0.3 and found.curvature == pytest.approx(2 * above / length, rel=1e-9)
    size = abs(values[1, k]) + abs(values[1, k - 1]) + (abs(slopes[1, k]) + abs(slopes[1, k - 1])) * step
    for share, refuted in ((0.999, True), (1.001, False)):
        granted = -share * above / size
        assert (audit._below_tangent(lines, through, values, slopes, loc, factor, granted) is not None) == refuted
    jump = values.copy()
    jump[1, k:] += 0.8  # a jump up
    up = audit._below_tangent(lines, through, jump, slopes, loc, factor, 1e-6)
    assert up is not None and np.allclose(up.point, ends[0])
    whole = np.tile(NODES**2 / 2, (2, 1))
    assert audit._below_tangent(lines, through, whole, slopes, loc, factor, 1e-6) is None
    for bad in (np.nan, np.inf):
        torn, kinked = whole.copy(), slopes.copy()
        torn[0, 5], kinked[1, 9] = bad, bad
        with np.errstate(invalid="ignore"):
            assert audit._below_tangent(lines, through, torn, kinked, loc, factor, 1e-6) is None
    zero = np.zeros_like(whole)
    assert audit._below_tangent(lines, through, zero, zero, loc, factor, 0.0) is None


def density(**more):
    return LogDensity(lambda z: -0.5 * jnp.sum(jnp.asarray([4.0, 1.0]) * z**2) - 0.1 * jnp.sum(z**4), 2, **more)


@pytest.mark.parametrize("full", [True, False])
def test_lines_run_through_the_draws_and_along_the_steepest_directions(full):
    target = density()
    factor = np.array([[0.5, 0.0], [0.3, 1.0]]) if full else np.array([0.5, 1.0])
    matrix, loc = factor if full else np.diag(factor), np.array([0.1, 0.2])
    rng = np.random.default_rng(0)
    bases, places, directions = rng.normal(size=(2, 2)), 0.3 * rng.normal(size=(14, 2)), rng.normal(size=(14, 2))
    nodes = np.array([-1.0, 0.0, 0.5, 1.0, 2.0])
    arrays = (jnp.asarray(x) for x in (loc, factor, bases, places, directions, nodes))
    lines, through, values, slopes = (np.asarray(x) for x in fresh(audit._lines)(target, *arrays))

    def potential(z):
        return 0.5 * (4 * z[0] ** 2 + z[1] ** 2) + 0.1 * np.sum(z**4)

    def gradient(z):
        return np.array([4 * z[0], z[1]]) + 0.4 * z**3

    def hessian(z):
        return np.diag([4.0, 1.0]) + np.diag(1.2 * z**2)

    assert lines.shape == (14 + 12, 2) and np.allclose(np.linalg.norm(lines, axis=1), 1)
    for k in range(14):
        seen = matrix.T @ hessian(loc + matrix @ places[k]) @ matrix
        x = directions[k] / np.linalg.norm(directions[k])
        if k < 12:
            assert np.allclose(lines[14 + k], x)
        for _ in range(6):
            x = seen @ x / np.linalg.norm(seen @ x)
        assert np.allclose(lines[k], x)
    for k in range(26):
        base = bases[k % 2]
        assert np.allclose(through[k], base - (base @ lines[k]) * lines[k])
        for j, t in enumerate(nodes):
            z = loc + matrix @ (through[k] + t * lines[k])
            assert values[k, j] == pytest.approx(potential(z)) and slopes[k, j] == pytest.approx(
                lines[k] @ matrix.T @ gradient(z)
            )
    flat = LogDensity(lambda z: -z[0], 2)  # without curvature a direction stays what it was
    arrays = (jnp.asarray(x) for x in (loc, factor, bases, places, directions, nodes))
    stay = np.asarray(fresh(audit._lines)(flat, *arrays)[0])
    assert np.allclose(stay[:12], stay[14:])


NOTHING = Tails(0.0, np.zeros(1), np.zeros(1), np.zeros(1), None)


def test_an_audit_draws_its_lines(monkeypatch):
    seen = {}

    def lines(target, loc, factor, start, at, towards, nodes):
        seen.update(start=np.asarray(start), at=np.asarray(at), towards=np.asarray(towards), nodes=np.asarray(nodes))
        return np.eye(2)[:1], np.zeros((1, 2)), NODES[None] ** 2 / 2, NODES[None]

    monkeypatch.setattr(audit, "_lines", lines)
    monkeypatch.setattr(audit, "_read", lambda *given: seen.update(granted=given[6]) or NOTHING)
    point = Point(jnp.asarray([3.0, 0.5]), Diagonal(jnp.asarray([0.5, 1.0])))
    audit.audit_lines(density(), point, seed=5)
    rng = np.random.default_rng(5)
    (
        bases,
        half,
    ) = rng.standard_normal((4, 2)), rng.standard_normal((6, 2))
    bases[0] = 0
    assert np.array_equal(seen["start"], bases) and np.array_equal(seen["nodes"], NODES)
    expected = [k * sign * half for k in (1, 2, 4, 8) for sign in (1, -1)]
    assert np.allclose(seen["at"], np.concatenate(expected)) and seen["towards"].shape == (48, 2)
    assert np.array_equal(seen["towards"], rng.standard_normal((48, 2)))
    eps = 2.0**-52
    assert seen["granted"] == pytest.approx(4 * math.sqrt(eps) + 40 * eps * 6 / 0.1, rel=1e-12)


def constants(smoothness):
    return Constants(unknown(""), unknown(""), smoothness)


def test_whether_draws_see_what_matters():
    family, point = Gaussian(2), Point(jnp.zeros(2), Diagonal(jnp.asarray([0.5, 2.0])))
    tails = Tails(0.05, np.array([0.0, 1.0]), np.array([0.3, 0.2]), np.array([0.5, 0.4]), None)

    def row(smoothness, tails=tails, family=family, point=point):
        found = audit.audit_tails(tails, family, point, constants(smoothness), 100)
        assert "batch means" in found.statement
        return found.value, found.status, found.reason

    assert row(declared(2.5))[:2] == (10.0, "declared") and row(proven(1.0, ""))[:2] == (4.0, "proven")
    for smooth in (declared(2.51), estimated(0.1, ""), unknown("")):
        value, status, reason = row(smooth)
        assert (value, status) == (0.05, "estimated") and "what 100 draws may miss there, 0.4," in reason
    for share, status in ((0.1, "estimated"), (0.101, "violated")):
        several = Tails(share, tails.radii, tails.location, tails.covariance, None)
        assert row(unknown(""), several)[:2] == (share, status)
    assert "beyond 4 standard deviations" in row(unknown(""), several)[2]
    heavy = LocationScale(2, StudentT(4.0))
    assert (
        row(proven(0.1, ""), family=heavy)[:2] == (None, "violated")
        and "fourth" in row(proven(0.1, ""), family=heavy)[2]
    )


def test_the_largest_variance(monkeypatch):
    matrix = np.array([[1.0, 0.0], [2.0, 0.5]])
    point = Point(jnp.zeros(2), Triangular(jnp.asarray(matrix)))
    assert audit._largest_variance(point) == pytest.approx(np.linalg.eigvalsh(matrix @ matrix.T)[-1])
    monkeypatch.setattr(audit, "_LARGEST_SPECTRUM", 2)
    assert audit._largest_variance(point) == pytest.approx(np.linalg.eigvalsh(matrix @ matrix.T)[-1])
    monkeypatch.setattr(audit, "_LARGEST_SPECTRUM", 1)
    assert audit._largest_variance(point) == pytest.approx(np.sum(matrix**2))
    assert audit._largest_variance(Point(jnp.zeros(2), Diagonal(jnp.asarray([-3.0, 2.0])))) == 9.0
    assert (audit.NODES, audit.RANGE, audit.SEEN, audit.LARGEST_STEEPNESS) == (49, 12.0, 10.0, 10.0)
