r"""An upper bound on the evidence, and so on KL(q || p), from draws of a Gaussian and the conjugate of the potential.

For a convex potential $\phi$ with $Z = \int e^{-\phi} < \infty$ there is a point z with $Z\int e^{\langle z, s\rangle -
\phi^*(s)}ds \le (2\pi)^d$: the functional Santaló inequality (Ball 1986 for even functions; Artstein-Avidan, Klartag
and Milman 2004). By the inequality of the means the integral is at least that of $e^{-\bar\phi(s)}$, $\bar\phi(s) =
\tfrac12(\phi^*(s) + \phi^*(-s))$, whatever z is. So, with draws $s \sim N(0, V^{-1})$ of any Gaussian,

$$\log Z \le d\log2\pi - \log\int e^{-\bar\phi} = \tfrac12\log\det(2\pi V) - \log E\,e^{-Y}, \qquad
Y = \bar\phi(s) - \tfrac12s'Vs.$$

Nothing is left of q, and the potential itself is nowhere evaluated but in its conjugate. It is exact for Gaussians;
near one, the part of degree k of log p/q is counted k times in the bound for odd k and k - 1 times for even k, so that
both of the leading degrees at a stationary q, three and four, count three times (docs/theory/posterior.md). Jensen's
inequality would give $E\,Y$, the Fenchel-Young bound of a best Gaussian, which counts every degree k times.

In the coordinates of $q = N(m, CC')$, $f(w) = \phi(m + CAw) - \phi(m)$, $V = CAA'C'$, u standard normal:

$$KL(q\|p) \le E_q\phi - \phi(m) - \tfrac d2 + \log\det A - \log E\,e^{-Y}, \qquad
Y = \tfrac12(f^*(u) + f^*(-u)) - \tfrac12|u|^2.$$

**Confidence.** $e^{-Y}$ is positive, and only a lower bound on its mean is wanted: what no draw reaches can but raise
it. So nothing need be known of tails. With Y clipped to [a, b], chosen by a pilot, $E\,e^{-Y} \ge E\,e^{-Y_{ab}} -
e^{-b}P(Y > b)$; the first has Maurer and Pontil's empirical Bernstein bound, the second Clopper and Pearson's. Both are
valid for any number of draws: `proven`. Each $f^*$ may be replaced by an upper bound, from `conjugate`.

A is chosen by the pilot, to make Y nearly constant: steps of a variational fit of $e^{-\phi^*}$, $AA' \leftarrow
A(E\nabla^2f^*)^{\theta}A'$, where $\nabla^2f^* = (\nabla^2f)^{-1}$ at the maximiser and $E\nabla^2f^*(u) = E[w(u)u']$.

**Black boxes.** Where the mean of the potential under q is itself from draws, $\tfrac12(f_q(u) + f_q(-u)) -
\tfrac12|u|^2$ is averaged with Student's bound, corrected for skewness: `statistical`. With an upper bound M of the
Hessian in the coordinates of q it is at most $\tfrac12u'(M - I)u$, and a clipped mean has an empirical Bernstein bound
again. What exceeds the clip, on an event of probability p at most, has a mean of at most $p\,\inf_\theta
\theta^{-1}(\log\tfrac1p - \tfrac12\sum_i\log(1 - \theta\kappa_i))$, $\kappa$ the eigenvalues of $M - I$ (Donsker and
Varadhan: the law given the event has relative entropy log 1/p).
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import special

from provi.certificates.distance.conjugate import (
    AbstractProblem,
    RowProblem,
    conjugates,
    evaluate,
    in_floating_type,
    inverse_hessians,
)

_PILOT_PAIRS, _ROUNDS, _MOST_FAILURES, _DAMPING = 128, 8, 2, 0.7
_HESSIAN_WORK, _FEWEST_HESSIANS, _MOST_HESSIANS = 1e9, 24, 128
_STEADY, _WORTH = 0.4, 0.02
"""Of the bound on the KL: the spread of Y below which no better A is sought, and the gain that a step must bring."""

_BEYOND, _FEWEST_DEVIATIONS = 5.0, 6.0
"""Y is clipped at this multiple of the deviations of the pilot from its median, and no nearer than this number of its
standard deviations."""

_SHARE, _ACCURACY, _WANTED_WIDTH, _WIDTH_WITH_ENERGY = 0.5, 0.005, 0.15, 0.05
FEWEST_PAIRS, MOST_PAIRS, _LOOSE = 512, 32_768, 2.0
QUICK_PILOT = 32


@dataclasses.dataclass(frozen=True)
class DualBound:
    """Upper bounds in nats; each is wrong with the probability asked for at most.

    - `kl`: on KL(q || p). - `proven`: whether that is valid for any number of draws. - `estimate`: of what bounds it.
    - `log_mass`: on log Z + phi(m) - (d/2) log 2 pi - log |det C|, always proven. - `num_pairs`: of draws.
    - `num_evaluations`: of the potential's gradient.
    """

    kl: float
    proven: bool
    estimate: float
    log_mass: float
    num_pairs: int
    num_evaluations: int


@dataclasses.dataclass(frozen=True)
class Energy:
    r"""$E_q\phi - \phi(m)$ and a bound on its error; or, with `value` None, to be found by draws.

    `upper`: then an upper bound of the Hessian in the coordinates of q, if one is known.
    """

    value: float | None
    error: float = 0.0
    upper: np.ndarray | None = None


def dual_bound(
    problem: AbstractProblem, energy: Energy, *, delta: float, seed: int, most_evaluations: int
) -> DualBound | None:
    """The bounds at q, in whose coordinates `problem` is given; wrong with probability `delta` at most.

    None where the potential has no curvature bound, or is not finite at most draws, or beyond linear algebra.

    **Arguments:**

    - `most_evaluations`: of the gradient of the potential, for the final draws; the pilot takes a few thousand more.
    """
    try:
        if isinstance(problem, RowProblem) and problem.quadratic:
            return _quadratic_bound(problem, energy)
        return _sampled_bound(problem, energy, delta, seed, most_evaluations)
    except np.linalg.LinAlgError:  # numbers too far apart for LAPACK: no bound, which is no error of the user's
        return None


def _sampled_bound(
    problem: AbstractProblem, energy: Energy, delta: float, seed: int, most_evaluations: int
) -> DualBound | None:
    rng, dim = np.random.default_rng(seed), problem.dim
    offset = None if energy.value is None else energy.value - 0.5 * dim
    found = _pilot(_Frame(problem), rng, offset)
    if found is None:
        return None
    frame, pilot, passes, used = found
    given = energy.value is not None
    level = delta if given else delta / 2
    log_det, rounding = frame.log_det
    scale = _scale(pilot, log_det, offset)
    affordable = int(np.clip(most_evaluations // (2 * max(passes, 1)), FEWEST_PAIRS, MOST_PAIRS))
    # Where the energy is from the same draws, it needs more of them.
    width = _WANTED_WIDTH if given else _WIDTH_WITH_ENERGY
    count, low, high = _plan(pilot, scale, level, affordable, width)
    half = rng.standard_normal((count, dim))
    final = frame.values(half, _ACCURACY * scale)
    if final is None:
        return None
    values, _, evaluations = final
    log_mean = log_mean_lower_bound(-values, -high, -low, level)
    log_mass = log_det - log_mean + rounding
    middle = -log_mean_exp(-np.clip(values, low, high))
    if energy.value is not None:
        average = energy.value - 0.5 * dim
        kl, proven = average + energy.error + log_mass, True
    else:
        sure, rest, average = _energy_from_draws(problem, energy, rng, half, delta / 2)
        evaluations += 2 * count
        # What is proven is reported unless it is much looser.
        proven = sure + log_mass <= _LOOSE * max(rest + log_mass, 0.0) + 1e-6
        kl = (sure if proven else rest) + log_mass
    return DualBound(
        kl=max(kl, 0.0),
        proven=proven,
        estimate=max(average + log_det + middle, 0.0),
        log_mass=log_mass,
        num_pairs=count,
        num_evaluations=used + evaluations,
    )


def quick_bound(problem: Any, energy: Energy, *, delta: float, seed: int, pairs: int) -> DualBound | None:
    """The same from few draws and with V the covariance of q: for one of many problems, most of which count little."""
    if problem.quadratic:
        return _quadratic_bound(problem, energy)
    assert energy.value is not None
    rng, dim = np.random.default_rng(seed), problem.dim
    frame, average = _Frame(problem), energy.value - 0.5 * dim
    half = rng.standard_normal((QUICK_PILOT + pairs, dim))
    found = frame.values(half, _ACCURACY * max(5 / pairs, 1e-3))
    if found is None:
        return None
    values, _, evaluations = found
    pilot, final = values[:QUICK_PILOT], values[QUICK_PILOT:]
    if not np.isfinite(pilot).mean() > 0.9:
        return None
    low, high, _ = _clip(pilot[np.isfinite(pilot)], delta, pairs)
    log_mass = -log_mean_lower_bound(-final, -high, -low, delta)
    middle = -log_mean_exp(-np.clip(final, low, high))
    kl = max(average + energy.error + log_mass, 0.0)
    return DualBound(kl, True, max(average + middle, 0.0), log_mass, pairs, evaluations)


def log_mean_lower_bound(values: np.ndarray, low: float, high: float, delta: float) -> float:
    """A lower confidence bound on log E exp(X) from draws of X, valid for any number of them and any law.

    Minus infinity where it is not positive. See the module's docstring; here X = -Y, clipped to [`low`, `high`].
    """
    count, least = len(values), math.exp(low - high)
    clipped = np.exp(np.clip(np.where(np.isnan(values), -np.inf, values), low, high) - high)
    mean = -bernstein_bound(-clipped, 1 - least, math.log(2 / ((1 - _SHARE) * delta)))
    below = int(np.sum(~(values >= low)))
    probability = float(special.betaincinv(below + 1, max(count - below, 1e-9), 1 - _SHARE * delta))
    mean -= least * min(probability, 1.0)
    return math.log(mean) + high if mean > 0 else -math.inf


def log_mean_exp(values: np.ndarray) -> float:
    """log of the mean of exp(values), without overflow."""
    largest = float(np.max(values))
    return largest + math.log(float(np.mean(np.exp(values - largest))))


def bernstein_bound(values: np.ndarray, width: float, log_term: float) -> float:
    """Maurer and Pontil (2009), theorem 4: an upper bound on the mean of values in an interval of this width.

    `log_term` is log(2 / delta).
    """
    count, variance = len(values), float(np.var(values, ddof=1))
    noise = math.sqrt(2 * variance * log_term / count) + 7 * width * log_term / (3 * (count - 1))
    return float(np.mean(values)) + noise


def skewed_bound(values: np.ndarray, delta: float) -> float:
    """Student's bound with Johnson's (1978) correction for skewness: right to second order for means of any law."""
    count, mean, spread = len(values), float(np.mean(values)), float(np.std(values, ddof=1))
    # No sample is free of noise: a spread of zero means that all draws are alike, not that all are known.
    spread = max(spread, 1e-12 * abs(mean), 1e-100)
    quantile = -float(special.stdtrit(count - 1, delta))
    skewness = float(np.mean(((values - mean) / spread) ** 3))
    lean = max(skewness, 0.0) * (2 * quantile**2 + 1) / (6 * math.sqrt(count))
    return mean + spread / math.sqrt(count) * (quantile + lean)


def quadratic_tail(weights: np.ndarray, start: float, probability: float) -> float:
    """The largest E[start + sum weights v^2 / 2; A] over events A of this probability or less, v standard normal."""
    positive = float(weights.max())
    if positive <= 0:
        return probability * max(start, 0.0)
    theta = np.geomspace(1e-6, 1 - 1e-6, 300) / positive
    moments = -0.5 * np.sum(np.log1p(-theta[:, None] * weights[None, :]), axis=1) + theta * start
    level = moments - math.log(probability)
    # p (log 1/p + c) grows in p while log 1/p + c >= 1; where it does not, its maximum stands for all smaller p.
    largest = np.where(level >= 1, probability * level, np.exp(np.minimum(moments - 1, 700)))
    return float(np.min(largest / theta))


def _quadratic_bound(problem: RowProblem, energy: Energy) -> DualBound | None:
    """Without draws, for a Gaussian posterior: with S the Hessian, f*(u) + f*(-u) = 2 f*(0) + u'S^-1 u.

    f*(0) = g'S^-1 g / 2, g the slope of f at zero.
    """
    origin = np.zeros((1, problem.dim))
    double: Any = in_floating_type(problem, np.float64)
    slope, slope_error = (np.asarray(evaluate(double, origin)[k])[0] for k in (1, 3))
    inverse = inverse_hessians(problem, origin)[0]
    condition, size = float(np.linalg.cond(inverse)), float(np.linalg.norm(inverse, 2))
    log_det = float(np.linalg.slogdet(inverse)[1])
    length = float(np.linalg.norm(slope)) + float(slope_error)
    # N + d products a Hessian entry, then factors: each eigenvalue is known to that times the condition.
    unit = (len(problem.centre) + 16 * problem.dim) * problem.dim * _EPS * condition
    first = 0.5 * float(slope @ inverse @ slope) + size * length * (float(slope_error) + unit * length)
    log_mass = first + 0.5 * log_det + unit
    if energy.value is None or not math.isfinite(log_mass):
        return None
    kl = energy.value - 0.5 * problem.dim + log_mass
    return DualBound(max(kl + energy.error, 0.0), True, max(kl, 0.0), log_mass, 0, 1)


class _Frame:
    """The coordinates of some A, and Y in them."""

    def __init__(self, problem: AbstractProblem, factor: np.ndarray | None = None) -> None:
        self.base, self.factor = problem, np.eye(problem.dim) if factor is None else factor
        self.problem = problem if factor is None else problem.transformed(factor)

    @property
    def log_det(self) -> tuple[float, float]:
        """log det A, and a bound on its rounding."""
        condition = float(np.linalg.cond(self.factor))
        return float(np.linalg.slogdet(self.factor)[1]), 16 * len(self.factor) ** 2 * _EPS * condition

    def values(self, half: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Y of each row of `half`, infinite where it is not known; the maximisers for u and for -u; evaluations."""
        found = conjugates(self.problem, np.concatenate([half, -half]), tolerance)
        if found is None:
            return None
        count = len(half)
        pair = 0.5 * (found.upper[:count] + found.upper[count:]) - 0.5 * np.sum(half**2, axis=1)
        return np.where(np.isnan(pair), np.inf, pair), found.places, found.evaluations


