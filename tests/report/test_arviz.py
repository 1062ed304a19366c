"""Fits as ArviZ's containers: groups, shapes, labels, and that ArviZ's own functions work on them."""

import builtins
import dataclasses
import sys
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy import stats

import provi
from provi.families import Gaussian
from provi.report.arviz import to_arviz
from provi.result import Posterior

RNG = np.random.default_rng(6)
X = RNG.normal(size=(15, 2))
Y = X @ [1.0, -0.5] + 0.5 * RNG.normal(size=15)


@pytest.fixture(scope="module")
def fit():
    return provi.fit(provi.targets.LinearRegression(X, Y, 0.5, names=["age", "dose"]), tol=0.01)


@pytest.fixture(scope="module")
def data(fit):
    return fit.to_arviz(400, seed=1)


@pytest.fixture(scope="module")
def az():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz
    return arviz


def fit_of(fit, target):
    """The fit of something else, with a standard normal q for `target`: without the work of a run."""
    family = Gaussian(target.dim)
    posterior = Posterior(family, family.point(np.zeros(target.dim), 1.0), target.parameter_names, target)
    return dataclasses.replace(fit, posterior=posterior, target=target)


def check_groups(data, fit):
    """Draws, densities and data of a linear regression, in a container of either kind."""
    z = fit.posterior.sample(400, 1)
    draws = data["posterior"]["coefficients"]
    assert draws.dims == ("chain", "draw", "parameter") and draws.shape == (1, 400, 2)
    np.testing.assert_array_equal(draws.values[0], z)
    assert list(draws["parameter"].values) == ["age", "dose"]
    log_q = stats.multivariate_normal(fit.posterior.mean, fit.posterior.covariance).logpdf(z)
    log_p = stats.norm.logpdf(z).sum(axis=1) + stats.norm(z @ X.T, 0.5).logpdf(Y).sum(axis=1)
    np.testing.assert_allclose(data["sample_stats"]["log_q"].values[0], log_q, rtol=1e-9)
    for name in ("lp", "log_p"):
        np.testing.assert_allclose(data["sample_stats"][name].values[0], log_p, rtol=1e-9)
    np.testing.assert_allclose(data["log_likelihood"]["y"].values[0], stats.norm(z @ X.T, 0.5).logpdf(Y), rtol=1e-9)
    np.testing.assert_array_equal(data["observed_data"]["y"].values, Y)
    assert data["posterior_predictive"]["y"].shape == (1, 400, 15)
    attributes = data["posterior"].attrs
    assert attributes["inference_library"] == "provi" and attributes["certificate_status"] == "proven"
    assert attributes["certificate_gap"] <= 0.01 and attributes["pareto_k"] < 0.5


def test_inference_data(fit, data, az):
    assert isinstance(data, az.InferenceData)
    check_groups(data, fit)


def test_data_tree_where_the_old_arviz_is_missing(fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    data = fit.to_arviz(400, seed=1)
    assert isinstance(data, xarray.DataTree)
    check_groups(data, fit)


def test_neither_is_installed(fit, monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("arviz"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'provi\[arviz\]'"):
        fit.to_arviz()


def test_arviz_works_on_it(fit, data, az):
    """The table within Monte-Carlo error of the fit's; LOO next to ours, as q is exact here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = az.summary(data, kind="stats", round_to="none")
        loo = az.loo(data)
    assert list(table.index) == ["coefficients[age]", "coefficients[dose]"]
    error = 5 * fit.posterior.standard_deviation / 400**0.5
    assert (np.abs(table["mean"].to_numpy() - fit.posterior.mean) < error).all()
    assert float(loo.elpd_loo) == pytest.approx(fit.loo(4000).elpd, abs=0.3)


def test_it_can_be_written_to_a_file(data, az, tmp_path):
    data.to_netcdf(str(tmp_path / "fit.nc"), engine="h5netcdf")
    assert az.from_netcdf(str(tmp_path / "fit.nc"), engine="h5netcdf").posterior.attrs["inference_library"] == "provi"


def test_pytrees_have_a_variable_for_each_leaf(fit):
    example = {"group": {"scale": 1.0}, "slope": np.zeros(2)}

    def log_density(p):
        return -p["group"]["scale"] - 0.5 * jnp.sum(p["slope"] ** 2)

    target = provi.targets.LogDensity(log_density, example, constraints={"group.scale": "positive"})
    data = to_arviz(fit_of(fit, target), 30)
    assert data["posterior"]["group.scale"].shape == (1, 30) and (data["posterior"]["group.scale"].values > 0).all()
    assert data["posterior"]["slope"].shape == (1, 30, 2)
    assert "log_likelihood" not in data.groups() and "observed_data" not in data.groups()


def test_a_vector_with_names(fit):
    target = provi.targets.LogDensity(
        lambda z: -0.5 * (z @ z), 2, strong_convexity=1.0, smoothness=1.0, names=["first", "second"]
    )
    data = to_arviz(fit_of(fit, target), 50, predictive=False)
    assert list(data["posterior"]["z"]["parameter"].values) == ["first", "second"]
