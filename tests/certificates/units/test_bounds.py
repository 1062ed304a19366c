"""`certificates/bounds.py`, function by function: each formula a second time, in plain Python, from its docstring.

Quick by design, without a compiler: `python -m provi_lab.mutation` asks these tests first of a changed line.
"""

import dataclasses
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from provi.certificates import bounds
from provi.certificates.bounds import GapBound

RNG = np.random.default_rng(0)


def test_a_bound_without_more_is_deterministic():
    assert dataclasses.astuple(GapBound("n", 1.0, "proven")) == ("n", 1.0, "proven", None, 0, "")


def test_only_proven_errors_prove():
    rows = (GapBound("a", 1.0, "proven", detail="why"), GapBound("b", 2.0, "proven"))

    def statuses(errors_proven, grounds, normal):
        likelihood = SimpleNamespace(errors_proven=errors_proven, grounds=(grounds, "estimated"), name="some")
        found = bounds.on_grounds_of(likelihood, rows, normal)
        assert [row.value for row in found] == [1.0, 2.0]
        return [row.status for row in found], [row.detail for row in found]

    for trusted in ((True, "proven", True), (True, "proven", False), (True, "declared", True)):
        assert statuses(*trusted) == (["proven"] * 2, ["why", ""])
    for doubtful in ((False, "proven", True), (True, "declared", False), (False, "declared", True)):
        found, details = statuses(*doubtful)
        assert found == ["conditional"] * 2 and details[0] == "why" and "quadrature resolves the some" in details[1]
    assert bounds.on_grounds_of(SimpleNamespace(errors_proven=True, grounds=("declared",), name=""), rows) == rows
    assert bounds.STATUSES == ("proven", "statistical", "conditional")


def test_the_gap_of_log_det():
    values = np.array([0.2, 0.9, 1.0, 1.7])
    assert bounds.log_det_gap(values) == pytest.approx(sum(x - 1 - math.log(x) for x in values), rel=1e-14)
    assert bounds.log_det_gap(np.array([1 + 1e-9])) == pytest.approx(5e-19, rel=1e-6)  # cancels but for log1p
    assert bounds.log_det_gap(np.array([1.0, 0.0])) == bounds.log_det_gap(np.array([1.0, -0.5])) == math.inf
    assert bounds.log_det_gap(np.ones(3)) == 0
    # sup over B of log det B - <S, B - 1>, in one dimension, by search.
    least = optimize.minimize_scalar(lambda b: -(math.log(b) - 0.2 * (b - 1)), bounds=(0.1, 50), method="bounded").fun
    assert bounds.log_det_gap(np.array([0.2])) == pytest.approx(-least, rel=1e-9)


def test_the_largest_gap_of_a_norm():
    for norm in (0.0, 0.3, 0.99):
        assert bounds.log_det_gap_from_norm(norm) == pytest.approx(-norm - math.log(1 - norm), rel=1e-12)
        for _ in range(20):
            x = RNG.normal(size=3)
            x *= norm / np.linalg.norm(x)
            assert bounds.log_det_gap(1 + x) <= bounds.log_det_gap_from_norm(norm) + 1e-15
    assert bounds.log_det_gap_from_norm(1.0) == bounds.log_det_gap_from_norm(2.0) == math.inf


def test_needed_radius_is_the_larger_of_the_two():
    for radius, size, smallest, mean in ((0.3, 0.01, 0.5, 0.02), (2.0, 0.2, 0.9, 1e-9), (0.1, 0.0, 0.2, 0.3)):
        c = 1 / (1 + radius) ** 2
        norm, total = math.sqrt(2 * mean), math.sqrt(2 * mean + size**2 / c)
        expected = max((norm + total) / math.sqrt(smallest), size / c + total / math.sqrt(c))
        assert bounds.needed_radius(radius, size, smallest, mean) == pytest.approx(expected, rel=1e-14)


def region(covariance, size, norm, answers):
    """`region_bound` on a list of answers for the radii that it asks for; also the radii."""
    asked = []

    def at_radius(radius):
        asked.append(radius)
        return answers[len(asked) - 1]

    return bounds.region_bound(covariance, size, norm, at_radius), asked


def test_a_region_that_holds_the_best_member():
    found, asked = region(0.25, 0.03, 0.04, [(0.9, 1e-4)])
    assert asked == [pytest.approx(3 * 0.05)]
    assert found == GapBound("local curvature (d)", 0.25 + 1e-4, "proven", detail="on a region of radius 0.15 around q")


