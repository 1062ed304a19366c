"""Two small logistic regressions on which the theorems of paper 003 can be watched at work."""

import dataclasses

import numpy as np

from provi.diagnostics.optimum import Optimum, linear_model_optimum
from provi.families.location_scale import Gaussian, LocationScale, Point
from provi.targets.regressions import LogisticRegression

SCALES = ("triangular", "symmetric")


@dataclasses.dataclass(frozen=True)
class RatesProblem:
    """A target, how far every coordinate of the start is from the optimum's mean, and the optima by scale."""

    name: str
    target: LogisticRegression
    offset: float
    optima: dict[str, Optimum]

    def family(self, scale: str) -> LocationScale:
        return Gaussian(self.target.dim, scale)

    def start(self, scale: str) -> Point:
        """(m* + offset, I/sqrt(M)), which lies in the set W_M of the projected methods."""
        location = np.asarray(self.optima[scale].point.loc) + self.offset
        return self.family(scale).point(location, self.smoothness**-0.5)

    @property
    def smoothness(self) -> float:
        return float(self.target.constants.smoothness.value)  # pyright: ignore[reportArgumentType]

    @property
    def strong_convexity(self) -> float:
        return float(self.target.constants.strong_convexity.value)  # pyright: ignore[reportArgumentType]

    @property
    def condition(self) -> float:
        return self.smoothness / self.strong_convexity


def well_conditioned(seed: int) -> RatesProblem:
    """d = 2, M/mu = 1.5: the decaying steps of Theorems 7 and 10 begin to decay within a few hundred steps."""
    return _problem("well conditioned", _logistic(np.array([1.2, 1.5]), 8, seed), offset=1.0)


def spread_spectrum(seed: int) -> RatesProblem:
    """d = 4, M/mu = 100, curvatures spread evenly on a logarithmic scale.

    With so few steps that flat directions have not begun to converge, each quadrupling of the horizon brings
    in the directions of half the curvature: the worst case of the convex theorems, at all horizons at once.
    """
    return _problem("spread spectrum", _logistic(np.geomspace(3.2, 100.0, 4), 40, seed), offset=0.3)


def _problem(name: str, target: LogisticRegression, offset: float) -> RatesProblem:
    optima = {scale: linear_model_optimum(target, Gaussian(target.dim, scale)) for scale in SCALES}
    return RatesProblem(name, target, offset, optima)


def _logistic(curvatures: np.ndarray, num_data: int, seed: int) -> LogisticRegression:
    """Standard normal prior, and a design with I + X'X/4 = diag(curvatures)."""
    generator = np.random.default_rng(seed)
    directions = np.linalg.qr(generator.normal(size=(num_data, len(curvatures))))[0]
    design = directions * np.sqrt(4 * (curvatures - 1))[None, :]
    return LogisticRegression(design, generator.integers(0, 2, num_data))
