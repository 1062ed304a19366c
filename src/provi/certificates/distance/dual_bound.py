r"""An upper bound on the evidence, and so on KL(q || p), from draws of a Gaussian: the dual of a variational fit.

For a convex potential $\phi$, $Z = \int e^{-\phi}$, and any covariance V, with $s \sim N(0, V^{-1})$,

$$\log Z \le \tfrac12\log\det(2\pi eV) - d + E\,\phi^*(s).$$

It is the Fenchel-Young bound of docs/theory/posterior.md at $q_2 = N(m, V)$, $\log Z \le ELBO(q_2) + E[\phi(x) +
\phi^*(s) - \langle x, s\rangle]$, in which the potential at the draws cancels: neither m nor $\phi$ is left. So V is
free to be chosen; the right side is convex in a factor of $V^{-1}$, and stationary where $V = E\,\nabla^2\phi^*(s) =
E[(\nabla^2\phi)^{-1}]$: a Gaussian variational fit of the density $e^{-\phi^*}$. (The best q has $V^{-1} =
E\,\nabla^2\phi$, an average of the same Hessians on the other side.) Hence

$$KL(q\|p) \le E_q\phi - \phi(m) + \log\det A - \tfrac d2 + E\,Y, \qquad
Y = \tfrac12(f^*(u) + f^*(-u)) - \tfrac12|u|^2,$$

u standard normal, $f(w) = \phi(m + CAw) - \phi(m)$, $V = CAA'C'$, C a root of q's covariance. The pairs take away all
that is odd in u, and the quadratic is a control variate; A comes from pilot draws, by damped steps $AA' \leftarrow
A(E\nabla^2f^*)^{\theta}A'$ with $E\nabla^2f^*(u) = E[w(u)u']$, w(u) the maximiser, which costs nothing more.

**Confidence.** Y is clipped to [a, b], chosen by the pilot: clipping from below makes it larger, and the mean of what
lies in [a, b] has Maurer and Pontil's empirical Bernstein bound, valid for any n. What exceeds b: let k of n draws
do, so that $P(Y > b) \le p$ by Clopper and Pearson. Since $\nabla^2f \succeq H$, $f^*(u) \le \langle u, w_0\rangle -
f(w_0) + \tfrac12|u - \nabla f(w_0)|^2_{H^{-1}}$ for the mode $w_0$, so $Y \le T = t_0 + \tfrac12\sum_i\kappa_iv_i^2$
with $\kappa = 1/\lambda(H) - 1$, v standard normal, and for an event A of probability at most p

$$E[T; A] \le p\,\inf_{\theta > 0}\theta^{-1}\Bigl(\log\tfrac1p + \theta t_0 -
\tfrac12\sum_i\log(1 - \theta\kappa_i)\Bigr)$$

(Donsker and Varadhan: the law given A has relative entropy log 1/p). Where the terms' own curvature is known to fall
slowly, `radial_growth` bounds Y better up to some |u|. All of it together is finite-sample valid: `proven`. Student's
bound with a correction for skewness is what draws can see: `statistical`. Where the mean of the potential is itself
from draws (black boxes), $Y$ has $\tfrac12(f_q(u) + f_q(-u)) - \tfrac12|u|^2$ more, $f_q$ in the coordinates of q,
and $\kappa$ is of $H^{-1} - I + (M - I)$ where an upper bound M of the Hessian is known; else nothing is proven.
"""

import dataclasses
import math

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
from provi.certificates.distance.growth import RadialGrowth, radial_growth

_PILOT_PAIRS, _ROUNDS, _MOST_FAILURES, _DAMPING = 192, 8, 2, 0.7
_HESSIAN_WORK, _MOST_HESSIANS = 2e9, 128
_WORTH = 0.02
"""Gain, relative to the bound, from which another step of the dual fit is worth its draws."""

_ABOVE, _BELOW, _FEWEST_DEVIATIONS = 5.0, 1.5, 8.0
"""Y is clipped at these multiples of the deviations of the pilot from its median, and no nearer than this number
of its standard deviations."""

_SHARE_OF_TAIL, _ACCURACY, _WANTED_WIDTH, _WANTED_TAIL, _LARGEST_TAIL = 0.5, 0.01, 0.04, 0.15, 0.5
FEWEST_PAIRS, MOST_PAIRS, MOST_CHECKED = 256, 32_768, 65_536

_AT_ONCE, _LARGEST_ROUGH = 4096, 4000
"""Pairs that are checked together; terms up to which float32 can tell whether a draw exceeds b."""


