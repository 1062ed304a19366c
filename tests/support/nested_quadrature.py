"""Exact integrals of random-intercept models, by nested quadrature: what a nested fit must reproduce.

    eta_i = beta_0 + beta_1 x_i + u_g(i),  u_g ~ N(0, sd^2),  beta_j ~ N(0, fixed_scale^2),  y_i ~ p(y | eta_i)

The intercept and a group's effect come in only by v = beta_0 + u, so that the likelihood of a group is a table in v
and beta_1, and its integral over u a sum with the weights N(v; beta_0, sd^2). All integrals are trapezoidal sums of
analytic functions that have died out at both ends, which converge faster than any power of the step. Double precision.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from scipy import interpolate, special

_REACH, _FALL = 9.0, 36.0
_STEPS = 0.4 / 2.0 ** np.arange(14)
"""Steps in v."""


@dataclasses.dataclass(frozen=True, eq=False)
class RandomIntercepts:
    """A model; `x`: the second fixed effect's column, or None. `family`: "bernoulli" or "poisson"."""

    y: np.ndarray
    group: np.ndarray
    x: np.ndarray | None = None
    family: str = "bernoulli"
    fixed_scale: float = 2.5
    offset: float = 0.0

    @functools.cached_property
    def num_groups(self) -> int:
        return int(self.group.max()) + 1

    @functools.cached_property
    def design(self) -> np.ndarray:
        ones = np.ones(len(self.y))
        return ones[:, None] if self.x is None else np.column_stack([ones, self.x])

    @functools.cached_property
    def width(self) -> float:
        """The largest step that resolves each group's likelihood.

        A logistic one is analytic up to an imaginary part of pi, Poisson's dies out up to pi / 2 only; both are as
        narrow as their curvature says.
        """
        if self.family == "bernoulli":
            return min(0.4, 1.3 / np.sqrt(np.bincount(self.group).max()))
        return min(0.15, 0.4 / np.sqrt(1 + np.bincount(self.group, self.y).max()))

    def log_likelihood(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log p(y | eta), every constant included."""
        if self.family == "bernoulli":
            return y * eta - np.logaddexp(0.0, eta)
        return y * (eta + self.offset) - np.exp(eta + self.offset) - special.gammaln(y + 1)

    def _slopes(self, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First derivative, and minus the second."""
        if self.family == "bernoulli":
            p = special.expit(eta)
            return self.y - p, p * (1 - p)
        rate = np.exp(eta + self.offset)
        return self.y - rate, rate

    def laplace(self, sd: float) -> tuple[np.ndarray, np.ndarray]:
        """Mode and standard deviations of the fixed effects in the Laplace approximation: where to integrate."""
        indicator = np.eye(self.num_groups)[self.group]
        rows, p = np.concatenate([self.design, indicator], axis=1), self.design.shape[1]
        prior = np.concatenate([np.full(p, self.fixed_scale**-2), np.full(self.num_groups, sd**-2)])
        z = np.zeros(rows.shape[1])

        def value(z: np.ndarray) -> float:
            return float(self.log_likelihood(rows @ z, self.y).sum() - 0.5 * prior @ z**2)

        hessian = np.diag(prior)
        for _ in range(100):
            first, second = self._slopes(rows @ z)
            hessian = (rows.T * second) @ rows + np.diag(prior)
            step = np.linalg.solve(hessian, rows.T @ first - prior * z)
            size = 1.0
            while value(z + size * step) < value(z) - 1e-9 and size > 1e-6:
                size /= 2
            z = z + size * step
            if np.abs(step).max() < 1e-6:
                break
        return z[:p], np.sqrt(np.diagonal(np.linalg.inv(hessian))[:p])


@dataclasses.dataclass(frozen=True, eq=False)
class Conditional:
    """For each value of the scale: log Z(sd), and moments of the fixed effects given it."""

    sd: np.ndarray
    log_evidence: np.ndarray
    mean: np.ndarray
    second: np.ndarray
    """E[beta^2 | sd]."""


def conditional(model: RandomIntercepts, sd: np.ndarray, nodes: int = 40, halvings: int = 0) -> Conditional:
    """At each of `sd`; `nodes`: of the rule for each fixed effect. `halvings`: of the step of that for u."""
    sd = np.atleast_1d(np.asarray(sd, np.float64))
    reach, found = _REACH, {}
    left = list(range(len(sd)))
    boxes = [model.laplace(float(s)) for s in sd]
    while left:
        again = []
        for step in _STEPS[::-1]:
            own = [i for i in left if _step(model, float(sd[i]), halvings) == step]
            if own:
                results, narrow = _bucket(model, sd[own], [boxes[i] for i in own], step, nodes, reach)
                found |= {i: result for i, result, bad in zip(own, results, narrow, strict=True) if not bad}
                again += [i for i, bad in zip(own, narrow, strict=True) if bad]
        left, reach, nodes = again, 1.4 * reach, int(1.4 * nodes)
        if reach > 100:
            raise RuntimeError("the fixed effects do not die out: their prior is too wide for this rule")
    rows = [found[i] for i in range(len(sd))]
    log_z, mean, second = (np.asarray([row[k] for row in rows]) for k in range(3))
    return Conditional(sd, log_z, mean, second)


def _step(model: RandomIntercepts, sd: float, halvings: int) -> float:
    """The largest step that also resolves N(0, sd^2), to exp(-2 pi^2 / 0.7^2), and is then halved."""
    place = int((_STEPS > min(0.7 * sd, model.width)).sum()) + halvings
    if place >= len(_STEPS):
        raise ValueError(f"a scale of {sd:g} is below what this rule resolves.")
    return float(_STEPS[place])


def _bucket(model, sd, boxes, step, nodes, reach):
    """All scales that share a step: one table of the groups' likelihoods for them."""
    low = min(mode[0] - reach * width[0] - _REACH * s for (mode, width), s in zip(boxes, sd, strict=True))
    high = max(mode[0] + reach * width[0] + _REACH * s for (mode, width), s in zip(boxes, sd, strict=True))
    v = np.arange(low, high + step, step)
    if model.x is None:
        slopes = np.zeros(1)
    else:
        ends = [(mode[1] - reach * width[1], mode[1] + reach * width[1]) for mode, width in boxes]
        widest = max(width[1] for _, width in boxes)
        narrowest = min(width[1] for _, width in boxes)
        low, high = min(a for a, _ in ends), max(b for _, b in ends)
        slopes = np.linspace(low, high, int(nodes * max(1.0, min(3.0, widest / narrowest))))
    table = _table(model, v, slopes)
    top = table.max(axis=2, keepdims=True)
    shares = np.exp(table - top)
    results, narrow = [], []
    for s, (mode, width) in zip(sd, boxes, strict=True):
        intercepts = np.linspace(mode[0] - reach * width[0], mode[0] + reach * width[0], nodes)
        weights = step * np.exp(-0.5 * ((v - intercepts[:, None]) / s) ** 2) / (s * np.sqrt(2 * np.pi))
        with np.errstate(divide="ignore"):
            logs = np.log(shares @ weights.T) + top
        joint = logs.sum(axis=0).T  # intercepts, slopes
        joint = joint - 0.5 * (intercepts[:, None] / model.fixed_scale) ** 2 - _log_constant(model)
        if model.x is not None:
            joint = joint - 0.5 * (slopes[None] / model.fixed_scale) ** 2 - _log_constant(model)
        results.append(_moments(joint, intercepts, slopes if model.x is not None else None))
        edges = [joint[0], joint[-1]] + ([] if model.x is None else [joint[:, 0], joint[:, -1]])
        narrow.append(max(edge.max() for edge in edges) > joint.max() - _FALL)
    return results, narrow


def _log_constant(model: RandomIntercepts) -> float:
    return float(np.log(model.fixed_scale) + 0.5 * np.log(2 * np.pi))


def _table(model: RandomIntercepts, v: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """The log-likelihood of each group at each slope and v."""
    table = np.zeros((model.num_groups, len(slopes), len(v)))
    for i, (y, group) in enumerate(zip(model.y, model.group, strict=True)):
        x = 0.0 if model.x is None else model.x[i]
        table[group] += model.log_likelihood(v[None] + slopes[:, None] * x, y)
    return table


def _moments(joint: np.ndarray, intercepts: np.ndarray, slopes: np.ndarray | None):
    top = joint.max()
    mass = np.exp(joint - top)
    total, axes = mass.sum(), [intercepts] if slopes is None else [intercepts, slopes]
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    sides = [mass.sum(axis=1) / total, mass.sum(axis=0) / total]
    mean = np.asarray([axis @ side for axis, side in zip(axes, sides, strict=False)])
    second = np.asarray([axis**2 @ side for axis, side in zip(axes, sides, strict=False)])
    return top + np.log(total * cell), mean, second


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """Of the scale and the fixed effects; `log_evidence` is of the whole model."""

    log_evidence: float
    scale_mean: float
    scale_sd: float
    mean: np.ndarray
    sd: np.ndarray
    _grid: np.ndarray
    _distribution: np.ndarray

    def scale_cdf(self, value: np.ndarray) -> np.ndarray:
        """P(sd <= value | y), by interpolation on the grid of log sd."""
        return np.interp(np.log(value), np.log(self._grid), self._distribution)

    def scale_quantile(self, p: np.ndarray) -> np.ndarray:
        """The inverse of it."""
        return np.exp(np.interp(p, self._distribution, np.log(self._grid)))


def posterior(
    model: RandomIntercepts,
    log_prior: Callable[[np.ndarray], np.ndarray],
    low: float = 5e-3,
    high: float = 30.0,
    knots: int = 48,
) -> Posterior:
    """With the density exp(`log_prior`) of the scale: log Z(sd) at `knots`, splines in log sd between them.

    A half-normal density does not vanish at zero: below `low` the joint density is taken as constant, of which it
    departs by O(low^2).
    """
    places = np.linspace(np.log(low), np.log(high), knots)
    given = conditional(model, np.exp(places))
    t = np.linspace(places[0], places[-1], 8001)
    scale, step = np.exp(t), t[1] - t[0]
    log_mass = interpolate.CubicSpline(places, given.log_evidence)(t) + log_prior(scale) + t
    top = log_mass.max()
    density = np.exp(log_mass - top) * step
    pieces = np.concatenate([np.exp(log_mass[:1] - top), 0.5 * (density[1:] + density[:-1])])
    total = pieces.sum()
    weights = density / total
    weights[[0, -1]] /= 2
    weights[0] += pieces[0] / total
    mean, second = (weights @ interpolate.CubicSpline(places, x)(t) for x in (given.mean, given.second))
    scale_mean = float(weights @ scale)
    scale_sd = float(np.sqrt(weights @ scale**2 - scale_mean**2))
    sd, evidence = np.sqrt(second - mean**2), top + float(np.log(total))
    return Posterior(evidence, scale_mean, scale_sd, mean, sd, scale, np.cumsum(pieces) / total)


def half_normal(scale: float) -> Callable[[np.ndarray], np.ndarray]:
    """The log density of |N(0, scale^2)|."""
    return lambda x: 0.5 * np.log(2 / np.pi) - np.log(scale) - 0.5 * (x / scale) ** 2


def refined(model: RandomIntercepts, sd: np.ndarray) -> tuple[Conditional, float]:
    """The integrals, and how far log Z moves when every rule is refined."""
    coarse, fine = conditional(model, sd), conditional(model, sd, nodes=60, halvings=1)
    return fine, float(np.abs(coarse.log_evidence - fine.log_evidence).max())
