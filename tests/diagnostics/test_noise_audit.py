"""The measured noise against closed forms for Gaussian targets, and against the theory's bounds.

Measurements are compared within five of their own standard errors (false-alarm rate 6e-7 each).
"""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from provi.diagnostics.noise_audit import audit_gradient_noise, noise_bounds
from provi.families import Gaussian, LocationScale, StudentT, Uniform
from provi.targets import Gaussian as GaussianTarget
from provi.targets import LogDensity, LogisticRegression
from provi.theory import noise
from support.hidden import hidden

MEAN = np.array([0.5, -0.3, 0.2])
ROOT = np.array([[1.0, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.1, 0.9]])
PRECISION = np.linalg.inv(ROOT @ ROOT.T)
TARGET = GaussianTarget(MEAN, covariance=ROOT @ ROOT.T)
DRAWS = 4000
LOC = np.array([1.0, 0.4, -0.6])
SCALE = np.array([[1.3, 0.0, 0.0], [0.2, 1.1, 0.0], [0.4, -0.3, 1.2]])


def rows_of(audit):
    return {row.estimator: row for row in audit.rows}


def closed_form(offset, slope, constant, mask):
    """Variance and second moment of (x, mask * (x u') + constant), x = offset + slope u, u standard normal.

    E x_i^2 u_j^2 = offset_i^2 + sum_k slope_ik^2 + 2 slope_ij^2 and E x u' = slope.
    """
    squares = offset**2 + np.sum(slope**2, axis=1)
    products = squares[:, None] + 2 * slope**2
    mean = mask * slope
    variance = np.sum(slope**2) + np.sum(mask * products) - np.sum(mean**2)
    return variance, variance + np.sum(offset**2) + np.sum((mean + constant) ** 2)


def check_row(row, variance, second_moment):
    assert 0 < row.variance_standard_error < 0.1 * row.variance
    assert abs(row.variance - variance) <= 5 * row.variance_standard_error
    assert abs(row.second_moment - second_moment) <= 5 * row.second_moment_standard_error


@pytest.mark.parametrize("scale", ["triangular", "diagonal"])
def test_closed_forms(scale):
    family, mask = Gaussian(3, scale), np.tril(np.ones((3, 3))) if scale == "triangular" else np.eye(3)
    matrix = SCALE * mask
    point = family.point(LOC, SCALE if scale == "triangular" else np.diagonal(SCALE))
    audit = audit_gradient_noise(TARGET, family, point, num_draws=DRAWS)
    rows = rows_of(audit)
    offset, inverse = PRECISION @ (LOC - MEAN), np.linalg.inv(matrix).T
    check_row(rows["energy"], *closed_form(offset, PRECISION @ matrix, np.zeros((3, 3)), mask))
    check_row(rows["entropy"], *closed_form(offset, PRECISION @ matrix, -mask * inverse, mask))
    check_row(rows["sticking the landing"], *closed_form(offset, PRECISION @ matrix - inverse, np.zeros((3, 3)), mask))
    assert rows["energy"].variance == pytest.approx(rows["entropy"].variance, rel=1e-12)
    assert audit.best == ("sticking the landing",)
    ratio = rows["energy"].variance / rows["sticking the landing"].variance
    assert audit.factor == pytest.approx(ratio, rel=1e-12)
    assert all(row.bound is None for row in audit.rows) and "optimum=" in audit.notes[0]


def test_standard_errors_are_the_spread_over_seeds():
    """50 seeds: the spread is known to 10%, so 50% is five of its standard deviations."""
    family = Gaussian(3)
    point = family.point(LOC, SCALE)
    audits = [audit_gradient_noise(TARGET, family, point, num_draws=DRAWS, seed=seed) for seed in range(50)]
    for name in ("entropy", "sticking the landing"):
        rows = [rows_of(audit)[name] for audit in audits]
        for value in ("variance", "second_moment"):
            spread = np.std([getattr(row, value) for row in rows], ddof=1)
            errors = [getattr(row, f"{value}_standard_error") for row in rows]
            assert spread == pytest.approx(np.mean(errors), rel=0.5)


def test_a_large_gradient_does_not_hide_a_small_variance():
    """At C = 1e-8 I the entropy's part of the gradient is 1e8: |g|^2 is 1e16 times the variance."""
    family, narrow = Gaussian(3, "diagonal"), 1e-8 * np.eye(3)
    rows = rows_of(audit_gradient_noise(TARGET, family, family.point(LOC, 1e-8), num_draws=DRAWS))
    offset = PRECISION @ (LOC - MEAN)
    check_row(rows["entropy"], *closed_form(offset, PRECISION @ narrow, -1e8 * np.eye(3), np.eye(3)))


def test_bounds_at_the_optimum_and_away_from_it():
    """The mode is the mean, so |w* - wbar|^2 = |C*|^2; K = 0 makes the floor of sticking the landing zero."""
    family = Gaussian(3)
    optimum, point = family.point(MEAN, ROOT), family.point(LOC, 1.5 * SCALE)
    known = {
        "dim": 3,
        "smoothness": TARGET.constants.smoothness.value,
        "reference_distance_squared": np.sum(ROOT**2),
    }
    distance = np.sum((LOC - MEAN) ** 2) + np.sum((1.5 * SCALE - ROOT) ** 2)
    expected = {
        "energy": noise.energy_noise(**known),
        "entropy": noise.entropy_noise(**known),
        "sticking the landing": noise.stl_noise(**known, residual_smoothness=0.0),
    }
    rows = rows_of(audit_gradient_noise(TARGET, family, point, num_draws=DRAWS, optimum=optimum))
    for name, bound in expected.items():
        assert rows[name].bound == pytest.approx(bound.slope * distance + bound.floor, rel=1e-9)
        assert rows[name].second_moment + 5 * rows[name].second_moment_standard_error <= rows[name].bound
    audit = audit_gradient_noise(TARGET, family, optimum, num_draws=DRAWS, optimum=optimum)
    rows = rows_of(audit)
    assert rows["sticking the landing"].variance < 1e-25 and rows["sticking the landing"].bound == 0
    assert audit.factor > 1e20
    assert rows["energy"].bound == pytest.approx(expected["energy"].floor, rel=1e-9)
    text = str(audit)
    assert "sticking the landing" in text and "theory's bound" in text


