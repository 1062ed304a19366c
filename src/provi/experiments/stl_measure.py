"""Replicated runs of Proj-SGD on a Gaussian target, with either estimator of the gradient."""

import dataclasses
from typing import Any

import numpy as np

from provi.algorithms import ProjSGD
from provi.core.tree import squared_norm, subtract
from provi.diagnostics.optimum import linear_model_optimum
from provi.estimators import StickingTheLanding
from provi.experiments.rates_measure import squared_distances
from provi.experiments.replicates import replicate
from provi.experiments.report import Row
from provi.experiments.slopes import Slope, log_slope
from provi.families.location_scale import Gaussian as GaussianFamily
from provi.targets.gaussian import Gaussian
from provi.theory import noise, proj_sgd_strongly_convex

CONDITION = 3.0
ROUNDING = 1e-20
"""Where, relative to the start, fits of the linear rate end: float64 leaves about 1e-29."""


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs of one estimator at `multiple` times the corollary's largest step.

    At that step itself there is a bound: Corollary 14's for sticking the landing, Theorem 10's for entropy.
    """

    estimator: str
    multiple: int
    step_size: float
    steps: np.ndarray
    errors: np.ndarray
    bound: np.ndarray | None

    @property
    def mean(self) -> np.ndarray:
        return self.errors.mean(axis=0)

    def rows(self) -> list[Row]:
        return [
            {
                "estimator": self.estimator,
                "multiple": self.multiple,
                "step_size": self.step_size,
                "step": int(self.steps[i]),
                "mean": float(self.mean[i]),
                "bound": float("nan") if self.bound is None else float(self.bound[i]),
            }
            for i in range(len(self.steps))
        ]

    def exponent(self, seed: int) -> Slope:
        """The change of the log mean error per step: of the fall above rounding; for entropy, at the end."""
        mean, start = self.mean, len(self.steps) // (2 if self.estimator == "entropy" else 8)
        fitted = (mean > ROUNDING * mean[0]) & (np.arange(len(mean)) >= start)
        return log_slope(self.steps[fitted], self.errors[:, fitted], seed)


def gaussian_target(dim: int, seed: int) -> Gaussian:
    """A Gaussian with precision eigenvalues from 1 to 3 in a random basis."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    precision = (basis * np.geomspace(1, CONDITION, dim)[None, :]) @ basis.T
    return Gaussian(generator.normal(size=dim), precision=(precision + precision.T) / 2)


def curvatures(target: Gaussian) -> tuple[float, float]:
    """mu and M."""
    constants = target.constants
    return float(constants.strong_convexity.value), float(constants.smoothness.value)  # pyright: ignore


def measure(target: Gaussian, estimator: Any, multiple: int, replicates: int, folds: float, seed: int) -> Runs:
    """Runs until the sharp rate 2 gamma mu of the mean has gone through `folds` factors of e."""
    mu, smoothness = curvatures(target)
    family = GaussianFamily(target.dim, "symmetric")
    optimum = linear_model_optimum(target, family)
    start = family.point(np.asarray(optimum.point.loc) + 1.0, smoothness**-0.5)
    initial = float(squared_norm(subtract(start, optimum.point)))
    own = noise.stl_noise(dim=target.dim, smoothness=smoothness, residual_smoothness=0.0)
    largest = proj_sgd_strongly_convex.largest_constant_step_size(mu, own.slope)
    step_size = multiple * largest
    steps = np.unique(np.round(np.linspace(0, folds / (2 * step_size * mu), 41)).astype(int))
    recorded = replicate(
        ProjSGD(step_size=step_size, estimator=estimator),
        target,
        family,
        start,
        seed=seed,
        num_replicates=replicates,
        record_steps=steps,
    )
    errors = np.asarray(squared_distances(recorded.iterates, optimum.point))
    bound = _bound(target, estimator, steps, step_size, initial) if multiple == 1 else None
    return Runs(estimator.name, multiple, step_size, steps, errors, bound)


def _bound(target: Gaussian, estimator: Any, steps: np.ndarray, step_size: float, initial: float) -> np.ndarray:
    mu, smoothness = curvatures(target)
    if isinstance(estimator, StickingTheLanding):
        return np.asarray(
            proj_sgd_strongly_convex.gaussian_target_bound(steps, step_size, initial, mu, smoothness, target.dim)
        )
    # The mode is m*, so the distance from (mode, 0) to w* is |C*|.
    reference = float(np.trace(target.exact_posterior()[1]))
    entropy = noise.entropy_noise(dim=target.dim, smoothness=smoothness, reference_distance_squared=reference)
    return np.asarray(proj_sgd_strongly_convex.constant_step_bound(steps, step_size, initial, mu, entropy))
