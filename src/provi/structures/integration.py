r"""Integration over few hyperparameters: where the mass lies, a rule of nodes there, and how good the rule is.

All is done in the free coordinates $\theta$ of the hyperparameters, in which the log density is $\ell(\theta)$. First
its mode, by a quasi-Newton search. There, with $-\nabla^2\ell = L L'$, standardised coordinates $\theta = \theta_* +
L'^{-1}x$. Then

- up to four hyperparameters: a grid of equal steps in x, grown from the mode to its neighbours while $\ell$ is within
  a drop of its largest value, and refined where the mass lies on few nodes. The trapezoid rule converges exponentially
  for smooth integrands that have died out at the ends: for a Gaussian with steps of one deviation it is off by
  $2e^{-2\pi^2}$.
- more: a scrambled Sobol sequence mapped to a Student-t law with the mean and covariance that two rounds of weighted
  nodes have found, with importance weights: the nodes do not multiply with the dimension.

The error is estimated by the rule itself: every second node of a grid, either half of a lattice, and what lies at the
edge. It is an estimate and never part of what is called proven.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

_MOST_ITERATIONS, _LARGEST_MOVE = 40, 1.5
_STEP = {1: 0.6, 2: 0.8, 3: 1.1, 4: 1.3}
_DROP = {1: 7.0, 2: 7.5, 3: 7.5, 4: 7.0}
_MOST_NODES, _LATTICE, _FIRST_LATTICE = 1200, 512, 128
_MOST_HALVINGS = 60  # of a step, or of the logarithm of a weight: 2^-60 is rounding
_WIDENED, _NARROWED, _TAILS = 1.3, 0.95, 8.0
_FEWEST_HEAVY, _HEAVY = 7, 5.0
_STRIDE = {1: 6, 2: 2}
"""How far a grid grows at once: calls cost more than nodes."""

_FINE, _OUTSIDE, _LIGHTEST = {1: 16, 2: 8, 3: 5, 4: 3}, 3.0, 14.0

Evaluate = Callable[[np.ndarray], np.ndarray]
"""Log densities at (K, D) free coordinates."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """Nodes theta (K, D) and the logarithms of their volumes; `axes` (D, D): theta = mode + axes x.

    - `index`: of a grid, the whole-number places of its nodes, else None. - `step`: of a grid, in x.
    """

    nodes: np.ndarray
    log_volume: np.ndarray
    mode: np.ndarray
    axes: np.ndarray
    index: np.ndarray | None
    step: float
    log_discarded: float = -math.inf
    """Of the mass at nodes that were looked at and left out."""

    def only(self, kept: np.ndarray) -> "Rule":
        """Some of the nodes; the others have no density."""
        index = None if self.index is None else self.index[kept]
        return dataclasses.replace(self, nodes=self.nodes[kept], log_volume=self.log_volume[kept], index=index)


@dataclasses.dataclass(frozen=True)
class IntegrationError:
    """How far the rule may be off, estimated: `log_evidence` in nats, `mean` and `sd` of hyperparameters in their sds.

    `outside`: the share of the mass at the edge of the rule.
    """

    log_evidence: float
    mean: float
    sd: float
    outside: float

    def __str__(self) -> str:
        largest = max(self.mean, self.sd)
        return f"{self.log_evidence:.1g} nats, {largest:.1g} sd, a share of {self.outside:.1g} outside"

    @property
    def small(self) -> bool:
        """Whether it is below what people would see: 0.05 nats and deviations."""
        return max(self.log_evidence, self.mean, self.sd, self.outside) < 0.05


def find_mode(value_and_slope: Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]], start: np.ndarray) -> Any:
    """The mode, by BFGS from `start`; returns it, and curvatures (D, D) of -l there as the search knows them.

    `value_and_slope` gives l, its gradient, and an estimate of minus its second derivatives (a diagonal).
    """
    place, dim = np.array(start, float), len(start)
    value, slope, bend = value_and_slope(place)
    inverse = np.diag(1 / np.clip(bend, 0.05, 1e8))
    for _ in range(_MOST_ITERATIONS):
        move = inverse @ slope
        size = float(np.max(np.abs(move), initial=0.0))
        move = move * min(1.0, _LARGEST_MOVE / size) if size > 0 else move
        gain = float(slope @ move)
        if 0.5 * gain < 5e-3:
            break
        for _ in range(8):
            trial, slope_there, bend = value_and_slope(place + move)
            if trial > value + 1e-4 * gain:
                break
            move, gain = move / 3, gain / 3
        else:
            break
        change = slope - slope_there
        inner = float(move @ change)
        if inner > 1e-10 * float(move @ move):
            step = np.eye(dim) - np.outer(move, change) / inner
            inverse = step @ inverse @ step.T + np.outer(move, move) / inner
        else:
            inverse = np.diag(1 / np.clip(bend, 0.05, 1e8))
        place, value, slope = place + move, trial, slope_there
    return place, np.linalg.inv(inverse)


def curvature_at(evaluate: Evaluate, mode: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Minus the Hessian of l from values about one deviation away, as `guess` has it; positive definite."""
    dim, units = len(mode), 1 / np.sqrt(np.clip(np.diag(guess), 1e-2, 1e12))
    pairs = list(itertools.combinations(range(dim), 2))
    eye = np.eye(dim) * units
    places = [mode, *(mode + eye[j] for j in range(dim)), *(mode - eye[j] for j in range(dim))]
    places += [mode + eye[i] + eye[j] for i, j in pairs]
    values = evaluate(np.array(places))
    up, down = values[1 : 1 + dim], values[1 + dim : 1 + 2 * dim]
    found = np.diag((2 * values[0] - up - down) / units**2)
    for k, (i, j) in enumerate(pairs):
        mixed = values[1 + 2 * dim + k] - up[i] - up[j] + values[0]
        found[i, j] = found[j, i] = -mixed / (units[i] * units[j])
    scaled = found * np.outer(units, units)
    if not np.isfinite(scaled).all():
        return np.diag(units**-2)
    eigenvalues, vectors = np.linalg.eigh(scaled)
    return (vectors * np.clip(eigenvalues, 0.05, 20.0)) @ vectors.T / np.outer(units, units)


