"""The likelihoods of the laws, their densities and slopes in SciPy, and Gaussian means by Gauss-Legendre panels."""

import numpy as np
from scipy import special, stats

from laws.members import LIKELIHOODS
from support.members import quick_jit

MEMBERS = {name: row.make(1.0) for name, row in LIKELIHOODS.items()}
RESPONSES = {name: list(row.responses) for name, row in LIKELIHOODS.items()}
WIDTH = {"t": 0.5, "cauchy": 0.05, "binomial": 1.5, "wide binomial": 1.5, "log-normal": 0.8}
COUNTS = ("poisson", "binomial", "wide binomial")
LOCATIONS = ("gaussian", "t", "cauchy", "user")
LABELS = ("logit", "probit", "share", "probit share")
GRADES = {"ordinal": np.array([-1.0, 0.5, 3.0]), "wide ordinal": np.array([-4.0, 4.0])}
TIMES = ("weibull", "log-normal")
EXPONENTIAL = ("poisson", "weibull")
"""E exp(eta) overflows early."""
SIZE = 20
NODES, PANEL_WEIGHTS = np.polynomial.legendre.leggauss(40)


@quick_jit
def everything(likelihood, mean, variance, y):
    """Moments, their errors and the log predictive: one compiled function a class."""
    triple = mean, variance, y
    return likelihood.moments(*triple), likelihood.moment_errors(*triple), likelihood.log_predictive(*triple)


def log_density(name, eta, y):
    """log p(y | eta) in SciPy."""
    match name:
        case "logit":
            return special.log_expit((2 * y - 1) * eta)
        case "probit":
            return special.log_ndtr((2 * y - 1) * eta)
        case "poisson":
            return stats.poisson.logpmf(y, np.exp(eta))
        case "gaussian":
            return stats.norm.logpdf(y, eta, 0.7)
        case "t" | "cauchy":
            df, scale = (4.0, 0.5) if name == "t" else (1.0, 0.1)
            return stats.t.logpdf(y, df, eta, scale)
        case "user":
            return stats.logistic.logpdf(y, eta)
        case "share":
            return y * special.log_expit(eta) + (1 - y) * special.log_expit(-eta)
        case "probit share":
            return y * special.log_ndtr(eta) + (1 - y) * special.log_ndtr(-eta)
        case "ordinal" | "wide ordinal":
            lower, upper = (cut - eta for cut in cuts_around(name, y))
            # The difference of two distribution functions, or of two survival functions, whichever are small.
            left = stats.logistic.logcdf(upper), stats.logistic.logcdf(lower)
            right = stats.logistic.logsf(lower), stats.logistic.logsf(upper)
            large, small = np.where(lower + upper > 0, right, left)
            return large + np.log1p(-np.exp(small - large))
        case "weibull":
            law = stats.weibull_min(1.5, scale=np.exp(-eta / 1.5))
            return np.where(y > 0, law.logpdf(np.abs(y)), law.logsf(np.abs(y)))
        case "log-normal":
            z = (np.log(np.abs(y)) - eta) / 0.8
            return np.where(y > 0, stats.norm.logpdf(z) - np.log(0.8 * np.abs(y)), stats.norm.logsf(z))
        case _:
            r = 0.3 if name == "binomial" else 20.0
            x = eta - np.log(r)
            constant = special.gammaln(y + r) - special.gammaln(r) - special.gammaln(y + 1)
            return constant + y * special.log_expit(x) + r * special.log_expit(-x)


def slope(name, eta, y):
    """The derivative of -log p in eta."""
    sign = 2 * y - 1
    match name:
        case "logit":
            return -sign * special.expit(-sign * eta)
        case "probit":
            return -sign * np.sqrt(2 / np.pi) / special.erfcx(-sign * eta / np.sqrt(2))
        case "poisson":
            return np.exp(eta) - y
        case "gaussian":
            return (eta - y) / 0.49
        case "t" | "cauchy":
            df, scale = (4.0, 0.5) if name == "t" else (1.0, 0.1)
            return (df + 1) * (eta - y) / (df * scale**2 + (eta - y) ** 2)
        case "user":
            return np.tanh((eta - y) / 2)
        case "share":
            return special.expit(eta) - y
        case "probit share":
            up, down = (np.sqrt(2 / np.pi) / special.erfcx(-sign * eta / np.sqrt(2)) for sign in (1, -1))
            return (1 - y) * down - y * up
        case "ordinal" | "wide ordinal":
            lower, upper = cuts_around(name, y)
            return special.expit(eta - upper) - special.expit(lower - eta)
        case "weibull":
            return np.abs(y) ** 1.5 * np.exp(eta) - (y > 0)
        case "log-normal":
            z = (eta - np.log(np.abs(y))) / 0.8
            return np.where(y > 0, z, -np.sqrt(2 / np.pi) / special.erfcx(-z / np.sqrt(2))) / 0.8
        case _:
            r = 0.3 if name == "binomial" else 20.0
            x = eta - np.log(r)
            return r * special.expit(x) - y * special.expit(-x)


def cuts_around(name, y):
    """The cut points below and above grades, infinite where there is none."""
    cuts, grade = np.r_[-np.inf, GRADES[name], np.inf], np.asarray(y).astype(int)
    return cuts[grade], cuts[grade + 1]


def grid(name, largest=100.0):
    """Means, deviations up to `largest` widths and responses; the mean near the bend or a few deviations off."""
    rng = np.random.default_rng(0)
    width, largest = WIDTH.get(name, 1.0), 3.0 if name in EXPONENTIAL else largest
    deviation = width * np.r_[0.01, largest, np.exp(rng.uniform(np.log(0.01), np.log(largest), SIZE - 2))]
    y = rng.choice(RESPONSES[name], SIZE)
    centre = bend(name, y)[0] * np.ones(SIZE)
    off = rng.uniform(-3, 3, SIZE) * np.where(rng.random(SIZE) < 0.5, width, deviation)
    return centre + off, deviation, y


def bend(name, y):
    """Where the potential bends, and over which width."""
    logs = {"weibull": -1.5, "log-normal": 1.0}
    centre = logs[name] * np.log(np.abs(y)) if name in TIMES else y if name in LOCATIONS else 0.0
    return centre, WIDTH.get(name, 1.0)


def gaussian_mean(function, mean, deviation, around, width):
    """E function(eta) for eta ~ N(mean, deviation^2): 40 Gauss-Legendre nodes on panels that grow with the distance."""
    ends = mean + deviation * np.array([-12.0, 12.0])
    steps = np.r_[0.0, 0.5 * 2.0 ** np.arange(14)]
    breaks = np.concatenate([around + width * steps, around - width * steps, mean + deviation * np.arange(-12, 13)])
    edges = np.unique(np.clip(breaks, *ends))
    half = np.diff(edges)[:, None] / 2
    eta = (edges[:-1, None] + half * (1 + NODES)).ravel()
    shares = (half * PANEL_WEIGHTS).ravel() * stats.norm.pdf(eta, mean, deviation)
    return function(eta) @ shares
