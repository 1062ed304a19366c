"""`provi fit MODEL.py:NAME`: targets from a Python file; what is written and printed."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import provi as library
from provi.cli.model_file import load_target


def test_target_and_function_equal_the_library(provi, model_file, model_data):
    by_hand = library.fit(library.targets.LogisticRegression(*model_data, names=("a", "b [kg]")))
    for name in ("target", "make"):
        result = provi("fit", f"{model_file}:{name}", "--json")
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        np.testing.assert_allclose([row["mean"] for row in document["parameters"]], by_hand.posterior.mean, rtol=1e-12)
        assert document["parameters"][1]["name"] == "b [kg]"
        assert document["verdict"] == "certified" and document["gap"] == pytest.approx(by_hand.certificate.gap)
        assert document["k_hat"] == pytest.approx(by_hand.diagnose(10_000).pareto_k, abs=1e-6)
        assert document["advice"] == by_hand.diagnose(10_000).advice
        assert "a line that the model prints" in result.stderr


def test_parameters_are_in_the_space_of_the_model(provi, model_file):
    """exp of a normal variable has the mean exp(m + s^2/2) and the quantiles exp(m + q s)."""
    result = provi("fit", f"{model_file}:positive", "--json", "--save", "fit.st")
    (row,) = json.loads(result.stdout)["parameters"]
    q = library.load("fit.st").posterior
    m, s = q.mean.item(), q.standard_deviation.item()
    mean = np.exp(m + s**2 / 2)
    # From 10,000 draws: six standard errors, a false alarm in 5e8; the quantiles' density gives theirs.
    assert row["name"] == "scale" and abs(row["mean"] - mean) < 6 * mean * np.sqrt(np.expm1(s**2) / 10_000)
    low, high = np.exp(q.interval()[0])
    assert row["low"] == pytest.approx(low, rel=6 * 2.53 * s / 100) and row["high"] == pytest.approx(
        high, rel=0.152 * s
    )


def test_as_a_program(model_file, tmp_path):
    """The command in a process of its own: one JSON object on standard output, the exit code, files on disk."""
    words = ["fit", f"{model_file}:target", "--json", "--save", "fit.st"]
    done = subprocess.run([sys.executable, "-m", "provi.cli", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == {"save": "fit.st"}
    saved = library.load(tmp_path / "fit.st")
    assert saved.posterior.names == ("a", "b [kg]")
    assert saved.call == "provi fit model.py:target --save fit.st --json"


@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("undeclared", "conditional", "on the condition that the potential is convex"),
        ("not_concave", "not certified", "convex (log-concave target): violated"),
    ],
)
def test_what_is_not_certified_says_why(provi, model_file, name, verdict, words):
    result = provi("fit", f"{model_file}:{name}", "--json")
    assert result.exit_code == 1, result.stderr
    document = json.loads(result.stdout)
    assert document["verdict"] == verdict and words in document["sentence"]


def test_for_people(provi, model_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # lines are broken by the terminal, but no number is cut
    result = provi("fit", f"{model_file}:target")
    assert result.exit_code == 0, result.stderr
    for words in ("LogisticRegression, 2 parameters", "b [kg]    │", "ELBO -", "Proven: within", "Assumptions"):
        assert words in result.stdout
    assert "…" not in result.stdout
    assert result.stdout.splitlines()[-2].startswith("Certified: the gap")


def test_quiet_is_the_verdict_alone(provi, model_file):
    result = provi("fit", f"{model_file}:target", "--quiet", "--tol", "0.5")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert line.startswith("Certified: the gap") and "<= tol = 0.5 nats" in line


def test_modules_beside_the_file_are_found(write):
    write("numbers_beside.py", "VARIANCE = 4.0\n")
    write(
        "user.py",
        "import provi\nfrom numbers_beside import VARIANCE\ntarget = provi.targets.Gaussian([0.0], [[VARIANCE]])\n",
    )
    path = list(sys.path)
    target = load_target("user.py:target")
    assert target.potential(jnp.array([2.0])) - target.potential(jnp.array([0.0])) == pytest.approx(2.0**2 / (2 * 4.0))
    assert sys.path == path


def test_help_says_what_the_exit_codes_mean(provi):
    for command in ("fit", "certify"):
        assert "Exit code 0" in provi(command, "--help").stdout
    assert "--install-completion" in provi("--help").stdout