def grid_rule(evaluate: Evaluate, mode: np.ndarray, curvature: np.ndarray, halvings: int = 0) -> Rule:
    """A grid grown from the mode while l is within a drop of its largest value; its step is halved where it must be."""
    dim = len(mode)
    axes, step, drop = _axes(curvature), _STEP[dim], _DROP[dim]
    values: dict[tuple[int, ...], float] = {}
    stride = _STRIDE.get(dim, 1)
    frontier = sorted(itertools.product(range(-stride, stride + 1), repeat=dim))
    best = -math.inf
    while frontier and len(values) < _MOST_NODES:
        found = evaluate(_places(mode, axes, step, frontier))
        values |= dict(zip(frontier, found.tolist(), strict=True))
        best = max(values.values())
        if _heavy(values, best) < _FEWEST_HEAVY and len(values) >= 2 * _FEWEST_HEAVY:
            if halvings == _MOST_HALVINGS:
                raise ValueError(
                    "The density of the model's hyperparameters has all its mass at one point, or is not finite beside "
                    "it: there is nothing to integrate. Fix a hyperparameter, or give it another prior."
                )
            return grid_rule(evaluate, mode, curvature * 4, halvings + 1)  # all mass on a few nodes: half the step
        grown = [key for key in frontier if values[key] > best - drop]
        frontier = sorted({near for key in grown for near in _neighbours(key, stride) if near not in values})
    kept = [key for key, value in values.items() if value > best - drop and math.isfinite(value)]
    left = np.array([value for value in values.values() if best - drop >= value > -math.inf])
    volume = dim * math.log(step) + float(np.linalg.slogdet(axes)[1])
    nodes, index = _places(mode, axes, step, kept), np.array(kept, int).reshape(-1, dim)
    discarded = float(special.logsumexp(left)) + volume if len(left) else -math.inf
    return Rule(nodes, np.full(len(kept), volume), mode, axes, index, step, discarded)


def _places(mode: np.ndarray, axes: np.ndarray, step: float, keys: list[tuple[int, ...]]) -> np.ndarray:
    """Node by node, so that each is the same to the last bit whatever it is computed with."""
    return np.array([mode + step * (axes @ np.array(key, float)) for key in keys])


def lattice_rule(evaluate: Evaluate, mode: np.ndarray, curvature: np.ndarray, seed: int) -> Rule:
    """A Sobol sequence mapped to a Student-t law, which a first round of nodes has fitted to the posterior."""
    from scipy import stats  # large, and few models need it
    from scipy.stats import qmc

    dim, centre, axes = len(mode), mode, _axes(curvature) * _WIDENED
    sequence: Any = qmc.Sobol(dim, rng=np.random.default_rng(seed))
    for count in (_FIRST_LATTICE, _FIRST_LATTICE, _LATTICE):
        normal = special.ndtri(np.clip(sequence.random(count), 1e-9, 1 - 1e-9))
        # Student-t along each axis: tails that the posterior's do not outrun.
        x = special.stdtrit(_TAILS, special.ndtr(normal))
        nodes = centre + x @ axes.T
        log_proposal = np.sum(stats.t.logpdf(x, _TAILS), axis=1) - float(np.linalg.slogdet(axes)[1])
        volume = -log_proposal - math.log(count)
        if count == _LATTICE:
            break
        weights = _flattened(evaluate(nodes) + volume, 4 * dim)
        centre = weights @ nodes
        spread = (nodes - centre).T @ (weights[:, None] * (nodes - centre))
        axes = np.linalg.cholesky(spread + 1e-10 * np.trace(spread) * np.eye(dim)) * _NARROWED
    return Rule(nodes, volume, centre, axes, None, 0.0)


