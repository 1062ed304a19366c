"""Existence of the best approximation, and the lower bound that proves it for any base."""

import numpy as np
import pytest
from scipy import integrate, stats

from provi.theory.solution_region import minimiser_exists


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
