"""Existence of the best approximation, and the lower bound that proves it for any base."""

import numpy as np
import pytest
from scipy import integrate, stats

from provi.theory.solution_region import linear_growth, minimiser_exists


@pytest.mark.parametrize(
    ("growth", "log_concave", "mu", "holds", "word"),
    [
        (None, False, 0.3, True, "strongly convex"),
        (2.0, False, None, True, "quadratic"),
        (1.0, True, None, True, "log-concave"),
        (1.0, False, 0.0, True, "compactness"),
        (None, True, None, False, "Unknown"),
        (None, True, 0.0, False, "Unknown"),
    ],
)
def test_verdicts(growth, log_concave, mu, holds, word):
    verdict = minimiser_exists(growth, log_concave, mu)
    assert verdict.holds is holds
    assert word in verdict.reason


@pytest.mark.parametrize("exponent", [0.3, 1.0])
def test_objective_is_coercive_for_a_heavy_base(exponent):
    """d = 1, potential |z|^r, Student-t with 2.5 degrees of freedom (no log-concavity, no fourth moment).

    E|m + c u|^r >= const (m^2 + c^2)^(r/2): the ratio, a function of the angle only, stays off 0; hence f
    has an
    interior minimiser, found on a grid.
    """
    base, spread = stats.t(2.5), np.sqrt(2.5 / 0.5)

    def moment(m, c):
        density = lambda u: np.abs(m + c * u / spread) ** exponent * base.pdf(u)  # noqa: E731
        return (
            integrate.quad(density, -np.inf, -m * spread / max(c, 1e-12))[0]
            + integrate.quad(density, -m * spread / max(c, 1e-12), np.inf)[0]
        )

    angles = np.linspace(0.0, np.pi / 2, 9)[1:]
    assert min(moment(np.cos(a), np.sin(a)) for a in angles) > 0.3
    scales = np.geomspace(0.05, 200, 60)
    values = scales**exponent * moment(0.0, 1.0) - np.log(scales)
    assert 0 < values.argmin() < 59


def test_refuses():
    with pytest.raises(ValueError, match="growth_exponent"):
        minimiser_exists(-1.0, True, None)


def test_linear_growth_is_below_the_truth_and_found_where_there_is_any():
    """In the plane, against all directions: c <= min_v max_i <g_i, v>, and 0 where that is not positive."""
    angles = np.linspace(0, 2 * np.pi, 20_001)
    directions, rng, seen = np.stack([np.cos(angles), np.sin(angles)]), np.random.default_rng(0), []
    for count in (3, 4, 5, 8) * 15:
        gradients = 10 ** rng.uniform(-3, 3) * rng.normal(size=(count, 2))
        truth, found = (gradients @ directions).max(axis=0).min(), linear_growth(gradients)
        assert (found > 0) == (truth > 0) and found <= max(truth, 0.0)
        seen.append(truth > 0)
    assert 15 < sum(seen) < 45
    assert linear_growth(np.array([[1.0], [-0.5]])) == pytest.approx(np.sqrt(1.25 / 2) / 3, rel=1e-9)
    flat = [
        np.array([[1.0], [0.0]]),
        np.array([[1.0], [-1e-12]]),
        np.zeros((4, 2)),
        np.array([[1.0, 0.0], [-1.0, 0.0]]),
    ]
    assert [linear_growth(each) for each in [*flat, np.array([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]])]] == [0.0] * 5
    assert linear_growth(np.array([[1.0], [-np.inf]])) == 0.0
