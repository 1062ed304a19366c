"""The ELBO of a network and its gradient: finite differences, an exact linear-Gaussian model, full-batch descent."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.algorithms import MISSO
from provi.algorithms.incremental.network_surrogate import NetworkPoint, network_surrogate
from provi.core.tree import inner
from provi.targets import BayesianNetwork

RNG = np.random.default_rng(0)
X, CLASSES = RNG.normal(size=(50, 3)), RNG.integers(0, 4, 50)
NET = eqx.nn.MLP(3, 4, 5, 1, activation=jnp.tanh, key=jax.random.key(0))


def classifier(dtype=np.float64):
    return BayesianNetwork(NET, X, CLASSES, prior_sd=0.7, dtype=dtype)


def shifted(point, direction, step):
    return jax.tree.map(lambda x, v: x + step * v, point, direction)


@pytest.mark.parametrize("posterior", ["global", "tensor", "weight"])
@pytest.mark.parametrize("noise", ["weights", "flipout", "local"])
def test_gradient_against_finite_differences(posterior, noise):
    """A fixed key makes the objective a smooth function; blocks of 16 leave a last one of 2 rows."""
    surrogate = network_surrogate(classifier(), posterior=posterior, noise=noise, block_size=16)
    point = surrogate.start(0.3)
    objective = jax.jit(
        jax.value_and_grad(lambda point, block: surrogate.block_objective(jax.random.key(1), point, block))
    )
    for block in (0, 3):
        direction = jax.tree.map(lambda x: jnp.asarray(RNG.normal(size=x.shape)), point)
        ahead, behind = (objective(shifted(point, direction, step), block)[0] for step in (1e-5, -1e-5))
        found = inner(objective(point, block)[1], direction)
        np.testing.assert_allclose(found, (ahead - behind) / 2e-5, rtol=1e-7)


@pytest.mark.parametrize("noise", ["weights", "flipout", "local"])
def test_value_and_gradient_of_a_linear_gaussian_model(noise):
    """E of the squared misfit is |y - X m|^2 + sum x^2 sd^2: values and slopes within 5 standard errors of it.

    8 numbers, so false alarms 8 x 6e-7 (fixed seed). 50 rows in blocks of 16: the blocks are uneven.
    """
    target = BayesianNetwork(
        eqx.nn.Linear(3, 1, key=jax.random.key(2)), X, X[:, 0], likelihood="gaussian", noise_sd=0.5, dtype=np.float64
    )
    surrogate = network_surrogate(target, noise=noise, block_size=16)
    log_sd = jnp.log(jnp.asarray([0.1, 0.2, 0.3, 0.4]))
    point = NetworkPoint(target.start, log_sd)

    def exact(point):
        design = np.hstack([X, np.ones((50, 1))])  # the bias comes last
        mean, variance = design @ point.mean, design**2 @ jnp.exp(2 * point.log_sd)
        nll = jnp.sum((X[:, 0] - mean) ** 2 + variance) / 2 / 0.25 + 50 * (np.log(2 * np.pi) / 2 + np.log(0.5))
        kl = jnp.sum((jnp.exp(2 * point.log_sd) + point.mean**2 - 1) / 2 - point.log_sd)
        return (nll + kl) / 50

    def one(key):
        rows = jnp.arange(surrogate.num_terms)
        summary, _ = surrogate.draw(key, point, rows, None, None)
        return jax.tree.map(lambda x: x.mean(axis=0), (summary.value, summary.gradient))

    found = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(4), 4000))
    for draws, truth in zip(jax.tree.leaves(found), jax.tree.leaves(jax.value_and_grad(exact)(point)), strict=True):
        error = np.asarray(draws).std(axis=0) / np.sqrt(4000)
        assert (np.abs(np.asarray(draws).mean(axis=0) - truth) < 5 * error).all()
    total, nll, kl = surrogate.negative_elbo(jax.random.key(9), point, 500)
    np.testing.assert_allclose(total, nll + kl, rtol=1e-12)
    np.testing.assert_allclose(total, exact(point), rtol=0.02)


def test_one_block_is_full_batch_gradient_descent():
    """With next to no noise the means follow gradient descent on the penalised loss, here by hand in float64."""
    target = classifier()
    surrogate = network_surrogate(target, block_size=50, rate=0.2)
    run = provi.runtime.minimise_sum(
        surrogate, surrogate.start(1e-13), MISSO(1, num_draws=1), seed=0, num_steps=60, num_records=1
    )
    z = target.start
    slope = jax.jit(jax.grad(lambda z: target.potential(z) / target.num_terms))
    for _ in range(60):
        z = z - 0.2 * slope(z)
    np.testing.assert_allclose(run.point.mean, z, rtol=1e-9, atol=1e-11)
    assert np.abs(np.asarray(z - target.start)).max() > 0.05


@pytest.mark.parametrize("table_dtype", [None, "bfloat16"])
def test_mean_of_the_table_after_1000_updates(table_dtype):
    """47 blocks, the default refreshing: 1000 visits end in the middle of a pass."""
    target = BayesianNetwork(NET, X[:47], CLASSES[:47], prior_sd=0.7)
    surrogate = network_surrogate(target, block_size=1, rate=0.5, table_dtype=table_dtype)
    algorithm = MISSO(1, num_draws=1).resolve(surrogate, None)
    state = algorithm.begin(jax.random.key(0), surrogate, surrogate.start())

    def visit(k, state):
        return algorithm.visit(jax.random.fold_in(jax.random.key(1), k), surrogate, state, (k % 47)[None], 1)

    state = jax.jit(lambda state: jax.lax.fori_loop(0, 1000, visit, state))(state)
    rows = np.asarray(state.table.centre.mean).astype(np.float64)
    assert state.table.centre.mean.dtype == (np.float32 if table_dtype is None else jnp.bfloat16)
    again = rows.mean(axis=0)
    assert np.abs(np.asarray(state.mean.centre.mean) - again).max() < 1e-6 * np.abs(again).max()
    assert np.abs(rows - np.asarray(surrogate.start().mean)).max() > 0.05  # the table did move


def test_recorded_elbo_is_near_the_truth_in_single_precision():
    """The mean surrogate itself is off by 10% of it at this rate: a difference of large numbers."""
    target = BayesianNetwork(NET, 30 * X, CLASSES)
    surrogate = network_surrogate(target, block_size=10, rate=1e-4)
    run = provi.runtime.minimise_sum(surrogate, surrogate.start(), MISSO(1, num_draws=8), seed=0, num_steps=10)
    truth = float(surrogate.negative_elbo(jax.random.key(5), run.point, 200)[0])
    recorded, error = -run.history["elbo"][-1], run.history["elbo_standard_error"][-1]
    assert abs(recorded - truth) < 0.01 * truth and error > 0
    assert run.elbo is None


def test_augmentation_changes_training_and_not_the_evaluation():
    target = classifier()
    plain = network_surrogate(target)
    doubled = network_surrogate(target, augment=lambda key, x: 2 * x)
    point, key = plain.start(0.1), jax.random.key(0)
    block = jnp.asarray(0)
    np.testing.assert_array_equal(plain.negative_elbo(key, point), doubled.negative_elbo(key, point))
    assert plain.block_objective(key, point, block) != doubled.block_objective(key, point, block)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"posterior": "full"}, "posterior must be one of"),
        ({"noise": "dropout"}, "noise must be one of"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"rate": -1.0}, "rate must be a positive number"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        network_surrogate(classifier(), **arguments)


def test_a_weight_of_the_kl_is_in_the_objective_and_not_in_the_elbo():
    """The difference of two objectives is the KL, which is summed here weight by weight; the gradient follows."""
    target = classifier()
    plain, tempered = (network_surrogate(target, block_size=16, kl_weight=weight) for weight in (1.0, 0.25))
    point = shifted(plain.start(0.3), jax.tree.map(lambda x: jnp.asarray(RNG.normal(size=x.shape)), plain.start()), 0.2)
    means, sds = np.asarray(point.mean), np.exp(np.asarray(point.log_sd))
    divergence = sum(
        (s / 0.7) ** 2 / 2 + (m / 0.7) ** 2 / 2 - 0.5 - np.log(s / 0.7) for m, s in zip(means, sds, strict=True)
    )
    value = eqx.filter_jit(
        eqx.filter_value_and_grad(lambda p, s: s.block_objective(jax.random.key(1), p, jnp.asarray(2)))
    )
    found = {name: value(point, own) for name, own in (("plain", plain), ("tempered", tempered))}
    np.testing.assert_allclose(found["plain"][0] - found["tempered"][0], 0.75 * divergence / 50, rtol=1e-10)
    slope = jax.tree.map(lambda a, b: a - b, found["plain"][1], found["tempered"][1])
    np.testing.assert_allclose(slope.mean, 0.75 * means / 0.49 / 50, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(slope.log_sd, 0.75 * (sds**2 / 0.49 - 1) / 50, rtol=1e-9, atol=1e-15)
    key = jax.random.key(3)
    np.testing.assert_array_equal(tempered.negative_elbo(key, point, 1), plain.negative_elbo(key, point, 1))
    # Another weight is another number in the same program.
    again = eqx.tree_at(lambda s: s.kl_weight, tempered, jnp.asarray(1.0))
    assert value(point, again)[0] == found["plain"][0]
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match="kl_weight"):
            network_surrogate(target, kl_weight=wrong)
