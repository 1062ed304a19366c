"""NumPyro models as targets: densities against NumPyro's own, draws, data, refusals, subsampling."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

numpyro = pytest.importorskip("numpyro")

import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.contrib.control_flow import scan  # noqa: E402
from numpyro.infer.util import log_density  # noqa: E402

import provi  # noqa: E402
from provi.targets.transforms.constraints import read_constraints  # noqa: E402

RNG = np.random.default_rng(0)
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
X = RNG.normal(size=(40, 3))
LABELS = (RNG.random(40) < 0.5).astype(int)
COUNTS = RNG.poisson(2.0, 40)
GROUPS = RNG.integers(0, 4, 40)


@pytest.fixture(autouse=True)
def numpyro_promotes_ranks():
    """The tests forbid silent rank promotion, which NumPyro relies on."""
    with jax.numpy_rank_promotion("allow"):
        yield


def eight_schools(sigma, y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(sigma)):
        raw = numpyro.sample("raw", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * raw)
        numpyro.sample("effect", dist.Normal(theta, sigma), obs=y)


def hierarchical_logistic(X, groups, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0, 2).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("groups", int(np.max(groups)) + 1):  # asks for a value of the data
        intercept = numpyro.sample("intercept", dist.Normal(0, scale))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ slope + intercept[groups]), obs=y)


def poisson_glm(X, y):
    level = numpyro.sample("level", dist.Normal(0, 1))
    slope = numpyro.sample("slope", dist.Normal(0, 0.5).expand([X.shape[1]]))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(level + X @ slope)), obs=y)


def zoo():
    numpyro.sample("share", dist.Dirichlet(jnp.ones(4)))
    numpyro.sample("corr", dist.LKJCholesky(3, 2.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 3.0))
    numpyro.sample("below", dist.Uniform(0.0, rate))  # a support that depends on another site
    numpyro.sample("cuts", dist.ImproperUniform(dist.constraints.ordered_vector, (), (3,)))
    with numpyro.plate("outer", 2, dim=-2), numpyro.plate("inner", 3, dim=-1):
        numpyro.sample("p", dist.Beta(2.0, 3.0))
    numpyro.factor("penalty", -0.3 * rate**2)


def autoregression(y):
    def step(level, observed):
        level = numpyro.sample("level", dist.Normal(0.9 * level, 0.5))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=observed)
        return level, None

    scan(step, 0.0, y)


CASES = {
    "eight schools": (eight_schools, (SIGMA, EFFECT), 10),
    "hierarchical logistic": (hierarchical_logistic, (X, GROUPS, LABELS), 8),
    "Poisson": (poisson_glm, (X, COUNTS), 4),
    "zoo": (zoo, (), 3 + 3 + 1 + 1 + 3 + 6),
    "scan": (autoregression, (EFFECT / 10,), 8),
}


@functools.cache
def target_of(name):
    with jax.numpy_rank_promotion("allow"):
        model, args, _ = CASES[name]
        return provi.from_numpyro(model, *args)


@pytest.mark.parametrize("name", CASES)
def test_density_is_numpyros_with_the_jacobian(name):
    model, args, dim = CASES[name]
    target = target_of(name)
    assert target.dim == dim == len(target.parameter_names)

    @jax.jit
    @jax.vmap
    def compare(z, values):
        value, sites = log_density(model, args, {}, values)
        free, distance = target.unravel(z), jnp.zeros(())
        for site in free:
            bijection = dist.biject_to(sites[site]["fn"].support)
            distance += jnp.sum(jnp.abs(bijection(free[site]) - values[site]))
            value += jnp.sum(bijection.log_abs_det_jacobian(free[site], values[site]))
        return -target.potential(z), value, distance

    points = RNG.normal(size=(3, dim))
    values = target.constrain(points)
    ours, numpyros, distance = compare(jnp.asarray(points), values)
    np.testing.assert_allclose(ours, numpyros, rtol=1e-11)
    np.testing.assert_allclose(distance, 0, atol=1e-12)
    back = target.unconstrain({name: value[0] for name, value in values.items()})
    np.testing.assert_allclose(back, points[0], rtol=1e-9, atol=1e-9)


def test_names_deterministic_sites_data_and_log_likelihood():
    target = target_of("eight schools")
    assert target.parameter_names == ("mu", "log(tau)", *(f"raw[{i}]" for i in range(8)))
    assert target.constrained_names[9:] == ("tau", *(f"theta[{i}]" for i in range(8)))
    draws = RNG.normal(size=(5, 10))
    values = target.constrain(draws)
    assert values["theta"].shape == (5, 8) and values["tau"].shape == (5,)
    np.testing.assert_allclose(values["theta"], values["mu"][:, None] + values["tau"][:, None] * values["raw"])
    np.testing.assert_array_equal(target.observed_data["effect"], EFFECT)
    sites = {name: values[name] for name in ("mu", "tau", "raw")}
    expected = numpyro.infer.log_likelihood(eight_schools, sites, SIGMA, EFFECT)["effect"]
    np.testing.assert_allclose(target.log_likelihood(draws)["effect"], expected, rtol=1e-12)


def test_coordinates_are_those_of_numpyros_guides():
    target = target_of("eight schools")
    guide = numpyro.infer.autoguide.AutoMultivariateNormal(eight_schools)
    handlers.seed(guide, 0)(SIGMA, EFFECT)
    z = RNG.normal(size=10)
    median = guide.median({"auto_loc": jnp.asarray(z), "auto_scale_tril": jnp.eye(10)})
    values = target.constrain(z)
    for name in ("mu", "tau", "raw"):
        np.testing.assert_allclose(median[name], values[name], rtol=1e-12)


def test_what_is_declared_and_where_it_starts():
    target = provi.from_numpyro(
        eight_schools, SIGMA, EFFECT, log_concave=True, start={"mu": 4.0, "tau": 2.0, "raw": np.zeros(8)}
    )
    assert target.constants.log_concave.status == "declared" and target.linear_model() is None
    assert target_of("eight schools").constants.log_concave.status == "unknown"
    np.testing.assert_allclose(target.default_location, [4.0, np.log(2.0), *np.zeros(8)], rtol=1e-14)
    np.testing.assert_array_equal(target_of("eight schools").default_location, np.zeros(10))


def test_our_bijections_agree_with_numpyros():
    cases = [
        ("positive", dist.constraints.positive, (3,)),
        ("simplex", dist.constraints.simplex, (4,)),
        ("ordered", dist.constraints.ordered_vector, (3,)),
        ("correlation matrix", dist.constraints.corr_matrix, (4, 4)),
        ("correlation cholesky", dist.constraints.corr_cholesky, (4, 4)),
        (provi.targets.interval(-1, 3), dist.constraints.interval(-1.0, 3.0), (3,)),
    ]

    @eqx.filter_jit
    def compare(ours, support, x):
        theirs = dist.biject_to(support)
        y = theirs(x)
        return ours.forward(x), y, ours.log_det(x), jnp.sum(theirs.log_abs_det_jacobian(x, y))

    for name, support, shape in cases:
        ours = read_constraints(name, np.zeros(shape))[0]
        ours_y, y, ours_log_det, log_det = compare(ours, support, jnp.asarray(RNG.normal(size=ours.free_shape(shape))))
        np.testing.assert_allclose(ours_y, y, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(ours_log_det, log_det, rtol=1e-10)


def mini_batches(X, y, size=10):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0, scale).expand([3]).to_event(1))
    with numpyro.plate("rows", len(X), subsample_size=size) as rows:
        labels = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=X[rows] @ slope), obs=labels)


def test_a_subsampling_plate_gives_a_sum_over_its_rows():
    target = provi.from_numpyro(mini_batches, X, LABELS)
    whole = provi.from_numpyro(mini_batches, X, LABELS, size=None)
    assert target.num_terms == 40 and not hasattr(whole, "num_terms")

    @jax.jit
    def compare(z):
        each = jax.vmap(lambda i: target.minibatch_potential(z, i[None]))(jnp.arange(40))
        batch = target.minibatch_potential(z, jnp.asarray([3, 7]))
        return whole.potential(z), target.potential(z), each, batch

    expected, potential, each, batch = compare(jnp.asarray(RNG.normal(size=4)))
    np.testing.assert_allclose(potential, expected, rtol=1e-12)
    np.testing.assert_allclose(np.mean(each), expected, rtol=1e-12)
    np.testing.assert_allclose(batch, (each[3] + each[7]) / 2, rtol=1e-12)
    assert target.log_likelihood(np.zeros(4))["y"].shape == (40,)


def test_latent_sites_in_a_subsampling_plate_use_it_whole():
    def model(y):
        with numpyro.plate("rows", len(y), subsample_size=2) as rows:
            local = numpyro.sample("local", dist.Normal(0, 1))
            numpyro.sample("y", dist.StudentT(3.0, local), obs=y[rows])

    target = provi.from_numpyro(model, EFFECT)
    assert target.dim == 8 and not hasattr(target, "num_terms")


def improper_without_support():
    numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("odd", dist.ImproperUniform(dist.constraints.sphere, (), (3,)))


def discrete(y):
    kind = numpyro.sample("kind", dist.Categorical(jnp.ones(2) / 2))
    numpyro.sample("y", dist.Normal(kind, 1.0), obs=y)


def with_param():
    numpyro.sample("a", dist.Normal(numpyro.param("location", 1.0), 1.0))


def half_masked(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0).expand([3]), obs=y, obs_mask=np.array([True, False, True]))


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (discrete, (1.0,), "site 'kind' is a discrete latent variable .* marginalise .* enumeration"),
        (poisson_glm, (X, None), "len"),
        (improper_without_support, (), "site 'odd' .* no support"),
        (with_param, (), "site 'location' is a numpyro.param"),
        (half_masked, (np.ones(3),), "site 'y_unobserved' is masked"),
        (lambda: numpyro.sample("a", dist.Normal(0, 1), obs=1.0), (), "no latent site"),
        (poisson_glm, (X, np.full(40, np.nan)), "site 'y' is not finite at the start"),
    ],
)
def test_refusals(model, args, message):
    with pytest.raises((ValueError, TypeError), match=message):
        provi.from_numpyro(model, *args)


def test_bad_arguments():
    with pytest.raises(TypeError, match="model must be"):
        provi.from_numpyro(3)
    target = target_of("eight schools")
    with pytest.raises(ValueError, match="values must be a dictionary .* it lacks: raw, tau"):
        target.unconstrain({"mu": 1.0})
    with pytest.raises(ValueError, match=r"values\['tau'\] must lie inside the support"):
        target.unconstrain({"mu": 1.0, "tau": -1.0, "raw": np.zeros(8)})
    with pytest.raises(ValueError, match=r"values\['raw'\] has shape"):
        target.unconstrain({"mu": 1.0, "tau": 1.0, "raw": np.zeros(3)})
    with pytest.raises(ValueError, match="dimension 10"):
        target.constrain(np.zeros(3))
