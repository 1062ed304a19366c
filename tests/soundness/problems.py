"""Small, well-conditioned problems with known optimum, and the comparison of a run with its guarantee."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from provi.core.tree import squared_norm, subtract
from provi.diagnostics import Optimum, exact_negative_elbo, linear_model_optimum
from provi.families import Laplace, LocationScale, Normal, Point, StudentT, Uniform
from provi.targets import Gaussian, LinearRegression, LogisticRegression
from provi_lab.common.replicates import Recorded, replicate

DIM, REPLICATES, SEED = 3, 32, 20260101
_RNG = np.random.default_rng(5)
_ORTHOGONAL = np.linalg.qr(_RNG.normal(size=(12, DIM)))[0]
_ROTATION = np.linalg.qr(_RNG.normal(size=(DIM, DIM)))[0]

TARGETS: dict[str, Any] = {
    # mu = 1, M = 1.5.
    "gaussian": Gaussian(np.array([0.5, -0.3, 0.2]), precision=_ROTATION @ np.diag([1.0, 1.2, 1.5]) @ _ROTATION.T),
    # Columns of length 0.5, 0.7, 0.9 and unit noise: mu = 1.25, M = 1.81.
    "linear": LinearRegression(_ORTHOGONAL * [0.5, 0.7, 0.9], np.sin(np.arange(12.0))),
    # Columns of length 2: mu = 1, M = 2.
    "logistic": LogisticRegression(2 * _ORTHOGONAL, np.arange(12) % 3 == 0),
}
BASES: dict[str, Any] = {"normal": Normal(), "laplace": Laplace(), "uniform": Uniform(), "student_t": StudentT(8.0)}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target, a family, a start and the exact solution."""

    target: Any
    family: LocationScale
    start: Point
    optimum: Optimum

    @property
    def automatic(self) -> dict[str, Any]:
        """Options of a theorem that derives its distances from the target's constants."""
        return {"start": self.start}

    @property
    def sharp(self) -> dict[str, Any]:
        """Options of a theorem that is told the true distances, which makes its bound much smaller."""
        return {
            "start": self.start,
            "initial_distance_squared": self.initial_distance_squared(1.0),
            "reference_distance_squared": self.reference_distance_squared,
        }

    @property
    def reference_distance_squared(self) -> float:
        """|m* - mode|^2 + |C*|^2."""
        return float(((self.optimum.point.loc - self.optimum.mode) ** 2).sum() + squared_norm(self.optimum.point.scale))

    def initial_distance_squared(self, scale_factor: float) -> float:
        """|m0 - m*|^2 + |C0 - C*|^2 / scale_factor."""
        away = subtract(self.start, self.optimum.point)
        return float(squared_norm(away.loc) + squared_norm(away.scale) / scale_factor)

    def run(self, algorithm: Any, record_steps: Any) -> Recorded:
        """The replicates of this problem."""
        return replicate(
            algorithm,
            self.target,
            self.family,
            self.start,
            seed=SEED,
            num_replicates=REPLICATES,
            record_steps=record_steps,
        )

    @functools.cached_property
    def _negative_elbos(self) -> Any:
        return jax.jit(jax.vmap(jax.vmap(functools.partial(exact_negative_elbo, self.target, self.family))))

    def gaps(self, points: Any) -> np.ndarray:
        """Exact negative ELBOs above the optimum, for points with leading axes (replicate, record)."""
        return np.asarray(self._negative_elbos(points)) - self.optimum.negative_elbo

    def squared_distances(self, points: Any) -> np.ndarray:
        """|w - w*|^2 for points with leading axes (replicate, record)."""
        distance = jax.vmap(jax.vmap(lambda point: squared_norm(subtract(point, self.optimum.point))))
        return np.asarray(distance(points))


@functools.cache
def problem(target: str, base: str, scale: str) -> Problem:
    """The named problem; the start is well inside W_M and away from the optimum in every coordinate."""
    family = LocationScale(DIM, BASES[base], scale)
    start = family.point(np.array([1.5, 1.0, -1.5]), 1.5)
    return Problem(TARGETS[target], family, start, linear_model_optimum(TARGETS[target], family))


def settings(problem: Problem, steps: int) -> Iterator[dict[str, Any]]:
    """Options that share one compiled run: derived distances, true ones, and true ones with four draws a step."""
    yield {"budget": steps, **problem.automatic}
    yield {"budget": steps, **problem.sharp}
    yield {"budget": 4 * steps, "num_draws": 4, **problem.sharp}


def nondegenerate(covariance: np.ndarray, smallest: float) -> np.ndarray:
    """The covariance with its eigenvalues raised to smallest^2: its root lies in W_M, on the boundary if any rose."""
    values, vectors = np.linalg.eigh(covariance)
    raised = (vectors * np.maximum(values, (smallest * (1 + 1e-12)) ** 2)) @ vectors.T
    return (raised + raised.T) / 2


def geometric_steps(last: int, count: int = 10) -> np.ndarray:
    """About `count` step numbers from 1 to `last`, denser at the beginning."""
    return np.unique(np.round(np.geomspace(1, last, count)).astype(int))


def compare(problem: Problem, algorithm: Any) -> np.ndarray:
    """bound / (mean + 3 standard errors) of the guarantee's metric, at each recorded step: sound when >= 1.

    The metric is the gap of the point the algorithm returns, or the squared distance of its iterate.
    """
    guarantee = algorithm.guarantee
    steps = geometric_steps(guarantee.num_steps)
    recorded = problem.run(algorithm, steps)
    if guarantee.metric == "gap":
        errors = problem.gaps(recorded.outputs)
    else:
        assert guarantee.metric == "squared distance"
        errors = problem.squared_distances(recorded.iterates)
    assert errors.shape == (REPLICATES, len(steps))
    return guarantee.curve(steps) / upper(errors)


def upper(errors: np.ndarray) -> np.ndarray:
    """Mean plus three standard errors over the replicates."""
    assert np.isfinite(errors).all()
    return errors.mean(axis=0) + 3 * errors.std(axis=0, ddof=1) / np.sqrt(len(errors))


def replace(algorithm: Any, **parts: Any) -> Any:
    """The algorithm with other parts and the guarantee it had."""
    return eqx.tree_at(lambda a: [getattr(a, name) for name in parts], algorithm, list(parts.values()))
