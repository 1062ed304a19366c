"""The default priors: rstanarm's rule, whatever the units; one by name; the same for estimators and formulas."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from provi.models import LinearRegression, LogisticRegression
from provi.models.mixed.assembly import assemble
from provi.models.weak_priors import read_prior, response_location, weak_priors
from provi.targets import gaussian_prior, latent

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(3)
X = RNG.normal(size=(50, 2)) * [1.0, 20.0] + [0.0, 300.0]
Y = 2000.0 + X @ [3.0, 0.5] + RNG.normal(size=50)


def test_the_rule_of_rstanarm():
    priors = weak_priors(X, ("a", "b"), response_location("gaussian", Y))
    np.testing.assert_allclose(priors.scale, 2.5 * Y.std() / X.std(axis=0))
    assert priors.intercept == pytest.approx((Y.mean(), 2.5 * Y.std()))
    assert priors.words["a"] == f"normal(0, {priors.scale[0]:.4g})" and "columns' means" in priors.words["intercept"]


def test_the_prior_of_the_target_is_that_of_independent_numbers_at_the_means():
    """Draws of b at the means and w; those of (b, w) have the mean and covariance of `arguments`."""
    priors = weak_priors(X, ("a", "b"), response_location("gaussian", Y), given={"a": "normal(1, 2)"})
    given = priors.arguments()
    mean, covariance = given["prior_mean"], given["prior_covariance"]
    forward = np.eye(3)
    forward[0, 1:] = X.mean(axis=0)  # (b, w) -> (b + mean'w, w)
    expected = np.diag([priors.intercept[1], 2.0, priors.scale[1]]) ** 2
    np.testing.assert_allclose(forward @ mean, [Y.mean(), 1.0, 0.0], atol=1e-8)
    np.testing.assert_allclose(forward @ covariance @ forward.T, expected, rtol=1e-8, atol=1e-6)
    gaussian_prior(3, **{name.removeprefix("prior_"): value for name, value in given.items()})
    # Standardised columns need no matrix, and neither do many columns, which keep the variances.
    assert "prior_scale" in weak_priors((X - X.mean(0)) / X.std(0), ("a", "b"), (0.0, 1.0)).arguments()
    wide = weak_priors(np.tile(X, (1, 600)), tuple(map(str, range(1200))), (0.0, 1.0)).arguments()
    assert wide["prior_scale"][0] > 2.5 and wide["prior_scale"].shape == (1201,)


def test_weights_are_repeated_rows():
    weights = RNG.integers(0, 4, 50)
    first = weak_priors(X, ("a", "b"), response_location("counts", Y, 0.3, weights), weights=weights)
    rows = np.repeat(np.arange(50), weights)
    # Half a count for all, however they are said.
    second = weak_priors(X[rows], ("a", "b"), response_location("counts", Y[rows], 0.3))
    np.testing.assert_allclose(first.scale, second.scale)
    np.testing.assert_allclose(first.centre, second.centre)
    assert first.intercept == pytest.approx(second.intercept)


def test_estimators_and_formulas_have_the_same_priors():
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=Y)
    words = LinearRegression(noise_scale=1.0).fit(frame[["a", "b"]], Y).priors_
    formula = assemble("y ~ a + b", frame, "gaussian").priors.words
    for name, own in (("a", "a"), ("b", "b"), ("intercept", "Intercept")):
        assert words[name].partition(",")[0].lower() == formula[own].partition(",")[0].lower()
        assert words[name].split("(")[1].split(")")[0] == formula[own].split("(")[1].split(")")[0]


def test_a_fit_does_not_depend_on_units_and_places():
    """With a scale of 1 it would: here a column in other units has other coefficients and the same predictions."""
    y = (Y > np.median(Y)).astype(int)
    plain = LogisticRegression(tol=1e-4).fit(X, y)
    moved = LogisticRegression(tol=1e-4).fit((X - [5.0, 0.0]) * [1000.0, 0.01], y)
    np.testing.assert_allclose(plain.coef_[0], moved.coef_[0] * [1000.0, 0.01], rtol=1e-5)
    assert plain.elbo_ == pytest.approx(moved.elbo_, abs=1e-6)
    assert "odds ratio" in str(plain.summary(ratios=True)) and "normal(0, 2.5)" in str(plain.summary())
    found = plain.summary(0.9, ratios=True).to_dict()["coefficient[0]"]
    interval = stats.norm(plain.coef_[0, 0], plain.coef_sd_[0, 0]).interval(0.9)
    np.testing.assert_allclose([found["low"], found["high"]], interval)
    np.testing.assert_allclose([found["ratio"], found["ratio_low"]], np.exp([plain.coef_[0, 0], interval[0]]))


def test_priors_by_name():
    frame = pd.DataFrame(X, columns=["a", "b"])
    y = (Y > np.median(Y)).astype(int)
    model = LogisticRegression({"b": 0.01}, priors={"a": "normal(1, 0.001)", "intercept": (0.0, 7.0)}).fit(frame, y)
    assert model.priors_["a"] == "normal(1, 0.001)" and model.priors_["b"] == "normal(0, 0.01)"
    assert model.priors_["intercept"].startswith("normal(0, 7)")
    assert model.coef_[0, 0] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priors": {"c": 1.0}}, "priors names 'c'; the coefficients are 'intercept', 'a', 'b'"),
        ({"priors": {"a": "wide"}}, r"'a' must be written as normal\(0, 1\)"),
        ({"priors": {"a": "normal(0, x)"}}, "must have numbers between its brackets"),
        ({"priors": {"a": "normal(0)"}}, "has 1 numbers; normal takes 2"),
        ({"priors": {"a": "gamma(1, 1)"}}, "must be a positive number, its standard deviation"),
        ({"priors": {"a": 1.0}, "prior_scale": 2.0}, "priors by name go with the default prior_scale"),
    ],
)
def test_wrong_priors_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LogisticRegression(**options).fit(pd.DataFrame(X, columns=["a", "b"]), np.arange(50) % 2)


def test_priors_as_they_are_written():
    assert isinstance(read_prior("x", "half-normal(2)"), latent.HalfNormal)
    assert float(read_prior("x", " Gamma( 2 , .1 )").rate) == 0.1
    found = assemble(
        "y ~ a", {"a": X[:, 0], "y": Y}, "gaussian", priors={"a": "normal(0, 1)", "sigma": "exponential(1)"}
    )
    assert found.priors.words["a"] == "Normal(0, 1)" and found.priors.words["sigma"] == "Exponential(1)"