_EPS = float(np.finfo(float).eps)


def _scale(values: np.ndarray, log_det: float, offset: float | None) -> float:
    """What an error in Y is to be compared with: the bound on the KL or, where that is not known yet, Y itself.

    A few huge values count for nothing in the mean of exp(-Y), and must not loosen the others: no plain mean of Y.
    """
    usual = -log_mean_exp(-values)
    if offset is not None:
        return max(abs(offset + log_det + usual), 1e-6)
    low, high = np.quantile(values, [0.25, 0.75])
    return max(abs(usual), float(high - low), 1e-6)


def _pilot(frame: _Frame, rng: np.random.Generator, offset: float | None) -> tuple[_Frame, np.ndarray, int, int] | None:
    """The best A met, finite values of Y at it, passes that a row needs, evaluations spent.

    All rounds use the same draws, so that two of them differ by little but A.
    """
    best: tuple[float, _Frame, np.ndarray, int] | None = None
    dim, used, scale, failures = frame.base.dim, 0, 1.0, 0
    half, step = rng.standard_normal((_PILOT_PAIRS, dim)), np.eye(dim)
    for _ in range(_ROUNDS):
        found = frame.values(half, _ACCURACY * scale)
        if found is None:
            return None
        values, places, evaluations = found
        used += evaluations
        finite = np.isfinite(values)
        mean = float(values[finite].mean()) + frame.log_det[0] if finite.mean() > 0.9 else math.inf
        if best is None and not math.isfinite(mean):
            return None
        if best is None or mean < best[0]:
            scale = _scale(values[finite], frame.log_det[0], offset)
            settled = best is not None and mean > best[0] - _WORTH * scale
            best = (mean, frame, values[finite], math.ceil(evaluations / (2 * len(half))))
            step, gain = _dual_step(frame.problem, np.concatenate([half, -half]), places)
            if settled or float(np.std(values[finite])) < _STEADY * scale or gain < _WORTH * scale:
                break
        else:  # too far: the potential is far from a quadratic
            step, failures = _half_step(step), failures + 1
            if failures > _MOST_FAILURES:
                break
        if not np.isfinite(step).all():  # numbers too far apart for a better frame: any frame is a bound
            break
        frame = _Frame(frame.base, best[1].factor @ step)
    return None if best is None else (best[1], best[2], best[3], used)


