"""Hyperparameters of a sparse process by mini-batches: exact gradients, a rising ELBO, the truth behind the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.algorithms.natural.sparse_learning import (
    batch_energy,
    initial_hyperparameters,
    learn_sparse_hyperparameters,
    with_hyperparameters,
)
from provi.kernels import SquaredExponential
from provi.targets.likelihoods import GaussianNoise
from provi.targets.sparse_gaussian_process import SparseGaussianProcess

LENGTH_SCALE, NOISE = 0.6, 0.4


def regression(terms, length_scale=1.5, noise=1.0, num_inducing=25, seed=0):
    """Data drawn from the process itself, and a target with other hyperparameters."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-4, 4, size=(terms, 1))
    gram = np.exp(-0.5 * ((X - X.T) / LENGTH_SCALE) ** 2) + 1e-9 * np.eye(terms)
    y = np.linalg.cholesky(gram) @ rng.normal(size=terms) + NOISE * rng.normal(size=terms)
    return SparseGaussianProcess(X, y, num_inducing, SquaredExponential(length_scale, 1.0), GaussianNoise(noise))


def test_gradients_are_those_of_finite_differences():
    target, rng = regression(40, num_inducing=6), np.random.default_rng(1)
    loc, root = jnp.asarray(rng.normal(size=6)), jnp.asarray(np.tril(rng.normal(size=(6, 6))) / 4)
    indices = jnp.asarray(rng.choice(40, 10))
    leaves, structure = jax.tree.flatten(initial_hyperparameters(target))

    def energy(*changed):
        return batch_energy(jax.tree.unflatten(structure, changed), target, loc, root, indices)[0]

    gradients = jax.jit(jax.grad(energy, argnums=tuple(range(len(leaves)))))(*leaves)
    value = jax.jit(energy)
    assert len(leaves) == 4  # length scale, amplitude, noise, inducing points
    for place, gradient in enumerate(gradients):
        direction = rng.normal(size=leaves[place].shape)
        ends = [
            value(*leaves[:place], leaves[place] + sign * 1e-5 * jnp.asarray(direction), *leaves[place + 1 :])
            for sign in (1, -1)
        ]
        slope = float(ends[0] - ends[1]) / 2e-5
        assert slope == pytest.approx(float(np.sum(np.asarray(gradient) * direction)), rel=1e-5, abs=1e-5)


def test_batches_scale_to_the_whole():
    """The mean of the energy over all batches of one is the energy of all data."""
    target, rng = regression(20, num_inducing=4), np.random.default_rng(2)
    loc, root = jnp.asarray(rng.normal(size=4)), jnp.eye(4)
    hyper = initial_hyperparameters(target)
    single = jax.jit(lambda n: batch_energy(hyper, target, loc, root, n)[0])
    whole = float(single(jnp.arange(20)))
    assert np.mean([float(single(jnp.asarray([n]))) for n in range(20)]) == pytest.approx(whole, rel=1e-10)


def test_it_learns_what_the_data_were_made_of():
    target = regression(1000)
    before = provi.fit(target, progress=False).elbo.value
    found = learn_sparse_hyperparameters(target, num_steps=400, batch_size=200, learning_rate=0.05)
    after = provi.fit(found.target, start=found.start, progress=False)
    assert after.elbo.value > before + 100
    # The noise is known to 1/sqrt(2N), two per cent, the length scale to about ten (13 of them in the range): four
    # standard deviations of each, a false alarm of 1e-4; the seed is fixed.
    assert float(found.target.likelihood.scale) == pytest.approx(NOISE, rel=0.1)
    assert float(found.target.kernel.length_scale) == pytest.approx(LENGTH_SCALE, rel=0.4)
    assert found.negative_elbo.shape == (400,)
    # The last batches estimate the ELBO that the exact fit then finds.
    assert np.mean(found.negative_elbo[-50:]) == pytest.approx(-after.elbo.value, rel=0.1)
    # q came along: the fit from it needs fewer passes than one from scratch.
    assert after.num_steps <= 3
    moved = np.abs(np.asarray(found.target.inducing) - np.asarray(target.inducing))
    assert moved.max() > 1e-3


def test_parts_can_be_kept():
    target = regression(60, num_inducing=6)
    found = learn_sparse_hyperparameters(
        target, num_steps=5, batch_size=30, learn_inducing=False, learn_likelihood=False
    ).target
    np.testing.assert_array_equal(found.inducing, target.inducing)
    assert float(found.likelihood.scale) == pytest.approx(1.0, rel=1e-12)
    assert float(found.kernel.length_scale) != 1.5
    kernel, likelihood, inducing = with_hyperparameters(target, initial_hyperparameters(target))
    assert float(kernel.length_scale) == pytest.approx(1.5) and float(likelihood.scale) == pytest.approx(1.0)
    np.testing.assert_array_equal(inducing, target.inducing)


def test_errors():
    target = regression(20, num_inducing=4)
    with pytest.raises(ValueError, match="natural_step must be at most 1"):
        learn_sparse_hyperparameters(target, natural_step=2.0)
    with pytest.raises(ValueError, match="num_steps"):
        learn_sparse_hyperparameters(target, num_steps=0)
