"""Every script in examples/ runs as a user would run it, and what it finds is right."""

import contextlib
import io
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LARGEST_LINES = 60

pytestmark = pytest.mark.usefixtures("quick_compilation")


def check_logistic_certificate(found, printed, out):
    # The mode and the curvature there, by Newton's method: a Gaussian within 0.05 nats has nearly these moments.
    design, response, z = found["data"].features[:, :6], found["data"].response, np.zeros(6)
    for _ in range(30):
        p = 1 / (1 + np.exp(-design @ z))
        hessian = design.T @ (design * (p * (1 - p))[:, None]) + np.eye(6)
        z = z - np.linalg.solve(hessian, design.T @ (p - response) + z)
    deviation = np.sqrt(np.diag(np.linalg.inv(hessian)))
    assert (abs(found["fit"].posterior.mean - z) < 0.3 * deviation).all()
    assert 0 < found["fit"].certificate.gap <= 0.01
    assert "Proven: within" in printed
    assert "mean radius" in (out / "logistic_certificate.html").read_text()


def check_poisson_regression(found, printed, out):
    posterior = found["fit"].posterior
    assert (abs(posterior.mean - found["truth"]) < 4 * posterior.standard_deviation).all()
    assert found["fit"].certificate.status == "proven"
    assert found["low"] < np.exp(found["truth"].sum()) < found["high"]
    assert all(name in printed for name in ("intercept", "rain", "sun"))


def check_your_own_density(found, printed, out):
    line = np.polyfit(found["x"], found["y"], 1)  # the prior is weak: least squares
    assert found["draws"]["slope"].mean() == pytest.approx(line[0], abs=0.03)
    assert found["draws"]["intercept"].mean() == pytest.approx(line[1], abs=0.03)
    residual = np.std(found["y"] - np.polyval(line, found["x"]))
    assert found["draws"]["noise"].mean() == pytest.approx(residual, abs=0.03)
    assert found["draws"]["noise"].min() > 0
    # Gaussian noise is not log-concave in the logarithm of its scale, and nobody said that it was.
    assert found["fit"].certificate.status != "proven"


def check_gp_classification(found, printed, out):
    model = found["model"]
    assert model.certificate_.status == "proven"
    assert model.certificate_.gap <= 0.01
    assert model.score(found["X"][found["test"]], found["y"][found["test"]]) > 0.8
    centre, *ring = model.predict_proba([[0.0, 0.0], [2.3, 0.0], [-2.3, 0.0], [0.0, 2.3], [0.0, -2.3]])[:, 1]
    assert centre < 0.1
    assert min(ring) > 0.7


def check_sparse_gp(found, printed, out):
    assert found["model"].certificate_.status == "proven"
    assert found["error"] < 0.05
    inside = abs(found["mean"] - found["rate"]) < 3 * found["deviation"]
    assert inside.mean() > 0.95


def check_missing_data(found, printed, out):
    assert (abs(found["errors"]) < 4).all()
    assert np.isnan(found["X"]).any()
    assert "12.8% of the entries missing" in printed


def check_topic_model(found, printed, out):
    groups = [{"goal", "team", "coach"}, {"vote", "party", "law"}, {"cell", "gene", "virus"}]
    order = [next(i for i, best in enumerate(found["top_words"]) if set(best) == group) for group in groups]
    correlation = found["model"].topic_correlation_[np.ix_(order, order)]
    assert correlation[1, 2] > max(correlation[0, 1], correlation[0, 2]) + 0.2


def check_mini_batches(found, printed, out):
    assert found["default"].certificate.gap <= 0.01
    assert min(found["gaps"].values()) < 1
    difference = found["fit"].posterior.mean - found["default"].posterior.mean
    assert (abs(difference) < found["default"].posterior.standard_deviation).all()


def check_certify_other_q(found, printed, out):
    gaps = {name: certificate.gap for name, certificate in found["certificates"].items()}
    assert 0 < gaps["Laplace"] < gaps["its diagonal, as a mean field"] < 1 < 100 < gaps["a guess"]
    assert printed.count("Proven: within") == 3


def check_resume_a_run(found, printed, out):
    assert found["same"] is True
    assert (found["first"].num_steps, found["resumed"].num_steps) == (500, 2000)
    assert not np.array_equal(found["first"].posterior.mean, found["whole"].posterior.mean)


def check_eight_schools(found, printed, out):
    # Posterior by quadrature: given tau, everything is Gaussian. mu | tau, y and p(tau | y) in closed form.
    tau = np.linspace(1e-3, 40, 4000)[:, None]
    variance = found["errors"][None, :] ** 2 + tau**2
    precision = np.sum(1 / variance, axis=1) + 1 / 25
    centre = np.sum(found["effects"][None, :] / variance, axis=1) / precision
    log_p = -0.5 * (np.log(variance).sum(axis=1) + np.log(precision) + tau[:, 0] ** 2 / 25)
    log_p -= 0.5 * (np.sum(found["effects"][None, :] ** 2 / variance, axis=1) - centre**2 * precision)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean_mu, mean_tau = p @ centre, p @ tau[:, 0]
    sd_mu = np.sqrt(p @ (1 / precision + centre**2) - mean_mu**2)
    rows = found["summary"].to_dict()
    assert abs(rows["mu"]["mean"] - mean_mu) < 0.02 * sd_mu
    assert rows["mu"]["sd"] == pytest.approx(sd_mu, rel=0.02)
    assert rows["tau"]["mean"] == pytest.approx(mean_tau, rel=0.02)
    assert rows["tau"]["low"] > 0
    assert sum(name.startswith("theta[") for name in rows) == 8
    assert "log evidence on the nodes in" in printed and "tau: " in printed


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
SEVERAL = {"eight_schools_numpyro": "eight_schools", "eight_schools_pymc": "eight_schools"}


@pytest.fixture
def as_a_user() -> Iterator[None]:
    """JAX as it is without the suite's settings; a warning is an error, as a script to copy should not show any."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("error")
        # What PyMC imports says so of itself, wherever it is imported first.
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing", FutureWarning)
        yield
    plt.close("all")


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example(script, tmp_path, monkeypatch, as_a_user):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        found = runpy.run_path(str(script), run_name="__main__")
    CHECKS[SEVERAL.get(script.stem, script.stem)](found, printed.getvalue(), tmp_path / "out")
    if "savefig" in script.read_text():
        assert list((tmp_path / "out").glob(f"{script.stem}.png"))
    assert not list(tmp_path.glob("*.png"))


def test_every_example_is_checked_and_listed():
    names = {script.stem for script in EXAMPLES}
    assert {SEVERAL.get(name, name) for name in names} == set(CHECKS)
    listed = (EXAMPLES[0].parent / "README.md").read_text()
    assert all(f"`{name}.py`" in listed for name in names)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example_is_short(script):
    assert len(script.read_text().splitlines()) <= LARGEST_LINES