def pilot_frame(
    problem: AbstractProblem, rng: np.random.Generator, offset: float | None
) -> tuple[_Frame, float] | None:
    """The coordinates in which Y is nearly constant, and what an error in it is to be compared with."""
    found = _pilot(_Frame(problem), rng, offset)
    return None if found is None else (found[0], _scale(found[1], found[0].log_det[0], offset))


def _dual_step(problem: AbstractProblem, u: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, float]:
    """S^(theta/2), S = E(Hessian of f)^-1 = E w u', symmetric, and the gain that a full step promises.

    Two halves of the draws tell signal from noise: the inner product of their estimates of S - I is the square of its
    norm without the noise, and the step is shortened by what share of the whole that is.
    """
    dim, identity = u.shape[1], np.eye(u.shape[1])
    if not np.isfinite(w).all():
        return identity, 0.0
    work = len(problem.centre) * dim**2 + dim**3 if isinstance(problem, RowProblem) else math.inf
    if isinstance(problem, RowProblem) and work * _FEWEST_HESSIANS <= _HESSIAN_WORK:
        few = w[:: max(1, math.ceil(len(w) * work / _HESSIAN_WORK))][:_MOST_HESSIANS]
        inverses = inverse_hessians(problem, few) - identity[None]
        first, second = inverses[::2].mean(axis=0), inverses[1::2].mean(axis=0)
    else:
        moved, odd = w - u, np.arange(len(u)) % 2 == 1
        first, second = (moved[rows].T @ u[rows] / np.sum(rows) for rows in (odd, ~odd))
        first, second = (first + first.T) / 2, (second + second.T) / 2
    product = (first + second) / 2
    share = np.clip(float(np.sum(first * second)) / max(float(np.sum(product**2)), 1e-300), 0.0, 1.0)
    values, vectors = np.linalg.eigh(identity + product)
    values = np.clip(values, 0.2, 5.0)
    gain = 0.5 * float(np.sum(values - 1 - np.log(values))) * share
    return (vectors * values ** (share * _DAMPING / 2)) @ vectors.T, gain


