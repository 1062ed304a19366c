"""Default priors by hand, those of the user in their place, and the change of coordinates that centring is."""

import numpy as np
import pandas as pd
import pytest

from provi.models.mixed.assembly import assemble
from provi.targets import latent

RNG = np.random.default_rng(0)
N = 40
FRAME = pd.DataFrame(
    {
        "y": 100 + 3 * RNG.normal(size=N),
        "b": RNG.integers(0, 2, N),
        "c": RNG.poisson(30, N),
        "x": 2000 + RNG.normal(size=N),
        "f": RNG.choice(list("uvw"), N),
        "g": RNG.integers(0, 6, N),
        "t": RNG.integers(2000, 2010, N),
        "e": RNG.uniform(1, 5, N),
        "o": RNG.integers(0, 3, N),
        "time": RNG.exponential(10, N),
        "event": RNG.integers(0, 2, N),
    }
)


def test_gaussian_defaults_by_hand():
    priors = assemble("y ~ x + (1 + x | g)", FRAME, "gaussian").priors
    unit, spread = 2.5 * np.std(FRAME["y"]), np.std(FRAME["x"])
    np.testing.assert_allclose(priors.fixed.mean, [FRAME["y"].mean(), 0])
    np.testing.assert_allclose(priors.fixed.scale, [unit, unit / spread])
    np.testing.assert_allclose(priors.fixed.centre, [0, FRAME["x"].mean()])
    assert [float(prior.scale) for prior in priors.scales["g"]] == pytest.approx([unit, unit / spread])
    assert float(priors.likelihood["scale"].scale) == pytest.approx(unit)
    assert list(priors.words) == ["Intercept", "x", "sd(g: Intercept)", "sd(g: x)", "cor(g)", "sigma"]
    assert priors.words["cor(g)"] == "LKJ(2)" and priors.words["sigma"] == f"HalfNormal({unit:.4g})"


def test_other_families_by_hand():
    bernoulli = assemble("b ~ x + (1 | g)", FRAME, "bernoulli").priors
    np.testing.assert_allclose(bernoulli.fixed.scale, [2.5, 2.5 / np.std(FRAME["x"])])
    assert bernoulli.fixed.mean[0] == 0 and float(bernoulli.scales["g"][0].scale) == 2.5
    counts = assemble("c ~ x + offset(log(e))", FRAME, "poisson").priors
    rate = (FRAME["c"].sum() + 0.5) / FRAME["e"].sum()
    assert counts.fixed.mean[0] == pytest.approx(np.log(rate))
    times = assemble("surv(time, event) ~ x", FRAME, "weibull").priors
    assert times.fixed.mean[0] == pytest.approx(np.log(FRAME["event"].sum() / FRAME["time"].sum()))
    assert times.words["shape"] == "LogNormal(0, 0.5)"


def test_without_an_intercept_means_may_be_far_from_zero():
    priors = assemble("y ~ 0 + f", FRAME, "gaussian").priors.fixed
    share = np.array([(FRAME["f"] == level).mean() for level in "uvw"])
    np.testing.assert_allclose(priors.scale, 2.5 * np.sqrt(np.mean(FRAME["y"] ** 2)) / np.sqrt(share))
    assert not priors.centre.any() and not priors.mean.any()


def test_cut_points_take_the_place_of_the_intercept():
    fixed = assemble("o ~ x + f", FRAME, "ordinal").priors.fixed
    assert fixed.names == ("x", "f[v]", "f[w]") and fixed.columns.tolist() == [1, 2, 3]
    assert fixed.centre[0] == pytest.approx(FRAME["x"].mean())


def test_coordinates_of_the_target_are_those_of_the_formula():
    """x'beta with beta = original(delta) is what the target's columns, offset and delta give."""
    found = assemble("y ~ x*f + (1 | g)", FRAME, "gaussian", priors={"x": latent.Normal(0.7, 0.1)})
    fixed, delta = found.priors.fixed, RNG.normal(size=(5, 6))
    target = delta @ fixed.matrix(found.design.fixed).T + fixed.offset(found.design.fixed)
    np.testing.assert_allclose(fixed.original(delta.copy()) @ found.design.fixed.T, target, rtol=1e-12)
    assert fixed.target_names[0] == "Intercept (at means)" and fixed.mean[1] == 0.7


def test_priors_of_the_user():
    found = assemble(
        "y ~ x + f + (1 + x | g) + rw1(t)", FRAME, "gaussian",
        priors={"x": 0.3, "f": 0.4, "Intercept": 9.0, "sd(g: x)": latent.Exponential(2.0), "cor(g)": 4.0,
                "sd(rw1(t))": 0.2, "sigma": latent.HalfT(1.0, 3.0)},
    ).priors  # fmt: skip
    np.testing.assert_allclose(found.fixed.scale, [9.0, 0.3, 0.4, 0.4])
    assert found.fixed.mean[0] == pytest.approx(FRAME["y"].mean()), "a number changes the width, not the place"
    assert isinstance(found.scales["g"][0], latent.HalfNormal) and isinstance(found.scales["g"][1], latent.Exponential)
    assert float(found.others["g"]["correlation"].shape) == 4.0
    assert float(found.scales["rw1(t)"].scale) == 0.2 and found.words["sigma"] == "HalfT(1, 3)"
    both = assemble("y ~ (1 + x | g)", FRAME, "gaussian", priors={"g": 0.5}).priors
    assert [float(prior.scale) for prior in both.scales["g"]] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ({"z": 1.0}, "priors names 'z'; this model has 'Intercept', 'x', "),
        ({"sd(G)": 1.0}, r"Did you mean 'sd\(g\)'"),
        ({"x": -1.0}, "prior of 'x' must be a positive number"),
        ({"x": latent.HalfNormal(1.0)}, r"provi.targets.latent.Normal\(mean, sd\)"),
        ({"sd(g)": "wide"}, "must be a positive number, the scale of a half-normal"),
    ],
)
def test_priors_that_are_none(priors, message):
    with pytest.raises(ValueError, match=message):
        assemble("y ~ x + (1 | g)", FRAME, "gaussian", priors=priors)


def test_a_group_that_is_called_as_a_fixed_effect():
    found = assemble("y ~ t + (1 | t)", FRAME, "gaussian")
    assert list(found.blocks()) == ["group t"] and "sd(group t)" in found.priors.words
    assert list(found.target().hyperpriors) == ["sd(group t)", "sigma"]


def test_what_is_printed_before_the_fit():
    frame = FRAME.assign(x=FRAME["x"].where(np.arange(N) > 2))
    lines = "\n".join(assemble("b ~ x + f + (1 | g)", frame, "bernoulli").lines())
    for words in (
        "Formula: b ~ x + f + (1 | g)", "Family: bernoulli, link logit", "Response 'b': 1 for '1' (",
        "Data: 37 rows; 3 rows with missing entries were left out ('x' 3)", "Group g (6 levels): Intercept",
        "Reference levels: f = u", "Normal(0, 2.5), at the covariates' means", "sd(g)      HalfNormal(2.5)",
    ):  # fmt: skip
        assert words in lines
