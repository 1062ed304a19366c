"""`provi.from_stan` with PyStan's compiler, against closed forms in SciPy. One program is compiled, see its module."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import expit, log_expit, logsumexp

import provi
from laws.contracts import compilations
from provi.runtime.checkpoint import fingerprint
from support.stan_programs import CODE, stan_data
from support.statistics import assert_mean


@pytest.fixture(scope="module")
def rich():
    """A parameter of every kind."""
    return provi.from_stan(CODE, stan_data(1), engine="pystan")


@pytest.fixture(scope="module")
def regression():
    """Logistic regression, and log(tau) for tau ~ Gamma(2, 3): log-concave."""
    return provi.from_stan(CODE, stan_data(0), log_concave=True, engine="pystan")


@pytest.fixture(scope="module")
def draws(rich):
    return np.random.default_rng(1).normal(size=(4, rich.dim))


def log_likelihoods(data, beta):
    return log_expit((2 * data["y"] - 1) * (data["X"] @ beta))


def rich_log_density(values, data):
    """The program's density in its own space, at values of its parameters."""
    beta, tau = values["beta"], values["tau"]
    correlation = values["root"][0, 1, 0]
    spread = np.array([1.0, 2.0, 3.0])
    return (
        np.sum(log_likelihoods(data, beta))
        + np.sum(scipy.stats.norm.logpdf(beta))
        + scipy.stats.gamma.logpdf(tau, 2, scale=1 / 3)
        + scipy.stats.beta.logpdf(values["share"][0], 2, 3)
        + scipy.stats.pareto.logpdf(values["above"][0], 4)
        + scipy.stats.dirichlet.logpdf(values["weights"][0] / values["weights"][0].sum(), [2, 3, 4])
        + np.sum(scipy.stats.norm.logpdf(values["cuts"][0], 0, 2))
        # LKJ(3) of a correlation r: density (1 - r^2)^2 times 15/16; of the factor's r the same, as dR/dr = 1.
        + 2 * math.log1p(-(correlation**2))
        + math.log(15 / 16)
        + np.sum(scipy.stats.norm.logpdf(values["loadings"][0], np.arange(1.0, 7).reshape(3, 2).T))
        + sum(np.sum(scipy.stats.norm.logpdf(values["effects"][k], k + 1, spread)) for k in range(2))
    )


def log_jacobian(target, z):
    """log |det| of the map from z to the free parts of the parameters, by finite differences of `constrain`."""

    def free_parts(point):
        found = target.constrain(point)
        parts = [found[name].ravel() for name in ("beta", "tau", "share", "above", "cuts", "loadings", "effects")]
        return np.concatenate([*parts, found["weights"][0, :2], found["root"][0, 1, :1]])

    step = 1e-5
    columns = [(free_parts(z + step * e) - free_parts(z - step * e)) / (2 * step) for e in np.eye(z.size)]
    return np.linalg.slogdet(np.stack(columns, axis=1))[1]


def test_density_is_normalised_with_its_jacobian(rich, draws):
    for z in draws:
        expected = rich_log_density(rich.constrain(z), stan_data(1)) + log_jacobian(rich, z)
        assert -rich.potential(jnp.asarray(z)) == pytest.approx(expected, rel=1e-9)


def test_gradient_by_finite_differences(rich, draws):
    density, step = rich.program.engine.density, 1e-5
    gradient = jax.jit(jax.grad(rich.potential))(jnp.asarray(draws[0]))
    for index, e in enumerate(np.eye(rich.dim)):
        up, down = density((draws[0] + step * e)[None])[0], density((draws[0] - step * e)[None])[0]
        assert -gradient[index] == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e2])
def test_hessian_in_closed_form(regression, length):
    data = stan_data(0)
    z = np.array([0.4, -0.7, -0.5])
    chance = expit(data["X"] @ z[:2])
    expected = np.zeros((3, 3))
    expected[:2, :2] = data["X"].T @ ((chance * (1 - chance))[:, None] * data["X"]) + np.eye(2)
    expected[2, 2] = 3 * math.exp(z[2])
    product = jax.jit(lambda v: jax.jvp(jax.grad(regression.potential), (jnp.asarray(z),), (v,))[1])
    found = np.stack([product(length * e) for e in jnp.eye(3)]) / length
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    assert np.array_equal(product(jnp.zeros(3)), np.zeros(3))


