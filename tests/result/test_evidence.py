"""`fit.evidence` and `provi.compare`: brackets of the log evidence, and what their differences prove."""

import dataclasses
import math

import numpy as np
import pytest

import provi
from provi.certificates.distance.bound import EvidenceBracket
from provi.result.evidence import Comparison
from provi.targets import LinearRegression, LogDensity, LogisticRegression
from provi_lab.bench.distance_oracle import LinearPosterior, importance_truth
from support.hidden import hidden

RNG = np.random.default_rng(0)
DESIGN = RNG.normal(size=(80, 3))
LABELS = (RNG.random(80) < 1 / (1 + np.exp(-2 * DESIGN[:, 0] - DESIGN[:, 1]))).astype(float)


def fit(columns, labels=LABELS):
    return provi.fit(LogisticRegression(DESIGN[:, columns], labels), progress=False)


@pytest.fixture(scope="module")
def models():
    """The columns that made the labels, one of them alone, and a column of noise."""
    return {"both": fit([0, 1]), "first": fit([0]), "noise": fit([2])}


def exact(found, columns):
    """log Z by importance sampling."""
    dim = len(columns)
    posterior = LinearPosterior(DESIGN[:, columns], LABELS, "logit", np.zeros(dim), np.eye(dim))
    moments = (np.asarray(x) for x in (found.posterior.mean, found.posterior.covariance))
    return importance_truth(posterior, *moments, 100_000, 0)


def test_the_bracket_of_a_fit(models):
    found = models["both"]
    bracket = found.evidence
    assert bracket.status == "proven" and bracket.confidence == 0.99
    assert 0 < bracket.width < 0.2
    assert bracket.lower <= found.elbo.value <= bracket.upper
    truth = exact(found, [0, 1])
    assert bracket.lower <= truth.log_evidence + 4 * truth.error
    assert truth.log_evidence - 4 * truth.error <= bracket.upper
    assert str(bracket).startswith("log evidence in [-") and "(proven, confidence 0.99)" in str(bracket)


def test_printed_ends_are_rounded_outwards():
    text = str(EvidenceBracket(-1.23456, -1.11111, 0.99, "proven"))
    assert "[-1.235, -1.111]" in text
    open_ended = EvidenceBracket(-1.23456, math.inf, 0.99, "none")
    assert str(open_ended) == "log evidence at least -1.235 nats; no upper bound"
    assert open_ended.width == math.inf


def test_a_proven_bayes_factor_between_two_logistic_regressions(models):
    """Different columns; the importance sampling estimate of the same number lies between the bounds."""
    found = provi.compare(models["both"], models["first"], names=["both", "first"])
    low, high = found.log_bayes_factor("both", "first")
    one, two = exact(models["both"], [0, 1]), exact(models["first"], [0])
    margin = 4 * (one.error + two.error)
    assert low <= one.log_evidence - two.log_evidence + margin
    assert one.log_evidence - two.log_evidence - margin <= high
    assert found.status == "proven" and 0 < low < high < low + 0.4
    assert found.log_bayes_factor("first", "both") == (-high, -low)


def test_order_names_and_words(models):
    found = provi.compare(models["noise"], models["both"], models["first"])
    assert found.names[0] == "model 2" and found.names[-1] == "model 1"
    middles = [(bracket.lower + bracket.upper) / 2 for bracket in found.brackets]
    assert middles == sorted(middles, reverse=True)
    assert found.confidence == pytest.approx(0.97)
    assert found.verdict.startswith("model 2 has the largest evidence: by at least ")
    named = provi.compare(models)
    assert named.names == ("both", "first", "noise")
    text = str(named)
    assert all(word in text for word in ("Models by evidence", "both", "noise", "proven", "largest evidence"))


