"""Small linear models and the objective's gradient at a Gaussian, written in NumPy apart from the library."""

import numpy as np
from scipy import special

from provi.targets import LinearRegression, LogisticRegression, PoissonRegression, ProbitRegression

TERMS, DIM, NOISE = 30, 3, 0.7
KINDS = ("linear", "logistic", "poisson", "probit")
PRIOR_MEAN = np.array([0.3, -0.2, 0.1])
PRIOR_COVARIANCE = np.array([[1.3, 0.4, -0.3], [0.4, 0.9, 0.1], [-0.3, 0.1, 0.6]])

# 4001 nodes: 0.0065 apart, far below the width of every link at the spreads of these tests (at most 10).
NODES = np.linspace(-13.0, 13.0, 4001)
WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()


def linear_model(kind, terms=TERMS, dim=DIM, seed=0, dtype=np.float64, **prior):
    """A model with data drawn from it; N(PRIOR_MEAN, PRIOR_COVARIANCE) unless `prior` says otherwise."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(terms, dim)).astype(dtype)
    eta = design @ np.linspace(-1, 1, dim)
    if not prior and dim == DIM:
        prior = {"prior_mean": PRIOR_MEAN, "prior_covariance": PRIOR_COVARIANCE}
    match kind:
        case "linear":
            return LinearRegression(design, (eta + NOISE * rng.normal(size=terms)).astype(dtype), NOISE, **prior)
        case "logistic":
            return LogisticRegression(design, (rng.random(terms) < special.expit(eta)).astype(int), **prior)
        case "probit":
            return ProbitRegression(design, (rng.random(terms) < special.ndtr(eta)).astype(int), **prior)
        case _:
            return PoissonRegression(design, rng.poisson(np.exp(eta)), **prior)


def kind_of(target):
    return type(target).__name__.removesuffix("Regression").lower()


def link(kind, eta, y):
    """The link potential without its constant, and its first derivative."""
    sign = 2 * y - 1
    match kind:
        case "linear":
            return 0.5 * ((eta - y) / NOISE) ** 2, (eta - y) / NOISE**2
        case "logistic":
            return np.logaddexp(0.0, -sign * eta), -sign * special.expit(-sign * eta)
        case "probit":
            hazard = np.sqrt(2 / np.pi) / special.erfcx(-sign * eta / np.sqrt(2))
            return -special.log_ndtr(sign * eta), -sign * hazard
        case _:
            return np.exp(eta) - y * eta, np.exp(eta) - y


def moments(target, loc, covariance):
    """E l, E l' and E l'' = E[l' t]/s of every row under N(loc, covariance)."""
    design, response = np.asarray(target.design, float), np.asarray(target.response, float)
    centre = design @ loc
    spread = np.sqrt(np.einsum("ni,ij,nj->n", design, covariance, design))
    eta = centre[:, None] + spread[:, None] * NODES
    value, slope = link(kind_of(target), eta, response[:, None])
    return value @ WEIGHTS, slope @ WEIGHTS, (slope @ (NODES * WEIGHTS)) / spread


def gradients(target, loc, covariance):
    """The gradient in the mean, and P = L_0 + X' diag(E l'') X, the precision of the best Gaussian at its own place."""
    _, slope, weight = moments(target, loc, covariance)
    design, prior = np.asarray(target.design, float), target.prior.precision_matrix()
    gradient = prior @ (loc - np.asarray(target.prior.mean, float)) + design.T @ slope
    return gradient, prior + design.T @ (weight[:, None] * design)


def objective(target, loc, covariance):
    """The negative ELBO up to a constant that does not depend on (loc, covariance)."""
    value, _, _ = moments(target, loc, covariance)
    prior, away = target.prior.precision_matrix(), loc - np.asarray(target.prior.mean, float)
    energy = value.sum() + 0.5 * away @ prior @ away + 0.5 * np.trace(prior @ covariance)
    return energy - 0.5 * np.linalg.slogdet(covariance)[1]


def check_stationary(target, point, atol, diagonal=False):
    """Both gradients vanish in the coordinates whitened by q: the optimum, because the objective is convex."""
    covariance = np.asarray(point.scale.covariance(), float)
    gradient, wanted = gradients(target, np.asarray(point.loc, float), covariance)
    root = np.linalg.cholesky(covariance)
    residual = root.T @ wanted @ root - np.eye(len(root))
    np.testing.assert_allclose(root.T @ gradient, 0.0, atol=atol)
    np.testing.assert_allclose(np.diagonal(residual) if diagonal else residual, 0.0, atol=atol)


def best_gaussian(target, diagonal=False):
    """Mean and covariance of the best Gaussian: the damped fixed point of `gradients`, in NumPy."""
    loc = np.asarray(target.prior.mean, float)
    precision = gradients(target, loc, 1e-8 * np.eye(len(loc)))[1]
    precision = np.diag(np.diagonal(precision)) if diagonal else precision
    rate, value = 1.0, objective(target, loc, np.linalg.inv(precision))
    for _ in range(500):
        covariance = np.linalg.inv(precision)
        gradient, wanted = gradients(target, loc, covariance)
        goal = np.diag(np.diagonal(wanted)) if diagonal else wanted
        residual = np.linalg.cholesky(covariance).T @ np.c_[gradient, goal - precision]
        if np.abs(residual).max() < 1e-11 * (1 + np.abs(precision).max()):
            break
        new = precision + rate * (goal - precision)
        moved = loc - rate * np.linalg.solve(wanted if diagonal else new, gradient)
        trial = objective(target, moved, np.linalg.inv(new))
        if trial <= value + 1e-13 * abs(value):
            loc, precision, value, rate = moved, new, trial, min(1.0, 2 * rate)
        else:
            rate /= 2
    covariance = np.linalg.inv(precision)
    return loc, (covariance + covariance.T) / 2
