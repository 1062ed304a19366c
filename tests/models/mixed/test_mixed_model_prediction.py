"""Predictors from draws against the target's own, and against sums by hand; new levels and new inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from provi.models.mixed.assembly import assemble
from provi.models.mixed.prediction import Draws, predictor_blocks, training_rows

RNG = np.random.default_rng(1)
N = 30
FRAME = pd.DataFrame(
    {
        "y": 5 + RNG.normal(size=N), "c": RNG.poisson(3, N), "x": 3 + RNG.normal(size=N), "z": RNG.normal(size=N),
        "f": RNG.choice(list("uvw"), N), "g": RNG.integers(0, 4, N), "h": RNG.choice(list("pqr"), N),
        "t": 2000 + np.arange(N) % 9, "e": RNG.uniform(1, 5, N),
    }
)  # fmt: skip


def _draws(found, num=6):
    target = found.target()
    z = target.default_location + 0.4 * np.random.default_rng(2).normal(size=(num, target.dim))
    return target, z, Draws(target.constrain(z), found.priors.fixed, num)


@pytest.mark.parametrize(
    ("family", "formula"),
    [
        ("gaussian", "y ~ x*f + (1 + x | g) + (1 | h)"),
        ("poisson", "c ~ z + (1 | g/h) + (0 + x || h) + offset(log(e))"),
        ("poisson", "c ~ 0 + f + ar1(t) + gp(x)"),
    ],
)
def test_the_targets_own_predictor(family, formula):
    found = assemble(formula, FRAME, family)
    target, z, draws = _draws(found)
    expected = np.stack([np.asarray(target._predictor(jnp.asarray(row))[1]) for row in z])
    for rows in (training_rows(found.design), found.design.encode(FRAME)):
        ((_, eta),) = predictor_blocks(found.design, draws, rows, found.blocks(), False, 0)
        np.testing.assert_allclose(eta, expected, atol=1e-6)


def test_by_hand_with_new_levels_of_the_population():
    found = assemble("y ~ x + (1 + z | g) + rw1(t)", FRAME, "gaussian")
    _, _, draws = _draws(found)
    new = pd.DataFrame({"x": [1.0, 2.0], "z": [0.5, -1.0], "g": [2, 99], "t": [2003, 2008]})
    ((_, eta),) = predictor_blocks(found.design, draws, found.design.encode(new), {}, False, 0)
    value, mean = draws.values, found.priors.fixed.mean
    base = value["Intercept (at means)"] + mean[0]
    slope = value["x"]
    first = base + slope * (1.0 - FRAME["x"].mean()) + value["g"][:, 2, 0] + 0.5 * value["g"][:, 2, 1]
    second = base + slope * (2.0 - FRAME["x"].mean())
    np.testing.assert_allclose(eta[:, 0], first + value["rw1(t)"][:, 3], atol=1e-12)
    np.testing.assert_allclose(eta[:, 1], second + value["rw1(t)"][:, 8], atol=1e-12)


def test_new_levels_have_the_law_of_the_levels():
    found = assemble("y ~ 1 + (1 + z | g)", FRAME, "gaussian")
    num = 40_000
    target, z, _ = _draws(found, 1)
    draws = Draws(target.constrain(np.repeat(z, num, axis=0)), found.priors.fixed, num)
    new = pd.DataFrame({"z": [0.0, 0.0, 1.5, 0.0], "g": [50, 50, 50, 51]})
    ((_, eta),) = predictor_blocks(found.design, draws, found.design.encode(new), {}, True, 0)
    np.testing.assert_array_equal(eta[:, 0], eta[:, 1])
    first, slope = draws.values["sd(g: Intercept)"][0], draws.values["sd(g: z)"][0]
    shared = draws.values["cor(g: Intercept, z)"][0] * first * slope
    covariance = np.cov(eta[:, 0], eta[:, 2])
    expected = [[first**2, first**2 + 1.5 * shared], [0, first**2 + 3 * shared + 2.25 * slope**2]]
    expected[1][0] = expected[0][1]
    # Relative standard errors of (co)variances are at most sqrt(2 / num) = 0.007.
    np.testing.assert_allclose(covariance, expected, rtol=0.05, atol=0.02 * first**2)
    assert abs(np.corrcoef(eta[:, 0], eta[:, 3])[0, 1]) < 5 / np.sqrt(num), "two levels are independent"


def test_new_inputs_of_a_process_given_the_old_ones():
    found = assemble("y ~ gp(x)", FRAME, "gaussian")
    num = 20_000
    target, z, _ = _draws(found, 1)
    with jax.enable_x64(True):
        values = {name: np.repeat(value, num, axis=0) for name, value in target.constrain(z).items()}
    draws, block = Draws(values, found.priors.fixed, num), found.blocks()["gp(x)"]
    new = np.array([2.2, 3.3])
    ((_, eta),) = predictor_blocks(found.design, draws, found.design.encode({"x": new}), found.blocks(), False, 0)
    amplitude, length = values["amplitude(gp(x))"][0], values["length_scale(gp(x))"][0]
    old = block.inputs[:, 0]

    def kernel(a, b):
        return amplitude**2 * np.exp(-0.5 * (a[:, None] - b[None]) ** 2 / length**2)

    inverse = np.linalg.inv(kernel(old, old) + 1e-6 * amplitude**2 * np.eye(len(old)))
    mean = kernel(new, old) @ inverse @ values["gp(x)"][0]
    covariance = kernel(new, new) * 1.0 - kernel(new, old) @ inverse @ kernel(old, new)
    function = eta - (values["Intercept"] + found.priors.fixed.mean[0])[:, None]
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-6 * amplitude**2))
    assert (np.abs(function.mean(axis=0) - mean) < 6 * spread / np.sqrt(num) + 2e-3 * amplitude).all()


def test_rows_in_blocks(monkeypatch):
    from provi.models.mixed import prediction

    found = assemble("y ~ x + (1 | g)", FRAME, "gaussian")
    _, _, draws = _draws(found)
    rows = training_rows(found.design)
    ((_, whole),) = predictor_blocks(found.design, draws, rows, {}, False, 0)
    monkeypatch.setattr(prediction, "_NUMBERS_AT_ONCE", 6 * 7)
    parts = [eta for _, eta in predictor_blocks(found.design, draws, rows, {}, False, 0)]
    assert len(parts) == 5
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
