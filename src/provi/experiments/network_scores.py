"""How well trained networks predict: scores on the test images, and entropies when these are turned."""

from typing import Any

import jax
import numpy as np

from provi.algorithms.incremental.network_surrogate import NetworkPoint, NetworkSurrogate
from provi.experiments.network_curves import Curve
from provi.experiments.network_problem import Problem
from provi.experiments.report import Row
from provi.models.network.metrics import accuracy, entropy, expected_calibration_error, negative_log_likelihood
from provi.models.network.plots import rotate
from provi.models.network.predictive import predict_draws

NUM_DRAWS = 16
"""Draws of the weights behind a predictive distribution."""

ANGLES = tuple(range(0, 91, 15))
NUM_TURNED = 2000
"""Test images that are turned, the first ones."""


def score(problem: Problem, surrogate: NetworkSurrogate, curve: Curve, points: NetworkPoint) -> list[Row]:
    """Accuracy, negative log-likelihood and calibration error of each seed; `points` has a leading axis of seeds."""
    rows = []
    for seed, point in zip(curve.seeds, _separate(points), strict=True):
        found = predictive(problem, surrogate, point, problem.test_images)
        rows.append(
            {
                "posterior": curve.posterior,
                "method": curve.method,
                "rate": curve.rate,
                "seed": seed,
                "accuracy": accuracy(found, problem.test_labels),
                "test_nll": negative_log_likelihood(found, problem.test_labels),
                "calibration_error": expected_calibration_error(found, problem.test_labels),
                "median_sd": float(np.median(np.asarray(surrogate.sd(point)))),
            }
        )
    return rows


def turn(problem: Problem, surrogate: NetworkSurrogate, curve: Curve, points: NetworkPoint) -> list[Row]:
    """Quantiles of the predictive entropy and the accuracy on turned test images, for the first seed, by angle."""
    point, rows = _separate(points)[0], []
    for angle in ANGLES:
        images = rotate(problem.test_images[:NUM_TURNED], angle)
        found = predictive(problem, surrogate, point, images)
        low, middle, high = np.quantile(entropy(found), (0.1, 0.5, 0.9))
        rows.append(
            {
                "posterior": curve.posterior,
                "method": curve.method,
                "degrees": angle,
                "entropy_10": float(low),
                "entropy_50": float(middle),
                "entropy_90": float(high),
                "mean_entropy": float(entropy(found).mean()),
                "accuracy": accuracy(found, problem.test_labels[: len(images)]),
            }
        )
    return rows


def predictive(problem: Problem, surrogate: NetworkSurrogate, point: NetworkPoint, images: np.ndarray) -> np.ndarray:
    """The mean of the class probabilities over draws of the weights, (n, classes)."""
    draws = predict_draws(problem.target, point.mean, surrogate.sd(point), images, jax.random.key(0), NUM_DRAWS)
    return draws.mean(axis=0, dtype=np.float64)


def _separate(points: Any) -> list[Any]:
    count = len(points.mean)
    return [jax.tree.map(lambda x, k=k: np.asarray(x)[k], points) for k in range(count)]
