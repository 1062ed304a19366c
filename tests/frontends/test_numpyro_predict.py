"""Replicated data of NumPyro models: laws in closed form, shapes, plates, order of the sites."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

numpyro = pytest.importorskip("numpyro")

import numpyro.distributions as dist  # noqa: E402
from numpyro.contrib.control_flow import scan  # noqa: E402

import provi  # noqa: E402
from support.statistics import assert_mean  # noqa: E402

DATA = np.array([1.0, -2.0, 30.0, 4.0])
NUM = 4000


@pytest.fixture(autouse=True)
def numpyro_promotes_ranks():
    """The tests forbid silent rank promotion, which NumPyro relies on."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def target():
    """A scale by a bijection, data without a plate, vectors, a mask, a factor, observed sites that follow another."""
    with jax.numpy_rank_promotion("allow"):
        x = np.array([0.0, 1.0, 2.0, -1.0])

        def model(x, y):
            mean = numpyro.sample("mean", dist.Normal(0, 10))
            scale = numpyro.sample("scale", dist.HalfNormal(5))
            numpyro.sample("plain", dist.Normal(mean, scale), obs=y)
            covariance = scale**2 * jnp.array([[1.0, 0.5], [0.5, 1.0]])
            with numpyro.plate("rows", 4, subsample_size=2) as rows:
                numpyro.sample("count", dist.Poisson(jnp.exp(x[rows])), obs=jnp.ones(4, int)[rows])
                pair = dist.MultivariateNormal(mean * jnp.ones(2), covariance)
                numpyro.sample("pair", pair.mask(jnp.arange(4)[rows] > 0), obs=jnp.zeros((4, 2))[rows])
            first = numpyro.sample("first", dist.Normal(mean, 1), obs=100.0)
            numpyro.sample("second", dist.Normal(2 * first, 1), obs=200.0)
            numpyro.factor("extra", -0.5 * mean**2)

        return provi.from_numpyro(model, x, DATA)


@pytest.fixture(scope="module")
def replicates(target):
    """At mean 3 and scale 2."""
    with jax.numpy_rank_promotion("allow"):
        z = target.unconstrain({"mean": 3.0, "scale": 2.0})
        return z, target.predict(np.tile(z, (NUM, 1)), seed=1)


def test_shapes_are_those_of_the_data_and_all_rows_of_a_plate(target, replicates):
    _, found = replicates
    assert {name: value.shape for name, value in found.items()} == {
        "plain": (NUM, 4),
        "count": (NUM, 4),
        "pair": (NUM, 4, 2),
        "first": (NUM,),
        "second": (NUM,),
    }
    assert set(found) == set(target.observed_data) == set(target.log_likelihood(replicates[0]))
    assert found["count"].dtype.kind == "i"


def test_laws_of_the_replicates(replicates):
    """Means and second moments in closed form; each test has a false-alarm rate of 1e-6."""
    _, found = replicates
    assert_mean(found["plain"], 3.0)
    assert_mean((found["plain"] - 3) ** 2, 4.0)
    assert_mean(found["count"], np.exp([0.0, 1.0, 2.0, -1.0]))
    centred = found["pair"] - 3
    assert_mean(centred[..., 0] * centred[..., 1], 2.0)
    # Entries are independent of one another, and rows of each other.
    assert_mean((found["plain"][:, 0] - 3) * (found["plain"][:, 1] - 3), 0.0)
    assert_mean((found["plain"][1:, 0] - 3) * (found["plain"][:-1, 0] - 3), 0.0)


def test_later_sites_see_the_draws_of_earlier_ones(replicates):
    _, found = replicates
    assert_mean(found["second"], 6.0)  # given the datum 100 it would be 200
    assert_mean((found["second"] - 6) ** 2, 5.0)


def test_one_point_and_seeds(target, replicates):
    z, _ = replicates
    one = target.predict(z, seed=1)
    assert one["plain"].shape == (4,) and one["first"].shape == ()
    same, other = target.predict(z, seed=1), target.predict(z, seed=2)
    np.testing.assert_array_equal(one["plain"], same["plain"])
    assert not np.allclose(one["plain"], other["plain"])
    with pytest.raises(ValueError, match="last axis"):
        target.predict(np.zeros(3), seed=1)


def test_inside_scan_given_the_data_before():
    def model(y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))

        def step(previous, now):
            value = numpyro.sample("y", dist.Normal(slope * previous, 0.5), obs=now)
            return value, None

        scan(step, jnp.asarray(10.0), y)

    target = provi.from_numpyro(model, DATA)
    found = target.predict(np.full((NUM, 1), 0.5), seed=0)["y"]
    assert_mean(found, 0.5 * np.array([10.0, *DATA[:-1]]))
    assert_mean((found - 0.5 * np.array([10.0, *DATA[:-1]])) ** 2, 0.25)