@dataclasses.dataclass(frozen=True)
class DualBound:
    """Upper bounds on KL(q || p), in nats.

    - `estimate`: the mean of the draws. - `statistical`: its confidence bound but for what no draw reached.
    - `proven`: with a closed-form bound on that too; infinite where there is none. - `num_pairs`: of draws.
    - `num_evaluations`: of the potential's gradient.
    """

    estimate: float
    statistical: float
    proven: float
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
    problem: AbstractProblem, energy: Energy, *, delta: float, seed: int, most_evaluations: int, effort: float = 1.0
) -> DualBound | None:
    """The bounds at q, in whose coordinates `problem` is given; wrong with probability `delta` at most.

    None where the potential has no curvature bound, or is not finite at most draws.

    **Arguments:**

    - `most_evaluations`: of the gradient of the potential, for the final draws; the pilot takes about a third more.
    - `effort`: multiple of that, and of the largest number of draws, that may be spent on the tail.
    """
    rng, dim = np.random.default_rng(seed), problem.dim
    start = _Draws(problem, energy)
    found = _pilot(start, rng)
    if found is None:
        return None
    draws, pilot, passes, used = found
    centre, spread = float(np.median(pilot)), float(np.std(pilot))
    scale = max(abs(float(np.mean(pilot))), spread, 1e-12)
    floor = _FEWEST_DEVIATIONS * max(spread, 1e-3 * scale)
    high = centre + max(_ABOVE * float(np.max(pilot) - centre), floor)
    low = centre - max(_BELOW * float(centre - np.min(pilot)), floor)
    tail = _Tail(draws)
    mean = float(np.mean(pilot))
    affordable = int(np.clip(most_evaluations // (2 * max(passes, 1)), FEWEST_PAIRS, MOST_PAIRS))
    count = _pairs_for_noise(mean, spread, high - low, delta, affordable)
    final = draws.values(rng.standard_normal((count, dim)), _ACCURACY * scale)
    if final is None:
        return None
    values, _, evaluations = final
    used += evaluations
    exceeding, seen = int(np.sum(~(values <= high))), count
    if exceeding > 0.1 * count:
        return None
    allowed = int(4 * effort * affordable)
    more = _pairs_for_tail(mean, tail, high, delta, count, min(allowed, int(effort * MOST_CHECKED)))
    if more:
        found, evaluations = draws.exceeding(rng, more, high, mean)
        exceeding, seen, used = exceeding + found, seen + more, used + evaluations
    clipped = np.clip(values, low, high)
    error = draws.constant_error
    statistical = skewed_bound(np.where(np.isfinite(values), values, high), delta) + error
    proven = _bernstein(clipped, high - low, math.log(2 / ((1 - _SHARE_OF_TAIL) * delta))) + error
    probability = float(special.betaincinv(exceeding + 1, seen - exceeding, 1 - _SHARE_OF_TAIL * delta))
    proven += tail.mean_beyond(probability, high)
    estimate = float(np.mean(np.where(np.isfinite(values), values, high)))
    return DualBound(max(estimate, 0.0), max(statistical, 0.0), max(proven, 0.0), seen, used)


class _Draws:
    """The values of one pair, constants included, in the coordinates of some A."""

    def __init__(self, problem: AbstractProblem, energy: Energy, factor: np.ndarray | None = None) -> None:
        self.base, self.energy = problem, energy
        self.factor = np.eye(problem.dim) if factor is None else factor
        self.problem = problem if factor is None else problem.transformed(factor)
        sign, log_det = np.linalg.slogdet(self.factor)
        del sign
        given = energy.value is not None
        self.constant = float(log_det) + (float(energy.value) - 0.5 * problem.dim if given else 0.0)  # pyright: ignore
        # An eigenvalue of A is known to eps times the condition of A, which is bounded by the steps that made it.
        self.constant_error = energy.error + 64 * problem.dim**2 * float(np.finfo(float).eps)

    def values(
        self, half: np.ndarray, tolerance: float, rough: bool = False
    ) -> tuple[np.ndarray, np.ndarray, int] | None:
        """Y of each row of `half`, with the constant; the maximisers for u and for -u; evaluations."""
        found = conjugates(self.problem, np.concatenate([half, -half]), tolerance, rough)
        if found is None:
            return None
        count = len(half)
        pair = 0.5 * (found.upper[:count] + found.upper[count:]) - 0.5 * np.sum(half**2, axis=1)
        evaluations = found.evaluations
        if self.energy.value is None:
            potentials = _potentials(self.base, np.concatenate([half, -half]))
            pair = pair + 0.5 * (potentials[:count] + potentials[count:]) - 0.5 * np.sum(half**2, axis=1)
            evaluations += 2 * count
        pair = np.where(np.isnan(pair), np.inf, pair)
        return pair + self.constant, found.places, evaluations

    def exceeding(self, rng: np.random.Generator, count: int, high: float, mean: float) -> tuple[int, int]:
        """How many of `count` fresh pairs exceed `high`, and what it cost: no more accuracy than that needs.

        What rough values cannot tell is asked again of exact ones.
        """
        tolerance, spent, exceeding = 0.2 * (high - mean), 0, 0
        rough = isinstance(self.problem, RowProblem) and len(self.problem.centre) <= _LARGEST_ROUGH
        while count > 0:
            half = rng.standard_normal((min(count, _AT_ONCE), self.base.dim))
            count -= len(half)
            for attempt in (True, False) if rough else (False,):
                found = self.values(half, tolerance, attempt)
                if found is None:
                    return exceeding + len(half) + count, spent
                values, _, evaluations = found
                half, spent = half[~(values <= high)], spent + evaluations
                if not len(half):
                    break
            exceeding += len(half)
        return exceeding, spent


def _potentials(problem: AbstractProblem, w: np.ndarray) -> np.ndarray:
    size, data, parts = problem.chunk, in_floating_type(problem, np.float64), []
    for start in range(0, len(w), size):
        part = w[start : start + size]
        padded = np.concatenate([part, np.zeros((size - len(part), w.shape[1]))]) if len(part) < size else part
        value, _, error, _ = (np.asarray(x)[: len(part)] for x in evaluate(data, jnp.asarray(padded)))
        parts.append(value + error)
    return np.concatenate(parts)


def _pilot(draws: _Draws, rng: np.random.Generator) -> tuple[_Draws, np.ndarray, int, int] | None:
    """The dual fit: the best A met, the values of Y at it, passes that a row needs, evaluations spent.

    All rounds use the same draws, so that two of them differ by little but A.
    """
    best: tuple[float, _Draws, np.ndarray, int] | None = None
    dim, used, scale, failures = draws.base.dim, 0, 1.0, 0
    half, step = rng.standard_normal((_PILOT_PAIRS, dim)), np.eye(dim)
    for _ in range(_ROUNDS):
        found = draws.values(half, _ACCURACY * scale)
        if found is None:
            return None
        values, places, evaluations = found
        used += evaluations
        finite = np.isfinite(values)
        mean = float(values[finite].mean()) if finite.mean() > 0.9 else math.inf
        if best is None and not math.isfinite(mean):
            return None
        if best is None or mean < best[0]:
            settled = best is not None and mean > best[0] - _WORTH * abs(mean)
            best = (mean, draws, values[finite], math.ceil(evaluations / (2 * len(half))))
            scale = max(abs(mean), float(values[finite].std()) / math.sqrt(len(half)), 1e-9)
            step, gain = _dual_step(draws.problem, np.concatenate([half, -half]), places)
            if settled or gain < _WORTH * scale:
                break
        else:  # too far: the potential is far from a quadratic
            step, failures = _half_step(step), failures + 1
            if failures > _MOST_FAILURES:
                break
        draws = _Draws(draws.base, draws.energy, best[1].factor @ step)
    return None if best is None else (best[1], best[2], best[3], used)


def _dual_step(problem: AbstractProblem, u: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, float]:
    """S^(theta/2), S = E(Hessian of f)^-1 = E w u', symmetric, and the gain that a full step promises.

    Two halves of the draws tell signal from noise: the inner product of their estimates of S - I is the square of its
    norm without the noise, and the step is shortened by what share of the whole that is.
    """
    dim, identity = u.shape[1], np.eye(u.shape[1])
    if not np.isfinite(w).all():
        return identity, 0.0
    if isinstance(problem, RowProblem):
        work = len(problem.centre) * dim**2 + dim**3
        # The first half of the rows are u, the others -u: every second of each.
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


class _Tail:
    """What is above Y: T_0, from the curvature H alone, and, where terms are self-concordant, T_1 within a radius."""

    def __init__(self, draws: _Draws) -> None:
        known = draws.energy.value is not None or draws.energy.upper is not None
        dim, identity = draws.problem.dim, np.eye(draws.problem.dim)
        matrix = np.linalg.inv(draws.problem.curvature()) - identity
        self.radial: RadialGrowth | None = None
        if draws.energy.value is None and draws.energy.upper is not None:
            matrix = matrix + draws.energy.upper - identity
        elif isinstance(draws.problem, RowProblem):
            self.radial = radial_growth(draws.problem)
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
        self.weights = values + 1e-10 * (1 + float(np.abs(values).max()))
        found = conjugates(draws.problem, np.zeros((1, dim)), 1e-9)
        self.constant, self.dim = draws.constant, dim
        self.start = math.inf if found is None else float(found.upper[0]) + draws.constant
        self.known = known and math.isfinite(self.start)

    def mean_beyond(self, probability: float, high: float) -> float:
        """A bound on E[(Y - high)_+] where P(Y > high) <= `probability`."""
        if not self.known:
            return math.inf
        found = [_quadratic_tail(self.weights, self.start, probability, high)]
        if self.radial is not None:
            found.append(self._by_radius(self.radial, probability, high))
        return min(found)

    def _by_radius(self, growth: RadialGrowth, probability: float, high: float) -> float:
        """E[(T_1 - high)_+] on the largest |u| of this probability, and T_0 beyond the radius of T_1."""
        radii = np.linspace(0.0, growth.reach, 2000)
        outside = np.minimum(special.gammaincc(self.dim / 2, radii**2 / 2), probability)
        # T_1 grows with |u|: its largest value so far, at the right end of each step, bounds it there.
        levels = growth.conjugate(radii[1:] + growth.gradient) - 0.5 * radii[:-1] ** 2 + self.constant - high
        within = float(np.sum((outside[:-1] - outside[1:]) * np.maximum(np.maximum.accumulate(levels), 0.0)))
        return within + _quadratic_tail(self.weights, self.start, max(float(outside[-1]), 1e-300), high)


def _quadratic_tail(weights: np.ndarray, start: float, probability: float, high: float) -> float:
    """The largest E[start + sum weights v^2 / 2 - high; A] over events A of this probability or less."""
    positive = float(weights.max())
    if positive <= 0:
        return probability * max(start - high, 0.0)
    theta = np.geomspace(1e-6, 1 - 1e-6, 300) / positive
    moments = -0.5 * np.sum(np.log1p(-theta[:, None] * weights[None, :]), axis=1)
    shift = theta * (start - high)
    level = moments - math.log(probability) + shift
    # p (log 1/p + c) grows in p while log 1/p + c >= 1; where it does not, its maximum stands for all smaller p.
    largest = np.where(level >= 1, probability * level, np.exp(np.minimum(moments + shift - 1, 700)))
    return float(np.min(largest / theta))


def _bernstein(values: np.ndarray, width: float, log_term: float) -> float:
    """Maurer and Pontil (2009), theorem 4: an upper bound on the mean of values in an interval of this width."""
    count = len(values)
    variance = float(np.var(values, ddof=1))
    return (
        float(np.mean(values)) + math.sqrt(2 * variance * log_term / count) + 7 * width * log_term / (3 * (count - 1))
    )


def skewed_bound(values: np.ndarray, delta: float) -> float:
    """Student's bound with Johnson's (1978) correction for skewness: right to second order for means of any law."""
    count, mean, spread = len(values), float(np.mean(values)), float(np.std(values, ddof=1))
    quantile = -float(special.stdtrit(count - 1, delta))
    skewness = float(np.mean((values - mean) ** 3)) / max(spread, 1e-300) ** 3
    lean = max(skewness, 0.0) * (2 * quantile**2 + 1) / (6 * math.sqrt(count))
    # No sample is free of noise: a spread of zero means that all draws are alike, not that all are known.
    return mean + max(spread, 1e-12 * abs(mean)) / math.sqrt(count) * (quantile + lean)


def _pairs_for_noise(mean: float, spread: float, width: float, delta: float, affordable: int) -> int:
    """Until the noise is small beside the mean."""
    logs, scale, count = math.log(2 / ((1 - _SHARE_OF_TAIL) * delta)), max(abs(mean), 1e-9), FEWEST_PAIRS
    while count < affordable:
        noise = math.sqrt(2 * spread**2 * logs / count) + 7 * width * logs / (3 * count)
        if noise <= _WANTED_WIDTH * scale:
            break
        count = min(2 * count, affordable)
    return count


def _pairs_for_tail(mean: float, tail: _Tail, high: float, delta: float, have: int, affordable: int) -> int:
    """More pairs, to be checked against b only, until the tail is small beside the mean; 0 where it never is."""
    logs, scale = -math.log(_SHARE_OF_TAIL * delta), max(abs(mean), 1e-9)

    def beyond(count: int) -> float:
        return tail.mean_beyond(min(logs / count, 0.5), high)

    most = have + max(affordable, 0)
    if beyond(have) <= _WANTED_WIDTH * scale or not beyond(most) <= _LARGEST_TAIL * scale:
        return 0
    count = have
    while count < most and beyond(count) > _WANTED_TAIL * scale:
        count = min(math.ceil(1.25 * count), most)
    return count - have
