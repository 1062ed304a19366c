"""NumPyro models written to mislead: what changes outside of a model, odd shapes, weights, masks, keys, empty data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

numpyro = pytest.importorskip("numpyro")

import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.infer.reparam import LocScaleReparam  # noqa: E402

import provi  # noqa: E402

RNG = np.random.default_rng(5)
N = 12
X = RNG.normal(size=(N, 3))
LABELS = (RNG.random(N) < 0.5).astype(int)
REAL = RNG.normal(size=N)
GROUPS = np.arange(N) % 4
NOTEBOOK = {"y": np.array([1.0, 2.0, 3.0])}


@pytest.fixture(autouse=True)
def numpyro_promotes_ranks():
    """The tests forbid silent rank promotion, which NumPyro relies on."""
    with jax.numpy_rank_promotion("allow"):
        yield


def slopes():
    return numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))


def test_other_data_in_a_global_variable_are_other_data(monkeypatch):
    """A model of a notebook, whose data are defined in another cell: no program compiled for the old ones may run."""

    def model():
        centre = numpyro.sample("m", dist.StudentT(5.0, 0.0, 3.0))
        numpyro.sample("y", dist.Normal(centre, 1.0), obs=NOTEBOOK["y"])

    potential = jax.jit(lambda target, z: target.potential(z))
    first, again = provi.from_numpyro(model), provi.from_numpyro(model)
    assert jax.tree.structure(first) == jax.tree.structure(again)  # nothing is compiled twice
    z = jnp.array([0.3])
    assert potential(first, z) == potential(again, z)
    monkeypatch.setitem(NOTEBOOK, "y", np.array([11.0, 12.0, 13.0]))
    second = provi.from_numpyro(model)
    prior = -dist.StudentT(5.0, 0.0, 3.0).log_prob(0.3)
    expected = prior - dist.Normal(0.3, 1.0).log_prob(jnp.array([11.0, 12.0, 13.0])).sum()
    assert potential(second, z) == pytest.approx(float(expected), rel=1e-12)
    assert second.log_likelihood(z)["y"][0] == pytest.approx(float(dist.Normal(0.3, 1.0).log_prob(11.0)), rel=1e-12)


def test_a_model_that_is_defined_anew_compiles_nothing():
    """By a cell that runs again, or by a function that makes models."""

    def made(location):
        def model(y):
            centre = numpyro.sample("m", dist.StudentT(5.0, location, 3.0))
            numpyro.sample("y", dist.Normal(centre, 1.0), obs=y)

        return provi.from_numpyro(model, np.array([1.0, 2.0]))

    first, again, other = made(0.0), made(0.0), made(1.0)
    assert first.model.model is not again.model.model
    assert jax.tree.structure(first) == jax.tree.structure(again) != jax.tree.structure(other)
    potential, z = jax.jit(lambda target, z: target.potential(z)), jnp.array([0.3])
    assert potential(first, z) == potential(again, z) != potential(other, z)


def square_of_data(y):
    """Data of shape (n,) against (n, 1): n^2 terms."""
    numpyro.sample("y", dist.Normal((X @ slopes())[:, None], 1.0), obs=y)


def one_datum_five_times(y):
    numpyro.sample("y", dist.Normal(slopes().sum(), 1.0).expand([5]), obs=y[0])


def subsampled(y):
    slope = slopes()
    with numpyro.plate("rows", N, subsample_size=4) as rows:
        numpyro.sample("y", dist.Normal(jnp.asarray(X)[rows] @ slope, 2.0), obs=jnp.asarray(y)[rows])


def decentred(y):
    slope = numpyro.sample("b", dist.Normal(1.0, np.array([1.0, 2.0, 3.0])).to_event(1))
    numpyro.sample("y", dist.Normal(X @ slope, 1.0), obs=y)


MODELS = {
    "square": square_of_data,
    "five times": one_datum_five_times,
    "subsampled": subsampled,
    "decentred": handlers.reparam(decentred, config={"b": LocScaleReparam(0.5)}),
}


@pytest.mark.parametrize("name", MODELS)
def test_odd_shapes_are_recognised_with_the_hessian_of_numpyro(name):
    target = provi.from_numpyro(MODELS[name], REAL)
    found = target.linear_model()
    assert type(found).__name__ == "LinearRegression"
    z = jnp.asarray(RNG.normal(size=target.dim))
    hessian = jax.hessian(target.potential)(z)
    np.testing.assert_allclose(found.potential(z), target.potential(z), rtol=1e-11)
    low, high = target.curvature_bounds()
    for bound in (low, high):
        np.testing.assert_allclose(bound, hessian, rtol=1e-8, atol=1e-8)


def with_mask(y):
    slope = slopes()
    with handlers.mask(mask=GROUPS > 0):
        numpyro.sample("y", dist.Bernoulli(logits=X @ slope), obs=y)


def with_weights_of_one(y):
    slope = slopes()
    with handlers.scale(scale=jnp.ones(N)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ slope), obs=y)


def with_nothing_observed(y):
    numpyro.sample("y", dist.Normal(X[:0] @ slopes(), 1.0), obs=np.zeros(0))


def with_an_even_power(y):
    slope = slopes()
    numpyro.sample("y", dist.Bernoulli(logits=X @ slope + 0 * slope[0] ** 2), obs=y)


def with_a_scale_that_is_nearly_zero(y):
    numpyro.sample("y", dist.Bernoulli(logits=numpyro.sample("a", dist.Normal(0, 1e-120)) + 0 * X[:, 0]), obs=y)


@pytest.mark.parametrize(
    "model",
    [with_mask, with_weights_of_one, with_nothing_observed, with_an_even_power, with_a_scale_that_is_nearly_zero],
)
def test_a_plain_density(model):
    assert provi.from_numpyro(model, LABELS).linear_model() is None


def test_a_key_of_random_numbers_among_the_arguments():
    target = provi.from_numpyro(lambda key, y: square_of_data(y), jax.random.key(0), REAL)
    assert target.dim == 3


def test_latent_sites_without_entries():
    with pytest.raises(ValueError, match="have no entries"):
        provi.from_numpyro(lambda: numpyro.sample("b", dist.Normal(0, 1).expand([0])))


def test_values_in_single_precision_have_coordinates():
    def model():
        numpyro.sample("L", dist.LKJCholesky(4, 1.0))
        numpyro.sample("R", dist.LKJ(3, 1.0))
        numpyro.sample("p", dist.Dirichlet(jnp.ones(5)))

    target = provi.from_numpyro(model)
    z = RNG.normal(size=(3, target.dim))
    values = target.constrain(z)
    for row in range(3):
        short = {name: value[row].astype(np.float32) for name, value in values.items()}
        np.testing.assert_allclose(target.unconstrain(short), z[row], atol=1e-4)
        for name in short:
            with pytest.raises(ValueError, match=name):
                target.unconstrain(short | {name: short[name] * np.float32(1.001)})
