"""Paper 003, Corollary 14: sticking the landing converges linearly on a Gaussian target; entropy stalls."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from provi.algorithms import ProjSGD
from provi.core.precision import double_precision
from provi.core.tree import squared_norm, subtract
from provi.diagnostics.optimum import linear_model_optimum
from provi.estimators import Entropy, StickingTheLanding
from provi.experiments.rates_measure import squared_distances
from provi.experiments.replicates import replicate
from provi.experiments.report import Claim, Report, Row, finish, write_rows
from provi.experiments.slopes import Slope, log_slope
from provi.experiments.stl_picture import draw
from provi.families import Gaussian as GaussianFamily
from provi.report.style import save_figure
from provi.targets.gaussian import Gaussian
from provi.theory import noise, proj_sgd_strongly_convex

NAME = "stl-gaussian"
_CONDITION = 3.0
_ROUNDING = 1e-20
"""Where, relative to the start, fits of the linear rate end: float64 leaves about 1e-29."""


@dataclasses.dataclass(frozen=True)
class Stalling:
    """Runs of one estimator at `multiple` times the corollary's largest step."""

    estimator: str
    multiple: int
    step_size: float
    steps: np.ndarray
    errors: np.ndarray
    bound: np.ndarray | None

    @property
    def mean(self) -> np.ndarray:
        return self.errors.mean(axis=0)


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes d = 3 and 20 replicates instead of 10 and 32."""
    began, output = time.monotonic(), Path(output)
    dim, replicates, folds = (3, 20, 25.0) if quick else (10, 32, 64.0)
    target = _target(dim, seed)
    results = [
        _measure(target, estimator, multiple, replicates, folds, seed)
        for estimator in (StickingTheLanding(), Entropy())
        for multiple in (1, 10, 100)
    ]
    slopes = [_slope(result, seed) for result in results]
    rows = [row for result in results for row in _records(result)]
    mu = _constants(target)[0]
    files = (save_figure(draw(results, mu), output / f"{NAME}.png"), write_rows(output / f"{NAME}.csv", rows))
    report = Report(
        NAME,
        "Paper 003, Corollary 14: sticking the landing on a Gaussian target",
        _setting(target, replicates),
        tuple(_row(result, slope, mu) for result, slope in zip(results, slopes, strict=True)),
        _claims(results, slopes, mu),
        files,
        time.monotonic() - began,
    )
    return finish(report, output)


def _target(dim: int, seed: int) -> Gaussian:
    """A Gaussian with precision eigenvalues from 1 to 3 in a random basis."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    precision = (basis * np.geomspace(1, _CONDITION, dim)[None, :]) @ basis.T
    return Gaussian(generator.normal(size=dim), precision=(precision + precision.T) / 2)


def _constants(target: Gaussian) -> tuple[float, float]:
    constants = target.constants
    return float(constants.strong_convexity.value), float(constants.smoothness.value)  # pyright: ignore


def _measure(
    target: Gaussian, estimator: Any, multiple: int, replicates: int, folds: float, seed: int
) -> Stalling:
    """Runs until the sharp rate 2 gamma mu of the mean has gone through `folds` factors of e."""
    mu, smoothness = _constants(target)
    family = GaussianFamily(target.dim, "symmetric")
    optimum = linear_model_optimum(target, family)
    start = family.point(np.asarray(optimum.point.loc) + 1.0, smoothness**-0.5)
    initial = float(squared_norm(subtract(start, optimum.point)))
    exact = noise.stl_noise(dim=target.dim, smoothness=smoothness, residual_smoothness=0.0)
    largest = proj_sgd_strongly_convex.largest_constant_step_size(mu, exact.slope)
    step_size = multiple * largest
    steps = np.unique(np.round(np.linspace(0, folds / (2 * step_size * mu), 41)).astype(int))
    recorded = replicate(
        ProjSGD(step_size, estimator=estimator),
        target,
        family,
        start,
        seed=seed,
        num_replicates=replicates,
        record_steps=steps,
    )
    errors = np.asarray(squared_distances(recorded.iterates, optimum.point))
    bound = None
    if multiple == 1 and isinstance(estimator, StickingTheLanding):
        bound = np.asarray(
            proj_sgd_strongly_convex.gaussian_target_bound(steps, step_size, initial, mu, smoothness, target.dim)
        )
    return Stalling(estimator.name, multiple, step_size, steps, errors, bound)


def _slope(result: Stalling, seed: int) -> Slope:
    """The exponent per step: of the fall above rounding, or of the second half where the error stalls."""
    mean = result.mean
    above = mean > _ROUNDING * mean[0]
    fitted = above & (np.arange(len(mean)) >= len(mean) // (2 if result.estimator == "entropy" else 8))
    return log_slope(result.steps[fitted], result.errors[:, fitted], seed)


def _records(result: Stalling) -> list[Row]:
    return [
        {
            "estimator": result.estimator,
            "multiple": result.multiple,
            "step_size": result.step_size,
            "step": int(result.steps[i]),
            "mean": float(result.mean[i]),
            "bound": float("nan") if result.bound is None else float(result.bound[i]),
        }
        for i in range(len(result.steps))
    ]


def _row(result: Stalling, slope: Slope, mu: float) -> Row:
    unit = result.step_size * mu / 2
    return {
        "estimator": result.estimator,
        "step / largest": result.multiple,
        "step size": result.step_size,
        "steps": int(result.steps[-1]),
        "start": float(result.mean[0]),
        "end": float(result.mean[-1]),
        "exponent / (gamma mu/2)": str(Slope(*(-x / unit for x in (slope.value, slope.high, slope.low)))),
    }
