"""The region of the optimum, on targets whose optimum is known in closed form."""

import numpy as np
import pytest

from provi.theory import solution_region


@pytest.mark.parametrize("family", ["symmetric", "diagonal"])
def test_gaussian_targets_lie_in_the_region(family):
    rng = np.random.default_rng(0)
    for _ in range(20):
        root = rng.normal(size=(4, 4))
        precision = root @ root.T + 0.05 * np.eye(4)
        values = np.linalg.eigvalsh(precision)
        covariance_roots = values**-0.5 if family == "symmetric" else np.diag(precision) ** -0.5
        assert covariance_roots.min() >= solution_region.smallest_scale(values[-1]) * (1 - 1e-12)
        assert (covariance_roots**2).sum() <= solution_region.reference_distance_squared_bound(4, values[0])
        point = rng.normal(size=4)
        gradient = np.linalg.norm(precision @ point)
        assert np.linalg.norm(point) <= solution_region.mode_distance_bound(gradient, values[0])


def test_isotropic_target_reaches_both():
    assert solution_region.smallest_scale(4.0) == pytest.approx(0.5)
    assert solution_region.reference_distance_squared_bound(3, 4.0) == pytest.approx(3 * 0.5**2)


def test_start_distance_is_the_triangle_inequality():
    """The far side: w0 opposite to w* seen from w-bar."""
    found = solution_region.start_distance_squared_bound(2.0, 3, 4.0)
    assert found == pytest.approx((2.0 + np.sqrt(0.75)) ** 2)


def test_refuses():
    with pytest.raises(ValueError, match="smoothness"):
        solution_region.smallest_scale(0.0)
    with pytest.raises(ValueError, match="strong_convexity"):
        solution_region.reference_distance_squared_bound(3, 0.0)
    with pytest.raises(ValueError, match="gradient_norm"):
        solution_region.mode_distance_bound(-1.0, 1.0)
