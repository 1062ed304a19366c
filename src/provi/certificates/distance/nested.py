r"""The evidence of a latent Gaussian model on a rule of hyperparameters, bracketed by proofs at every node.

At node $\theta_k$ the effects are log-concave, so that `dual_bound` gives $\log Z(\theta_k) \le U_k$, and the ELBO
$L_k \le \log Z(\theta_k)$. With $\pi_k$ the prior density times the volume of the node, and for all nodes together,

$$\log\sum_k\pi_ke^{L_k} \le \log\sum_k\pi_kZ(\theta_k) \le \log\sum_k\pi_ke^{U_k}.$$

The difference bounds KL(q || p) of the mixture with the weights $\propto \pi_ke^{L_k}$, on the rule. For other weights
w and for Gaussians that are not the best ones, with ELBOs $L_k'$, the ELBO is $\sum_kw_k(\log\pi_k + L_k' - \log w_k)$,
which takes the place of the lower end: so the mixture that is reported is the one that the bound is about. Each
node has its share of what may go wrong, so that the brackets hold together at the level asked for.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from provi.certificates.distance.bound import EvidenceBracket, PosteriorBound
from provi.certificates.distance.conjugate import RowProblem
from provi.certificates.distance.dual_bound import DualBound, Energy, dual_bound, quick_bound
from provi.core.interpreter import instant_jit
from provi.families.conditional_gaussian import constrained_factor
from provi.families.nested import NestedPoint, node_of
from provi.targets.latent.model import AbstractLatentGaussian

_EPS = float(np.finfo(float).eps)
ON_NODES = "on the nodes"
"""What is proven of a nested fit, in words: the rest is the error of its rule, which is estimated."""

_LARGEST_DIM, _LARGEST_DESIGN, _LEAST_EVALUATIONS, _WORK = 600, 2**23, 4000, 2e8
_CONSTANT, _WANTED, _FEWEST_PAIRS, _MOST_PAIRS = 5.0, 0.02, 32, 1024
_ATTEMPTS, _SMALL = 4, 2e-3


@dataclasses.dataclass(frozen=True)
class NodeBrackets:
    """`lower` <= log Z(theta_k) <= `upper` at every node, together at the level `confidence`."""

    lower: np.ndarray
    upper: np.ndarray
    own: np.ndarray
    """Lower bounds on the ELBOs of the mixture's Gaussians, whose means and deviations were corrected."""

    confidence: float
    num_samples: int
    proven: bool


def provable(target: AbstractLatentGaussian) -> bool:
    """Whether the model is small enough for a proof at every node."""
    dim = target.num_effects
    return dim <= _LARGEST_DIM and dim * target.num_rows <= _LARGEST_DESIGN


