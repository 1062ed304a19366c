"""The settings of paper 004's Appendix C, against the printed formulas and against the Hessian."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.families import Laplace, Normal
from provi_lab.papers.mpsgd.runs import Problem, settings

SMALL = Problem("small", Laplace(), num_data=30, precision=0.1, dim=6, budget=400)


def test_corrected_smoothness_is_the_largest_curvature_and_the_printed_one_is_not():
    target = SMALL.target(seed=0)
    largest = float(jnp.linalg.eigvalsh(jax.hessian(target.potential)(jnp.zeros(6)))[-1])
    assert SMALL.smoothness(target, "corrected") == pytest.approx(largest, rel=1e-12)
    assert SMALL.smoothness(target, "as printed") < 0.6 * largest


def test_the_data_are_those_of_the_paper():
    target = SMALL.target(seed=1)
    design, labels = np.asarray(target.design), np.asarray(target.response)
    assert design.shape == (30, 6) and 0 <= design.min() and design.max() <= 1
    assert set(labels) == {0.0, 1.0}
    # Prior precision 0.1 alone: the Hessian far out in a direction where the sigmoids saturate.
    curvature = jax.hessian(target.potential)(1e3 * jnp.ones(6))
    np.testing.assert_allclose(curvature, 0.1 * np.eye(6), atol=1e-12)


def test_printed_settings():
    """Appendix C, by hand for d = 6, the Laplace base and E = 400."""
    psgd, scaled_psgd, mpsgd, scaled_mpsgd = settings(SMALL, target := SMALL.target(0), "as printed")
    smoothness, kurtosis = SMALL.smoothness(target, "as printed"), 3 * (6 + 3) / (6 + 1)
    assert psgd.step_size == pytest.approx(1 / (2 * smoothness * math.sqrt((5 + kurtosis) * 400)))
    assert scaled_psgd.step_size == pytest.approx(1 / (2 * smoothness * 20))
    assert scaled_psgd.scale_factor == scaled_mpsgd.scale_factor == pytest.approx(1 / (2 * (5 + kurtosis)))
    assert mpsgd.step_size == scaled_mpsgd.step_size == pytest.approx(1 / (2 * smoothness))
    assert mpsgd.num_draws == math.ceil(math.sqrt((6 + kurtosis) * 400))
    assert (scaled_mpsgd.num_draws, scaled_mpsgd.num_steps) == (20, 20)
    assert (psgd.num_draws, psgd.num_steps, psgd.scale_factor) == (1, 400, 1.0)


def test_readings_differ_in_the_dimension_factor_except_for_the_normal_base():
    laplace = [SMALL.factors(reading)[0] for reading in ("corrected", "as printed")]
    assert laplace[0] == pytest.approx((6 + 2) * (6 + 3) / (6 + 1)) and laplace[0] > laplace[1]
    normal = Problem("normal", Normal(), num_data=30, precision=0.1, dim=6)
    assert normal.factors("corrected") == pytest.approx(normal.factors("as printed"))


@pytest.mark.parametrize("reading", ["corrected", "as printed"])
def test_no_method_spends_more_than_the_budget(reading):
    for setting in settings(SMALL, SMALL.target(0), reading):
        assert 0.8 * SMALL.budget < setting.num_draws * setting.num_steps <= SMALL.budget
        assert float(setting.algorithm().smallest_scale) == pytest.approx(setting.smoothness**-0.5)
