"""The negative ELBO by blocks: surrogates against quadrature, and MISSO and MISO against the known optimum."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import provi
from provi.algorithms import MISO, MISSO
from provi.algorithms.incremental.elbo_surrogate import block_curvatures, elbo_surrogate
from provi.algorithms.incremental.quadratic_surrogate import QuadraticStatistics
from provi.families.location_scale import Point
from provi.families.scales import Diagonal
from provi.geometry import Ball, Box
from provi.runtime.run import run
from provi.schedules import PolynomialBatch, UniformSampling
from support.statistics import assert_mean

N, DIM, BLOCKS = 103, 3, 7  # N is no multiple of the blocks
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, DIM)) * np.array([1.0, 0.5, 2.0])
Y = (RNG.uniform(size=N) < 1 / (1 + np.exp(-X @ np.array([1.0, -1.0, 0.5])))).astype(float)
PRIOR = np.array([1.0, 2.0, 0.7])
TARGET = provi.targets.LogisticRegression(X, Y, prior_scale=PRIOR)
FAMILIES = {scale: provi.families.Gaussian(DIM, scale) for scale in ("triangular", "symmetric", "diagonal")}
NODES = np.linspace(-12, 12, 481)  # equal steps: exponentially accurate for analytic functions
WEIGHTS = np.exp(-0.5 * NODES**2)

PARTS = {"triangular": np.tril, "symmetric": lambda a: a + a.T, "diagonal": lambda a: np.diag(np.diagonal(a))}


def matrix_of(scale):
    return np.diag(scale.diagonal) if isinstance(scale, Diagonal) else np.asarray(scale.matrix)


def random_point(family, seed, spread=1.0):
    rng = np.random.default_rng(seed)
    root = np.eye(DIM) * 0.5 + spread * 0.1 * rng.normal(size=(DIM, DIM))
    covariance = root @ root.T * rng.uniform(0.1, 2) ** 2
    return family.point_from_covariance(spread * rng.normal(size=DIM), covariance)


def block_energy(block, loc, matrix):
    """E phi_i by the trapezoid rule, in NumPy."""
    rows, sign = X[block::BLOCKS], 1 - 2 * Y[block::BLOCKS]
    spread = np.linalg.norm(rows @ matrix, axis=1)
    eta = (rows @ loc)[:, None] + spread[:, None] * NODES
    terms = np.logaddexp(0, sign[:, None] * eta) @ WEIGHTS / WEIGHTS.sum()
    prior = 0.5 * np.sum((loc / PRIOR) ** 2) + 0.5 * np.sum((matrix / PRIOR[:, None]) ** 2)
    return BLOCKS * terms.sum() + prior + np.sum(np.log(PRIOR)) + DIM / 2 * np.log(2 * np.pi)


def truth(point):
    """The negative ELBO up to the base's entropy."""
    return objective(np.asarray(point.loc), matrix_of(point.scale))


def objective(loc, matrix):
    energy = np.mean([block_energy(i, loc, matrix) for i in range(BLOCKS)])
    return energy - np.sum(np.log(np.diagonal(matrix)))


@functools.cache
def optimum(scale):
    """The smallest value over a triangular or diagonal scale, by BFGS from SciPy: within 1e-7 of it."""
    places = np.tril_indices(DIM) if scale == "triangular" else np.diag_indices(DIM)

    def value(w):
        matrix = np.zeros((DIM, DIM))
        matrix[places] = w[DIM:]
        return objective(w[:DIM], matrix) if (np.diagonal(matrix) > 0).all() else 1e9

    start = np.r_[np.zeros(DIM), 0.3 * np.eye(DIM)[places]]
    return minimize(value, start, method="BFGS", options={"gtol": 1e-6}).fun


def test_blocks_make_the_potential():
    surrogate = elbo_surrogate(TARGET, FAMILIES["triangular"], num_blocks=BLOCKS)
    z = jnp.asarray(RNG.normal(size=DIM))
    parts = jax.vmap(surrogate.block_potential, in_axes=(None, 0))(z, jnp.arange(BLOCKS))
    assert float(jnp.mean(parts)) == pytest.approx(float(TARGET.potential(z)), rel=1e-13)


