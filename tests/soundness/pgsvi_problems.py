"""Problems for PG-SVI whose alpha, L, optimum and noise are known, with their proximal steps written by hand."""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import optimize
from scipy.special import expit, logit, xlogy


@dataclasses.dataclass(frozen=True)
class Problem:
    """min f + h; everything acts on (replicates, dim). `noise` draws errors of variance `variance` in all."""

    f: Callable
    gradient: Callable
    h: Callable
    step: Callable  # (w, g, beta) -> argmin <w, g> + h + D/beta
    divergence_gradient: Callable  # grad_1 D(new || old)
    start: np.ndarray
    alpha: float
    smoothness: float
    optimum: float
    noise: Callable
    variance: float

    def objective(self, w):
        return self.f(w) + self.h(w)


def _sphere(rng, shape, radius):
    """Independent errors of length `radius`: mean 0, variance radius^2, bounded."""
    raw = rng.normal(size=shape)
    return radius * raw / np.linalg.norm(raw, axis=-1, keepdims=True)


def _zero(w):
    return np.zeros(w.shape[:-1])


def quadratic(penalty):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    hessian, centre = root @ root.T + 0.1 * np.eye(4), rng.normal(size=4)
    smoothness = np.linalg.eigvalsh(hessian)[-1]

    def gradient(w):
        return (w - centre) @ hessian

    def shrink(w, g, beta):
        moved = w - beta * g
        return np.sign(moved) * np.maximum(np.abs(moved) - beta * penalty, 0)

    def objective(w):
        return 0.5 * np.sum((w - centre) * gradient(w), -1) + penalty * np.abs(w).sum(-1)

    best = centre[None]
    for _ in range(3000):  # the condition number is below 200: converged to rounding
        best = shrink(best, gradient(best), 1 / smoothness)
    return Problem(
        f=lambda w: 0.5 * np.sum((w - centre) * gradient(w), -1),
        gradient=gradient,
        h=lambda w: penalty * np.abs(w).sum(-1),
        step=shrink,
        divergence_gradient=lambda new, old: new - old,
        start=centre + 3.0,
        alpha=1.0,
        smoothness=smoothness,
        optimum=float(objective(best)[0]),
        noise=lambda rng, shape: _sphere(rng, shape, 1.5),
        variance=1.5**2,
    )


def wells():
    """Not convex: f = sum u^2/(1+u^2), u = w - c, second derivative in [-1/2, 2]; h = l1."""
    centre, penalty = np.array([1.5, -0.4, 2.5]), 0.15
    line = np.linspace(-1, 4, 200001)
    least = [
        np.min((s * line - c) ** 2 / (1 + (s * line - c) ** 2) + penalty * np.abs(line))
        for s, c in zip(np.sign(centre), centre, strict=True)
    ]
    base = quadratic(penalty)
    return dataclasses.replace(
        base,
        f=lambda w: np.sum((w - centre) ** 2 / (1 + (w - centre) ** 2), -1),
        gradient=lambda w: 2 * (w - centre) / (1 + (w - centre) ** 2) ** 2,
        start=np.array([-1.0, 1.0, 5.0]),
        smoothness=2.0,
        optimum=sum(least) - 1e-8,
        noise=lambda rng, shape: _sphere(rng, shape, 0.3),
        variance=0.3**2,
    )


def bernoulli(alpha):
    """Mean parameters, KL, h = 0, f = sum cos(5 p)/25 + p/20: L = 1, not convex. Papers: alpha = 2; tight: 4."""
    line = np.linspace(0, 1, 200001)
    return Problem(
        f=lambda p: np.sum(np.cos(5 * p) / 25 + p / 20, -1),
        gradient=lambda p: -np.sin(5 * p) / 5 + 1 / 20,
        h=_zero,
        step=lambda p, g, beta: expit(logit(p) - beta * g),
        divergence_gradient=lambda new, old: logit(new) - logit(old),
        start=np.array([0.05, 0.3, 0.93]),
        alpha=alpha,
        smoothness=1.0,
        optimum=3 * float(np.min(np.cos(5 * line) / 25 + line / 20)) - 1e-9,
        noise=lambda rng, shape: _sphere(rng, shape, 0.2),
        variance=0.2**2,
    )


