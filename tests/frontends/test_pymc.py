"""PyMC models as targets: density, spaces, data and refusals, against PyMC's own functions and closed forms."""

import os
import subprocess
import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from laws.contracts import compilations
from support.statistics import assert_mean

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its next version, PyTensor that it found no BLAS
    pm = pytest.importorskip("pymc")

import provi  # noqa: E402

RNG = np.random.default_rng(3)
X = RNG.normal(size=(6, 3))
Y = np.array([0.3, -1.0, np.nan, 2.0, 0.1, -0.4])
OBSERVED = ~np.isnan(Y)
RATES = np.array([0.5, 1.5])
ANGLE = pm.distributions.transforms.Interval(-np.pi, np.pi)


def everything():
    """A model with each kind of transform, mutable data and dimensions, missing data and a potential."""
    with pm.Model(coords={"column": list("abc")}) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.ImputationWarning)
        scale = pm.HalfNormal("scale", 1.0)
        slope = pm.Normal("slope", 0.0, scale, dims="column")
        data = pm.Data("X", X)
        pm.Normal("y", data @ slope, 0.7, observed=Y)
        pm.LKJCholeskyCov("chol", n=3, eta=np.float64(2), sd_dist=pm.Exponential.dist(np.float64(1)))
        pm.Dirichlet("share", np.array([1.0, 2.0, 3.0]))
        low = pm.Uniform("low", -scale, 3.0)
        pm.Beta("probability", 2.0, 3.0)
        pm.Normal("cut", shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
        pm.ZeroSumNormal("effect", shape=4)
        pm.VonMises("angle", 0.5, 1.0, transform=ANGLE, default_transform=None)
        pm.Deterministic("twice", 2 * low)
        pm.Potential("penalty", -(slope**4).sum())
        pm.Exponential("wait", scale, observed=RATES)
    return model


@pytest.fixture(scope="module")
def model():
    return everything()


@pytest.fixture(scope="module")
def target(model):
    return provi.from_pymc(model)


@pytest.fixture(scope="module")
def points(target):
    return np.random.default_rng(0).normal(size=(3, target.dim))


def as_point(model, target, z):
    """The vector as PyMC's functions take it."""
    parts = target.program.unravel(jnp.asarray(z)).values()
    return {value.name: np.asarray(part) for value, part in zip(model.value_vars, parts, strict=True)}


def test_the_density_and_its_gradient_are_pymcs(model, target, points):
    logp, dlogp = model.compile_logp(mode="FAST_COMPILE"), model.compile_dlogp(mode="FAST_COMPILE")
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(target.potential)))(jnp.asarray(points))
    for z, value, gradient in zip(points, values, gradients, strict=True):
        np.testing.assert_allclose(-value, logp(as_point(model, target, z)), rtol=1e-12)
        np.testing.assert_allclose(-gradient, dlogp(as_point(model, target, z)), rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(
        target.default_location, np.concatenate([np.ravel(part) for part in model.initial_point().values()])
    )


def test_nothing_is_computed_in_single_precision(target):
    """PyTensor keeps 0.5 and -inf as float32, and JAX lets that decide where the other operand has a weak type."""
    assert "f32" not in str(target.log_density.program) and "f64" in str(target.log_density.program)


def test_names(target):
    names = target.parameter_names
    assert names[:5] == ("log(scale)", "slope[a]", "slope[b]", "slope[c]", "y_unobserved[0]")
    assert {"free(share)[1]", "free(low)", "logit(probability)", "free(effect)[2]", "free(cut)[0]"} <= set(names)
    assert len(target.constrained_names) == sum(part.size for part in target.constrain(np.zeros(target.dim)).values())
    assert target.axis_labels == {"slope": {"column": ["a", "b", "c"]}}
    assert {"scale", "share[2]", "twice", "chol_corr[2,1]", "y[2]"} <= set(target.constrained_names)


def test_constrain_is_pymcs_and_unconstrain_goes_back(model, target, points):
    pymcs = model.compile_fn(
        model.replace_rvs_by_values(model.unobserved_RVs), inputs=model.value_vars, mode="FAST_COMPILE"
    )
    found = target.constrain(points)
    for row, z in enumerate(points):
        for rv, value in zip(model.unobserved_RVs, pymcs(as_point(model, target, z)), strict=True):
            np.testing.assert_allclose(found[rv.name][row], value, rtol=1e-9, atol=1e-12)
    first = target.constrain(points[0])
    np.testing.assert_allclose(first["y"][OBSERVED], Y[OBSERVED])
    np.testing.assert_allclose(target.unconstrain(first), points[0], rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="'share'.*inside the support"):
        target.unconstrain(first | {"share": np.array([0.5, 0.4, 0.4])})
    with pytest.raises(ValueError, match="'low'.*inside the support"):
        target.unconstrain(first | {"low": -first["scale"] - 0.1})
    with pytest.raises(ValueError, match="it lacks: cut, slope"):
        target.unconstrain({name: value for name, value in first.items() if name not in ("cut", "slope")})
    with pytest.raises(ValueError, match=r"shape \(2,\); the variable's is \(3,\)"):
        target.unconstrain(first | {"slope": np.zeros(2)})


def test_data_and_log_likelihood(target, points):
    np.testing.assert_array_equal(target.observed_data["y_observed"], Y[OBSERVED])
    np.testing.assert_array_equal(target.observed_data["wait"], RATES)
    values, found = target.constrain(points), target.log_likelihood(points)
    mean = values["slope"] @ X[OBSERVED].T
    np.testing.assert_allclose(found["y_observed"], stats.norm.logpdf(Y[OBSERVED], mean, 0.7), rtol=1e-6)
    scale = values["scale"][:, None]
    np.testing.assert_allclose(found["wait"], stats.expon.logpdf(RATES, scale=1 / scale), rtol=1e-9)
    assert target.log_likelihood(points[0])["wait"].shape == (2,)


def test_predictions_have_the_means_of_the_model(target, points):
    """Alarm rate 2e-6. The free variables depend on data and dimensions, and are not drawn anew."""
    values = target.constrain(points[0])
    found = target.predict(np.tile(points[0], (400, 1)), seed=1)
    assert set(found) == {"y_observed", "wait"}
    assert_mean(found["y_observed"], X[OBSERVED] @ values["slope"])
    assert_mean((found["y_observed"] - X[OBSERVED] @ values["slope"]) ** 2, 0.49)
    assert_mean(found["wait"], np.full(2, 1 / values["scale"]))
    again, other = (target.predict(points[:2], seed=seed)["wait"] for seed in (1, 2))
    np.testing.assert_array_equal(target.predict(points[:2], seed=1)["wait"], again)
    assert np.all(again != other) and target.predict(points[0], seed=1)["wait"].shape == (2,)


def test_the_data_are_those_at_construction():
    with pm.Model() as model:
        rows = pm.Data("rows", np.ones(3))
        pm.Normal("y", pm.HalfNormal("scale", 1.0) * rows, 1.0, observed=np.zeros(3))
    target = provi.from_pymc(model, log_concave=False, start={"scale": 2.0})
    np.testing.assert_allclose(target.default_location, np.log(2.0))
    before = target.log_likelihood(np.zeros(1))["y"]
    with model:
        pm.set_data({"rows": np.full(3, 5.0)})
    fresh = provi.from_pymc(model)
    np.testing.assert_allclose(before, stats.norm.logpdf(np.ones(3)), rtol=1e-9)
    np.testing.assert_allclose(target.predict(np.zeros(1), 0)["y"], fresh.predict(np.zeros(1), 0)["y"] - 4.0)
    np.testing.assert_allclose(fresh.log_likelihood(np.zeros(1))["y"], stats.norm.logpdf(np.full(3, 5.0)), rtol=1e-9)
    with pytest.raises(ValueError, match="start must be a dictionary.*unknown: sigma"):
        provi.from_pymc(model, start={"sigma": 1.0})


def imputed_counts():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pm.ImputationWarning)
        pm.Poisson("y", pm.math.exp(pm.Normal("a")), observed=np.ma.masked_array([1, 2, 3], [0, 1, 0]))


