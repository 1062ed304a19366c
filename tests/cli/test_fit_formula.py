"""`provi fit TABLE --formula`: the same as `MixedModel`, exit codes, and one line for what is wrong."""

import json

import numpy as np
import pytest

from provi.models import MixedModel


def test_the_same_as_the_model(provi, patients_csv, patients, tmp_path):
    words = ("--formula", "visits ~ age + (1 | ward)", "--family", "poisson", "--json", "--checkpoint", "run.ckpt")
    result = provi("fit", patients_csv, *words)
    assert result.exit_code == 0, result.stderr  # converged, and the model fits
    document = json.loads(result.stdout)
    saving = {"checkpoint": tmp_path / "run.ckpt", "resume": True}  # its journal is of the same fit
    by_hand = MixedModel("visits ~ age + (1 | ward)", patients, family="poisson", **saving).fit()
    summary = by_hand.summary()
    assert [row["name"] for row in document["parameters"]] == list(summary.names)
    np.testing.assert_allclose([row["mean"] for row in document["parameters"]], summary.mean, rtol=1e-9)
    assert document["family"] == "poisson" and document["link"] == "log" and document["data"]["rows"] == 60
    assert document["data"]["groups"] == {"ward": 3} and document["priors"] == by_hand.assembly_.priors.words
    assert document["verdict"] == "conditional" and "the error of the rule is estimated" in document["sentence"]
    assert document["check"]["ok"] and document["check"]["kind"] == "counts" and not document["warnings"]
    assert len(document["effects"]) == 3 and document["log_evidence"]["lower"] < 0


def test_what_is_shown_and_written(provi, patients_csv, tmp_path):
    words = (
        "fit",
        patients_csv,
        "--formula",
        "died ~ age + (1 | ward)",
        "--family",
        "bernoulli",
        "--report",
        "out.html",
    )
    result = provi(*words)
    assert result.exit_code == 0, result.stderr
    for text in (
        "Formula: died ~ age + (1 | ward)",
        "1 for 'yes'",
        "Group ward (3 levels)",
        "sd(ward)",
        "The model fits: none of",
        "Wrote out.html.",
    ):
        assert text in result.stdout
    assert "died ~ age + (1 | ward)" in (tmp_path / "out.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--formula", "died ~ age (1 | ward)", "--family", "bernoulli"], "cannot be read at character"),
        (["--formula", "died ~ agee", "--family", "bernoulli"], "Did you mean 'age'"),
        (["--formula", "died ~ age", "--family", "bernouli"], "Did you mean 'bernoulli'"),
        (["--formula", "died ~ age"], "--formula and --family go together"),
        (["--family", "poisson"], "--formula and --family go together"),
        (["--formula", "died ~ age", "--family", "poisson"], "must hold numbers, not texts"),
        (["--formula", "died ~ age", "--family", "bernoulli", "--target", "died"], "--target cannot be used with"),
        (["--formula", "died ~ age", "--family", "bernoulli", "--no-standardise"], "--no-standardise cannot be used"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(provi, patients_csv, words, message):
    result = provi("fit", patients_csv, *words)
    assert result.exit_code == 2 and message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and result.stdout == ""


def test_a_model_file_has_no_formula(provi, model_file):
    result = provi("fit", "model.py:target", "--formula", "y ~ x", "--family", "poisson")
    assert result.exit_code == 2 and "--formula is for tables" in result.stderr