def _half_step(step: np.ndarray) -> np.ndarray:
    """Its square root."""
    values, vectors = np.linalg.eigh(step)
    return (vectors * np.sqrt(values)) @ vectors.T


def _plan(pilot: np.ndarray, scale: float, delta: float, affordable: int, width: float) -> tuple[int, float, float]:
    """How many pairs, and where to clip Y: as the pilot promises the best bound, until its noise is small beside it."""
    best, count = -log_mean_exp(-pilot), FEWEST_PAIRS
    while True:
        low, high, promised = _clip(pilot, delta, count)
        if count >= affordable or promised - best <= width * scale:
            return count, low, high
        count = min(2 * count, affordable)


def _clip(pilot: np.ndarray, delta: float, count: int) -> tuple[float, float, float]:
    """Where to clip Y for so many pairs, and the bound on -log E exp(-Y) that the pilot promises then."""
    spread, logs = float(np.std(pilot)), math.log(2 / ((1 - _SHARE) * delta))
    centre = float(np.median(pilot))
    high = centre + max(_BEYOND * float(np.max(pilot) - centre), _FEWEST_DEVIATIONS * spread, 1e-12)
    # A clip far below all of the pilot's values wastes range, one among them loses what lies below it.
    lows = [*np.quantile(pilot, [0.0, 0.02, 0.05, 0.1, 0.2, 0.4]), *(np.min(pilot) - spread * np.asarray([0.5, 1, 2]))]

    def promise(low: float) -> float:
        weights, width = np.exp(low - np.maximum(pilot, low)), -math.expm1(low - high)
        mean = float(np.mean(weights))
        mean -= math.sqrt(2 * float(np.var(weights)) * logs / count) + 7 * width * logs / (3 * count)
        mean -= math.exp(low - high) * -math.log(_SHARE * delta) / count
        return low - math.log(mean) if mean > 0 else math.inf

    low = float(min(lows, key=promise))
    return low, float(high), promise(low)


