"""Families of responses: means and draws against closed forms, and what is said of responses that do not fit."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from provi.frontends.formula.response import Response
from provi.models.mixed.families import FAMILIES, draw_response, family_name, mean_response, read_observed

ETA = np.array([[-1.0, 0.3, 1.2]])
NUMBERS = {
    "sigma": np.array([0.7]), "dispersion": np.array([3.0]), "shape": np.array([1.6]), "cutpoint[1]": np.array([-0.5]),
    "cutpoint[2]": np.array([1.0]),
}  # fmt: skip
_NUM_DRAWS = 200_000


def _law(family):
    """scipy's distribution at ETA."""
    odds, rate = 1 / (1 + np.exp(-ETA[0])), np.exp(ETA[0])
    return {
        "bernoulli": lambda: stats.bernoulli(odds),
        "probit": lambda: stats.bernoulli(stats.norm.cdf(ETA[0])),
        "binomial": lambda: stats.binom(7, odds),
        "gaussian": lambda: stats.norm(ETA[0], 0.7),
        "poisson": lambda: stats.poisson(rate),
        "negative-binomial": lambda: stats.nbinom(3, 3 / (3 + rate)),
        "exponential": lambda: stats.expon(scale=1 / rate),
        # P(T > t) = exp(-t^k e^eta)
        "weibull": lambda: stats.weibull_min(1.6, scale=np.exp(-ETA[0] / 1.6)),
        "log-normal": lambda: stats.lognorm(0.7, scale=np.exp(ETA[0])),
    }[family]()


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "ordinal"])
def test_means_and_draws_of_scipys_laws(family):
    law, trials = _law(family), np.full(3, 7.0)
    numbers = {name: value for name, value in NUMBERS.items() if family != "exponential" or name != "shape"}
    mean = mean_response(family, ETA, numbers)[0] * (7 if family == "binomial" else 1)
    np.testing.assert_allclose(mean, law.mean(), rtol=1e-12)
    many = {name: np.repeat(value, _NUM_DRAWS) for name, value in numbers.items()}
    y = draw_response(family, np.repeat(ETA, _NUM_DRAWS, axis=0), many, trials, np.random.default_rng(0))
    # Five standard errors of each mean: a false alarm in 10^6 runs; the seed is fixed.
    assert (np.abs(y.mean(axis=0) - law.mean()) < 5 * law.std() / np.sqrt(_NUM_DRAWS)).all()
    np.testing.assert_allclose(y.std(axis=0), law.std(), rtol=0.02)


def test_ordinal_probabilities_by_hand():
    found = mean_response("ordinal", ETA, NUMBERS)
    low, high = stats.logistic.cdf(-0.5 - ETA[0]), stats.logistic.cdf(1.0 - ETA[0])
    np.testing.assert_allclose(found[0], np.column_stack([low, high - low, 1 - high]), rtol=1e-12)
    many = {name: np.repeat(value, _NUM_DRAWS) for name, value in NUMBERS.items()}
    y = draw_response("ordinal", np.repeat(ETA, _NUM_DRAWS, axis=0), many, None, np.random.default_rng(0))
    shares = np.stack([(y == k).mean(axis=0) for k in range(3)], axis=1)
    assert np.abs(shares - found[0]).max() < 5 * 0.5 / np.sqrt(_NUM_DRAWS)


def test_names_of_other_packages():
    names = ["Normal", "negativebinomial", "negative_binomial", "cumulative", "logistic", "Poisson"]
    assert [family_name(name) for name in names] == [
        "gaussian", "negative-binomial", "negative-binomial", "ordinal", "bernoulli", "poisson",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not 'poison'. Did you mean 'poisson'"):
        family_name("poison")
    with pytest.raises(TypeError, match="family must be a text"):
        family_name(3)


def _read(family, values, **parts):
    values = np.asarray(values, object if isinstance(values[0], str) else float)
    return read_observed(family, Response("y", values, **parts), np.zeros(len(values)))


def test_labels_and_which_of_them_is_one():
    assert _read("bernoulli", ["no", "yes", "no"]).y.tolist() == [0, 1, 0]
    assert _read("bernoulli", ["no", "yes", "no"], positive="no").y.tolist() == [1, 0, 1]
    assert _read("bernoulli", [1, 2, 2]).classes == (1.0, 2.0)
    assert _read("bernoulli", ["a", "b", "c"], positive="b").y.tolist() == [0, 1, 0]
    assert _read("bernoulli", ["hi", "lo", "hi"], levels=("lo", "hi")).y.tolist() == [1, 0, 1]


def test_categories_in_their_order():
    found = _read("ordinal", ["low", "high", "mid"], levels=("low", "mid", "high"))
    assert found.y.tolist() == [0, 2, 1] and found.words == "low < mid < high"
    assert _read("ordinal", [5, 1, 3]).y.tolist() == [2, 0, 1]


def test_censored_times_have_a_minus_sign():
    found = _read("weibull", [2.0, 3.0], event=np.array([True, False]))
    assert found.y.tolist() == [2.0, -3.0] and found.words == "1 events, 1 censored times"


@pytest.mark.parametrize(
    ("family", "values", "parts", "message"),
    [
        ("bernoulli", [1, 1], {}, "one class only, '1': rows of two classes are needed"),
        ("bernoulli", ["a", "b", "c"], {}, r"3 classes \('a', 'b', 'c'\); .* Name the one that is 1, y\[c\]"),
        ("bernoulli", ["a", "b"], {"positive": "z"}, "has no label 'z': its labels are 'a', 'b'"),
        ("poisson", [1, -2], {}, "must hold counts 0, 1, 2, ... for poisson, not -2"),
        ("negative-binomial", [1, 2.5], {}, "must hold counts"),
        ("poisson", ["a", "b"], {}, "must hold numbers, not texts such as 'a'"),
        ("gaussian", [3, 3], {}, "one value only, 3: there is nothing to explain"),
        ("weibull", [1, 0], {}, "times 'y' must be positive for weibull, not 0"),
        ("weibull", [1, 2], {"event": np.array([False, False])}, "Every time of 'y' is censored"),
        ("ordinal", ["low", "high"], {}, "whose order is not known"),
        ("ordinal", [1, 1], {}, "one category only"),
        ("binomial", [1, 2], {}, r"needs trials: write p\(successes, trials\)"),
        ("binomial", [3, 2], {"trials": np.array([2.0, 2.0])}, "whole numbers from 0 to the trials, not 3 of 2"),
        ("binomial", [1, 2], {"trials": np.array([2.0, 0.0])}, "Trials must be whole numbers, 1 at least, not 0"),
        ("poisson", [1, 2], {"trials": np.array([2.0, 2.0])}, "Trials are for family 'binomial', not 'poisson'"),
        ("poisson", [1, 2], {"event": np.array([True, True])}, "Censored times are for family 'weibull'"),
        ("gaussian", [1, 2], {"weights": np.array([1.0, -1.0])}, "weights must not be negative"),
    ],
)  # fmt: skip
def test_responses_that_do_not_fit(family, values, parts, message):
    with pytest.raises(ValueError, match=message) as caught:
        _read(family, values, **parts)
    assert "\n" not in str(caught.value)


def test_a_frame_with_an_ordered_response():
    from provi.models.mixed.assembly import assemble

    frame = pd.DataFrame({"y": pd.Categorical(["lo", "hi", "mid"] * 4, ["lo", "mid", "hi"]), "x": np.arange(12.0)})
    assert assemble("y ~ x", frame, "ordinal").observed.words == "lo < mid < hi"
