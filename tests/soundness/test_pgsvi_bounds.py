"""The theorems of PG-SVI against runs written by hand, on problems whose alpha, L, gap and noise are known.

Stochastic checks: 256 replicates, mean <= bound + 3 standard errors. Were a bound an equality, its check would fail by
chance with probability 1.4e-3, so the 29 of them together with at most 4e-2; the bounds are loose, and the seeds fixed.
The run of the norm test compares 300 dependent means in the same way; its bound is an equality at the start only.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from provi.algorithms.mirror.proximal_gradient import ProximalGradient
from provi.algorithms.mirror.split import KLToPrior, Split
from provi.families.exponential import Bernoulli, Coordinates, DiagonalGaussian
from provi.geometry.divergences import KL
from provi.runtime import minimise_split
from provi.theory import pgsvi, strong_growth
from soundness.pgsvi_problems import PROBLEMS, quadratic

REPLICATES = 256


def steps_of(problem, kind, alpha, num_steps):
    limit, k = pgsvi.largest_step_size(alpha, problem.smoothness), np.arange(num_steps)
    return {
        "half": np.full(num_steps, limit / 2),
        "varying": limit * (0.05 + 0.9 * np.abs(np.sin(k + 1.0))),
        "at most": np.where(k % 3 == 1, limit / 3, limit),
    }[kind]


def run(problem, steps, batches=None, rng=None):
    """Paths (t + 1, replicates, dim) and the errors of the gradients."""
    replicates = 1 if rng is None else REPLICATES
    path, errors = [np.tile(problem.start, (replicates, 1))], []
    for k, beta in enumerate(steps):
        g = problem.gradient(path[-1])
        errors.append(np.zeros_like(g) if rng is None else problem.noise(rng, g.shape) / np.sqrt(batches[k]))
        path.append(problem.step(path[-1], g + errors[-1], beta))
    return np.array(path), np.array(errors)


@pytest.mark.parametrize("kind", ["half", "varying", "at most"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_gradient(name, kind):
    """Proposition 2 after every step; the descent behind it at every step; the assumptions on alpha and L."""
    problem = PROBLEMS[name]()
    steps = steps_of(problem, kind, problem.alpha, 120)
    path = run(problem, steps)[0]
    lengths = np.sum(np.diff(path, axis=0)[:, 0] ** 2, -1)
    squared = lengths / steps**2
    values = problem.objective(path)[:, 0]
    gap = values[0] - problem.optimum
    assert np.all(np.minimum.accumulate(squared) <= pgsvi.exact_bound(steps, gap, problem.alpha, problem.smoothness))
    descent = pgsvi.progress(steps, problem.alpha, problem.smoothness) * squared
    assert np.all(values[:-1] - values[1:] >= descent - 1e-13 * (1 + np.abs(values[0])))
    moved = lengths > 1e-16  # below it the quotients are rounding
    inner = np.sum(np.diff(path, axis=0) * problem.divergence_gradient(path[1:], path[:-1]), -1)[:, 0]
    assert np.all(inner[moved] >= problem.alpha * lengths[moved] * (1 - 1e-6))
    change = np.sum(np.diff(problem.gradient(path), axis=0)[:, 0] ** 2, -1)
    assert np.all(change[moved] <= problem.smoothness**2 * lengths[moved] * (1 + 1e-6))


def check_mean_below(samples, bound):
    mean, error = samples.mean(), samples.std(ddof=1) / np.sqrt(samples.size)
    assert mean <= bound + 3 * error, f"mean {mean:.4g} +- {error:.2g} above the bound {bound:.4g}"
    return mean / bound


@pytest.mark.parametrize("name", [n for n in PROBLEMS if "papers" not in n])
def test_stochastic_gradient(name):
    """Theorem 1, the sharper bound for unbiased gradients, and the one of the noiseless step.

    The expectation over R is taken exactly on each path: its weights are known.
    """
    problem, rng = PROBLEMS[name](), np.random.default_rng(5)
    young = 1.5 / problem.alpha
    reduced = pgsvi.reduced_alpha(problem.alpha, young)
    steps, batches = steps_of(problem, "varying", reduced, 60), 1 + np.arange(60) // 8
    gap = float(problem.objective(problem.start[None])[0]) - problem.optimum
    known = (gap, problem.alpha, problem.smoothness, problem.variance)
    path, errors = run(problem, steps, batches, rng)
    np.testing.assert_allclose((errors**2).sum(-1).mean(-1) * batches, problem.variance)
    squared = np.sum(np.diff(path, axis=0) ** 2, -1) / steps[:, None] ** 2
    for count in (5, 60):
        weights = pgsvi.index_probabilities(steps[:count], problem.alpha, problem.smoothness, young)
        bound = pgsvi.stochastic_bound(steps, batches, *known, young)[count - 1]
        check_mean_below(weights @ squared[:count], bound)
    progress = pgsvi.progress(steps, problem.alpha, problem.smoothness)
    sharper = pgsvi.unbiased_bound(steps, batches, *known)[-1]
    check_mean_below(progress @ squared / progress.sum(), sharper)
    exact = np.array([problem.step(w, problem.gradient(w), beta) for w, beta in zip(path[:-1], steps, strict=True)])
    noiseless = np.sum((exact - path[:-1]) ** 2, -1) / steps[:, None] ** 2
    limit = pgsvi.mapping_bound(sharper, progress, batches, problem.alpha, problem.variance)
    check_mean_below(progress @ noiseless / progress.sum(), limit)


def test_noise_floor_is_real_and_bounded():
    """Constant step and batch do not converge (erratum 6): the floor of Proposition 3 is within a factor of 4."""
    problem, rng = quadratic(0.0), np.random.default_rng(6)
    young = 1 / problem.alpha
    beta = pgsvi.reduced_alpha(problem.alpha, young) / problem.smoothness
    path, _ = run(problem, np.full(400, beta), np.full(400, 2), rng)
    late = np.sum(np.diff(path[200:], axis=0) ** 2, -1).mean(0) / beta**2
    floor = 2 * problem.variance / (2 * problem.alpha**2)
    ratio = check_mean_below(late, floor)
    assert ratio > 0.25
    bounds = [
        pgsvi.constant_stochastic_bound(t, 2, 10.0, 1.0, problem.smoothness, problem.variance, young)
        for t in (1, 10**9)
    ]
    assert bounds[0] > bounds[1] == pytest.approx(floor, rel=1e-5)


@pytest.mark.parametrize("theta", [0.3, 1.0])
def test_norm_test_gives_the_linear_rate(theta):
    """Batches that satisfy the test in truth: the mean gap is below the bound after every step."""
    problem, rng = quadratic(0.0), np.random.default_rng(7)
    values = np.linalg.eigvalsh(
        np.stack([problem.gradient(problem.start[None] + e)[0] for e in np.eye(4)])
        - problem.gradient(problem.start[None])[0]
    )
    convexity, smoothness = values[0], values[-1]
    assert smoothness == pytest.approx(problem.smoothness)
    gamma, w, gaps = strong_growth.step_size(smoothness, theta), np.tile(problem.start, (REPLICATES, 1)), []
    for _ in range(300):
        gaps.append(problem.f(w))
        g = problem.gradient(w)
        # s2/M = theta^2 |grad|^2 exactly, for each replicate its own (fractional) M.
        w = w - gamma * (g + problem.noise(rng, g.shape) * (theta * np.linalg.norm(g, axis=-1, keepdims=True) / 1.5))
    bound = strong_growth.bound(np.arange(300), gaps[0][0], convexity, smoothness, theta)
    gaps = np.array(gaps)
    errors = gaps.std(axis=1, ddof=1) / np.sqrt(REPLICATES)
    assert np.all(gaps.mean(axis=1) <= bound * (1 + 1e-9) + 3 * errors)


def _bernoulli_energy(p):
    return jnp.sum(jnp.cos(5 * p) / 25 + p / 20)


def _gaussian_energy(w):
    return 0.6 * jnp.cos(w[0]) * jnp.exp(-w[1] / 2)


@pytest.mark.parametrize("name", ["Bernoulli, tight alpha", "Gaussian"])
def test_compiled_iteration_and_its_report(name):
    """`ProximalGradient` takes the steps written by hand; its measured constants fit the assumed ones."""
    problem = PROBLEMS[name]()
    steps = steps_of(problem, "varying", problem.alpha, 120)
    if name == "Gaussian":
        prior = KLToPrior(jnp.array([1 / 0.8, -0.5 / 0.8]))
        split, family, coordinates = Split(_gaussian_energy, penalty=prior), DiagonalGaussian(1), "moments"
    else:
        split, family, coordinates = Split(_bernoulli_energy), Bernoulli(3), "mean"
    space, method = Coordinates(family, coordinates), ProximalGradient(KL(), steps)
    found = minimise_split(split, space, problem.start, method, num_steps=120, keep_path=True)
    path = run(problem, steps)[0]
    np.testing.assert_allclose(found.path, path[:, 0], rtol=1e-9)
    gap = float(problem.objective(path)[0, 0]) - problem.optimum
    measured = (np.asarray(found.measured_alpha)[:20], np.asarray(found.measured_smoothness)[:20])
    first = (steps[:20], np.asarray(found.step_lengths)[:20], gap)
    text = pgsvi.guarantee_report(*first, problem.alpha, problem.smoothness, *measured)
    assert text.count("yes") == 3 and "NO" not in text
    # A constant that is claimed too good is found out.
    best = float(measured[0].min())
    text = pgsvi.guarantee_report(*first, 1.01 * best, problem.smoothness, *measured)
    assert text.splitlines()[2].endswith("NO")
