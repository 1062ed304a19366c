"""`provi.from_stan` through BridgeStan, with a stand-in that has its documented interface."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import provi
from provi.frontends.stan.engine import BridgeStanEngine
from support.stan_bridge import StanModel, install_stand_in

DATA = {"y": np.array([0.5, 1.5])}
POINT = np.array([0.3, -0.2])


@pytest.fixture
def bridge(monkeypatch, tmp_path):
    """A function that makes a target of the code."""
    install_stand_in(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lambda code="model {}", data=DATA: provi.from_stan(code, data, log_concave=True)


def test_bridgestan_is_taken_where_it_has_its_sources(bridge):
    target = bridge()
    assert isinstance(target.program.engine, BridgeStanEngine)
    assert target.parameter_names == ("mu", "log(tau)")


@pytest.mark.parametrize("code", ["model {}", "model {} // exact"])
def test_density_and_derivatives(bridge, code):
    target = bridge(code)
    tau = np.exp(POINT[1])
    expected = (
        scipy.stats.norm.logpdf(POINT[0])
        + scipy.stats.expon.logpdf(tau)
        + POINT[1]
        + np.sum(scipy.stats.norm.logpdf(DATA["y"], POINT[0]))
    )
    assert -target.potential(jnp.asarray(POINT)) == pytest.approx(expected, rel=1e-13)
    hessian = jax.hessian(target.potential)(jnp.asarray(POINT))
    np.testing.assert_allclose(hessian, np.diag([3.0, tau]), rtol=1e-10, atol=1e-10)


def test_variables_likelihood_and_predictions(bridge):
    target, draws = bridge(), np.random.default_rng(0).normal(size=(5, 2))
    found = target.constrain(draws)
    assert list(found) == ["mu", "tau", "twice"]
    np.testing.assert_allclose(found["tau"], np.exp(draws[:, 1]))
    expected = scipy.stats.norm.logpdf(DATA["y"][None, :], draws[:, :1])
    np.testing.assert_allclose(target.log_likelihood(draws)["log_lik"], expected)
    assert target.predict(draws, 1)["y"].shape == (5, 2)
    assert np.array_equal(target.predict(draws, 1)["y"], target.predict(draws, 1)["y"])
    assert not np.array_equal(target.predict(draws, 1)["y"], target.predict(draws, 2)["y"])
    np.testing.assert_allclose(target.unconstrain({"mu": 0.3, "tau": np.exp(-0.2)}), POINT)


def test_where_stan_raises_the_density_is_zero(bridge):
    target = bridge()
    points = jnp.asarray([[60.0, 0.0], [0.3, -0.2]])
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(target.potential)))(points)
    assert values[0] == np.inf and np.isnan(gradients[0]).all()
    assert np.isfinite(values[1]) and np.isfinite(gradients[1]).all()
    found = target.constrain(points)
    assert np.isnan(found["mu"][0]) and found["mu"][1] == 0.3
    with pytest.raises(ValueError, match="mu is beyond 50"):
        target.constrain(points[0])
    with pytest.raises(ValueError, match="values.*Lower bounded variable is -1"):
        target.unconstrain({"mu": 0.0, "tau": -1.0})


def test_a_built_model_brings_its_data(bridge, tmp_path):
    program = tmp_path / "built.stan"
    program.write_text("model {}")
    model = StanModel(str(program), '{"y": [0.5, 1.5]}')
    target = provi.from_stan(model)
    assert target.potential(jnp.asarray(POINT)) == bridge().potential(jnp.asarray(POINT))
    with pytest.raises(ValueError, match="data must be left out"):
        provi.from_stan(model, DATA)


def test_errors_of_the_program_and_of_the_data(bridge):
    with pytest.raises(ValueError, match="(?s)did not compile.*line 3"):
        bridge("model {} // broken")
    with pytest.raises(ValueError, match="data lacks the variable 'y'"):
        bridge(data={})


def test_without_its_sources_bridgestan_says_how_to_get_them(monkeypatch):
    install_stand_in(monkeypatch, sources=False)
    with pytest.raises(ImportError, match="get_bridgestan_path"):
        provi.from_stan("model {}", DATA, engine="bridgestan")


def test_without_either_engine(monkeypatch):
    monkeypatch.setattr("provi.frontends.stan.front_end.has_sources", lambda: False)
    monkeypatch.setattr("provi.frontends.stan.front_end.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"provi\[stan\].*bridgestan"):
        provi.from_stan("model {}", DATA)
