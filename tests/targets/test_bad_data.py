"""Bad data are refused before any work, with the argument's name and the remedy."""

import numpy as np
import pytest

from provi.targets import LinearRegression, LogisticRegression, PoissonRegression

RNG = np.random.default_rng(4)
X = RNG.normal(size=(4, 2))
RESPONSES = {
    LinearRegression: RNG.normal(size=4),
    LogisticRegression: np.array([0, 1, 1, 0]),
    PoissonRegression: np.array([0, 4, 1, 2]),
}
WITH_NAN = np.where(np.arange(8).reshape(4, 2) == 5, np.nan, X)

EVERY_MODEL = {
    "nan": ({"X": WITH_NAN}, r"X has 1 entries that are NaN or infinite, the first at index \(2, 1\)"),
    "one axis": ({"X": X[:, 0]}, "X must have 2 axes"),
    "empty": ({"X": np.zeros((0, 2)), "y": np.zeros(0)}, "X is empty"),
    "no columns": ({"X": np.zeros((4, 0))}, "X is empty"),
    "words": ({"X": np.full((4, 2), "a")}, "X must hold numbers"),
    "ragged": ({"X": [[1.0, 2.0], [3.0]]}, "X is not a rectangular array"),
    "length": ({"y": np.array([0, 1, 1])}, "y has length 3, but one response for each row of X needs 4"),
    "column": ({"y": np.zeros((4, 1))}, "y must have 1 axes"),
    "infinite response": ({"y": [0, 1, np.inf, 1]}, r"y has 1 entries .* \(2,\)"),
    "negative scale": ({"prior_scale": -1.0}, "prior_scale must be positive"),
    "many scales": ({"prior_scale": np.ones(3)}, r"prior_scale must be a number or have shape \(2,\)"),
    "indefinite": (
        {"prior_covariance": [[1.0, 2.0], [2.0, 1.0]]},
        "prior_covariance is not positive definite",
    ),
    "both": ({"prior_covariance": np.eye(2), "prior_scale": 2.0}, "prior_scale and prior_covariance"),
    "mean": ({"prior_mean": np.zeros(3)}, "prior_mean"),
    "names": ({"names": ["a"]}, "names has 1 entries, but X has 2 columns"),
    "intercept's scale": ({"prior_scale": np.ones(2), "intercept": True}, r"prior_scale .*\(3,\)"),
}


@pytest.mark.parametrize("model", RESPONSES)
@pytest.mark.parametrize("case", EVERY_MODEL)
def test_every_model(model, case):
    change, message = EVERY_MODEL[case]
    with pytest.raises(ValueError, match=f"^{message}"):
        model(**({"X": X, "y": RESPONSES[model]} | change))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([-1, 1, 1, -1], r"y must hold 0 and 1 only; it holds -1, 1: .*\(y \+ 1\) / 2"),
        ([1, 2, 2, 1], "y must hold 0 and 1 only; it holds 1, 2: .*positive label"),
        ([0.0, 0.5, 1.0, 1.0], "y must hold 0 and 1 only; it holds 0.0, 0.5, 1.0"),
        (["no", "yes", "yes", "no"], "y must hold 0 and 1; .*positive label"),
    ],
)
def test_labels(y, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        LogisticRegression(X, y)


@pytest.mark.parametrize("y", [[0, -1, 2, 3], [0, 1.5, 2, 3]])
def test_counts(y):
    with pytest.raises(ValueError, match=r"^y must hold counts .*y\[1\]"):
        PoissonRegression(X, y)


@pytest.mark.parametrize("noise_scale", [0.0, -1.0, np.nan])
def test_noise_scale(noise_scale):
    with pytest.raises(ValueError, match="^noise_scale"):
        LinearRegression(X, RESPONSES[LinearRegression], noise_scale)