def hidden_label():
    pm.Normal("y", pm.Bernoulli("label", 0.5) + pm.Normal("a"), 1.0, observed=0.0)


def minibatch():
    pm.Normal("y", pm.Normal("a"), 1.0, observed=pm.Minibatch(X[:, 0], batch_size=2), total_size=6)


def minibatch_without_total():
    pm.Normal("y", pm.Normal("a") * pm.Minibatch(X[:, 0], batch_size=2), 1.0, observed=np.zeros(2))


def total_size():
    pm.Normal("y", pm.Normal("a"), 1.0, observed=X[:, 0], total_size=60)


def out_of_bounds():
    """JAX would take the last entry instead."""
    pm.Normal("y", pm.Normal("a", shape=3)[np.array([0, 1, 3])], 1.0, observed=np.zeros(3))


def unnamed():
    pm.Potential("noise", pm.Normal.dist(pm.Normal("a"), 1.0))


REFUSED = {
    "discrete": (hidden_label, "discrete free variables: label;.*pymc_extras.marginalize"),
    "discrete, imputed": (imputed_counts, "discrete free variables: y_unobserved;.*leave those rows out"),
    "mini-batch": (minibatch, "mini-batches.*whole data"),
    "mini-batch of covariates": (minibatch_without_total, "mini-batches.*whole data"),
    "total size": (total_size, "mini-batches.*whole data"),
    "empty": (lambda: pm.Deterministic("x", pm.math.constant(1.0)), "no free variable"),
    "circle": (lambda: pm.VonMises("angle", 0.0, 1.0), "'angle' is an angle on the whole line"),
    "bad data": (lambda: pm.Exponential("y", pm.HalfNormal("a"), observed=[-1.0]), "density of 'y' is not finite"),
    "bounds": (out_of_bounds, "PyMC cannot evaluate the model: index 3 is out of bounds"),
    "unnamed": (unnamed, "random numbers that are not variables of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, message = REFUSED[name]
    with pm.Model() as model:
        make()
    with pytest.raises(ValueError, match=message):
        provi.from_pymc(model)


def test_a_model_that_is_none():
    with pytest.raises(TypeError, match="model must be a pymc.Model, not function"):
        provi.from_pymc(everything)


def test_an_invalid_parameter_has_no_density():
    """PyMC's own JAX function drops the check of sigma > 0; log p must be minus infinity there."""
    with pm.Model() as model:
        pm.Normal("y", 0.0, pm.Normal("scale", 2.0, 1.0) ** 3, observed=np.ones(2))
    assert provi.from_pymc(model).potential(jnp.asarray([-1.0])) == np.inf


def test_settings_of_the_process_stay():
    """PyMC's JAX module asks XLA for 100 devices, and PyTensor switches JAX to 64 bits."""
    script = (
        "import os, jax, pymc as pm, provi\n"
        "with pm.Model() as model: pm.Normal('a')\n"
        "with jax.enable_x64(True): provi.from_pymc(model)\n"
        "print(len(jax.devices()), jax.config.jax_enable_x64, os.environ.get('XLA_FLAGS'))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_ENABLE_X64")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["1", "False", "None"], done.stderr


@pytest.mark.usefixtures("quick_compilation")
def test_the_same_model_with_other_data_compiles_nothing():
    """Translated anew, it is the same program: its data are arguments. Another prior is another program."""

    def model(seed, rate=1.0):
        with pm.Model() as found:
            scale = pm.Exponential("scale", rate)
            pm.Laplace("y", 0.0, scale, observed=np.random.default_rng(seed).laplace(size=9))
        return provi.from_pymc(found)

    settings = {"progress": False, "budget": provi.Budget(steps=30), "starts": 1}
    first, second, other = model(0), model(1), model(0, rate=2.0)
    assert jax.tree.structure(first) == jax.tree.structure(second) != jax.tree.structure(other)
    provi.fit(first, **settings)
    with compilations() as found:
        fit = provi.fit(second, **settings)
    assert not found
    assert fit.target.program is second.program is not first.program
    z = np.array([0.3])
    for target, seed in ((first, 0), (second, 1)):
        data = np.random.default_rng(seed).laplace(size=9)
        expected = stats.laplace.logpdf(data, scale=np.exp(0.3)).sum() - np.exp(0.3) + 0.3
        assert -eqx.filter_jit(lambda t: t.potential(jnp.asarray(z)))(target) == pytest.approx(expected, rel=1e-12)
        np.testing.assert_array_equal(target.observed_data["y"], data)
