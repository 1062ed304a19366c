"""Paper 003's theorems at work on two small logistic regressions: replicated runs, their errors and the bounds."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from provi.algorithms import ProjSGD, ProxSGD
from provi.core.tree import squared_norm, subtract
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import Optimum, linear_model_optimum
from provi.families.location_scale import Gaussian, LocationScale, Point
from provi.targets.base import AbstractTarget
from provi.targets.regressions import LogisticRegression
from provi.theory import noise
from provi.theory import proj_sgd as proj_theory
from provi.theory import prox_sgd as prox_theory
from provi_lab.common.replicates import MeanErrors, mean_interval, replicate
from provi_lab.common.tables import Row

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


TAIL = 8.0
"""Slopes are fitted where T is at least the last one divided by this."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One part of one theorem: which method, with which options, and the exponent p of its rate T^-p."""

    theorem: str
    part: str
    projected: bool
    options: tuple[tuple[str, str], ...]
    exponent: float | None

    @property
    def label(self) -> str:
        return f"Theorem {self.theorem} ({self.part})"

    @property
    def scale(self) -> str:
        return "symmetric" if self.projected else "triangular"

    @property
    def convex(self) -> bool:
        """The convex theorems have a step size for each horizon, so each horizon is a run of its own."""
        return self.part == "convex"


def _strongly(theorem: str, schedule: str, projected: bool, exponent: float | None) -> Case:
    options = (("theorem", "strongly_convex"), ("schedule", schedule))
    return Case(theorem, f"{schedule} step", projected, options, exponent)


CASES = (
    _strongly("7", "decaying", False, 1.0),
    _strongly("7", "constant", False, None),
    Case("8", "convex", False, (("theorem", "convex"),), 0.5),
    _strongly("10", "decaying", True, 1.0),
    _strongly("10", "constant", True, None),
    Case("11", "convex", True, (("theorem", "convex"),), 0.5),
)


@dataclasses.dataclass(frozen=True)
class Measured(MeanErrors):
    """The errors of one case on one problem."""

    problem: RatesProblem
    case: Case

    @property
    def decay_begins(self) -> float:
        """The step from which the decaying schedule does decay: 4a/mu^2 (8a/mu^2 for Proj-SGD)."""
        factor = 2 if self.case.projected else 1
        slope = 2 * factor * (self.problem.target.dim + 3) * self.problem.smoothness**2
        return 4 * factor * slope / self.problem.strong_convexity**2

    @property
    def tail(self) -> np.ndarray:
        """Which records the slope is fitted to."""
        return self.steps >= self.steps[-1] / TAIL

    @property
    def asymptotic(self) -> bool:
        """Whether the theorem's rate can show: a decaying schedule must decay over the whole tail."""
        return self.case.convex or bool(self.decay_begins <= self.steps[-1] / TAIL)

    def rows(self, seed: int) -> list[Row]:
        low, high = mean_interval(self.errors, seed)
        return [
            {
                "problem": self.problem.name,
                "theorem": self.case.theorem,
                "part": self.case.part,
                "metric": "gap" if self.case.convex else "squared distance",
                "steps": int(self.steps[i]),
                "mean": float(self.mean[i]),
                "mean_low": float(low[i]),
                "mean_high": float(high[i]),
                "bound": float(self.bound[i]),  # pyright: ignore[reportOptionalSubscript]
            }
            for i in range(len(self.steps))
        ]


def theorem_setting(problem: RatesProblem, case: Case, num_steps: int) -> tuple[Any, Any]:
    """The method with the theorem's settings, and its bound as a function of the steps.

    The theorems are told the true distances to the optimum: what a user can prove gives larger bounds.
    """
    optimum, start = problem.optima[case.scale], problem.start(case.scale)
    reference = np.sum((np.asarray(optimum.point.loc) - optimum.mode) ** 2) + squared_norm(optimum.point.scale)
    distances = float(squared_norm(subtract(start, optimum.point))), float(reference)
    if case.part == "constant step":
        return _largest_constant_step(problem, case, *distances)
    method: Any = (ProjSGD if case.projected else ProxSGD).from_theorem(
        problem.target,
        problem.family(case.scale),
        budget=num_steps,
        start=start,
        initial_distance_squared=distances[0],
        reference_distance_squared=distances[1],
        **dict(case.options),
    )
    return method, method.guarantee.curve


def _largest_constant_step(problem: RatesProblem, case: Case, initial: float, reference: float) -> tuple[Any, Any]:
    """Theorems 7 and 10, first parts, at their largest step: the best one for long runs, at no horizon."""
    mu, smoothness, dim = problem.strong_convexity, problem.smoothness, problem.target.dim
    constants = {"dim": dim, "smoothness": smoothness, "reference_distance_squared": reference}
    if case.projected:
        bound = noise.entropy_noise(**constants)
        step = proj_theory.largest_constant_step_size(mu, bound.slope)
        return ProjSGD(step_size=step), lambda steps: proj_theory.constant_step_bound(steps, step, initial, mu, bound)
    bound = noise.energy_noise(**constants)
    step = prox_theory.largest_constant_step_size(mu, bound.slope)
    return ProxSGD(step_size=step), lambda steps: prox_theory.constant_step_bound(
        steps, step, initial, mu, smoothness, bound, reference
    )


def measure(problem: RatesProblem, case: Case, horizons: np.ndarray, num_replicates: int, seed: int) -> Measured:
    """Replicates of one case; the convex theorems run anew for each horizon, with keys of their own."""
    family, start = problem.family(case.scale), problem.start(case.scale)
    last = int(horizons[-1])
    groups = [[int(step)] for step in horizons] if case.convex else [_path(last)]
    errors, bounds = [], []
    for index, steps in enumerate(groups):
        method, bound = theorem_setting(problem, case, steps[-1])
        recorded = replicate(
            method,
            problem.target,
            family,
            start,
            seed=seed + index,
            num_replicates=num_replicates,
            record_steps=steps,
        )
        errors.append(_errors(problem, case, family, recorded.outputs))
        bounds.append(bound(np.asarray(steps)))
    steps = np.concatenate([np.asarray(group) for group in groups])
    return Measured(steps, np.concatenate(errors, axis=1), np.concatenate(bounds), problem, case)


def _path(last: int) -> list[int]:
    return sorted({int(round(step)) for step in np.geomspace(1, last, 40)})


def _errors(problem: RatesProblem, case: Case, family: LocationScale, points: Point) -> np.ndarray:
    optimum = problem.optima[case.scale]
    if case.convex:
        return np.asarray(negative_elbos(problem.target, family, points)) - optimum.negative_elbo
    return np.asarray(squared_distances(points, optimum.point))


@eqx.filter_jit
def negative_elbos(target: AbstractTarget, family: LocationScale, points: Point) -> Any:
    """Exact negative ELBOs of points with two leading axes."""
    one = lambda point: exact_negative_elbo(target, family, point)  # noqa: E731
    return jax.vmap(jax.vmap(one))(points)


@eqx.filter_jit
def squared_distances(points: Point, best: Point) -> Any:
    """|w - w*|^2 of points with two leading axes."""
    return jax.vmap(jax.vmap(lambda point: squared_norm(subtract(point, best))))(points)
