"""Rules of integration on densities whose integrals are known."""

import numpy as np
import pytest
from scipy import special, stats

from provi.structures.integration import curvature_at, error_of, find_mode, grid_rule, lattice_rule, refined


def _gaussian(dim, seed=0):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(dim, dim)) + 2 * np.eye(dim)
    law = stats.multivariate_normal(rng.normal(size=dim), half @ half.T / dim)
    return law, lambda theta: np.atleast_1d(law.logpdf(theta))


def _mode(density, start):
    def value_and_slope(theta):
        eye = 1e-4 * np.eye(len(theta))
        values = density(np.concatenate([theta[None], theta + eye, theta - eye]))
        up, down = values[1 : 1 + len(theta)], values[1 + len(theta) :]
        return float(values[0]), (up - down) / 2e-4, (2 * values[0] - up - down) / 1e-8

    return find_mode(value_and_slope, np.asarray(start, float))


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_a_grid_integrates_a_gaussian(dim):
    law, density = _gaussian(dim)
    mode, guess = _mode(density, np.zeros(dim))
    rule = grid_rule(density, mode, curvature_at(density, mode, guess))
    values = density(rule.nodes)
    weights = np.exp(values + rule.log_volume)
    assert weights.sum() == pytest.approx(1, abs=0.01)  # what lies beyond the drop
    error = error_of(rule, values)
    assert error.small and error.outside < 0.02
    spread = np.sqrt(np.diag(law.cov))
    weights /= weights.sum()
    np.testing.assert_allclose((weights @ rule.nodes - law.mean) / spread, 0, atol=0.01)
    fine, shares = refined(rule, values)
    centre = shares @ fine
    np.testing.assert_allclose(np.sqrt(shares @ (fine - centre) ** 2) / spread, 1, atol=0.01)
    order = np.argsort(fine[:, 0])
    ninth = fine[order, 0][np.searchsorted(np.cumsum(shares[order]), 0.95)]
    assert (ninth - law.mean[0]) / spread[0] == pytest.approx(1.645, abs=0.06)


@pytest.mark.parametrize("dim", [5, 7])
def test_a_lattice_integrates_a_gaussian_in_more_dimensions(dim):
    law, density = _gaussian(dim)
    mode, guess = _mode(density, np.zeros(dim))
    rule = lattice_rule(density, mode, curvature_at(density, mode, guess), seed=0)
    values = density(rule.nodes)
    weights = np.exp(values + rule.log_volume)
    assert weights.sum() == pytest.approx(1, abs=0.05)
    weights /= weights.sum()
    spread = np.sqrt(np.diag(law.cov))
    np.testing.assert_allclose((weights @ rule.nodes - law.mean) / spread, 0, atol=0.08)
    assert error_of(rule, values).log_evidence < 0.2


def test_a_long_tail_is_followed_and_its_error_told():
    """A log-gamma law: exponential on the left, as that of a scale that may be zero."""

    def density(theta):
        return theta[:, 0] - np.exp(theta[:, 0])

    mode, guess = _mode(density, [2.0])
    assert mode[0] == pytest.approx(0, abs=0.1)
    rule = grid_rule(density, mode, guess)
    values = density(rule.nodes)
    total = float(special.logsumexp(values + rule.log_volume))
    assert abs(total) < 5e-3  # Gamma(1) = 1
    error = error_of(rule, values)
    assert abs(total) <= error.log_evidence + error.outside
    fine, shares = refined(rule, values)
    assert shares @ np.exp(fine[:, 0]) == pytest.approx(1, abs=5e-3)
    order = np.argsort(fine[:, 0])
    median = np.interp(0.5, np.cumsum(shares[order]) - 0.5 * shares[order], np.exp(fine[order, 0]))
    assert median == pytest.approx(np.log(2), abs=5e-3)


def test_a_coarse_rule_says_so():
    """Ridges that are narrower than a step of the grid."""

    def density(theta):
        return -0.5 * theta[:, 0] ** 2 + 3 * np.cos(9 * theta[:, 0])

    rule = grid_rule(density, np.zeros(1), np.eye(1))
    assert not error_of(rule, density(rule.nodes)).small


def test_needles_are_refused_or_found_and_never_searched_for_ever():
    """All mass at one node: the grid's step was halved without end, and the lattice's weights were never flat."""

    def needle(theta):
        return np.where(np.abs(theta).sum(axis=1) == 0, 0.0, -np.inf)

    with pytest.raises(ValueError, match="all its mass at one point"):
        grid_rule(needle, np.zeros(2), np.eye(2))
    wide, narrow = (
        lattice_rule(lambda theta, k=k: -k * np.sum(theta**2, axis=1), np.zeros(5), np.eye(5), seed=0)
        for k in (0.5, 1e7)
    )
    assert np.abs(narrow.nodes).mean() < 0.6 * np.abs(wide.nodes).mean()  # it went in