def test_probabilities_are_bounds(models):
    found = provi.compare(models)
    weights = found.weights
    assert np.all((0 <= weights[:, 0]) & (weights[:, 0] <= weights[:, 1]) & (weights[:, 1] <= 1))
    assert weights[:, 0].sum() <= 1 <= weights[:, 1].sum()
    logs = np.array([exact(models[name], columns).log_evidence for name, columns in COLUMNS.items()])
    shares = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    assert np.all((weights[:, 0] <= shares + 1e-3) & (shares - 1e-3 <= weights[:, 1]))


COLUMNS = {"both": [0, 1], "first": [0], "noise": [2]}


def test_a_table_for_pandas(models):
    rows = provi.compare(models).to_dict()
    assert [row["rank"] for row in rows.values()] == [0, 1, 2]
    assert rows["both"]["log_bayes_factor_lower"] == rows["both"]["log_bayes_factor_upper"] == 0
    assert rows["noise"]["log_bayes_factor_upper"] < 0


def test_undecided_models_are_called_so(models):
    found = provi.compare(models["both"], models["both"])
    low, high = found.log_bayes_factor("model 1", "model 2")
    assert low < 0 < high
    assert found.verdict.startswith("Not decided between model 1 and model 2: their brackets overlap")


def test_a_model_without_an_upper_end(models):
    """Nothing is known of this density's curvature, so that nothing bounds its evidence from above."""
    density = LogDensity(lambda z: -0.5 * hidden(z**2).sum() - 60, 1)
    loose = provi.fit(density, progress=False, budget=provi.Budget(gradients=2000))
    assert loose.evidence.upper == math.inf and loose.evidence.status == "none"
    found = provi.compare({"known": models["both"], "unknown": loose})
    assert found.status == "none"
    low, high = found.log_bayes_factor("known", "unknown")
    assert low == -math.inf and math.isfinite(high) and high > 0
    assert found.weights[found.names.index("known"), 0] == 0
    assert "-59.082 to inf" in str(found) and found.verdict.startswith("Not decided between known and unknown")


def test_the_evidence_of_linear_regression_is_exact():
    response = DESIGN @ [1.0, 0.0, -1.0] + RNG.normal(size=80)
    brackets = {}
    for name, columns in (("right", [0, 2]), ("wrong", [1])):
        found = provi.fit(LinearRegression(DESIGN[:, columns], response), progress=False)
        posterior = LinearPosterior(DESIGN[:, columns], response, "gaussian", *_unit(len(columns)))
        brackets[name] = found
        assert found.evidence.lower <= posterior.exact_log_evidence() <= found.evidence.upper
        assert found.evidence.width < 1e-2
    assert provi.compare(brackets).names == ("right", "wrong")


def _unit(dim):
    return np.zeros(dim), np.eye(dim)


def test_arguments(models):
    both, first = models["both"], models["first"]
    with pytest.raises(ValueError, match="two fits or more, got 1"):
        provi.compare(both)
    with pytest.raises(ValueError, match="two fits or more, got 1"):
        provi.compare({"both": both})
    with pytest.raises(ValueError, match="different names"):
        provi.compare(both, first, names=["same", "same"])
    with pytest.raises(ValueError, match="different names"):
        provi.compare(both, first, names=["one"])
    with pytest.raises(ValueError, match="leave out names="):
        provi.compare(models, names=["a", "b", "c"])
    with pytest.raises(TypeError, match="model 2 must be a result of provi.fit, not EvidenceBracket"):
        provi.compare(both, both.evidence)
    with pytest.raises(ValueError, match="no model is called 'third'"):
        provi.compare(both, first).log_bayes_factor("model 1", "third")
    with pytest.raises(ValueError, match="fitted to different responses"):
        provi.compare(both, fit([0], 1 - LABELS))


def test_far_evidences_do_not_overflow():
    brackets = tuple(EvidenceBracket(low, low + 1, 0.99, "proven") for low in (0.0, -1e4))
    found = Comparison(("a", "b"), brackets, np.asarray([[1.0, 1.0], [0.0, 0.0]]), 0.98, "proven")
    assert found.log_bayes_factor("a", "b") == (1e4 - 1, 1e4 + 1)
    assert "by at least 9999.000 nats" in str(dataclasses.replace(found))