def test_a_batch_is_its_rows_and_threads_do_not_matter(rich, monkeypatch):
    engine, points = rich.program.engine, np.random.default_rng(2).normal(size=(400, rich.dim))
    monkeypatch.setattr(engine, "_seconds", 1.0)
    monkeypatch.setattr("provi.frontends.stan.compiled.available_cores", lambda: 5)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(rich.potential)))(jnp.asarray(points))
    monkeypatch.setattr("provi.frontends.stan.compiled.available_cores", lambda: 1)
    singles = [engine.gradient(point[None]) for point in points]
    assert np.array_equal(values, [-value[0] for value, _ in singles])
    assert np.array_equal(gradients, [-gradient[0] for _, gradient in singles])
    # Values alone come from a pass without derivatives, which sums in another order.
    np.testing.assert_allclose(jax.vmap(rich.potential)(jnp.asarray(points)), values, rtol=1e-13)


def test_all_digits_cross_though_the_process_is_in_single_precision(regression):
    z = np.array([1 / 3, -1 / 7, 1 / 11])

    @jax.jit
    def value_after_much_work(point, matrix):
        # After a product of this size XLA calls back from a thread of its own, whose 64-bit switch is the process's.
        return regression.potential(point + 0 * jnp.sum(jnp.sin(matrix @ matrix)))

    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            value = float(value_after_much_work(jnp.asarray(z), jnp.ones((1000, 1000))))
    finally:
        jax.config.update("jax_enable_x64", True)
    assert value == -regression.program.engine.density(z[None])[0]


def test_names_and_shapes(rich, draws):
    assert rich.parameter_names == (
        *(
            "beta[0]",
            "beta[1]",
            "log(tau)",
            "logit(share)[0]",
            "free(above)[0]",
            "free(weights)[0]",
            "free(weights)[1]",
        ),
        *("free(cuts)[0]", "free(cuts)[1]", "free(root)[0]", "loadings[0,0,0]", "loadings[0,1,0]", "loadings[0,0,1]"),
        *("loadings[0,1,1]", "loadings[0,0,2]", "loadings[0,1,2]", "effects[0,0]", "effects[0,1]", "effects[0,2]"),
        *("effects[1,0]", "effects[1,1]", "effects[1,2]"),
    )
    found = rich.constrain(draws)
    shapes = {name: value.shape[1:] for name, value in found.items()}
    assert shapes == {
        **{"beta": (2,), "tau": (), "share": (1,), "above": (1,), "weights": (1, 3), "cuts": (1, 2), "root": (1, 2, 2)},
        **{"loadings": (1, 2, 3), "effects": (2, 3), "scaled": (2,), "total": ()},
    }
    assert len(rich.constrained_names) == sum(math.prod(shape) for shape in shapes.values())
    assert set(shapes) - set(rich.parameter_variables) == {"scaled", "total"}, "the rest is computed of the parameters"
    # A coordinate that is called as an element is that element.
    one = rich.constrain(draws[0])
    for coordinate, name in zip(draws[0], rich.parameter_names, strict=True):
        if "(" not in name:
            variable, index = name[:-1].split("[")
            assert one[variable][tuple(map(int, index.split(",")))] == coordinate
    np.testing.assert_allclose(found["scaled"], found["tau"][:, None] * found["beta"], rtol=1e-14)
    np.testing.assert_allclose(found["total"], found["beta"].sum(axis=1), rtol=1e-14)
    np.testing.assert_allclose(found["weights"].sum(axis=-1), 1, rtol=1e-14)


def test_unconstrain_is_the_inverse(rich, draws):
    np.testing.assert_allclose(rich.unconstrain(rich.constrain(draws[0])), draws[0], rtol=1e-12, atol=1e-12)
    values = rich.constrain(draws[0])
    with pytest.raises(ValueError, match="it lacks: tau"):
        rich.unconstrain({name: value for name, value in values.items() if name != "tau"})
    with pytest.raises(ValueError, match=r"values\['beta'\] has shape \(3,\); the parameter's is \(2,\)"):
        rich.unconstrain({**values, "beta": np.zeros(3)})
    with pytest.raises(ValueError, match="values.*simplex"):
        rich.unconstrain({**values, "weights": np.full((1, 3), 0.2)})


