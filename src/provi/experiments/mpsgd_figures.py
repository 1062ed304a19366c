"""Figures 1 to 3 of paper 004: what the three experiments share."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from provi.core.precision import double_precision
from provi.diagnostics.optimum import linear_model_optimum
from provi.experiments.mpsgd_claims import Results, claims, summary
from provi.experiments.mpsgd_measure import measure
from provi.experiments.mpsgd_problem import METHODS, READINGS, Problem, settings
from provi.experiments.report import Report, finish, write_rows
from provi.report.style import INK, PALETTE, figure_style, save_figure

_LOOKS = dict(zip(METHODS, zip(PALETTE[:4], ("-", "-", "--", "--"), strict=True), strict=True))


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
    rows = [row for curve in curves for row in curve.rows]
    files = (
        save_figure(_picture(results), output / f"{problem.name}.png"),
        write_rows(output / f"{problem.name}.csv", rows),
    )
    report = Report(
        problem.name,
        f"Paper 004, Figure {figure}: MPSGD with a {problem.base.name.capitalize()} base",
        _setting(results),
        summary(results),
        claims(results),
        files,
        time.monotonic() - began,
    )
    return finish(report, output)


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
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    with figure_style():
        figure = Figure(figsize=(10.5, 5.6))
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
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _draw(axis: Any, results: Results, reading: str, x: str, y: str, shift: float) -> None:
    for method in METHODS:
        colour, line = _LOOKS[method]
        for index, curve in enumerate(results.of(method, reading)):
            across, up = curve.column(x), curve.column(y) - shift
            # The start has spent no time: on a logarithmic axis it stands at the first time recorded.
            across = np.maximum(across, across[1] / 2) if x == "cpu_seconds" else across
            first = index == 0
            axis.plot(across, up, line, color=colour, alpha=1.0 if first else 0.3, label=method if first else None)
    axis.axhline(results.start(reading), color=INK, linewidth=0.8, linestyle=":", label="start")
    if x == "cpu_seconds":
        axis.set_xscale("log")


def _decorate(axes: Any, reading: str, results: Results) -> None:
    smoothness = results.of(METHODS[0], reading)[0].setting.smoothness
    axes[0].set_title(f"{reading[0].upper()}{reading[1:]}: L = {smoothness:.1f}")
    axes[1].set_title("The same against CPU time")
    axes[2].set_title("Negative ELBO from 100 draws, minus $f^*$")
    axes[0].set_ylabel("gap $f(w) - f^*$ [nats]")
    axes[0].set_xlabel("gradient evaluations")
    axes[1].set_xlabel("CPU time [s]")
    axes[2].set_xlabel("gradient evaluations")
