r"""What the best Gaussian leaves out of the evidence given the hyperparameters, estimated, and better moments with it.

The ELBO is below the log evidence by KL(q || p), which changes with the hyperparameters: with thousands of groups by
more than the posterior of a scale is wide. With $w = \log p(y, z|\theta) - \log q(z)$, $z \sim q$, the log evidence is
$\log E\,e^w$, near $E\,w + \tfrac12\mathrm{Var}\,w$.

**Grouped models.** Given the border $\beta$ (fixed effects, and whatever else is not eliminated) the blocks of T are
independent and small. So each block's integral is computed, by Gauss-Hermite quadrature around its conditional Gaussian
under q,

$$Z_g(\beta) = \int e^{-\frac12u'Q_gu - \sum_{i \in g}t_i(\eta_i)}du, \qquad
w(\beta) = \log p(\beta) + \sum_g\log Z_g(\beta) - \log q(\beta),$$

which leaves only the border to draws: there q is nearly exact. **Otherwise** all of z is drawn.

In few dimensions the border has a quadrature rule, too. Otherwise the draws are pairs $\pm\epsilon$ whose second
moments are those of the standard normal law exactly, the same for every $\theta$: so the estimate is smooth in
$\theta$, and moments of the border are off by the weights' noise only.
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from provi.algorithms.natural.conditional import Point, weighted_moments
from provi.core.arguments import device_array
from provi.families.conditional_gaussian import Constrained, constrained_factor
from provi.targets.latent.model import AbstractLatentGaussian
from provi.targets.latent_gaussian import Conditional

NODES = {1: 7, 2: 7}
"""Of the quadrature, a dimension; blocks of more dimensions are drawn."""

LARGEST_RESPONSE = 400
"""Data up to which covariances are corrected by linear response: it takes their number squared."""

_BORDER_NODES = {0: 1, 1: 11, 2: 9, 3: 7, 4: 5}


class Corrected(eqx.Module):
    """Log weights of the draws, and by how much they change the means and, as a factor, the deviations of q.

    `inner_shift`, `inner_scale` (n, b) and `outer_shift`, `outer_scale` (p,); none but for grouped models. `sites`: of
    the covariance, by linear response where all was drawn and the data are few.
    """

    log_weights: Any
    inner_shift: Any
    inner_scale: Any
    outer_shift: Any
    outer_scale: Any
    sites: Any


def grouped(target: AbstractLatentGaussian) -> bool:
    """Whether blocks can be integrated one by one: small, independent given the border, without a constraint."""
    layout = target.layout
    return layout.count > 0 and not layout.chained and layout.width in NODES and _free(target)


def _free(target: AbstractLatentGaussian) -> bool:
    return all(block.constraint is None for block in target.blocks)


def border_rule(rng: np.random.Generator, dim: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal numbers (S, dim) and the logarithms of their shares: at most `most`, or 2 dim.

    Gauss and Hermite's rule in few dimensions; else pairs +-e whose second moments are those of N(0, I) exactly.
    """
    number = _BORDER_NODES.get(dim, 0)
    if dim in _BORDER_NODES and number**dim <= most:
        nodes, weights = np.polynomial.hermite_e.hermegauss(number)
        places = np.array(list(itertools.product(nodes, repeat=dim))).reshape(number**dim, dim)
        logs = np.log(weights / weights.sum())
        return places, np.array([sum(chosen) for chosen in itertools.product(logs, repeat=dim)], float)
    count = max(most // 2, dim, 1)
    half = rng.standard_normal((count, dim))
    if dim:
        eigenvalues, vectors = np.linalg.eigh(half.T @ half / count)
        half = half @ (vectors / np.sqrt(eigenvalues)) @ vectors.T
    return np.concatenate([half, -half]), np.full(2 * count, -np.log(2 * count))


def correct(target: AbstractLatentGaussian, theta: Any, point: Point, outer: Any, shares: Any, inner: Any) -> Corrected:
    """Weights at the standard normal numbers `outer` (S, p) and, unless the model is grouped, `inner` (S, n, b)."""
    given = target.conditional(theta)
    covariance = constrained_factor(given, point.sites)
    if grouped(target):
        return _by_groups(given, point, covariance, outer, shares)
    return _by_draws(given, point, covariance, outer, inner)


def _by_groups(given: Conditional, point: Point, covariance: Constrained, draws: Any, shares: Any) -> Corrected:
    factor = covariance.factor
    count, width = factor.inverse.shape[:2]
    rule, weights = np.polynomial.hermite_e.hermegauss(NODES[width])
    nodes = device_array(np.array(list(itertools.product(rule, repeat=width))))
    volumes = jnp.asarray([np.sum(np.log(w)) for w in itertools.product(weights, repeat=width)])
    volumes = volumes + 0.5 * jnp.sum(nodes**2, axis=1)
    root = _inverse_root(factor.lower)
    volume = -jnp.sum(jnp.log(jnp.diagonal(factor.lower, axis1=1, axis2=2)), axis=1)
    group = given.index[:, 0] // width

    def one(epsilon: Any) -> Any:
        move = solve_triangular(factor.schur_lower, epsilon, lower=True, trans=1)
        outer = point.outer + move
        centre = point.inner - factor.solved @ move
        rest = given.offset + given.border @ outer

        def energy(node: Any) -> Any:
            place = centre + root @ node
            eta = rest + jnp.sum(given.values * place.reshape(-1)[given.index], axis=1)
            terms = given.likelihood.potential(eta, given.response)
            terms = terms if given.weights is None else terms * given.weights
            prior = 0.5 * jnp.einsum("ki,kij,kj->k", place, given.prior.diagonal, place)
            return prior.at[group].add(terms)

        levels = volumes[:, None] - jax.lax.map(energy, nodes)
        top = jnp.max(levels, axis=0)
        relative = jnp.exp(levels - top[None, :])
        mass = jnp.sum(relative, axis=0)
        log_integral = jnp.log(mass) + top + volume
        first = jnp.einsum("tk,ti->ki", relative, nodes) / mass[:, None]
        second = jnp.einsum("tk,ti,tj->kij", relative, nodes, nodes) / mass[:, None, None]
        mean = centre + jnp.einsum("kij,kj->ki", root, first)
        spread = second - first[:, :, None] * first[:, None, :]
        moment = jnp.einsum("kij,kjl,kil->ki", root, spread, root) + mean**2
        prior = -0.5 * outer @ given.prior.corner @ outer + 0.5 * given.log_det
        # (2 pi)^(-d/2) of the prior; the border's share cancels that of q.
        prior = prior - 0.5 * count * width * np.log(2 * np.pi)
        log_q = -0.5 * jnp.sum(epsilon**2) + jnp.sum(jnp.log(jnp.diagonal(factor.schur_lower)))
        return prior + jnp.sum(log_integral) + given.constant - log_q, outer, mean, moment

    log_weights, outers, means, moments = jax.lax.map(one, draws)
    share = jax.nn.softmax(log_weights + shares)
    mean, centre = jnp.einsum("s,ski->ki", share, means), share @ outers
    inner = jnp.einsum("s,ski->ki", share, moments) - mean**2
    outer = share @ (outers - centre[None, :]) ** 2
    eye = jnp.eye(len(centre))
    half = solve_triangular(factor.schur_lower, eye, lower=True)
    crossed = solve_triangular(factor.schur_lower, factor.solved.reshape(count * width, -1).T, lower=True)
    plain = jnp.diagonal(factor.inverse, axis1=1, axis2=2) + jnp.sum(crossed**2, axis=0).reshape(count, width)
    return Corrected(
        log_weights,
        mean - point.inner,
        jnp.sqrt(jnp.maximum(inner, 0) / plain),
        centre - point.outer,
        jnp.sqrt(outer / jnp.sum(half**2, axis=0)),
        point.sites,
    )


def _inverse_root(lower: Any) -> Any:
    """R with RR' the inverse of LL': the transposed inverse of L, for blocks of one or two."""
    if lower.shape[1] == 1:
        return 1 / lower
    a, b, c = lower[:, 0, 0], lower[:, 1, 0], lower[:, 1, 1]
    zero = jnp.zeros_like(a)
    return jnp.stack([jnp.stack([1 / a, -b / (a * c)], axis=1), jnp.stack([zero, 1 / c], axis=1)], axis=1)


def _by_draws(given: Conditional, point: Point, covariance: Constrained, outer: Any, inner: Any) -> Corrected:
    matrix = given.precision(point.sites)

    def one(pair: Any) -> Any:
        move = covariance.draw(pair[1], pair[0])
        place = point.inner + move[0], point.outer + move[1]
        terms = given.likelihood.potential(given.predictor(*place), given.response)
        terms = terms if given.weights is None else terms * given.weights
        log_p = -0.5 * _quadratic(given.prior, *place) + 0.5 * given.log_det - jnp.sum(terms) + given.constant
        log_q = -0.5 * _quadratic(matrix, *move) + 0.5 * covariance.log_det
        return log_p - log_q

    log_weights = jax.lax.map(one, (outer, inner))
    return Corrected(
        log_weights,
        jnp.zeros_like(point.inner),
        jnp.ones_like(point.inner),
        jnp.zeros_like(point.outer),
        jnp.ones_like(point.outer),
        _responding_sites(given, point, covariance) if len(point.sites) <= LARGEST_RESPONSE else point.sites,
    )


def _responding_sites(given: Conditional, point: Point, covariance: Constrained) -> Any:
    r"""Sites whose covariance is that of linear response: how the mean of q answers to a tilt of the posterior.

    A best Gaussian is too narrow. Tilt the posterior by $e^{h'z}$: the means of the slopes change by $d\alpha =
    \gamma\,d\mu + \tfrac12\tau\,dv$, $\tau$ the mean third derivative, and the variances by $dv = -C^{\circ2}(\tau\,
    d\mu + \tfrac12\kappa\,dv)$, $\kappa$ the mean fourth one, C = ASA'. So $d\alpha = \Gamma d\mu$ with $\Gamma =
    \mathrm{diag}\,\gamma - \tfrac12\mathrm{diag}\,\tau(I + \tfrac12C^{\circ2}\mathrm{diag}\,\kappa)^{-1}C^{\circ2}
    \mathrm{diag}\,\tau$, and the covariance of the posterior is near $(Q + A'\Gamma A)^{-1}$ (Giordano, Broderick and
    Jordan 2018). Here $\Gamma$ is lumped into a diagonal: datum j counts at i as it moves with it, $C_{ij}/C_{ii}$.
    """
    mean = given.predictor(point.inner, point.outer)
    ones = jnp.ones_like(mean)

    def column(unit: Any) -> Any:
        return given.predictor(*covariance.solve(*given.collect(unit))) - given.offset

    spread = jax.lax.map(column, jnp.eye(len(mean)))
    _, third = jax.jvp(lambda x: weighted_moments(given, x, point.variance).weight, (mean,), (ones,))
    _, fourth = jax.jvp(lambda x: weighted_moments(given, mean, x).weight, (point.variance,), (ones,))
    moved = spread / jnp.maximum(jnp.diagonal(spread), 1e-300)[:, None]
    square = spread**2
    # d(weight)/dv is half the mean fourth derivative.
    answer = jnp.linalg.solve(jnp.eye(len(mean)) + square * fourth[None, :], square * moved * third[None, :])
    lumped = point.sites - 0.5 * third * jnp.sum(answer, axis=1)
    return jnp.clip(jnp.where(jnp.isfinite(lumped), lumped, point.sites), 0.25 * point.sites, 1.5 * point.sites)


def _quadratic(matrix: Any, inner: Any, outer: Any) -> Any:
    top, bottom = matrix.multiply(inner, outer)
    return jnp.sum(top * inner) + jnp.sum(bottom * outer)


def log_evidence(log_weights: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """From log weights (K, S) of K hyperparameters: log means where the weights are even, else two cumulants.

    One way for all of them, so that the estimate does not jump. Minus infinity where a weight is not a number: a factor
    that rounding has broken, at extreme hyperparameters.
    """
    broken = np.isnan(log_weights).any(axis=1) | ~np.isfinite(log_weights).any(axis=1)
    if broken.any():
        found = np.full(len(log_weights), -np.inf)
        found[~broken] = log_evidence(log_weights[~broken], shares) if not broken.all() else -np.inf
        return found
    top = log_weights.max(axis=1, keepdims=True)
    plain = np.exp(shares)
    relative = plain * np.exp(log_weights - top)
    total = relative.sum(axis=1)
    # Of the draws' own shares: one where all weights are equal.
    effective = total**2 / np.sum(relative**2 / plain, axis=1)
    if np.median(effective) > 0.3:
        return np.log(total) + top[:, 0]
    mean = log_weights @ plain
    return mean + 0.5 * ((log_weights - mean[:, None]) ** 2 @ plain)
