"""The rivals of `blackbox_methods`: generators of (point, gradient evaluations so far)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from provi.algorithms.natural.laplace import laplace_approximation
from provi.algorithms.proximal.mpsgd import MPSGD
from provi.core.krylov import extreme_eigenvalues
from provi.estimators.gradients import StickingTheLanding
from provi.families.location_scale import Gaussian
from provi.runtime.run import Budget, run
from provi.schedules.batch_sizes import PolynomialBatch
from provi.targets.whitened import WhitenedFiniteSum
from provi.theory.mpsgd import largest_step_size
from provi.theory.solution_region import smallest_scale


def hessian_natural_gradient(target, family, start, seed):
    """Natural gradient with Hessians at 16 antithetic draws and steps 2/(k+3), which average them."""
    loc, factor = start.loc, start.scale.matrix
    precision = jnp.linalg.inv(factor @ factor.T)
    evaluations = 0
    for step in range(1000):
        key = jax.random.fold_in(jax.random.key(seed), step)
        loc, precision, covariance = _hessian_step(key, target, loc, precision, jnp.asarray(2 / (step + 3)))
        evaluations += 16 * (1 + 2 * target.dim)
        yield family.point_from_covariance(loc, covariance), evaluations


@eqx.filter_jit
def _hessian_step(key, target, loc, precision, step):
    factor = jnp.linalg.inv(jnp.linalg.cholesky(precision)).T
    u = jax.random.normal(key, (8, loc.shape[0])) @ factor.T
    z = jnp.concatenate([loc + u, loc - u])
    gradient = jax.vmap(jax.grad(target.potential))(z).mean(axis=0)
    hessian = jax.vmap(jax.hessian(target.potential))(z).mean(axis=0)
    precision = (1 - step) * precision + step * (hessian + hessian.T) / 2
    covariance = jnp.linalg.inv(precision)
    return loc - step * covariance @ gradient, precision, (covariance + covariance.T) / 2


def batch_and_match(target, family, start, seed, batch=128):
    """Batch and match (Cai et al. 2024, Algorithm 1) with lambda_t = batch * dim / (t + 1), their choice."""
    loc, covariance = start.loc, start.scale.matrix @ start.scale.matrix.T
    for step in range(3000):
        key = jax.random.fold_in(jax.random.key(seed), step)
        strength = jnp.asarray(batch * target.dim / (step + 1.0))
        loc, covariance = _match(key, target, loc, covariance, strength, batch)
        if not bool(jnp.isfinite(covariance).all()) or np.linalg.eigvalsh(covariance)[0] <= 0:
            return
        yield family.point_from_covariance(loc, covariance), batch * (step + 1)


@eqx.filter_jit
def _match(key, target, loc, covariance, strength, batch):
    z = loc + jax.random.normal(key, (batch, loc.shape[0])) @ jnp.linalg.cholesky(covariance).T
    scores = -jax.vmap(jax.grad(target.potential))(z)
    mean, score, share = z.mean(axis=0), scores.mean(axis=0), strength / (1 + strength)
    spread, offset = z - mean, loc - mean
    u = strength * (scores - score).T @ (scores - score) / batch + share * jnp.outer(score, score)
    v = covariance + strength * spread.T @ spread / batch + share * jnp.outer(offset, offset)
    # Sigma = 2 V (I + (I + 4UV)^(1/2))^-1, with the root taken of a symmetric matrix similar to it.
    root = jnp.linalg.cholesky(v)
    values, vectors = jnp.linalg.eigh(root.T @ u @ root)
    half = root @ vectors * jnp.sqrt(2 / (1 + jnp.sqrt(1 + 4 * jnp.maximum(values, 0))))
    new = half @ half.T
    return (1 - share) * loc + share * (new @ score + mean), (new + new.T) / 2


def staged_lbfgs(target, family, start, seed):
    """L-BFGS on the mean over fixed draws, whitened by the start; the draws are moment-matched and doubled."""
    dim, factor = target.dim, start.scale.matrix
    loc, matrix, evaluations = np.zeros(dim), np.eye(dim), 0
    rng, pairs = np.random.default_rng(seed), max(2 * dim, 64)
    lower = np.tril_indices(dim)
    for _ in range(12):
        u = rng.normal(size=(pairs, dim))
        # Without E uu' = I on the draws the fixed objective is unbounded or far off.
        u = np.linalg.solve(np.linalg.cholesky(u.T @ u / pairs), u.T).T
        draws = jnp.asarray(np.concatenate([u, -u]))

        def objective(x, draws=draws):
            square = np.zeros((dim, dim))
            square[lower] = x[dim:]
            value, gradients = _fixed_objective((x[:dim], square), target, start.loc, factor, draws)
            return float(value), np.concatenate([gradients[0], np.asarray(gradients[1])[lower]])

        first = np.concatenate([loc, matrix[lower]])
        found = optimize.minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": 10, "maxcor": 10})
        evaluations += 2 * pairs * found.nfev
        loc, matrix = found.x[:dim], np.zeros((dim, dim))
        matrix[lower] = found.x[dim:]
        root = np.asarray(factor) @ matrix
        yield family.point_from_covariance(start.loc + factor @ loc, root @ root.T), evaluations
        pairs *= 2


@eqx.filter_jit
def _fixed_objective(parameters, target, origin, factor, draws):
    def objective(parameters):
        loc, matrix = parameters
        z = origin + (loc + draws @ jnp.tril(matrix).T) @ factor.T
        # Several thousand draws of a large model do not fit in memory at once.
        energy = jnp.mean(jax.lax.map(target.potential, z, batch_size=128))
        return energy - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(matrix))))

    return jax.value_and_grad(objective)(parameters)


def default_method(target, family, start, seed):
    """The default before the natural gradient, Laplace included: MPSGD whitened; run afresh for each budget."""
    del start
    for doubling in range(12):
        laplace = laplace_approximation(target, target.default_location)
        whitened = WhitenedFiniteSum(target, laplace.mode, laplace.factor)
        algorithm = MPSGD(
            step_size=largest_step_size(_largest_curvature(whitened)),
            num_draws=PolynomialBatch(1, 1.1),
            estimator=StickingTheLanding(),
            smallest_scale=_smallest_scale(whitened),
        )
        inner = Gaussian(family.dim, "symmetric")
        unit = inner.point(np.zeros(family.dim), 1.0)
        budget = Budget(gradients=500 * 2**doubling)
        found = run(algorithm, whitened, inner, unit, seed=seed, num_steps=2**31, budget=budget, progress=False)
        root = laplace.factor @ np.asarray(found.point.scale.matrix)
        loc = laplace.mode + laplace.factor @ np.asarray(found.point.loc)
        yield family.point_from_covariance(loc, root @ root.T), found.gradient_evaluations, True


def _smallest_scale(whitened):
    known = whitened.constants.smoothness
    return smallest_scale(float(known.value) if known.known else 4 * _largest_curvature(whitened))


def _largest_curvature(target):
    """The largest curvature met at 16 draws of the Laplace approximation, by 20 Lanczos products each."""
    points = jax.random.normal(jax.random.key(0), (16, target.dim))

    def largest(key, point):
        def product(direction):
            return jax.jvp(jax.grad(target.potential), (point,), (direction,))[1]

        return jnp.max(jnp.abs(jnp.stack(extreme_eigenvalues(product, key, target.dim, 20, target.dtype))))

    return max(1.0, float(jnp.max(jax.vmap(largest)(jax.random.split(jax.random.key(1), 16), points))))
