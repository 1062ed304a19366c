"""Runs of one solver on one table, measured after every pass by the exact log-likelihood."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from provi.experiments.misso_problem import Problem
from provi.experiments.report import Row
from provi.models.missing.conditional import Parameters
from provi.models.missing.likelihood import log_likelihood
from provi.models.missing.stochastic_solvers import solve_mcem, solve_misso, solve_saem
from provi.schedules import OffsetPolynomialBatch

DRAWS_OFFSET, DRAWS_EXPONENT = 10, 2
"""M_k = 10 + k^2 draws a row, as in the paper, for every method; k counts passes, from 0."""

BURN_IN = 5
"""Passes with gamma = 1, a quarter of a run, of the SAEM that is not handicapped by its start."""

MISSO1, MISSO10, MISSO50, UNIFORM10 = "MISSO", "MISSO10", "MISSO50", "MISSO10, uniform draws"
MCEM, SAEM, LATE_SAEM = "MCEM", "SAEM", f"SAEM, burn-in {BURN_IN}"

SOLVERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    MISSO1: (solve_misso, {"batch": 1}),
    MISSO10: (solve_misso, {"share": 0.1}),
    MISSO50: (solve_misso, {"share": 0.5}),
    UNIFORM10: (solve_misso, {"share": 0.1, "order": "uniform"}),
    MCEM: (solve_mcem, {}),
    SAEM: (solve_saem, {}),
    LATE_SAEM: (solve_saem, {"burn_in": BURN_IN}),
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """One run: passes made, gaps in nats (infinite where it broke off), and the coefficients after each pass."""

    data: str
    method: str
    seed: int
    passes: np.ndarray
    gaps: np.ndarray
    coefficients: np.ndarray

    def rows(self, names: tuple[str, ...]) -> list[Row]:
        """A line a pass for the CSV file, with as many coefficients as there are `names`."""
        fixed = {"data": self.data, "method": self.method, "seed": self.seed}
        columns = [f"coefficient_{place}" for place in range(len(names))]
        return [
            {**fixed, "passes": int(p), "gap": float(gap), **dict(zip(columns, map(float, values), strict=False))}
            for p, gap, values in zip(self.passes, self.gaps, self.coefficients, strict=True)
        ]

    def gap_at(self, passes: int) -> float:
        """The gap after so many passes; NaN where it was not measured."""
        place = np.flatnonzero(self.passes == passes)
        return float(self.gaps[place[0]]) if len(place) else math.nan

    def settles(self, level: float) -> float:
        """The first pass from which the gap is at most `level` to the end of the run; infinite if there is none."""
        above = np.flatnonzero(~(self.gaps <= level))
        if len(above) == 0:
            return float(self.passes[0])
        return float(self.passes[above[-1] + 1]) if above[-1] + 1 < len(self.passes) else math.inf


def follow(problem: Problem, method: str, seed: int, passes: int) -> Curve:
    """`passes` passes from the common start, without any stop."""
    solve, arguments = SOLVERS[method]
    kept: list[tuple[int, Parameters]] = [(0, problem.start)]

    def record(done: int, parameters: Parameters) -> None:
        kept.append((done, parameters))

    draws = OffsetPolynomialBatch(DRAWS_OFFSET, DRAWS_EXPONENT)
    solve(
        problem.rows,
        problem.start,
        num_draws=draws,
        controls=False,  # plain averages over the draws, as in the paper
        tol=0.0,
        max_passes=passes,
        seed=seed,
        record=record,
        **arguments,
    )
    gaps = np.full(passes + 1, math.inf)
    coefficients = np.full((passes + 1, len(problem.start.coefficients)), math.nan)
    for done, parameters in kept:  # a run that broke off has no later entries
        gap = problem.maximum - float(log_likelihood(parameters, problem.rows))
        gaps[done] = gap if math.isfinite(gap) else math.inf
        coefficients[done] = parameters.coefficients
    return Curve(problem.title, method, seed, np.arange(passes + 1), gaps, coefficients)
