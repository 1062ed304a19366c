"""`provi fit --model student-t`: a model without a certificate, which says so, converges and predicts."""

import json

import numpy as np
import pytest

import provi as library
from provi.models import StudentTRegression

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_student_t_regression_converges_without_a_certificate(provi, patients_csv, patients):
    """0 as it converged, by a run that the estimator repeats; its priors are in the units of the table."""
    words = ("fit", patients_csv, "-t", "score", "-m", "student-t", "--columns", "age", "--prior", "nu=gamma(3,0.2)")
    result = provi(*words, "--json", "--save", "fit.safetensors")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["verdict"] == "converged" and "there is no certificate" in document["sentence"]
    assert document["gap"] is None and document["status"] == "none" and document["k_hat"] < 0.7
    assert document["priors"]["nu"] == "Gamma(3, 0.2)" and document["check"]["ok"]
    original = {row["name"]: row for row in document["original_units"]["parameters"]}
    encoded = {row["name"]: row for row in document["parameters"]}
    assert list(original) == ["intercept", "age", "sigma", "nu"]
    assert original["age"]["mean"] == pytest.approx(encoded["age"]["mean"] / patients["age"].std())
    # Exact moments beside those of 10,000 draws: five standard errors of the mean.
    for name in ("sigma", "nu"):
        assert abs(original[name]["mean"] - encoded[name]["mean"]) < 0.05 * encoded[name]["sd"]
    model = StudentTRegression(priors={"nu": "gamma(3, 0.2)"}, random_state=0)
    model.fit(patients["age"][:, None], patients["score"])
    # Another seed and other units: both end where q has stopped moving, which is no proof.
    assert original["age"]["mean"] == pytest.approx(model.coef_[0], abs=0.03 * model.coef_sd_[0])
    assert original["age"]["sd"] == pytest.approx(model.coef_sd_[0], rel=0.03)
    loaded = library.load("fit.safetensors")
    new = {"age": np.array([40.0, 60.0])}
    np.testing.assert_allclose(loaded.predict(new).mean, model.predict(new["age"][:, None]), atol=0.01)
    saved = provi("predict", "fit.safetensors", patients_csv, "--kind", "response", "--json")
    assert saved.exit_code == 0, saved.stderr
    rows = json.loads(saved.stdout)["predictions"]
    inside = [row["lower"] < y < row["upper"] for row, y in zip(rows, patients["score"], strict=True)]
    # 60 rows of their own fit, with 90% intervals: binomial, below 45 or at 60 with a probability of 2e-3.
    assert 45 <= sum(inside) < 60 and all(row["sd"] is None for row in rows)


def test_a_student_t_regression_takes_numbers_only(provi, patients_csv):
    result = provi("fit", patients_csv, "-t", "ward", "-m", "student-t", "--columns", "age")
    assert result.exit_code == 2 and "ward" in result.stderr
    result = provi("fit", patients_csv, "-t", "score", "-m", "student-t", "--exposure", "dose")
    assert result.exit_code == 2 and "--exposure is for" in result.stderr
