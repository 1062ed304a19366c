"""The Gaussian-process problems of the benchmarks: three data sets with the papers' kernels, one large made-up set."""

import math
from collections.abc import Callable

import numpy as np

from provi.bench.gp_problem import GPProblem, SparseGPProblem
from provi.data.loaders import load


def ionosphere() -> GPProblem:
    """280 points: log l = 1, log sigma = 2.5, jitter 1e-2."""
    return _published("Ionosphere", "ionosphere", 1.0, 2.5, 1e-2)


def sonar() -> GPProblem:
    """165 points: log l = -1, log sigma = 6, jitter 1e-4."""
    return _published("Sonar", "sonar", -1.0, 6.0, 1e-4)


def usps() -> GPProblem:
    """884 points, digits 2 and 4 (the papers' "3 v 5"): log l = 2.5, log sigma = 5, jitter 1e-4."""
    return _published("USPS 2 v 4", "usps_2v4_paper", 2.5, 5.0, 1e-4)


def synthetic(
    terms: int = 100_000, test_terms: int = 10_000, num_inducing: int = 500, seed: int = 0
) -> SparseGPProblem:
    """Eight standard normal columns, labels from a smooth and not additive log odds; inducing points are data."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(terms + test_terms, 8))
    first, second, third, fourth, fifth = inputs.T[:5]
    log_odds = 2 * np.sin(first + 0.5 * second * third) + fourth * np.tanh(fifth) + 0.5 * (second**2 - 1)
    response = (rng.random(len(inputs)) < 1 / (1 + np.exp(-1.5 * log_odds))).astype(float)
    inducing = inputs[rng.choice(terms, num_inducing, replace=False)]
    train, test = slice(terms), slice(terms, None)
    return SparseGPProblem(
        f"synthetic {terms} x 8, {num_inducing} inducing points",
        inputs[train],
        response[train],
        inputs[test],
        response[test],
        inducing,
        length_scale=3.0,
        amplitude=4.0,
        jitter=1e-6,
        batch=min(1000, terms),
    )


GP_PROBLEMS: dict[str, Callable[[], GPProblem]] = {"ionosphere": ionosphere, "sonar": sonar, "usps-2v4": usps}
SPARSE_PROBLEMS: dict[str, Callable[[], SparseGPProblem]] = {"synthetic": synthetic}


def _published(name: str, data: str, log_length: float, log_amplitude: float, jitter: float) -> GPProblem:
    table = load(data).table("train")
    inputs, response = np.asarray(table.features, float), np.asarray(table.response, float)
    return GPProblem(name, inputs, response, math.exp(log_length), math.exp(log_amplitude), jitter)
