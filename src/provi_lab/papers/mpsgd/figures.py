"""Paper 004, Figures 1 to 3: MPSGD on logistic regression, its claims tested on the runs, and the picture."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.arguments import double_precision
from provi.core.tree import squared_norm, subtract
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import Optimum, linear_model_optimum
from provi.families.bases import Laplace, Normal, Uniform
from provi.families.location_scale import LocationScale, Point
from provi.geometry.operators import project_nondegenerate
from provi.report.style import INK, PALETTE
from provi.targets.regressions import LogisticRegression
from provi.theory import mpsgd
from provi.theory.noise import NoiseBound
from provi_lab.common.curves import Curve, all_rows, select
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.mpsgd.runs import METHODS, READINGS, Problem, late_gap, measure, settings

_LOOKS = dict(zip(METHODS, zip(PALETTE[:4], ("-", "-", "--", "--"), strict=True), strict=True))


@dataclasses.dataclass(frozen=True)
class Results:
    """Everything the verdicts are computed from."""

    problem: Problem
    target: LogisticRegression
    family: LocationScale
    optimum: Optimum
    curves: tuple[Curve, ...]

    def of(self, method: str, reading: str) -> list[Curve]:
        return select(self.curves, method=method, reading=reading)

    def final(self, method: str, reading: str) -> float:
        return float(np.mean([curve["gap"][-1] for curve in self.of(method, reading)]))

    def late(self, method: str, reading: str) -> float:
        return float(np.mean([late_gap(curve) for curve in self.of(method, reading)]))

    def spread(self, method: str, reading: str) -> float:
        """The standard deviation of the final gap over the seeds."""
        finals = [curve["gap"][-1] for curve in self.of(method, reading)]
        return float(np.std(finals, ddof=1)) if len(finals) > 1 else float("nan")

    def cpu(self, method: str, reading: str) -> float:
        return float(np.mean([curve["cpu_seconds"][-1] for curve in self.of(method, reading)]))

    def start(self, reading: str) -> float:
        return float(self.of(METHODS[0], reading)[0]["gap"][0])


def figure1(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Laplace base, 300 rows, prior precision 0.1; `quick` takes a tenth of the dimension, the data and the budget."""
    return reproduce(Problem("mpsgd-figure1", Laplace(), num_data=300, precision=0.1), 1, Path(output), quick, seed)


