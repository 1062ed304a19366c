"""`provi certify MODEL.py:NAME q.npz`."""

import json

import numpy as np
import pytest

import provi as library


@pytest.fixture
def q(tmp_path):
    """q.npz: not far from the posterior of the model file."""
    np.savez(tmp_path / "q.npz", mean=np.array([0.1, -0.1]), covariance=0.15 * np.eye(2))
    return "q.npz"


@pytest.fixture
def own(model_data):
    return library.targets.LogisticRegression(*model_data)


def test_equals_the_library(provi, model_file, q, own):
    result = provi("certify", f"{model_file}:target", q, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    by_hand = library.certify(own, (np.array([0.1, -0.1]), 0.15 * np.eye(2)))
    assert document["gap"] == pytest.approx(by_hand.gap) and document["kl"] == pytest.approx(by_hand.kl)
    assert document["certificate"]["status"] == "proven"
    assert document["answers"][:2] == list(by_hand.lines[:2]) and "KL(q || posterior) at most" in document["answers"][1]


def test_tol_decides_where_it_is_given(provi, model_file, q):
    found = json.loads(provi("certify", f"{model_file}:target", q, "--json").stdout)["gap"]
    wide = provi("certify", f"{model_file}:target", q, "--tol", 1.1 * found, "-q")
    assert wide.exit_code == 0 and wide.stdout.splitlines()[-1].startswith("Certified")
    narrow = provi("certify", f"{model_file}:target", q, "--tol", 0.9 * found)
    assert narrow.exit_code == 1 and "Optimality gap, upper bounds" in narrow.stdout
    assert "KL(q || posterior) at most" in narrow.stdout  # the three answers, whatever the verdict
    assert narrow.stdout.splitlines()[-1].startswith("Not certified within tol")


def test_variances_and_saved_fits_are_read(provi, model_file, tmp_path, own):
    np.savez(tmp_path / "v.npz", mean=np.zeros(2), variances=np.array([0.1, 0.2]))
    result = provi("certify", f"{model_file}:target", "v.npz", "--no-compare", "--json")
    by_hand = library.certify(own, (np.zeros(2), np.array([0.1, 0.2])), compare=False)
    assert json.loads(result.stdout)["gap"] == pytest.approx(by_hand.gap)
    library.fit(own, tol=0.1).save(tmp_path / "fit.st")
    result = provi("certify", f"{model_file}:target", "fit.st", "--tol", "0.1", "-q")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"mean": np.zeros(2)}, "must have arrays 'mean' and 'covariance' (or 'variances'); it holds 'mean'"),
        ({"mean": np.zeros(3), "covariance": np.eye(3)}, "the mean of q has shape (3,)"),
        ({"mean": np.zeros(2), "covariance": -np.eye(2)}, "not positive definite"),
        ({"mean": np.full(2, np.nan), "covariance": np.eye(2)}, "NaN or infinite"),
        ({"mean": np.array([object()]), "covariance": np.eye(2)}, "cannot be read as arrays"),
        (None, "There is no file q.npz"),
        ("not an archive", "cannot be read as arrays"),
    ],
)
def test_bad_approximations(provi, model_file, tmp_path, arrays, words):
    if isinstance(arrays, str):
        (tmp_path / "q.npz").write_text(arrays)
    elif arrays is not None:
        np.savez(tmp_path / "q.npz", **arrays)
    result = provi("certify", f"{model_file}:target", "q.npz", "-q")
    assert result.exit_code == 2 and not result.stdout
    (line,) = (line for line in result.stderr.splitlines() if line != "a line that the model prints")
    assert words in line


def test_what_is_no_approximation_or_no_model(provi, model_file, q, write):
    write("fit.st", "not a fit")
    for words, said in (
        ((f"{model_file}:target", "fit.st"), "neither an .npz file"),
        (("data.csv", q), "not a model file: write MODEL.py:NAME"),
        ((f"{model_file}:target", q, "--tol", "-1"), "--tol must be a positive number"),
    ):
        result = provi("certify", *words)
        assert result.exit_code == 2 and said in result.stderr, result.stderr