@pytest.mark.parametrize("scale", FAMILIES)
def test_exact_energies_and_gradients(scale):
    """Values by quadrature; gradients by finite differences of the quadrature along random directions of the scale."""
    surrogate = elbo_surrogate(TARGET, FAMILIES[scale], num_blocks=BLOCKS)
    point, blocks = random_point(FAMILIES[scale], 1), jnp.asarray([0, 5, 6])
    expansion = jax.jit(lambda p, rows: surrogate.expect(p, rows, None))(point, blocks)
    loc, matrix = np.asarray(point.loc), matrix_of(point.scale)
    for k, block in enumerate(np.asarray(blocks)):
        assert float(expansion.value[k]) == pytest.approx(block_energy(block, loc, matrix), rel=1e-7)
        for _ in range(3):
            step, turn = RNG.normal(size=DIM), RNG.normal(size=(DIM, DIM))
            turn = PARTS[scale](turn)
            ends = [block_energy(block, loc + t * step, matrix + t * turn) for t in (1e-5, -1e-5)]
            slope = jax.tree.map(lambda x, k=k: x[k], expansion.gradient)
            inner = np.asarray(slope.loc) @ step + np.sum(matrix_of(slope.scale) * turn)
            assert inner == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-5)


def test_draws_are_unbiased():
    scale = "diagonal"
    surrogate = elbo_surrogate(TARGET, FAMILIES[scale], num_blocks=BLOCKS)
    point, rows = random_point(FAMILIES[scale], 2), jnp.arange(BLOCKS)
    draw = jax.jit(jax.vmap(lambda key: surrogate.draw(key, point, rows, None, None)[0]))
    draws, exact = draw(jax.random.split(jax.random.key(0), 8000)), surrogate.expect(point, rows, None)
    for samples, mean in zip(jax.tree.leaves(draws), jax.tree.leaves(exact), strict=True):
        assert_mean(samples, mean)


def test_it_majorises():
    """Above the negative ELBO wherever it is looked at, near and far, scales from 1e-3 to 10; equal where built."""
    surrogate = elbo_surrogate(TARGET, FAMILIES["triangular"], num_blocks=BLOCKS)
    rows = jnp.arange(BLOCKS)

    @jax.jit
    def both(at, point):
        built = surrogate.build(at, rows, None, surrogate.expect(at, rows, None))
        mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), built)
        return surrogate.value(mean, point)

    for seed in range(20):
        at = random_point(FAMILIES["triangular"], seed)
        assert float(both(at, at)) == pytest.approx(truth(at), rel=1e-7)
        stretch = 10.0 ** np.random.default_rng(seed).uniform(-3, 1)
        other = random_point(FAMILIES["triangular"], seed + 100, spread=3.0)
        other = Point(other.loc, jax.tree.map(lambda x, s=stretch: s * x, other.scale))
        assert float(both(at, other)) >= truth(other)


def test_curvatures_bound_the_hessians():
    bounds = block_curvatures(TARGET, BLOCKS)
    surrogate = elbo_surrogate(TARGET, FAMILIES["triangular"], num_blocks=BLOCKS)
    hessian = jax.jit(jax.hessian(surrogate.block_potential))
    for block in range(BLOCKS):
        top = [np.linalg.eigvalsh(hessian(jnp.asarray(s * X[0]), block))[-1] for s in (0.0, 0.1, 1.0)]
        assert max(top) <= bounds[block]
        assert top[0] == pytest.approx(bounds[block], rel=1e-9)  # sigma' is 1/4 at zero
    assert elbo_surrogate(TARGET, FAMILIES["diagonal"], bounds / 4).num_terms == BLOCKS
    assert elbo_surrogate(TARGET, FAMILIES["diagonal"], 3.0).num_terms == 1


