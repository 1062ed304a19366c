"""Summaries in the model's own space: closed forms of transformed Gaussians, names, values that are not finite."""

import io

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import provi
from provi.families import Gaussian
from provi.result import Posterior, Summary
from provi.targets import LogDensity

MEAN, DEVIATION = np.array([1.0, -0.5, 0.3, 0.8]), np.array([0.5, 0.4, 0.7, 0.6])


def posterior(target, mean=MEAN, deviation=DEVIATION):
    family = Gaussian(target.dim)
    point = family.point_from_covariance(mean[: target.dim], np.diag(deviation[: target.dim] ** 2))
    return Posterior(family, point, target.parameter_names, target)


@pytest.fixture(scope="module")
def constrained():
    """location real, scale positive, shares on a simplex: z = (location, log scale, two free coordinates)."""
    example = {"location": 0.0, "scale": 1.0, "shares": np.full(3, 1 / 3)}

    def log_density(p):
        return -0.5 * p["location"] ** 2 - p["scale"] + jnp.sum(jnp.log(p["shares"]))

    return posterior(LogDensity(log_density, example, constraints={"scale": "positive", "shares": "simplex"}))


@pytest.fixture(scope="module")
def summary(constrained):
    return constrained.summary(0.9)


def test_free_coordinates_are_exact_and_the_rest_within_monte_carlo_error(constrained, summary):
    rows = summary.to_dict()
    assert list(rows) == ["location", "scale", "shares[0]", "shares[1]", "shares[2]"]
    width = stats.norm.ppf(0.95)
    assert rows["location"] == pytest.approx(
        {"mean": 1.0, "sd": 0.5, "low": 1 - 0.5 * width, "high": 1 + 0.5 * width}, rel=1e-12
    )
    law = stats.lognorm(0.4, scale=np.exp(-0.5))
    # Standard errors of 10,000 draws; five of them are passed by chance once in a million.
    draws = 10_000
    assert abs(rows["scale"]["mean"] - law.mean()) < 5 * law.std() / draws**0.5
    assert rows["scale"]["sd"] == pytest.approx(law.std(), rel=0.1)
    for key, probability in (("low", 0.05), ("high", 0.95)):
        error = np.sqrt(probability * (1 - probability) / draws) / law.pdf(law.ppf(probability))
        assert abs(rows["scale"][key] - law.ppf(probability)) < 5 * error
    assert sum(rows[f"shares[{k}]"]["mean"] for k in range(3)) == pytest.approx(1.0, abs=1e-12)
    assert "From 10,000 draws: scale, shares[0]" in summary.notes[0] and "location" not in summary.notes[0]
    assert summary.notes[0] in str(summary).replace("\n", " ")


def test_unconstrained_gives_the_free_coordinates(constrained):
    free = constrained.summary(unconstrained=True)
    assert free.names == constrained.target.parameter_names and free.names[1] == "log(scale)"
    np.testing.assert_array_equal(free.mean, constrained.mean)


def test_draws_are_those_of_sample_in_the_model_space(constrained):
    found, z = constrained.draws(50, seed=4), constrained.sample(50, seed=4)
    np.testing.assert_allclose(found["scale"], np.exp(z[:, 1]), rtol=1e-12)
    np.testing.assert_array_equal(found["location"], z[:, 0])
    assert found["shares"].shape == (50, 3)


def test_the_same_name_is_not_taken_for_the_same_number():
    """The user calls the coordinate log(scale) "scale", as the parameter is called."""
    target = LogDensity(lambda p: -p["scale"], {"scale": 1.0}, names=["scale"], constraints={"scale": "positive"})
    found = posterior(target).summary().to_dict()["scale"]
    law = stats.lognorm(0.5, scale=np.exp(1.0))
    assert abs(found["mean"] - law.mean()) < 5 * law.std() / 100


def test_values_that_are_not_finite_spoil_their_own_row_only():
    target = LogDensity(lambda p: -p["a"] - p["b"] ** 2, {"a": 1.0, "b": 0.0}, constraints={"a": "positive"})
    found = posterior(target, np.array([0.0, 2.0]), np.array([600.0, 1.0])).summary()
    assert not np.isfinite(found.to_dict()["a"]["mean"]) and found.to_dict()["b"]["mean"] == 2.0
    assert any("Not finite in some draws: a." in note for note in found.notes)
    assert "2.000" in str(found)


def test_brackets_in_names_are_no_markup():
    names = ("[red]x[/red]", "[/]", "y[0]")
    table = Summary(names, np.zeros(3), np.ones(3), np.zeros((3, 2)), 0.9)
    for markup in (True, False):
        console = Console(file=io.StringIO(), width=80, markup=markup)
        console.print(table.table())
        assert all(name in console.file.getvalue() for name in names)
    assert all(name in str(table) for name in names)


def test_without_a_target():
    family = Gaussian(1)
    bare = Posterior(family, family.point([0.0], 1.0), ("log(tau)",))
    assert "free coordinates" in str(bare.summary())
    with pytest.raises(ValueError, match="draws needs the target"):
        bare.draws(3, 0)
    with pytest.raises(ValueError, match="does not hold its target"):
        bare.diagnose()


def test_a_bad_approximation_is_pointed_out_unasked():
    """N(0, I) in two dimensions; a q of a fifth of its width has k = 1 - 1/25, a wide one is fine."""
    target = provi.targets.Gaussian(np.zeros(2))
    narrow = posterior(target, np.zeros(2), np.full(2, 0.2)).summary()
    assert narrow.notes[0].startswith("Warning: k-hat") and "NUTS" in narrow.notes[0]
    assert posterior(target, np.zeros(2), np.full(2, 1.05)).summary().notes == ()


def test_a_density_that_breaks_at_draws_is_a_note():
    """log z without a constraint, NaN at negative z."""
    target = LogDensity(lambda z: jnp.sum(jnp.log(z)) - jnp.sum(z), 2, start=np.ones(2))
    assert "could not be computed" in posterior(target).summary().notes[0]
