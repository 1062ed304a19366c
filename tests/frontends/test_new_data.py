"""Predictions of other packages' models at new data: laws in closed form, and what is refused with which words."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from support.stan_bridge import install_stand_in
from support.statistics import assert_mean

RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(12, 2)), RNG.normal(size=12)
NEW = RNG.normal(size=(5, 2))
NUM = 4000


@pytest.fixture(autouse=True)
def packages_promote_ranks():
    with jax.numpy_rank_promotion("allow"):
        yield


def made(target):
    """A fit of the target at some Gaussian, without a run."""
    family = provi.families.Gaussian(target.dim, "diagonal")
    point = family.point(np.linspace(-0.5, 0.5, target.dim), 0.3)
    any_fit = provi.fit(provi.targets.Gaussian(np.zeros(1)))
    posterior = provi.result.Posterior(family, point, target.parameter_names, target)
    return dataclasses.replace(any_fit, target=target, posterior=posterior)


@pytest.fixture(scope="module")
def numpyro_fit():
    """A linear model with a group's effects, a computed site and two observed ones."""
    pytest.importorskip("numpyro")
    import numpyro
    import numpyro.distributions as dist

    def model(X, y=None, num_groups=3, group=None):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("groups", num_groups):
            effect = numpyro.sample("effect", dist.Normal(0, 1))
        index = jnp.zeros(len(X), int) if group is None else group
        mean = numpyro.deterministic("mean", X @ weights + effect[index])
        with numpyro.plate("rows", len(X)):
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)
            numpyro.sample("count", dist.Poisson(jnp.exp(0.1 * mean)), obs=None if y is None else jnp.ones(len(X), int))

    with jax.numpy_rank_promotion("allow"):
        return made(provi.from_numpyro(model, X, Y))


def test_numpyro_with_new_arguments(numpyro_fit):
    fit = numpyro_fit
    found = fit.posterior_predictive(NEW, None, num_draws=NUM, seed=3)
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(("y", "count", "mean"), (NUM, 5))
    z = fit.posterior.draws(NUM, 3)
    np.testing.assert_allclose(found["mean"], z["weights"] @ NEW.T + z["effect"][:, :1], rtol=1e-6)
    assert_mean(found["y"] - found["mean"], np.zeros(5))
    assert_mean((found["y"] - found["mean"]) ** 2, np.full(5, 0.25))
    # Different rows and different sites have numbers of their own.
    assert abs(np.corrcoef((found["y"] - found["mean"])[:, :2].T)[0, 1]) < 0.1
    assert_mean(found["count"] - np.exp(0.1 * found["mean"]), np.zeros(5))
    again = fit.posterior_predictive({"X": NEW, "y": None}, num_draws=NUM, seed=3)
    tupled = fit.posterior_predictive((NEW,), num_draws=NUM, seed=3)
    for name, value in found.items():
        np.testing.assert_array_equal(again[name], value)
        np.testing.assert_array_equal(tupled[name], value)
    # Data among the arguments are drawn as well, and group 2 has its own effect.
    moved = fit.posterior_predictive((NEW, np.zeros(5), 3, np.full(5, 2)), num_draws=NUM, seed=3)
    np.testing.assert_allclose(moved["mean"], z["weights"] @ NEW.T + z["effect"][:, 2:], rtol=1e-6)
    assert np.std(moved["y"]) > 0.1
    assert fit.posterior_predictive(num_draws=4)["y"].shape == (4, 12)


def test_numpyro_refusals(numpyro_fit):
    with pytest.raises(ValueError, match=r"site 'effect' has the shape \(3,\) in the fit, but has the shape \(7,\)"):
        numpyro_fit.posterior_predictive(NEW, None, 7)
    with pytest.raises(ValueError, match="cannot be run with the new arguments: TypeError.*unexpected"):
        numpyro_fit.posterior_predictive({"X": NEW, "z": 1})
    with pytest.raises(ValueError, match="cannot be run with the new arguments"):
        numpyro_fit.posterior_predictive(NEW[:, :1])
    with pytest.raises(ValueError, match="call fit.posterior_predictive with its new arguments"):
        numpyro_fit.predict(NEW)


@pytest.fixture(scope="module")
def pymc_fit():
    pytest.importorskip("pymc")
    import pymc as pm

    with pm.Model(coords={"obs": range(12)}) as model:
        rows = pm.Data("X", X, dims=("obs", "column"))
        weights = pm.Normal("weights", 0, 1, shape=2)
        mean = pm.Deterministic("mean", rows @ weights, dims="obs")
        pm.Normal("y", mean, 0.5, observed=Y, dims="obs")
    with jax.numpy_rank_promotion("allow"):
        return made(provi.from_pymc(model))


def test_pymc_with_new_data(pymc_fit):
    num = 400
    found = pymc_fit.posterior_predictive({"X": NEW}, num_draws=num, seed=3)
    assert {name: value.shape for name, value in found.items()} == {"y": (num, 5), "mean": (num, 5)}
    z = pymc_fit.posterior.draws(num, 3)
    np.testing.assert_allclose(found["mean"], z["weights"] @ NEW.T)
    assert_mean(found["y"] - found["mean"], np.zeros(5))
    assert_mean((found["y"] - found["mean"]) ** 2, np.full(5, 0.25))
    for new, message in (
        (({"W": NEW},), "no pm.Data 'W' to replace; it has 'X'"),
        (({"X": NEW[0]},), "new data 'X' must have 2 axes"),
        ((NEW,), "takes a dictionary of new values of the model's pm.Data"),
        (({"X": NEW[:, :1]},), "cannot be run with the new data"),
    ):
        with pytest.raises(ValueError, match=message):
            pymc_fit.posterior_predictive(*new, num_draws=3)


def test_pymc_without_dimensions():
    """The length of the observed data is that of their own pm.Data, which must be given too: PyMC asks the same."""
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        rows, data = pm.Data("X", X), pm.Data("y_data", Y)
        weights = pm.Normal("weights", 0, 1, shape=2)
        pm.Normal("y", rows @ weights, 0.5, observed=data)
    target = provi.from_pymc(model)
    z = np.zeros((3, 2))
    assert target.predict_new(z, 1, {"X": NEW, "y_data": np.zeros(5)})["y"].shape == (3, 5)
    with pytest.raises(ValueError, match="Give new values of all of its pm.Data"):
        target.predict_new(z, 1, {"X": NEW})
    np.testing.assert_array_equal(target.predict(z, 1)["y"].shape, (3, 12))  # the model itself keeps its data


def test_stan_with_new_data(monkeypatch, tmp_path):
    """Through BridgeStan's interface: the program is made again with the new data, and its `_rep` are drawn."""
    install_stand_in(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = provi.from_stan("model {}", {"y": np.array([0.5, 1.5])}, log_concave=True)
    draws = RNG.normal(size=(5, 2))
    made = []
    rebuild = target.program.rebuild
    monkeypatch.setattr(target.program, "rebuild", lambda data: made.append(data) or rebuild(data))
    assert target.predict_new(draws, 1, {"y": np.array([3.0, 4.0])})["y"].shape == (5, 2)
    np.testing.assert_array_equal(made[0]["y"], [3.0, 4.0])
    with pytest.raises(ValueError, match="has no data 'x'; it has 'y'"):
        target.predict_new(draws, 1, {"x": 1})
    with pytest.raises(ValueError, match="takes a dictionary of new data"):
        target.predict_new(draws, 1, draws)
    monkeypatch.setattr(target.program, "rebuild", None)
    with pytest.raises(ValueError, match="needs? the Stan program's code"):
        target.predict_new(draws, 1, {"y": np.zeros(2)})