def test_the_minimum_in_a_box_entry_by_entry():
    """h(w) + M/2 |w - t|^2 on intervals, by a search for each entry."""
    surrogate = elbo_surrogate(TARGET, FAMILIES["triangular"], 4.0)
    centre = random_point(FAMILIES["triangular"], 3)
    mean = QuadraticStatistics(centre, jnp.zeros(()))
    box = Box(-0.2, 0.45)
    for constraint, low, high in ((None, -10.0, 10.0), (box, -0.2, 0.45)):
        result = surrogate.minimise(mean, centre, constraint)
        np.testing.assert_allclose(result.loc, np.clip(centre.loc, low, high), rtol=1e-14)
        for j in range(DIM):
            t = matrix_of(centre.scale)[j, j]
            options = {"bounds": (1e-9, high), "method": "bounded", "options": {"xatol": 1e-12}}
            best = minimize_scalar(lambda c, t=t: -np.log(c) + 2 * (c - t) ** 2, **options)
            assert matrix_of(result.scale)[j, j] == pytest.approx(best.x, abs=1e-6)
        lower = np.tril(matrix_of(centre.scale), -1)
        np.testing.assert_allclose(np.tril(matrix_of(result.scale), -1), np.clip(lower, low, high) * (lower != 0))
        assert not np.triu(matrix_of(result.scale), 1).any()
    with pytest.raises(ValueError, match="constraint must be None"):
        surrogate.minimise(mean, centre, Ball(0.0, 1.0))


def gap_after(algorithm, scale, steps, seed=0):
    family = FAMILIES[scale]
    start = family.point(np.zeros(DIM), 0.5)
    end = run(algorithm, TARGET, family, start, seed=seed, num_steps=steps, num_records=1, progress=False).point
    return truth(end) - optimum(scale)


def test_miso_reaches_the_optimum():
    algorithm = MISO(sampling=UniformSampling(2), curvature=block_curvatures(TARGET, BLOCKS))
    gaps = [gap_after(algorithm, "triangular", steps) for steps in (20, 100, 2000)]
    assert gaps[0] > 2 * gaps[1] > 1e-3
    assert abs(gaps[2]) < 1e-6


def test_growing_draws_lower_the_floor():
    """Sixty passes, three seeds: constant draws end at a floor, growing ones far below, at the optimum."""
    curvature = block_curvatures(TARGET, BLOCKS)
    gaps = [
        [gap_after(MISSO(1, PolynomialBatch(4, exponent, largest), curvature=curvature), "triangular", 420, seed)
         for seed in range(3)]
        for exponent, largest in ((1.5, 4), (1.5, 2**30))
    ]  # fmt: skip
    constant, growing = np.median(gaps, axis=1)
    assert growing < constant / 5
    assert growing < 0.01


def test_fit_with_a_certificate():
    family = FAMILIES["triangular"]
    algorithm = MISSO(1, PolynomialBatch(4, 1.5), curvature=block_curvatures(TARGET, BLOCKS))
    fit = provi.fit(TARGET, family, algorithm, budget=provi.Budget(steps=420), progress=False)
    gap = truth(fit.posterior.point) - optimum("triangular")
    assert gap < 0.01
    assert fit.certificate.gap >= gap


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="triangular, symmetric or diagonal"):
        elbo_surrogate(TARGET, provi.families.Gaussian(DIM, "low_rank"))
    density = provi.targets.LogDensity(lambda z: -jnp.sum(z**2), DIM)
    with pytest.raises(ValueError, match="must have data terms"):
        elbo_surrogate(density, FAMILIES["diagonal"])
    poisson = provi.targets.PoissonRegression(X, np.ones(N))
    with pytest.raises(ValueError, match="curvature must be given for PoissonRegression"):
        elbo_surrogate(poisson, FAMILIES["diagonal"])
    with pytest.raises(ValueError, match="num_blocks = 200"):
        elbo_surrogate(TARGET, FAMILIES["diagonal"], num_blocks=200)
    laplace = provi.families.LocationScale(DIM, provi.families.Laplace(), "diagonal")
    with pytest.raises(ValueError, match="Use provi.algorithms.MISSO"):
        elbo_surrogate(TARGET, laplace, num_blocks=2).expect(laplace.point(np.zeros(DIM)), jnp.arange(2), None)
