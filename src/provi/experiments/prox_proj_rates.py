"""Paper 003, Theorems 7, 8, 10 and 11: measured mean errors against the bounds, and measured rates."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.precision import double_precision
from provi.experiments.rates_measure import CASES, TAIL, Measured, measure
from provi.experiments.rates_picture import draw
from provi.experiments.rates_problem import RatesProblem, spread_spectrum, well_conditioned
from provi.experiments.report import Claim, Report, Row, finish, write_rows
from provi.experiments.slopes import Slope, log_slope
from provi.report.style import save_figure

NAME = "prox-proj-rates"


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes one problem, 20 replicates and horizons up to 2^9 instead of two, 48 and 2^15."""
    began, output = time.monotonic(), Path(output)
    replicates, last = (20, 9) if quick else (48, 15)
    horizons = 2 ** np.arange(4 if quick else 6, last + 1)
    problems = (well_conditioned(seed),) if quick else (well_conditioned(seed), spread_spectrum(seed))
    results = [measure(problem, case, horizons, replicates, seed) for problem in problems for case in CASES]
    slopes = [_slope(result, seed) for result in results]
    rows = [row for result in results for row in result.rows(seed)]
    files = (save_figure(draw(results), output / f"{NAME}.png"), write_rows(output / f"{NAME}.csv", rows))
    report = Report(
        NAME,
        "Paper 003, Theorems 7, 8, 10 and 11: rates of Prox-SGD and Proj-SGD",
        _setting(problems, replicates, int(horizons[-1])),
        tuple(_row(result, slope) for result, slope in zip(results, slopes, strict=True)),
        tuple(claim for pair in zip(results, slopes, strict=True) for claim in _claims(*pair)),
        files,
        time.monotonic() - began,
    )
    return finish(report, output)


def _setting(problems: tuple[RatesProblem, ...], replicates: int, last: int) -> str:
    described = "; ".join(
        f"*{p.name}*: d = {p.target.dim}, M = {p.smoothness:.3g}, mu = {p.strong_convexity:.3g}" for p in problems
    )
    return (
        f"Small logistic regressions with a Gaussian family ({described}). One draw a step; steps, averages "
        f"and bounds as the theorems prescribe, with the true distances to the optimum; Prox-SGD (Theorems 7 and 8) "
        f"with the energy estimator and a triangular scale, Proj-SGD (10 and 11) with the entropy estimator and a "
        f"symmetric one. {replicates} replicates, up to {last} steps. Theorems 7 and 10 bound the mean squared "
        f"distance of the last iterate, along one run; 8 and 11 the mean gap of the averaged point, and have a step "
        f"for each horizon T, so each T is a run of its own. Gaps are exact (quadrature). Slopes are of the "
        f"log mean error against log T over the last {np.log10(TAIL):.1f} decades; intervals are 95 % bootstrap "
        f"intervals over replicates."
    )


def _slope(result: Measured, seed: int) -> Slope:
    tail = result.tail
    return log_slope(np.log(result.steps[tail]), result.errors[:, tail], seed, paired=not result.case.convex)


def _row(result: Measured, slope: Slope) -> Row:
    exponent = result.case.exponent
    return {
        "problem": result.problem.name,
        "theorem": result.case.theorem,
        "part": result.case.part,
        "mean at T": float(result.mean[-1]),
        "bound at T": float(result.bound[-1]),
        "least ratio": float(np.min(result.bound / result.mean)),
        "slope": str(slope),
        "theory": "-" if exponent is None else f"{-exponent:g}",
    }


def _claims(result: Measured, slope: Slope) -> list[Claim]:
    ratios = result.bound / result.mean
    where = f"{result.case.label}, {result.problem.name}"
    claims = [
        Claim.of(
            f"{where}: the bound holds.",
            np.all(ratios >= 1),
            f"Bound / measured mean between {ratios.min():.3g} and {ratios.max():.3g} over {len(ratios)} values "
            f"of T up to {result.steps[-1]}.",
        )
    ]
    if result.case.exponent is not None:
        claims.append(_rate_claim(result, slope, where))
    return claims


def _rate_claim(result: Measured, slope: Slope, where: str) -> Claim:
    exponent: Any = result.case.exponent
    statement = f"{where}: the mean error falls like T^-{exponent:g} or faster."
    if not result.asymptotic:
        return Claim(
            statement,
            "not tested",
            f"The theorem's steps are constant until T = {result.decay_begins:.2g}; the run ends at "
            f"{result.steps[-1]}, with slope {slope}.",
        )
    remark = "the theorem's exponent" if slope.contains(-exponent) else "not the theorem's exponent"
    if slope.high < -exponent:
        remark = "faster than the theorem's exponent"
    return Claim.of(statement, slope.low <= -exponent, f"Slope {slope} against {-exponent:g}: {remark}.")