def test_data_and_log_likelihood(rich, draws):
    data = stan_data(1)
    expected = [log_likelihoods(data, beta) for beta in rich.constrain(draws)["beta"]]
    np.testing.assert_allclose(rich.log_likelihood(draws)["log_lik"], expected, rtol=1e-12)
    assert rich.log_likelihood(draws[0])["log_lik"].shape == (40,)
    assert np.array_equal(rich.observed_data["y"], data["y"])
    assert np.array_equal(rich.observed_data["X"], data["X"])


def test_predictions_are_drawn_with_their_seed(regression):
    points = np.tile([0.5, -1.0, 0.0], (4000, 1))
    found = regression.predict(points, 7)["y"]
    assert np.array_equal(found, regression.predict(points, 7)["y"])
    assert not np.array_equal(found, regression.predict(points, 8)["y"])
    chances = expit(stan_data(0)["X"] @ points[0, :2])
    assert_mean(found - chances[None, :], np.zeros(40))


@pytest.mark.usefixtures("quick_compilation")
def test_fit_and_certify(regression):
    """The target is a product. For u = log tau, log p = 2u - 3e^u + 2 log 3, and the best normal is known.

    Its conditions E 3e^u = 2 and 1/s^2 = E 3e^u give s^2 = 1/2 and m = log(2/3) - 1/4. For beta, log Z by quadrature
    bounds the ELBO from above; the posterior of 40 rows is so nearly normal that 0.1 nats are room enough below.
    """
    fit = provi.fit(regression, tol=0.05, progress=False)
    assert fit.certificate.status == "statistical" and fit.certificate.gap <= 0.05
    best = 2 * math.log(3) + 2 * (math.log(2 / 3) - 0.25) - 2 + 0.5 * math.log(math.pi * math.e)
    grid = np.linspace(-8, 8, 401)
    first, second = (axis.ravel() for axis in np.meshgrid(grid, grid))
    betas = np.stack([first, second], axis=1)
    data = stan_data(0)
    logs = np.sum(log_expit((2 * data["y"] - 1)[:, None] * (data["X"] @ betas.T)), axis=0)
    logs += np.sum(scipy.stats.norm.logpdf(betas), axis=1) + 2 * math.log(grid[1] - grid[0])
    limit = best + logsumexp(logs)
    assert limit - 0.1 - fit.certificate.gap < fit.elbo.value < limit + 5 * fit.elbo.standard_error
    # The gap bounds the energy lost in m alone, at least (dm)^2 / 2 for nearby m as the curvature there is 2.
    assert fit.posterior.mean[2] == pytest.approx(math.log(2 / 3) - 0.25, abs=math.sqrt(2 * 0.05))
    certificate = provi.certify(regression, fit, compare=False)
    assert certificate.status == "statistical" and certificate.gap < 0.2


@pytest.mark.usefixtures("quick_compilation")
def test_another_program_of_the_same_dimension_compiles_nothing(regression):
    """The number of the model is an argument of what is compiled; each has the density of its own engine still."""
    other_data = provi.from_stan(CODE, stan_data(0, rows=20), log_concave=True, engine="pystan")
    settings = {"progress": False, "budget": provi.Budget(steps=50), "starts": 1}
    provi.fit(regression, **settings)
    with compilations() as found:
        fit = provi.fit(other_data, **settings)
    assert not found
    z = np.array([0.1, -0.2, 0.3])
    for target in (regression, other_data):
        expected = target.program.engine.gradient(z[None])
        value, gradient = jax.jit(jax.value_and_grad(target.potential))(jnp.asarray(z))
        assert value == -expected[0][0]
        np.testing.assert_array_equal(gradient, -expected[1][0])
    assert fit.target.program is other_data.program
    assert len({fingerprint(target) for target in (regression, other_data)}) == 2
    again = provi.from_stan(CODE, stan_data(0, rows=20), log_concave=True, engine="pystan")
    assert fingerprint(again) == fingerprint(other_data)