def _energy_from_draws(
    problem: AbstractProblem, energy: Energy, rng: np.random.Generator, half: np.ndarray, delta: float
) -> tuple[float, float, float]:
    """Upper bounds on E_q phi - phi(m) - d/2 from the draws m +- Cu, proven and statistical, and their mean."""
    pilot = _pair_energies(problem, rng.standard_normal((_PILOT_PAIRS, problem.dim)))
    values = _pair_energies(problem, half)
    if not np.isfinite(values).all():
        return math.inf, math.inf, math.inf
    average, statistical = float(np.mean(values)), skewed_bound(values, delta)
    if energy.upper is None or not np.isfinite(pilot).all():
        return math.inf, statistical, average
    centre, far = float(np.median(pilot)), float(np.max(np.abs(pilot - np.median(pilot))))
    reach = max(_BEYOND * far, _FEWEST_DEVIATIONS * float(np.std(pilot)), 1e-12)
    low, high = centre - reach, centre + reach
    bound = bernstein_bound(np.clip(values, low, high), high - low, math.log(2 / ((1 - _SHARE) * delta)))
    above = int(np.sum(values > high))
    probability = float(special.betaincinv(above + 1, max(len(values) - above, 1e-9), 1 - _SHARE * delta))
    weights = np.linalg.eigvalsh(energy.upper - np.eye(problem.dim))
    bound += quadratic_tail(weights + 1e-10 * (1 + np.abs(weights).max()), -high, min(probability, 1.0))
    return bound, statistical, average


def _pair_energies(problem: AbstractProblem, half: np.ndarray) -> np.ndarray:
    """(f(u) + f(-u)) / 2 - |u|^2 / 2 for each row of `half`, rounded up."""
    w, size, data, parts = np.concatenate([half, -half]), problem.chunk, in_floating_type(problem, np.float64), []
    for start in range(0, len(w), size):
        part = w[start : start + size]
        padded = np.concatenate([part, np.zeros((size - len(part), w.shape[1]))]) if len(part) < size else part
        value, _, error, _ = (np.asarray(x)[: len(part)] for x in evaluate(data, jnp.asarray(padded)))
        parts.append(value + error)
    values = np.concatenate(parts)
    return 0.5 * (values[: len(half)] + values[len(half) :]) - 0.5 * np.sum(half**2, axis=1)