def _flattened(log_weights: np.ndarray, fewest: int) -> np.ndarray:
    """Weights of a poor first proposal, flattened until a fair share of the nodes counts, as far as they have weight.

    By their logarithms: exp(-1000) is 0, and the root of 0 is 0 for ever.
    """
    for _ in range(_MOST_HALVINGS):
        weights = special.softmax(log_weights)
        if not 1 / np.sum(weights**2) < fewest:
            break
        log_weights = log_weights / 2
    return weights


def refined(rule: Rule, log_density: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A finer grid by a cubic spline through l, and the weights there: for marginals and draws of theta.

    Places that the grid does not hold fall off from their nearest node. A lattice stays as it is.
    """
    from scipy import ndimage  # large, and no other fit needs it

    dim = rule.nodes.shape[1]
    weights = special.softmax(log_density + rule.log_volume)
    if rule.index is None or not dim:
        return rule.nodes, weights
    low = rule.index.min(axis=0)
    table = np.full(rule.index.max(axis=0) - low + 3, np.nan)  # one more on every side
    table[tuple((rule.index - low + 1).T)] = log_density - log_density.max()
    missing = np.isnan(table)
    found: Any = ndimage.distance_transform_edt(missing, return_indices=True)
    distance, nearest = found
    table = np.where(missing, table[tuple(nearest)] - _OUTSIDE * distance, table)
    factor = _FINE[dim]
    places = np.stack(np.meshgrid(*(np.arange((n - 1) * factor + 1) / factor for n in table.shape), indexing="ij"))
    fine = ndimage.map_coordinates(table, places, order=3, mode="nearest").ravel()
    heavy = fine > fine.max() - _LIGHTEST
    x = (places.reshape(dim, -1).T[heavy] + low - 1) * rule.step
    return rule.mode + x @ rule.axes.T, special.softmax(fine[heavy])


def error_of(rule: Rule, log_density: np.ndarray) -> IntegrationError:
    """By halves of the rule."""
    if not rule.nodes.shape[1]:
        return IntegrationError(0.0, 0.0, 0.0, 0.0)
    total, mean, sd = _moments(rule, log_density, np.ones(len(log_density), bool), 0.0)
    shift = math.log(2)
    if rule.index is None:
        half = np.arange(len(log_density)) % 2 == 0
        parts = [(half, shift), (~half, shift)]
        weights = np.exp(log_density + rule.log_volume - total)
        outside = float(weights.max())  # one node that holds much: the proposal missed something
    else:
        even = (rule.index.sum(axis=1) % 2) == 0  # a checkerboard: half of the nodes in every dimension
        parts = [(even, shift), (~even, shift)]
        # What was looked at and left out; beyond it the density goes on falling: about as much again.
        outside = 2 * math.exp(min(rule.log_discarded - total, 0.0))
    found = [_moments(rule, log_density, *part) for part in parts if part[0].any()]
    # Halves of a lattice differ by twice the error of the whole; those of a grid by far more than that.
    share = 0.5
    return IntegrationError(
        share * max(abs(other[0] - total) for other in found),
        share * max(float(np.max(np.abs(other[1] - mean) / sd)) for other in found),
        share * max(float(np.max(np.abs(other[2] / sd - 1))) for other in found),
        outside,
    )


def _moments(rule: Rule, log_density: np.ndarray, kept: np.ndarray, shift: float) -> tuple[float, Any, Any]:
    terms = (log_density + rule.log_volume)[kept] + shift
    total = float(special.logsumexp(terms))
    weights = np.exp(terms - total)
    mean = weights @ rule.nodes[kept]
    spread = np.sqrt(np.maximum(weights @ (rule.nodes[kept] - mean) ** 2, 1e-300))
    return total, mean, spread


def _axes(curvature: np.ndarray) -> np.ndarray:
    """L'^-1 with LL' the curvature, along its principal directions: columns are steps of one deviation."""
    eigenvalues, vectors = np.linalg.eigh(curvature)
    return vectors / np.sqrt(eigenvalues)


def _neighbours(key: tuple[int, ...], stride: int = 1) -> list[tuple[int, ...]]:
    """Along each axis, up to `stride` away."""
    moves = [move for move in range(-stride, stride + 1) if move]
    return [(*key[:axis], key[axis] + move, *key[axis + 1 :]) for axis in range(len(key)) for move in moves]


def _heavy(values: dict[tuple[int, ...], float], best: float) -> int:
    return sum(value > best - _HEAVY for value in values.values())
