"""Paper 003, Theorems 7, 8, 10 and 11: measured mean errors against the bounds, and measured rates."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.arguments import double_precision
from provi.report.style import INK, PALETTE
from provi_lab.common.pictures import picture
from provi_lab.common.replicates import Slope, log_slope, mean_interval
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.prox_proj.rates import (
    CASES,
    TAIL,
    Measured,
    RatesProblem,
    measure,
    spread_spectrum,
    well_conditioned,
)

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
    return publish(
        output,
        began,
        name=NAME,
        title="Paper 003, Theorems 7, 8, 10 and 11: rates of Prox-SGD and Proj-SGD",
        setting=_setting(problems, replicates, int(horizons[-1])),
        picture=draw(results),
        lines=[row for result in results for row in result.rows(seed)],
        rows=[_row(result, slope) for result, slope in zip(results, slopes, strict=True)],
        claims=[claim for pair in zip(results, slopes, strict=True) for claim in _claims(*pair)],
    )


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
        "bound at T": float(result.bound[-1]),  # pyright: ignore[reportOptionalSubscript]
        "least ratio": float(np.min(result.ratios)),
        "slope": str(slope),
        "theory": "-" if exponent is None else f"{-exponent:g}",
    }


def _claims(result: Measured, slope: Slope) -> list[Claim]:
    ratios = result.ratios
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


_THEOREMS = ("7", "8", "10", "11")
_NAMES = {"7": "Prox-SGD", "8": "Prox-SGD", "10": "Proj-SGD", "11": "Proj-SGD"}
_LOOKS = {"decaying step": PALETTE[0], "constant step": PALETTE[1], "convex": PALETTE[2]}


def draw(results: list[Measured]) -> Any:
    """Mean errors with their intervals (solid), bounds (dashed) and the theorem's slope (dotted)."""
    problems = list(dict.fromkeys(result.problem.name for result in results))
    with picture(11, 0.6 + 2.6 * len(problems)) as figure:
        parts: Any = figure.subfigures(len(problems) + 1, 1, height_ratios=[2.6] * len(problems) + [0.3])
        for part, name in zip(parts, problems, strict=False):
            _problem_row(part, [result for result in results if result.problem.name == name])
        parts[-1].legend(*_legend(), loc="center", ncols=5)
    return figure


def _problem_row(part: Any, results: list[Measured]) -> None:
    problem = results[0].problem
    title = f"{problem.name[0].upper()}{problem.name[1:]}: d = {problem.target.dim}, $M/\\mu$ = {problem.condition:.3g}"
    part.suptitle(title, x=0.01, ha="left", fontweight="bold")
    for axis, theorem in zip(part.subplots(1, len(_THEOREMS)), _THEOREMS, strict=True):
        _panel(axis, [result for result in results if result.case.theorem == theorem])
        axis.set_title(f"Theorem {theorem}, {_NAMES[theorem]}")
        axis.set_xlabel("steps T")


def _panel(axis: Any, results: list[Measured]) -> None:
    from matplotlib.ticker import NullFormatter

    for result in results:
        colour = _LOOKS[result.case.part]
        low, high = mean_interval(result.errors, 0)
        marker, width = "o" if result.case.convex else "", 3.2 if result.case.part == "decaying step" else 1.6
        # The wide line shows beneath the other one as long as the decaying step has not begun to decay.
        axis.plot(result.steps, result.mean, color=colour, marker=marker, linewidth=width)
        axis.fill_between(result.steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(result.steps, result.bound, "--", color=colour, linewidth=1.1)
        if result.case.exponent is not None and result.asymptotic:
            _guide(axis, result, result.case.exponent)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    convex = results[0].case.convex
    axis.set_ylabel("mean gap [nats]" if convex else r"mean $|w_T - w^*|^2$")


def _guide(axis: Any, result: Measured, exponent: float) -> None:
    """A line of the theorem's slope, just above the last part of the curve."""
    tail = result.steps >= result.steps[-1] / 30
    height = 1.6 * max(result.mean[tail] * result.steps[tail] ** exponent)
    axis.plot(result.steps[tail], height * result.steps[tail] ** -exponent, ":", color=INK)


def _legend() -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour) for colour in _LOOKS.values()]
    labels = [name if name != "convex" else "step for each T" for name in _LOOKS]
    lines += [Line2D([], [], color=INK, linestyle="--", linewidth=1.1), Line2D([], [], color=INK, linestyle=":")]
    return lines, [*labels, "the theorem's bound", "the theorem's slope"]