def test_a_region_grows_by_a_fifth_more_than_was_needed():
    answers = [(0.3, 2e-3), (0.3, 2e-3), (0.3, 2e-3), (0.3, 2e-3), (0.3, 2e-3)]
    found, asked = region(0.0, 0.03, 0.04, answers)
    needed = bounds.needed_radius(asked[0], 0.03, 0.3, 2e-3)
    assert asked[0] < needed < 30 * 0.05 and asked[1] == pytest.approx(1.2 * needed, rel=1e-14)
    assert found.value == 2e-3 and len(asked) == 2 and found.detail.endswith(f"{asked[1]:.2g} around q")


def test_no_region_where_none_can_be():
    far = "too far from the optimum: no region holds the best member"
    nothing, asked = region(math.inf, 0.0, 0.1, [])
    assert (nothing.value, asked) == (math.inf, []) and "S is not positive definite" in nothing.detail
    for covariance, size, norm, answers, tried in (
        (0.1, 0.25, 0.1, [], 0),  # a size that no region holds
        (0.1, 0.1, 1e50, [], 0),
        (0.1, 0.03, 0.04, [(0.0, math.inf)], 1),
        (0.1, 0.03, 0.04, [(-1.0, 1.0)], 1),
        (0.1, 0.03, 0.04, [(1e-9, 1.0)], 1),  # needs more than thirty times the unit
        (0.1, 0.03, 0.04, [(0.3, 3e-3 * 4.0**k) for k in range(9)], 4),
    ):
        found, asked = region(covariance, size, norm, answers)
        assert found == GapBound("local curvature (d)", math.inf, "proven", detail=far) and len(asked) == tried
    inside, asked = region(0.1, 0.249, 0.0, [(1.0, 0.0)] * 4)  # just below: it is tried
    assert asked and asked[0] == pytest.approx(0.747)
    # From thirty units on it gives up, just below it goes on.
    for share, tried in ((0.99, 2), (1.01, 1)):
        mean = ((share * 30 * 0.05) / 2) ** 2 / 2
        assert len(region(0.0, 0.0, 0.05, [(1.0, mean), (1.0, 0.0)])[1]) == tried


def test_weights_on_a_region_by_quadrature():
    """kappa = m0 - m1^2/m2 at the narrower deviation, for the logistic's second derivative; errors on the safe side."""

    def second(eta):
        return special.expit(eta) * special.expit(-eta)

    def moments_at(mean, deviation):
        return [integrate.quad(lambda t, j=j: t**j * second(mean + deviation * t) * stats.norm.pdf(t), -12, 12)[0]
                for j in range(3)]  # fmt: skip

    mean, spread, radius, slack, constant = 0.7, 1.3, 0.4, 0.05, 1.0
    q = constant * (spread * radius + slack)
    m0, m1, m2 = moments_at(mean, spread / math.sqrt(1 + q))
    for error in (0.0, 0.01):
        expected = math.exp(-1.5 * q) / math.sqrt(1 + q) * (m0 - error - m1**2 / (m2 - error))
        asked = []

        def moments(deviation, asked=asked, error=error):
            asked.append(float(deviation))
            return tuple(jnp.asarray(x) for x in (m0, m1, m2, error))

        found = bounds.local_weights(constant, moments, jnp.asarray(spread), jnp.asarray(radius), jnp.asarray(slack))
        assert float(found) == pytest.approx(expected, rel=1e-12)
        assert asked[0] == pytest.approx(spread / math.sqrt(1 + q), rel=1e-14)
    for given in ((0.2, 0.1, 0.01, 0.02), (0.1, 0.3, 0.5, 0.0), (0.2, 0.1, 0.02, 0.02)):  # nothing known: zero
        arrays = tuple(jnp.asarray(x) for x in given)
        assert float(bounds.local_weights(1.0, lambda _, a=arrays: a, jnp.ones(()), 0.1, 0.0)) == 0
    twice = bounds.local_weights(2.0, lambda _: (0.2, 0.0, 0.1, 0.0), jnp.asarray(0.5), jnp.asarray(0.5), 0.1)
    assert float(twice) == pytest.approx(math.exp(-1.5 * 0.7) / math.sqrt(1.7) * 0.2)


def test_printed_bounds_are_rounded_up():
    assert bounds.at_most(0.0394) == "0.0394" and bounds.at_most(0.03941) == "0.0395"
    assert (
        bounds.at_most(1.0000001) == "1.01"
        and bounds.at_most(math.inf) == "inf"
        and bounds.at_most(2.34e-9, 2) == "2.4e-09"
    )
    for value in RNG.lognormal(0, 8, 200):
        text = bounds.at_most(float(value))
        assert value <= float(text) <= value * 1.0101