def test_the_distance_of_the_mode_is_bounded_by_the_gradient_at_the_optimum():
    """A logistic model, whose mode is not the mean of the optimum: (|grad phi(m*)|/mu)^2 + |C*|^2, below d/mu."""
    design = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 3)))[0]
    labels = np.arange(12) % 3 == 0
    target, family = LogisticRegression(2 * design, labels), Gaussian(3, "diagonal")

    def gradient(z):
        return 2 * design.T @ (1 / (1 + np.exp(-2 * design @ z)) - labels) + z

    mode = optimize.root(gradient, np.zeros(3), tol=1e-12).x
    loc = mode + 0.1
    reference = gradient(loc) @ gradient(loc) + 3 * 0.85**2
    assert np.sum((loc - mode) ** 2) + 3 * 0.85**2 < reference
    assert reference < 3
    bounds, notes = noise_bounds(target, family, family.point(loc, 0.9), family.point(loc, 0.85))
    known = {"dim": 3, "smoothness": 2.0, "reference_distance_squared": reference}
    expected = noise.energy_noise(**known)
    assert bounds["energy"] == pytest.approx(expected.slope * 3 * 0.05**2 + expected.floor, rel=1e-9)
    expected = noise.stl_noise(**known, residual_smoothness=2.0)
    assert bounds["sticking the landing"] == pytest.approx(expected.slope * 3 * 0.05**2 + expected.floor, rel=1e-9)
    assert notes == []
    far = noise_bounds(target, family, family.point(loc, 0.85), family.point(loc + 5, 0.85))[0]
    assert far["energy"] == pytest.approx(2 * 6 * 4 * (75 + 3), rel=1e-9)


def test_what_has_no_bound_says_why():
    optimum, normal = Gaussian(3).point(MEAN, ROOT), Gaussian(3)

    def check(found, expected, words):
        assert set(found[0]) == set(expected) and words in " ".join(found[1])

    check(noise_bounds(TARGET, normal, normal.point(MEAN, 0.1), optimum), ["energy"], "1/sqrt(M)")
    check(noise_bounds(TARGET, normal, normal.point(MEAN, 2.0), None), [], "optimum=")
    wide = normal.point(LOC, 2.0)
    heavy = LocationScale(3, StudentT(9.0))
    check(noise_bounds(TARGET, heavy, wide, optimum), ["energy", "entropy"], "normal base")
    check(noise_bounds(TARGET, LocationScale(3, StudentT(3.0)), wide, optimum), [], "df")
    check(noise_bounds(TARGET, Gaussian(3, "low_rank"), wide, optimum), [], "low_rank")
    unknown = LogDensity(lambda z: -0.5 * jnp.sum(hidden(z) ** 2), 3)
    check(noise_bounds(unknown, normal, wide, optimum), [], "smoothness")
    bounded = LocationScale(3, Uniform())
    audit = audit_gradient_noise(TARGET, bounded, bounded.point(LOC, 2.0), num_draws=10)
    assert [row.estimator for row in audit.rows] == ["energy", "entropy"] == list(audit.best)
    assert any("biased for the uniform base" in note for note in audit.notes)


TRACES = []


def counted(z):
    TRACES.append(1)
    return -0.5 * jnp.sum(z**2)


def test_compiled_once():
    target, family = LogDensity(counted, 2), Gaussian(2)
    first = audit_gradient_noise(target, family, family.point(np.zeros(2), 1.3), num_draws=101)
    count = len(TRACES)
    assert count > 0
    for seed in (0, 1):
        other = audit_gradient_noise(target, family, family.point(np.zeros(2), 1.3), num_draws=101, seed=seed)
        assert (other == first) == (seed == 0)
        audit_gradient_noise(target, family, family.point(np.ones(2), 0.9), num_draws=101, seed=seed)
    assert len(TRACES) == count


def test_single_precision_and_bad_arguments():
    family = Gaussian(3)
    single = GaussianTarget(MEAN.astype(np.float32), covariance=ROOT @ ROOT.T)
    point = family.point(LOC.astype(np.float32), SCALE.astype(np.float32))
    rows = rows_of(audit_gradient_noise(single, family, point, num_draws=DRAWS))
    variance = closed_form(PRECISION @ (LOC - MEAN), PRECISION @ SCALE, np.zeros((3, 3)), np.tril(np.ones((3, 3))))[0]
    assert abs(rows["energy"].variance - variance) <= 5 * rows["energy"].variance_standard_error
    with pytest.raises(ValueError, match="dimension 3"):
        audit_gradient_noise(LogDensity(counted, 2), family, point)
    with pytest.raises(ValueError, match="num_draws"):
        audit_gradient_noise(TARGET, family, point, num_draws=1)
    broken = LogDensity(lambda z: jnp.log(z[0]) - jnp.sum(z**2), 3, start=np.ones(3))
    with pytest.raises(ValueError, match="gradient that is not finite"):
        audit_gradient_noise(broken, family, family.point(np.zeros(3), 1e-310))
