"""The truth about KL(q || posterior) and the evidence of linear models: written apart from the library, in NumPy.

KL = log Z - ELBO. The ELBO of a Gaussian is a sum of integrals on a line, taken on Gauss-Legendre panels that are
graded towards the bend of each term. log Z is an integral on a line (panels graded towards every bend), on a grid in
two or three dimensions, closed form for Gaussian noise, and importance sampling elsewhere, with an error bar.
"""

import dataclasses
import functools
import math
from fractions import Fraction

import numpy as np
from scipy import linalg, special

_NODES, _SHARES = np.polynomial.legendre.leggauss(14)
_GRADES = np.asarray([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
_ROWS_AT_ONCE, _GRID_WORK = 2**22, 2e8
_MOST_EXACT = 4000  # products of a row, a column and a column again: about 10 ms in rational numbers

LARGEST_K = 0.7
"""Pareto k-hat above which an importance sampling estimate is called unreliable."""


@dataclasses.dataclass(frozen=True)
class Truth:
    """`kl`, `log_evidence`, and one error bar for both; `how`; `reliable`: whether the error bar means anything."""

    kl: float
    log_evidence: float
    error: float
    how: str
    reliable: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class LinearPosterior:
    """Terms l(x_n'z, y_n) and a prior N(mean, covariance), every constant included.

    - `link`: "logit", "probit", "poisson", "binomial" (negative, with `parameter` its shape) or "gaussian" (with
      `parameter` its standard deviation).
    """

    design: np.ndarray
    response: np.ndarray
    link: str
    prior_mean: np.ndarray
    prior_covariance: np.ndarray
    parameter: float = 1.0

    @functools.cached_property
    def prior_factor(self) -> np.ndarray:
        """The Cholesky factor of the prior covariance."""
        return np.linalg.cholesky(self.prior_covariance)

    def terms(self, eta: np.ndarray) -> np.ndarray:
        """-log p(y | eta); the data run along the last axis."""
        return potential(self.link, eta, self.response, self.parameter)

    def log_joint(self, z: np.ndarray) -> np.ndarray:
        """log p(y, z) of each row of z."""
        white = linalg.solve_triangular(self.prior_factor, (z - self.prior_mean).T, lower=True)
        prior = 0.5 * np.sum(white**2, axis=0) + np.log(np.diagonal(self.prior_factor)).sum()
        prior += 0.5 * z.shape[1] * math.log(2 * math.pi)
        return -prior - self.terms(z @ self.design.T).sum(axis=1)

    def gradient(self, z: np.ndarray) -> np.ndarray:
        """Of log p(y, z), for each row."""
        inverse = linalg.cho_solve((self.prior_factor, True), (z - self.prior_mean).T).T
        return -inverse - slope(self.link, z @ self.design.T, self.response, self.parameter) @ self.design

    def elbo(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        """Of N(mean, covariance), to about 1e-12 of its terms; what stands before a logarithm or a term is exact.

        Where rows and covariance nearly cancel, the factor's rounding is not small: with rows of 1e6 and a condition
        number of 1e10 a plain Cholesky factor was off by 3e-4 nats.
        """
        if self.design.size * self.design.shape[1] <= _MOST_EXACT:
            centre, variance, square, log_ratio = exact_moments(self, mean, covariance)
            deviation = np.sqrt(variance)
        else:
            root = np.linalg.cholesky(covariance)
            white = linalg.solve_triangular(self.prior_factor, root, lower=True)
            away = linalg.solve_triangular(self.prior_factor, mean - self.prior_mean, lower=True)
            square = float(np.sum(white**2) + away @ away)
            log_ratio = 2 * float(np.log(np.diagonal(root)).sum() - np.log(np.diagonal(self.prior_factor)).sum())
            centre, deviation = self.design @ mean, np.linalg.norm(self.design @ root, axis=1)
        energy = mean_potential(self.link, centre, deviation, self.response, self.parameter).sum()
        return float(0.5 * (log_ratio + len(mean) - square) - energy)

    def mode(self) -> tuple[np.ndarray, np.ndarray]:
        """The mode, and the inverse of the Hessian there, by damped Newton steps in the prior's coordinates."""
        rows = self.design @ self.prior_factor
        centre, white = self.design @ self.prior_mean, np.zeros(len(self.prior_mean))

        def value(w: np.ndarray) -> float:
            return float(0.5 * w @ w + self.terms(centre + rows @ w).sum())

        hessian = np.eye(len(white))
        for _ in range(500):
            eta = centre + rows @ white
            gradient = white + rows.T @ slope(self.link, eta, self.response, self.parameter)
            weight = np.maximum(bend(self.link, eta, self.response, self.parameter), 0.0)
            hessian = np.eye(len(white)) + rows.T @ (weight[:, None] * rows)
            step = np.linalg.solve(hessian, gradient)
            if gradient @ step < 1e-18:
                break
            size, now = 1.0, value(white)
            while not value(white - size * step) <= now - 1e-4 * size * (gradient @ step) and size > 1e-12:
                size /= 2
            white = white - size * step
        covariance = self.prior_factor @ np.linalg.inv(hessian) @ self.prior_factor.T
        return self.prior_mean + self.prior_factor @ white, covariance

    def exact_log_evidence(self) -> float:
        """For Gaussian noise, in the prior's coordinates, in which nothing is ill-conditioned."""
        rows = self.design @ self.prior_factor / self.parameter
        away = (self.response - self.design @ self.prior_mean) / self.parameter
        q, singular, _ = np.linalg.svd(rows, full_matrices=False)
        seen = q.T @ away
        # |away|^2 in (I + rows rows')^-1, the part outside of the rows' span apart.
        square = float(np.sum((away - q @ seen) ** 2) + np.sum(seen**2 / (1 + singular**2)))
        constant = len(away) * (math.log(2 * math.pi) + 2 * math.log(self.parameter))
        return -0.5 * (square + constant + float(np.sum(np.log1p(singular**2))))


def exact_moments(
    posterior: LinearPosterior, mean: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """x'm and x'Sx of every row; tr(P^-1 S) + |m - m_0|^2 in P^-1; log det S - log det P: in rational numbers.

    **Raises:** `LinAlgError` where the covariance, as it stands in float64, is not positive definite.
    """
    spread, prior = _rational(covariance), _rational(posterior.prior_covariance)
    place, rows = _rational(mean[None])[0], _rational(posterior.design)
    away = [[x - y] for x, y in zip(place, _rational(posterior.prior_mean[None])[0], strict=True)]
    # Both right-hand sides at once: P^-1 [S, m - m_0].
    solved, prior_det = _eliminated(prior, [line + other for line, other in zip(spread, away, strict=True)])
    dim = len(place)
    square = sum(solved[i][i] + away[i][0] * solved[i][dim] for i in range(dim))
    _, det = _eliminated(spread, [[] for _ in place])
    centre = [_dot(row, place) for row in rows]
    variance = [_dot(row, [_dot(line, row) for line in spread]) for row in rows]
    centres, variances = (np.array([_float(x) for x in numbers]) for numbers in (centre, variance))
    return centres, variances, _float(square), _log(det) - _log(prior_det)


def _float(x: Fraction | int) -> float:
    """The nearest number; infinite beyond them, where the oracle says nothing."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _rational(array: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in row] for row in np.asarray(array)]


def _dot(first: list[Fraction], second: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(first, second, strict=True) if x and y), Fraction(0))


def _log(x: Fraction) -> float:
    """Of a rational number that may be no float."""
    return math.log(x.numerator) - math.log(x.denominator) if not 0.5 < x < 2 else math.log1p(float(x - 1))


def _eliminated(matrix: list[list[Fraction]], right: list[list[Fraction]]) -> tuple[list[list[Fraction]], Fraction]:
    """The solution for several right-hand sides, and the determinant, by Gauss and Jordan."""
    dim, det = len(matrix), Fraction(1)
    table = [[*line, *other] for line, other in zip(matrix, right, strict=True)]
    for k in range(dim):
        pivot = table[k][k]
        if pivot <= 0:
            raise np.linalg.LinAlgError("not positive definite in exact arithmetic")
        det *= pivot
        table[k] = [x / pivot for x in table[k]]
        for i in range(dim):
            if i != k and table[i][k]:
                factor = table[i][k]
                table[i] = [x - factor * y for x, y in zip(table[i], table[k], strict=True)]
    return [line[dim:] for line in table], det


def potential(link: str, eta: np.ndarray, y: np.ndarray, parameter: float) -> np.ndarray:
    """-log p(y | eta)."""
    if link == "logit":
        return np.logaddexp(0.0, np.where(y > 0, -eta, eta))
    if link == "probit":
        return -special.log_ndtr(np.where(y > 0, eta, -eta))
    if link == "poisson":
        with np.errstate(over="ignore"):
            return np.exp(eta) - y * eta + special.gammaln(y + 1)
    if link == "gaussian":
        return 0.5 * ((y - eta) / parameter) ** 2 + math.log(parameter) + 0.5 * math.log(2 * math.pi)
    count = special.gammaln(y + parameter) - special.gammaln(parameter) - special.gammaln(y + 1)
    lift = np.logaddexp(math.log(parameter), eta)
    return (y + parameter) * lift - y * eta - count - parameter * math.log(parameter)


def slope(link: str, eta: np.ndarray, y: np.ndarray, parameter: float) -> np.ndarray:
    """Its first derivative."""
    if link == "logit":
        return special.expit(eta) - (y > 0)
    if link == "probit":
        sign = np.where(y > 0, 1.0, -1.0)
        return -sign * np.exp(-0.5 * eta**2 - 0.5 * math.log(2 * math.pi) - special.log_ndtr(sign * eta))
    if link == "poisson":
        with np.errstate(over="ignore"):
            return np.exp(eta) - y
    if link == "gaussian":
        return (eta - y) / parameter**2
    return (y + parameter) * special.expit(eta - math.log(parameter)) - y


def bend(link: str, eta: np.ndarray, y: np.ndarray, parameter: float) -> np.ndarray:
    """Its second derivative."""
    if link == "logit":
        return special.expit(eta) * special.expit(-eta)
    if link == "probit":
        ratio = np.abs(slope(link, eta, y, parameter))
        return ratio * (np.where(y > 0, eta, -eta) + ratio)
    if link == "poisson":
        with np.errstate(over="ignore"):
            return np.exp(eta)
    if link == "gaussian":
        return np.full(np.broadcast_shapes(eta.shape, y.shape), parameter**-2)
    moved = eta - math.log(parameter)
    return (y + parameter) * special.expit(moved) * special.expit(-moved)


def mean_potential(link: str, mean: np.ndarray, deviation: np.ndarray, y: np.ndarray, parameter: float) -> np.ndarray:
    """E of the potential at N(mean, deviation^2), one a term."""
    if link == "poisson":
        with np.errstate(over="ignore"):
            return np.exp(mean + 0.5 * deviation**2) - y * mean + special.gammaln(y + 1)
    if link == "gaussian":
        return potential(link, mean, y, parameter) + 0.5 * (deviation / parameter) ** 2
    found = []
    for start in range(0, len(mean), 2048):
        part = slice(start, start + 2048)
        scale = np.maximum(deviation[part], 1e-30)[:, None]
        centre = (math.log(parameter) if link == "binomial" else 0.0) - mean[part, None]
        grades = np.concatenate([-_GRADES[:0:-1], _GRADES])[None, :]
        ends = np.concatenate([np.tile(np.linspace(-13, 13, 27), (len(scale), 1)), (centre + grades) / scale], axis=1)
        v, weights = graded_rule(np.clip(np.sort(ends, axis=1), -13, 13))
        weights = weights * np.exp(-0.5 * v**2) / math.sqrt(2 * math.pi)
        values = potential(link, mean[part, None] + scale * v, y[part, None], parameter)
        found.append(np.sum(values * weights, axis=1))
    return np.concatenate(found)


def graded_rule(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre rules between neighbours of each row."""
    half, middle = np.diff(ends, axis=-1)[..., None] / 2, (ends[..., 1:] + ends[..., :-1])[..., None] / 2
    shape = (*ends.shape[:-1], -1)
    return (middle + half * _NODES).reshape(shape), (half * _SHARES).reshape(shape)


def line_log_evidence(posterior: LinearPosterior) -> float:
    """d = 1: panels graded towards the bend of every term, the mode and the prior."""
    x, centre = posterior.design[:, 0], float(posterior.prior_mean[0])
    sd = float(posterior.prior_factor[0, 0])
    mode, covariance = posterior.mode()
    grades = np.concatenate([-_GRADES[:0:-1], _GRADES])
    shift = math.log(posterior.parameter) if posterior.link == "binomial" else 0.0
    ends = [
        centre + 40 * sd * np.linspace(-1, 1, 161),
        mode[0] + math.sqrt(covariance[0, 0]) * np.linspace(-40, 40, 81),
    ]
    live = x[np.abs(x) > 1e-300]
    if posterior.link not in ("poisson", "gaussian") and len(live):
        bends = shift / live
        ends.append((bends[:, None] + grades[None, :] / np.abs(live)[:, None]).ravel())
    low, high = centre - 40 * sd, centre + 40 * sd
    z, weights = graded_rule(np.unique(np.clip(np.concatenate(ends), low, high)))
    values = []
    for start in range(0, len(z), max(_ROWS_AT_ONCE // max(len(x), 1), 1)):
        values.append(posterior.log_joint(z[start : start + max(_ROWS_AT_ONCE // max(len(x), 1), 1), None]))
    return log_sum(np.concatenate(values), weights)


def grid_log_evidence(posterior: LinearPosterior, panels: int) -> float:
    """d = 2, 3: a grid of panels in the Laplace approximation's coordinates, on a box that holds all of it."""
    mode, covariance = posterior.mode()
    root, dim = np.linalg.cholesky(covariance), len(mode)
    top, reach = posterior.log_joint(mode[None])[0], np.full((dim, 2), 8.0)
    for _ in range(40):
        grown = False
        for axis in range(dim):
            for side, sign in enumerate((-1.0, 1.0)):
                face = _face(reach, axis, side, sign)
                if posterior.log_joint(mode + face @ root.T).max() > top - 36:
                    reach[axis, side] *= 1.2
                    grown = True
        if not grown:
            break
    rules = [graded_rule(np.linspace(-low, high, panels + 1)[None]) for low, high in reach]
    axes, shares = [rule[0][0] for rule in rules], [rule[1][0] for rule in rules]
    total, plane = [], np.stack([x.ravel() for x in np.meshgrid(*axes[1:], indexing="ij")], axis=1)
    weights = functools.reduce(np.multiply.outer, shares[1:]).ravel()
    for x, share in zip(axes[0], shares[0], strict=True):
        points = np.concatenate([np.full((len(plane), 1), x), plane], axis=1)
        values = posterior.log_joint(mode + points @ root.T)
        total.append(log_sum(values, weights) + math.log(share))
    return log_sum(np.asarray(total)) + float(np.log(np.diagonal(root)).sum())


def log_sum(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """log of the weighted sum of exp(values)."""
    top = float(values.max())
    terms = np.exp(values - top)
    return top + math.log(float(terms.sum() if weights is None else terms @ weights))


def _face(reach: np.ndarray, axis: int, side: int, sign: float) -> np.ndarray:
    """Points all over one face of the box."""
    lines = [np.linspace(-low, high, 25) for low, high in reach]
    lines[axis] = np.asarray([sign * reach[axis, side]])
    return np.stack([x.ravel() for x in np.meshgrid(*lines, indexing="ij")], axis=1)


def importance_truth(
    posterior: LinearPosterior, mean: np.ndarray, covariance: np.ndarray, draws: int, seed: int
) -> Truth:
    """By draws of q, or of a Student law with heavier tails where those of q are too light.

    With h = log p(y, z) - log q(z) - ELBO, of mean zero under q, KL = log(1 + E[e^h - 1 - h]): the ELBO is known, so
    that what is noisy is of the order of the KL and not of its root.
    """
    elbo, root, dim = posterior.elbo(mean, covariance), np.linalg.cholesky(covariance), len(mean)
    rng, step = np.random.default_rng(seed), max(_ROWS_AT_ONCE // max(len(posterior.response), dim), 16)
    log_det, logs = np.log(np.diagonal(root)).sum() + 0.5 * dim * math.log(2 * math.pi), []
    for start in range(0, draws, step):
        u = rng.standard_normal((min(step, draws - start), dim))
        logs.append(posterior.log_joint(mean + u @ root.T) + 0.5 * np.sum(u**2, axis=1) + log_det)
    h = np.concatenate(logs) - elbo
    with np.errstate(over="ignore"):
        rest = np.expm1(h) - h
    total, tail = 1 + rest.mean(), pareto_shape(h)
    if np.isfinite(total) and tail <= LARGEST_K:
        error = rest.std() / math.sqrt(draws) / total
        return Truth(math.log(total), elbo + math.log(total), float(error), "importance sampling")
    return _student_truth(posterior, mean, root, elbo, draws, rng, step)


def _student_truth(
    posterior: LinearPosterior,
    mean: np.ndarray,
    root: np.ndarray,
    elbo: float,
    draws: int,
    rng: np.random.Generator,
    step: int,
) -> Truth:
    best, dim = None, len(mean)
    for scale, degrees in ((1.1, 20.0), (1.2, 8.0), (1.4, 5.0)):
        constant = special.gammaln((degrees + dim) / 2) - special.gammaln(degrees / 2)
        constant -= 0.5 * dim * math.log(degrees * math.pi) + dim * math.log(scale) + np.log(np.diagonal(root)).sum()
        logs = []
        for start in range(0, draws, step):
            count = min(step, draws - start)
            t = rng.standard_normal((count, dim)) / np.sqrt(rng.chisquare(degrees, count) / degrees)[:, None]
            density = constant - 0.5 * (degrees + dim) * np.log1p(np.sum(t**2, axis=1) / degrees)
            logs.append(posterior.log_joint(mean + scale * t @ root.T) - density)
        values = np.concatenate(logs)
        weights = np.exp(values - values.max())
        tail, error = pareto_shape(values), float(weights.std() / weights.mean() / math.sqrt(draws))
        if best is None or error < best[0]:
            best = (error, float(values.max() + math.log(weights.mean())), tail)
    assert best is not None
    error, evidence, tail = best
    return Truth(evidence - elbo, evidence, error, f"importance sampling, t, k = {tail:.2f}", tail <= LARGEST_K)


def pareto_shape(log_weights: np.ndarray) -> float:
    """k-hat of the largest 3 sqrt(n) weights: the posterior mean of Zhang and Stephens (2009)."""
    count = math.ceil(3 * math.sqrt(len(log_weights)))
    largest = np.sort(log_weights[np.isfinite(log_weights)])[-count - 1 :]
    if len(largest) < 20 or np.ptp(largest) < 1e-12:
        return -math.inf
    x = np.exp(largest[1:] - largest[-1]) - math.exp(largest[0] - largest[-1])
    x, n = np.maximum(x, 1e-300), len(largest) - 1
    m = 30 + int(math.sqrt(n))
    theta = 1 / x[-1] + (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * x[n // 4])
    k = np.mean(np.log1p(-theta[:, None] * x[None, :]), axis=1)
    fit = n * (np.log(-theta / k) - k - 1)
    weights = np.exp(fit - log_sum(fit))
    best = float(np.sum(theta * weights))
    # Shrunk towards 0.5 by ten observations, as in PSIS.
    return (float(np.mean(np.log1p(-best * x))) * n + 5) / (n + 10)


def truth(
    posterior: LinearPosterior,
    mean: np.ndarray,
    covariance: np.ndarray,
    draws: int = 200_000,
    seed: int = 0,
    proposal: tuple[np.ndarray, np.ndarray] | None = None,
) -> Truth:
    """By the most exact way there is for this dimension; `proposal`: mean and covariance of a better Gaussian."""
    mean, covariance = np.asarray(mean, np.float64), np.asarray(covariance, np.float64)
    dim, terms = len(mean), len(posterior.response)
    if posterior.link == "gaussian" or dim <= 3:
        elbo, error = posterior.elbo(mean, covariance), 0.0
        if posterior.link == "gaussian":
            evidence, how = posterior.exact_log_evidence(), "closed form"
        elif dim == 1:
            evidence, how = line_log_evidence(posterior), "quadrature"
        else:
            panels = min(int((_GRID_WORK / terms) ** (1 / dim) / len(_NODES)), 80)
            evidence, how = grid_log_evidence(posterior, panels), "quadrature"
            error = 3 * abs(evidence - grid_log_evidence(posterior, 3 * panels // 4))
        error += 1e-12 * (abs(evidence) + terms) + 1e-10
        return Truth(evidence - elbo, evidence, error, how, error < max(1e-6, 0.01 * (evidence - elbo)))
    if proposal is None:
        return importance_truth(posterior, mean, covariance, draws, seed)
    found = importance_truth(posterior, *proposal, draws, seed)
    return dataclasses.replace(found, kl=found.log_evidence - posterior.elbo(mean, covariance))


def log_sobolev(posterior: LinearPosterior, mean: np.ndarray, covariance: np.ndarray, seed: int = 0) -> float:
    r"""The old bound, $\tfrac12E_q|\nabla\log q - \nabla\log p|^2$ in the prior's covariance: 256 antithetic draws."""
    root, rng = np.linalg.cholesky(covariance), np.random.default_rng(seed)
    half = rng.standard_normal((128, len(mean)))
    u = np.concatenate([half, -half])
    away = -linalg.solve_triangular(root, u.T, lower=True, trans=1).T - posterior.gradient(mean + u @ root.T)
    with np.errstate(over="ignore"):
        return float(0.5 * np.mean(np.sum((away @ posterior.prior_factor) ** 2, axis=1)))