def simplex(prior):
    """Categorical in all its K mean parameters, KL, f = (p-c)'Q(p-c)/2; h = 0, or KL to a prior. alpha = 2."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(5, 5))
    curvature, centre = root @ root.T, np.array([0.1, 0.3, 0.2, 0.15, 0.25])
    log_prior = np.log([0.5, 0.2, 0.1, 0.1, 0.1])

    def gradient(p):
        return (p - centre) @ curvature

    def step(p, g, beta):
        log_new = (np.log(p) - beta * g + beta * log_prior) / (1 + beta) if prior else np.log(p) - beta * g
        log_new = log_new - log_new.max(-1, keepdims=True)
        return np.exp(log_new) / np.exp(log_new).sum(-1, keepdims=True)

    def h(p):
        return np.sum(xlogy(p, p) - p * log_prior, -1) if prior else _zero(p)

    smoothness = np.linalg.eigvalsh(curvature)[-1]
    best = centre[None]
    for _ in range(3000):
        best = step(best, gradient(best), 2 / smoothness)
    return Problem(
        f=lambda p: 0.5 * np.sum((p - centre) * gradient(p), -1),
        gradient=gradient,
        h=h,
        step=step,
        divergence_gradient=lambda new, old: np.log(new) - np.log(old),
        start=np.array([0.9, 0.025, 0.025, 0.025, 0.025]),
        alpha=2.0,
        smoothness=smoothness,
        optimum=float(0.5 * np.sum((best - centre) * gradient(best)) + h(best)[0]),
        noise=lambda rng, shape: _sphere(rng, shape, 0.5),
        variance=0.5**2,
    )


def gaussian():
    """(m, v), KL, h = KL to N(1, v0), f = A E cos z = A cos(m) exp(-v/2): its Hessian is at most A.

    1/v+ = r/v + (1-r)(1/v0 + 2 df/dv) and |2 df/dv| <= A keep 1/v >= tau = 1/v0 - A - noise. alpha = min(tau, tau^2/2).
    """
    amplitude, variance0, mean0, error = 0.6, 0.8, 1.0, 0.1
    tau = 1 / variance0 - amplitude - 2 * error

    def f(w):
        return amplitude * np.cos(w[..., 0]) * np.exp(-w[..., 1] / 2)

    def gradient(w):
        m, v = w[..., 0], w[..., 1]
        return -amplitude * np.exp(-v / 2)[..., None] * np.stack([np.sin(m), np.cos(m) / 2], -1)

    def h(w):
        m, v = w[..., 0], w[..., 1]
        return 0.5 * ((v + (m - mean0) ** 2) / variance0 - 1 - np.log(v / variance0))

    def step(w, g, beta):
        m, v = w[..., 0], w[..., 1]
        precision = (1 / v + beta * (1 / variance0 + 2 * g[..., 1])) / (1 + beta)
        mean = (m / v + beta * (mean0 / variance0 - g[..., 0])) / (1 / v + beta / variance0)
        return np.stack([mean, 1 / precision], -1)

    def divergence_gradient(new, old):
        inverse = 1 / old[..., 1]
        return np.stack([(new[..., 0] - old[..., 0]) * inverse, 0.5 * (inverse - 1 / new[..., 1])], -1)

    brute = [
        optimize.minimize(
            lambda x: f(np.array([x[0], np.exp(x[1])])) + h(np.array([x[0], np.exp(x[1])])),
            [m, s],
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13},
        ).fun
        for m in (-2.0, 0.0, 2.0, 4.0)
        for s in (-2.0, 0.5)
    ]
    return Problem(
        f=f,
        gradient=gradient,
        h=h,
        step=step,
        divergence_gradient=divergence_gradient,
        start=np.array([-2.0, 0.1]),
        alpha=min(tau, tau**2 / 2),
        smoothness=amplitude,
        optimum=min(brute),
        noise=lambda rng, shape: _sphere(rng, shape, error),
        variance=error**2,
    )


PROBLEMS = {
    "quadratic": lambda: quadratic(0.0),
    "quadratic, l1": lambda: quadratic(0.7),
    "wells, l1": wells,
    "Bernoulli, papers' alpha": lambda: bernoulli(2.0),
    "Bernoulli, tight alpha": lambda: bernoulli(4.0),
    "simplex": lambda: simplex(False),
    "simplex, prior": lambda: simplex(True),
    "Gaussian": gaussian,
}