def t_and_gamma(samples, delta):
    """The larger of the two bounds, one sample at a time, with SciPy's distributions."""
    count, mean, variance = len(samples), samples.mean(), samples.var(ddof=1)
    t = stats.t.isf(delta, count - 1)
    plain = mean + t * math.sqrt(variance / count)
    if mean <= 0 or samples.min() < -mean:
        return plain
    dispersion = variance / mean**2
    inflated = min(max(dispersion * (1 + 4 * dispersion * t / math.sqrt(count)), 1e-12), 2.0)
    shape = count / inflated
    return max(plain, mean * shape / stats.gamma.ppf(stats.norm.sf(t), shape))


def test_the_mean_bound_is_its_formula():
    for scale in (0.02, 0.2, 0.45, 1.0, 3.0):
        samples = RNG.gamma(1 / scale, scale, 17)
        for delta in (0.3, 0.01):
            assert bounds.mean_upper_bound(samples, delta) == pytest.approx(t_and_gamma(samples, delta), rel=1e-9)
    for lowest in (-0.7, -1.3):  # of a mean of about 1: an energy below its negative is none
        samples = np.concatenate([[lowest], RNG.gamma(2.0, 0.6, 19)])
        samples[1:] += (1 - samples.mean()) * 20 / 19
        assert bounds.mean_upper_bound(samples, 0.01) == pytest.approx(t_and_gamma(samples, 0.01), rel=1e-9)
    assert bounds.mean_upper_bound(-np.arange(1.0, 18), 0.01) == pytest.approx(t_and_gamma(-np.arange(1.0, 18), 0.01))
    equal = np.full((3,), 2.0)  # no variance at all: the dispersion is held above zero
    assert np.allclose(bounds.mean_bound_from_moments(equal, 0 * equal, equal, 16, 0.01), 2.0, rtol=1e-5)


def test_the_norm_bound_is_the_maximum_over_angles():
    for count, dim in ((16, 1), (20, 3), (33, 60)):
        x = RNG.normal(size=(count, dim)) * np.linspace(1, 2, dim) + 0.2
        centred = x - x.mean(axis=0)
        values = np.linalg.eigvalsh(centred @ centred.T) / (count - 1)
        unbiased, n = x.mean(axis=0) @ x.mean(axis=0) - values.sum() / count, count - 1
        for delta in (0.2, 0.01):
            q = stats.t.isf(0.9 * delta, n)
            spike = max(values[-1] - (values.sum() - values[-1]) / (n - 1), 0.0)
            square = n**2 / ((n - 1) * (n + 2)) * ((values**2).sum() - values.sum() ** 2 / n)
            across = math.sqrt(2 * max(square - spike**2, 0.0))
            best = 0.0
            for k in range(33):
                phi = k / 32 * math.pi / 2
                energy = unbiased + (spike + q * math.sin(phi) * across) / count
                best = max(best, q * math.cos(phi) * math.sqrt(spike / count) + math.sqrt(max(energy, 0.0)))
            assert bounds.squared_norm_upper_bound(x @ x.T, delta) == pytest.approx(best**2, rel=1e-9)
    # A spectrum without a spike, and one where almost all of tr S^2 is the spike.
    for moments in ([0.1, 1.0, 0.02, 0.02], [0.1, 1.0, 0.9, 0.95], [-1.0, 1.0, 0.2, 0.3]):
        found = bounds.squared_norm_bound_from_moments(np.asarray(moments)[:, None], 16, 0.05)
        n, q = 15, stats.t.isf(0.045, 15)
        unbiased, trace, square, largest = moments
        spike = max(largest - (trace - largest) / (n - 1), 0.0)
        rest = max(n**2 / ((n - 1) * (n + 2)) * (square - trace**2 / n) - spike**2, 0.0)
        angle = np.arange(33) * math.pi / 64
        energy = np.maximum(unbiased + (spike + q * np.sin(angle) * math.sqrt(2 * rest)) / 16, 0)
        assert found.item() == pytest.approx(np.max(q * np.cos(angle) * math.sqrt(spike / 16) + np.sqrt(energy)) ** 2)


def test_levels_and_batches_are_checked_at_their_ends():
    ones = np.linspace(1, 2, 16)
    assert bounds.mean_upper_bound(ones, 0.4999) > 0 and bounds.mean_upper_bound(ones, 1e-6) > 2 - 1
    for wrong in (0.0, 0.5, -0.1, 0.6):
        with pytest.raises(ValueError, match="delta"):
            bounds.mean_upper_bound(ones, wrong)
    with pytest.raises(ValueError, match="at least 16"):
        bounds.squared_norm_upper_bound(np.eye(15), 0.01)
    with pytest.raises(ValueError, match="check must be 0"):
        bounds.spend(0.1, -1)
    assert [bounds.spend(0.4, check) for check in range(3)] == [0.2, 0.1, 0.05]