def figure2(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """The same with a Normal base and 1000 rows."""
    return reproduce(Problem("mpsgd-figure2", Normal(), num_data=1000, precision=0.1), 2, Path(output), quick, seed)


def figure3(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """The same with a Uniform base, 2000 rows and prior precision 0.5."""
    return reproduce(Problem("mpsgd-figure3", Uniform(), num_data=2000, precision=0.5), 3, Path(output), quick, seed)


@double_precision
def reproduce(problem: Problem, figure: int, output: Path, quick: bool, seed: int) -> Report:
    """Run the four methods in both readings, and write the table, the picture and the page."""
    began = time.monotonic()
    problem = problem.small() if quick else problem
    target, family = problem.target(seed), problem.family()
    optimum = linear_model_optimum(target, family)
    curves = [
        measure(setting, target, family, optimum.negative_elbo, seed + repeat)
        for reading in READINGS
        for setting in settings(problem, target, reading)
        for repeat in range(problem.num_seeds)
    ]
    results = Results(problem, target, family, optimum, tuple(curves))
    return publish(
        output,
        began,
        name=problem.name,
        title=f"Paper 004, Figure {figure}: MPSGD with a {problem.base.name.capitalize()} base",
        setting=_setting(results),
        picture=_picture(results),
        lines=all_rows(curves),
        rows=summary(results),
        claims=claims(results),
    )


def _setting(results: Results) -> str:
    problem = results.problem
    return (
        f"Bayesian logistic regression, d = {problem.dim}, {problem.num_data} rows, design U[0, 1], labels "
        f"Bernoulli(1/2), prior precision alpha = {problem.precision:g}; {problem.base.name} base, symmetric scale; "
        f"a budget of {problem.budget} gradient evaluations; start (0, I/sqrt(L)); last iterate. The gap is "
        f"f(w) - f* by quadrature, f* = {results.optimum.negative_elbo:.3f} nats (whitened gradient norm there: "
        f"{results.optimum.gradient_norm:.1g}). 'Corrected' takes L = alpha + sigma_max^2/4 and the dimension "
        f"factor rho = (d+2) kappa/3; 'as printed' L = alpha + sigma_max/4 and d - 1 + kappa. Means over "
        f"{problem.num_seeds} runs that differ in their draws; the first is shown as the line, the others fainter."
    )


def _picture(results: Results) -> Any:
    from matplotlib.ticker import LogFormatter

    with picture(10.5, 5.6) as figure:
        axes = figure.subplots(2, 3, sharey="row")
        for row, reading in enumerate(READINGS):
            panels = (("gradients", "gap"), ("cpu_seconds", "gap"), ("gradients", "negative_elbo"))
            for axis, (x, y) in zip(axes[row], panels, strict=True):
                shift = results.optimum.negative_elbo if y == "negative_elbo" else 0.0
                _draw(axis, results, reading, x, y, shift)
            _decorate(axes[row], reading, results)
        axes[0, 0].set_ylim(bottom=0)
        axes[1, 0].set_yscale("log")
        axes[1, 0].yaxis.set_major_formatter("{x:g}")
        axes[1, 0].yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
        legend_below(figure, axes[0, 0], 5)
    return figure


def _draw(axis: Any, results: Results, reading: str, x: str, y: str, shift: float) -> None:
    for method in METHODS:
        colour, line = _LOOKS[method]
        for index, curve in enumerate(results.of(method, reading)):
            across, up = curve[x], curve[y] - shift
            # The start has spent no time: on a logarithmic axis it stands at the first time recorded.
            across = np.maximum(across, across[1] / 2) if x == "cpu_seconds" else across
            first = index == 0
            axis.plot(across, up, line, color=colour, alpha=1.0 if first else 0.3, label=method if first else None)
    axis.axhline(results.start(reading), color=INK, linewidth=0.8, linestyle=":", label="start")
    if x == "cpu_seconds":
        axis.set_xscale("log")


def _decorate(axes: Any, reading: str, results: Results) -> None:
    smoothness = results.of(METHODS[0], reading)[0].more["setting"].smoothness
    axes[0].set_title(f"{reading[0].upper()}{reading[1:]}: L = {smoothness:.1f}")
    axes[1].set_title("The same against CPU time")
    axes[2].set_title("Negative ELBO from 100 draws, minus $f^*$")
    axes[0].set_ylabel("gap $f(w) - f^*$ [nats]")
    axes[0].set_xlabel("gradient evaluations")
    axes[1].set_xlabel("CPU time [s]")
    axes[2].set_xlabel("gradient evaluations")


def summary(results: Results) -> tuple[Row, ...]:
    """One row a method and reading: the settings, and the mean and spread over the seeds; gaps in nats."""
    rows = []
    for reading in READINGS:
        for method in METHODS:
            setting = results.of(method, reading)[0].more["setting"]
            rows.append(
                {
                    "constants": reading,
                    "method": method,
                    "draws": setting.num_draws,
                    "steps": setting.num_steps,
                    "start gap": results.start(reading),
                    "final gap": results.final(method, reading),
                    "sd": results.spread(method, reading),
                    "CPU [s]": results.cpu(method, reading),
                }
            )
    return tuple(rows)


def claims(results: Results) -> tuple[Claim, ...]:
    """The verdicts, the paper's claims first."""
    scaling = [_scaling(results, method, reading) for reading in READINGS for method in ("PSGD", "MPSGD")]
    batching = [_batching(results, reading) for reading in READINGS]
    return (
        _smoothness(results),
        *scaling,
        *batching,
        _region(results),
        _theorem_prefers(results),
        _theorem_holds(results),
    )


def _smoothness(results: Results) -> Claim:
    printed, corrected = (results.problem.smoothness(results.target, r) for r in ("as printed", "corrected"))
    design = np.asarray(results.target.design)
    hessian = design.T @ design / 4 + results.problem.precision * np.eye(results.problem.dim)
    largest = float(np.linalg.eigvalsh(hessian)[-1])
    return Claim.of(
        "Appendix C: f is L-smooth with L = alpha + sigma_max(U)/4.",
        printed >= largest * (1 - 1e-9),
        f"Printed L = {printed:.4g}; the Hessian at 0 has eigenvalue {largest:.6g}, which is "
        f"alpha + sigma_max(U)^2/4 = {corrected:.6g}.",
    )


def _scaling(results: Results, method: str, reading: str) -> Claim:
    start, names = results.start(reading), (method, f"scaled {method}")
    plain, scaled = (results.late(name, reading) for name in names)
    diverged = [name for name, gap in zip(names, (plain, scaled), strict=True) if gap > start]
    note = f" Above the start: {', '.join(diverged)}." if diverged else ""
    rejected = sum(curve.more["rejected_steps"] for name in names for curve in results.of(name, reading))
    note += f" {rejected} non-finite steps were rejected." if rejected else ""
    ends = [f"{results.final(name, reading):.4g} (sd {results.spread(name, reading):.2g})" for name in names]
    return Claim.of(
        f"Preconditioning improves {method} (constants {reading}).",
        scaled < min(plain, start),
        f"Mean gap over the last quarter {plain:.4g} without, {scaled:.4g} with; {start:.4g} at the start; last "
        f"iterates {ends[0]} and {ends[1]}.{note}",
    )


def _batching(results: Results, reading: str) -> Claim:
    batch = results.final("MPSGD", reading)
    spent = results.of("MPSGD", reading)[0]["gradients"][-1]
    curves = results.of("PSGD", reading)
    single = float(np.mean([np.interp(spent, c["gradients"], c["gap"]) for c in curves]))
    ratio = results.cpu("PSGD", reading) / results.cpu("MPSGD", reading)
    return Claim.of(
        f"Mini-batches save CPU time at the same progress per gradient (constants {reading}).",
        ratio > 1 and batch <= 1.02 * single,
        f"CPU time of PSGD / MPSGD = {ratio:.3g}; gaps after {spent} gradients {single:.4g} and {batch:.4g}; "
        f"{results.start(reading):.4g} at the start.",
    )


def _region(results: Results) -> Claim:
    printed = results.problem.smoothness(results.target, "as printed")
    smallest, scale = printed**-0.5, results.optimum.point.scale
    values = np.linalg.eigvalsh(np.asarray(scale.matrix))  # pyright: ignore[reportAttributeAccessIssue]
    nearest = Point(results.optimum.point.loc, project_nondegenerate(scale, smallest))
    loss = float(exact_negative_elbo(results.target, results.family, nearest)) - results.optimum.negative_elbo
    return Claim.of(
        "The set on which the printed L projects contains the optimum.",
        values[0] >= smallest,
        f"{int(np.sum(values < smallest))} of {len(values)} eigenvalues of C* lie below 1/sqrt(L) = {smallest:.3g}, "
        f"the smallest at {values[0]:.3g}. C* projected on the set has a gap of {loss:.3g} nats.",
    )


def _distances(results: Results, reading: str) -> tuple[float, float, float]:
    """|m_0 - m*|^2, |C_0 - C*|^2 and |m* - mode|^2 + |C*|^2."""
    best = results.optimum.point
    smallest = results.problem.smoothness(results.target, reading) ** -0.5
    start = results.family.point(np.zeros(results.problem.dim), smallest)
    reference = float(np.sum((np.asarray(best.loc) - results.optimum.mode) ** 2)) + float(squared_norm(best.scale))
    away = subtract(start, best)
    return float(squared_norm(away.loc)), float(squared_norm(away.scale)), reference


def _theorem_prefers(results: Results) -> Claim:
    location, scale, reference = _distances(results, "corrected")
    smoothness = results.problem.smoothness(results.target, "corrected")
    kurtosis = float(results.problem.base.kurtosis(results.problem.dim))
    plain, scaled = (
        mpsgd.theorem4_bound(
            results.problem.budget, results.problem.dim, kurtosis, smoothness, location, scale, reference, flag
        )
        for flag in (False, True)
    )
    return Claim.of(
        "Theorem 4's own bound is smaller with the preconditioner (Remark 3: C_0 = I/sqrt(L) limits its price).",
        scaled < plain,
        f"Bounds {plain:.3g} without and {scaled:.3g} with; |m_0 - m*|^2 = {location:.3g}, "
        f"|C_0 - C*|^2 = {scale:.3g} (constants corrected, distances to the computed optimum).",
    )


def _theorem_holds(results: Results) -> Claim:
    location, scale, reference = _distances(results, "corrected")
    ratios = []
    for curve in results.curves:
        setting = curve.more["setting"]
        if setting.reading != "corrected":
            continue
        smoothness, dim = setting.smoothness, results.problem.dim
        extra = smoothness if "scaled" in setting.method else 2 * dim * smoothness
        noise = NoiseBound(setting.noise_slope, setting.noise_slope * reference + extra, setting.label)
        start = location + scale / setting.scale_factor
        bound = mpsgd.bound(setting.num_steps, setting.num_draws, setting.step_size, start, noise, smoothness)
        ratios.append(float(bound) / curve.more["averaged_gap"])
    return Claim.of(
        "Theorem 6 bounds the gap of the averaged iterate (constants corrected).",
        min(ratios) >= 1,
        f"Bound / measured gap between {min(ratios):.3g} and {max(ratios):.3g} over {len(ratios)} runs.",
    )