def nested_bound(
    target: AbstractLatentGaussian, every: NestedPoint, log_prior: np.ndarray, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """The distance of the mixture `every` from the posterior on its rule; None where the model is too large.

    `log_prior`: log pi_k.
    """
    if not provable(target):
        return None
    found = node_brackets(target, every, confidence=confidence, seed=seed)
    weights = every.weights
    with np.errstate(divide="ignore"):
        terms = np.where(weights > 0, log_prior + found.own - np.log(weights), 0.0)
    own = float(weights @ terms)
    lower, upper = (float(np.asarray(logsumexp(log_prior + end))) for end in (found.lower, found.upper))
    if not math.isfinite(upper):
        return None
    given = ON_NODES if target.num_hyperparameters else ""
    bracket = EvidenceBracket(lower, upper, confidence, "proven" if found.proven else "statistical", given)
    return PosteriorBound(
        kl=max(upper - own, 0.0),
        coordinate_error=(math.inf,) * target.dim,
        confidence=confidence,
        num_samples=found.num_samples,
        status=bracket.status,
        evidence=bracket,
    )


def node_brackets(target: AbstractLatentGaussian, every: NestedPoint, *, confidence: float, seed: int) -> NodeBrackets:
    """Brackets of the evidence at each node of a rule."""
    count, delta = len(every.log_weights), (1 - confidence) / max(len(every.log_weights), 1)
    lower, upper, own, draws, proven = np.empty(count), np.full(count, np.inf), np.empty(count), 0, True
    pairs = _shared_pairs(every.weights)
    for k in range(count):
        at = node_of(every, k)
        coordinates = jax.tree.map(np.asarray, _coordinates(target, at))
        problem, energy, elbo, error = _problem(target, coordinates)
        lower[k], own[k] = elbo - error, _own_elbo(target, coordinates, at, error)
        bound = _node_bound(problem, energy, float(every.weights[k]), int(pairs[k]), delta, seed + k)
        if bound is None:
            continue
        upper[k] = elbo + error + bound.kl
        draws, proven = draws + bound.num_pairs, proven and bound.proven
    return NodeBrackets(lower, upper, own, confidence, draws, proven and target.likelihood.errors_proven)


def _node_bound(
    problem: RowProblem, energy: Energy, weight: float, pairs: int, delta: float, seed: int
) -> DualBound | None:
    """More draws until what is not known of the node counts for little; last, better coordinates for the draws.

    The attempts share `delta` in halves; the best of them holds if all do.
    """
    best: DualBound | None = None
    for attempt in range(_ATTEMPTS):
        share = delta * 0.5 ** (attempt + 1)
        if attempt < _ATTEMPTS - 1:
            found = quick_bound(problem, energy, delta=share, seed=seed + 7919 * attempt, pairs=pairs * 4**attempt)
        else:
            most = max(int(_WORK / (50 * problem.root.size)), _LEAST_EVALUATIONS)
            found = dual_bound(problem, energy, delta=share, seed=seed + 7919 * attempt, most_evaluations=most)
        if found is not None and (best is None or found.kl < best.kl):
            best = found
        if best is not None and weight * math.expm1(min(best.kl - best.estimate, 50.0)) <= max(_SMALL, weight / 10):
            break
    return best if best is not None and math.isfinite(best.kl) else None


def _shared_pairs(weights: np.ndarray) -> np.ndarray:
    """Draws for each node: a bound from n of them is loose by about c/n nats, and counts with the node's weight.

    The least sum of n_k with sum w_k c/n_k = loose is at n_k in proportion to the square roots of the weights.
    """
    roots = np.sqrt(weights)
    wanted = _CONSTANT / _WANTED * roots * roots.sum()
    return np.clip(np.ceil(wanted / 32) * 32, _FEWEST_PAIRS, _MOST_PAIRS).astype(int)


class _Coordinates(eqx.Module):
    """The model at a node, dense: rows, prior precision, a root of the covariance, mean, and the means of the terms."""

    rows: Any
    precision: Any
    root: Any
    mean: Any
    centre: Any
    variance: Any
    values: Any
    errors: Any
    first: Any
    log_det_prior: Any
    log_det: Any
    likelihood: Any
    sites: Any
    offset: Any


@instant_jit
def _coordinates(target: AbstractLatentGaussian, at: NestedPoint) -> _Coordinates:
    given = target.conditional(at.nodes)
    covariance = constrained_factor(given, at.sites)
    dim = target.num_effects
    inner, outer = target.split(jnp.eye(dim))
    # Places of padding hold nothing: their noise is left out.
    root = jax.vmap(lambda a, b: target.join(*covariance.draw(a, b)), (2, 1), 1)(inner, outer)
    rows = jax.vmap(lambda a, b: given.predictor(a, b) - given.offset, (2, 1), 1)(inner, outer)
    precision = jax.vmap(lambda a, b: target.join(*given.prior.multiply(a, b)), (2, 1), 1)(inner, outer)
    mean = target.join(at.inner, at.outer)
    centre = given.predictor(at.inner, at.outer)
    variance = covariance.row_variances(given.index, given.values, given.border)
    found = given.likelihood.moments(centre, variance, given.response)
    errors = given.likelihood.moment_errors(centre, variance, given.response)
    first = given.likelihood.potential(centre, given.response)
    multiple = jnp.ones_like(centre) if given.weights is None else given.weights
    return _Coordinates(
        rows, precision, root, mean, centre, variance, multiple * found.value, multiple * errors.value,
        multiple * first, given.log_det, covariance.log_det, given.likelihood, at.sites, given.offset,
    )  # fmt: skip


def _own_elbo(target: AbstractLatentGaussian, at: _Coordinates, point: NestedPoint, error: float) -> float:
    """Of N(m + shift, D S D), less its error; the best Gaussian's where nothing was corrected."""
    shift, scale = point.mean_shift, point.scale
    root, mean = scale[:, None] * at.root, at.mean + shift
    variance = np.sum((at.rows @ root) ** 2, axis=1)
    values, errors = (
        np.asarray(x) for x in _mean_terms(at.likelihood, at.centre + at.rows @ shift, variance, target.response)
    )
    multiple = 1.0 if target.weights is None else np.asarray(target.weights)
    rank = len(mean) - _num_constraints(target)
    elbo = -float(np.sum(multiple * values)) - 0.5 * float(mean @ at.precision @ mean)
    elbo += 0.5 * (rank - float(np.sum((at.precision @ root) * root))) + float(np.sum(np.log(scale)))
    elbo += 0.5 * float(at.log_det_prior - at.log_det) + float(np.asarray(target.constant))
    return elbo - error - float(np.sum(multiple * errors))


@instant_jit
def _mean_terms(likelihood: Any, mean: Any, variance: Any, response: Any) -> tuple[Any, Any]:
    return likelihood.moments(mean, variance, response).value, likelihood.moment_errors(mean, variance, response).value


def _num_constraints(target: AbstractLatentGaussian) -> int:
    return sum(0 if block.constraint is None else block.constraint.shape[1] for block in target.blocks)


def _problem(target: AbstractLatentGaussian, at: _Coordinates) -> tuple[RowProblem, Energy, float, float]:
    """The potential in the coordinates of q, its mean, the ELBO and a bound on its rounding."""
    root, dim, count = at.root, len(at.mean), len(at.centre)
    fixed = _num_constraints(target)
    if fixed:  # of lower rank: its range is what the constraint leaves
        left, sizes, _ = np.linalg.svd(root)
        root = left[:, : dim - fixed] * sizes[: dim - fixed]
    own = root.shape[1]
    rows, relative = at.rows @ root, 8 * dim * _EPS
    curvature = root.T @ at.precision @ root
    gradient = root.T @ (at.precision @ at.mean)
    spread = float(np.trace(curvature))
    value = float(np.sum(at.values - at.first)) + 0.5 * spread
    size = float(np.sum(np.abs(at.values) + np.abs(at.first)))
    quadratic = float(at.mean @ at.precision @ at.mean)
    norm, heavy = float(np.linalg.norm(np.abs(root))), float(np.linalg.norm(at.precision))
    rounding = (count * _EPS) * size + relative * (spread + abs(quadratic) + own)
    conditioning = relative * dim * float(np.linalg.cond(root)) ** 2
    error = float(np.sum(at.errors)) + rounding + conditioning
    constant = float(np.asarray(target.constant))
    elbo = -float(np.sum(at.values)) - 0.5 * quadratic - 0.5 * spread + 0.5 * own
    elbo += 0.5 * float(at.log_det_prior - at.log_det) + constant
    multiples = None if target.weights is None else np.asarray(target.weights)
    curve = at.likelihood.curvature_given(np.asarray(target.response))
    problem = RowProblem(
        design=None,
        root=rows,
        centre=at.centre,
        response=np.asarray(target.response, np.float64),
        likelihood=at.likelihood,
        prior_curvature=(curvature + curvature.T) / 2,
        prior_gradient=gradient,
        curvature_error=relative * norm**2 * heavy,
        gradient_error=relative * norm * heavy * float(np.linalg.norm(at.mean)),
        row_error=relative * np.linalg.norm(at.rows, axis=1) * norm,
        centre_error=relative * (np.abs(at.rows) @ np.abs(at.mean) + np.abs(at.offset)),
        largest_weight=math.inf,  # static: a number that changes with the node would compile again at each
        quadratic=curve[0] == curve[1],
        multiples=multiples,
    )
    return problem, Energy(value, error), elbo, error
