"""Pictures of a fitted model beside its data: checks, the function of a Gaussian process, evidence brackets."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from scipy import linalg, special

from provi.diagnostics.check import ModelCheck, reliability
from provi.diagnostics.pareto import USABLE_K
from provi.kernels.rows import in_full
from provi.report.plots.posterior import shortened
from provi.report.style import INK, PALETTE, figure_style
from provi.targets import likelihoods

_SIZE = (4.1, 3.0)  # inches; small enough that the letters can be read on a telephone
_POINTS, _CURVE, _CELLS, _SHADES, _PANELS = 250, 80, 30, 6, 6
_LARGEST_PROCESS = 2000
_BAND = 0.94


def plot_replicated(checked: ModelCheck) -> Figure:
    """The distribution of the responses: observed as a line, between the 1% and 99% of the simulated ones."""
    table, observed = checked.table, checked.table[0]
    whole = checked.kind in ("classes", "counts", "grades")
    low, high = np.quantile(table, [0.002, 0.998])
    low, high = min(low, observed.min()) if whole else low, max(high, np.quantile(observed, 0.995))
    if whole and high - low <= 30:
        edges = np.arange(low, high + 2) - 0.5
    else:
        edges = np.linspace(low, high, 25) - (0.5 if whole else 0.0)
    counts = np.stack([np.histogram(np.clip(row, edges[0], edges[-1]), edges)[0] for row in table[:301]])
    bottom, middle, top = np.quantile(counts[1:], [0.01, 0.5, 0.99], axis=0)
    with figure_style():
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        axes.stairs(top, edges, baseline=bottom, fill=True, color=PALETTE[0], alpha=0.25, label="simulated, 1% to 99%")
        axes.stairs(middle, edges, color=PALETTE[0], linewidth=1.0, label="simulated, median")
        axes.stairs(counts[0], edges, color=PALETTE[1], linewidth=1.6, label="observed")
        axes.set(xlabel="response (the ends hold what is beyond)", ylabel="rows")
        axes.set_ylim(bottom=0)
        axes.set_title("Responses, observed and simulated")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def plot_reliability(checked: ModelCheck) -> Figure:
    """Observed shares against predicted probabilities, with the band in which calibrated ones lie."""
    predicted, observed, low, high = reliability(checked)
    mean, labels = checked.table[1:].mean(axis=0), checked.table[0]
    with figure_style():
        figure, (axes, below) = plt.subplots(
            2, 1, figsize=(_SIZE[0], 3.9), sharex=True, height_ratios=(3, 1), layout="constrained"
        )
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
        axes.vlines(predicted, low, high, color=PALETTE[0], alpha=0.35, linewidth=6, label="calibrated, 1% to 99%")
        axes.plot(predicted, observed, "o-", color=PALETTE[1], linewidth=1.2, label="observed share of ones")
        axes.set(ylabel="observed share", ylim=(-0.03, 1.03), xlim=(-0.02, 1.02))
        axes.set_title("Calibration of predicted probabilities")
        edges = np.linspace(0, 1, 26)
        for label, colour in ((0, PALETTE[0]), (1, PALETTE[1])):
            counts = np.histogram(mean[labels == label], edges)[0]
            below.stairs(counts, edges, color=colour, linewidth=1.2, label=f"rows with a {label}")
        below.set(xlabel="predicted probability", ylabel="rows")
        below.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        handles, words = axes.get_legend_handles_labels()
        more = below.get_legend_handles_labels()
        figure.legend([*handles, *more[0]], [*words, *more[1]], loc="outside lower left", ncols=2)
    return figure


def plot_residuals(checked: ModelCheck) -> Figure:
    """Residuals in deviations against the prediction, their mean in bins, and the band of simulated means."""
    table = checked.table
    mean, deviation = table.mean(axis=0), table.std(axis=0)
    known = deviation > 0
    residual = (table[0] - mean)[known] / deviation[known]
    predicted, observed, low, high = reliability(checked)
    # In the units of the residuals of each bin's rows.
    scale = np.interp(predicted, *_sorted(mean[known], deviation[known]))
    with figure_style():
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        chosen = np.linspace(0, len(residual) - 1, min(_POINTS, len(residual))).astype(int)
        order = np.argsort(mean[known])[chosen]
        axes.plot(mean[known][order], residual[order], ".", color=INK, alpha=0.35, markersize=3.5)
        axes.vlines(
            predicted, (low - predicted) / scale, (high - predicted) / scale,
            color=PALETTE[0], alpha=0.35, linewidth=6, label="means in bins, simulated 1% to 99%",
        )  # fmt: skip
        axes.plot(predicted, (observed - predicted) / scale, "o-", color=PALETTE[1], linewidth=1.2, label="observed")
        axes.axhline(0, color="0.6", linewidth=0.8)
        reach = max(3.2, float(np.quantile(np.abs(residual), 0.995)) * 1.1)
        axes.set(xlabel="prediction", ylabel="residual, in deviations", ylim=(-reach, reach))
        axes.set_title("Residuals against the prediction")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def _sorted(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x in order and y smoothed along it: a running mean over a tenth of the points."""
    order, width = np.argsort(x), max(len(x) // 10, 1)
    kernel = np.ones(width) / width
    padded = np.pad(y[order], (width // 2, width - 1 - width // 2), mode="edge")
    return x[order], np.convolve(padded, kernel, mode="valid")


def plot_influence(checked: ModelCheck) -> Figure:
    """k-hat of every row when it is left out, in order, with the limit above which a row decides by itself."""
    assert checked.influence is not None
    tails = np.nan_to_num(checked.influence.pareto_k, nan=-0.5, neginf=-0.5, posinf=3.0)
    order = np.argsort(-tails, kind="stable")
    with figure_style():
        figure, axes = plt.subplots(figsize=(_SIZE[0], 2.4), layout="constrained")
        axes.plot(np.arange(1, len(tails) + 1), tails[order], color=PALETTE[0], label="rows, the worst first")
        axes.axhline(USABLE_K, color=PALETTE[1], linewidth=1.0, linestyle="--", label=f"limit, {USABLE_K}")
        worst = [int(row) for row in order[:3] if tails[row] > USABLE_K]
        if worst:
            axes.plot(np.arange(1, len(worst) + 1), tails[worst], "o", color=PALETTE[1])
            words = f"row{'s' if len(worst) > 1 else ''} {', '.join(map(str, worst))}"
            axes.annotate(words, (len(worst), tails[worst[-1]]), (8, 3), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(xlabel="rows, in order", ylabel="k-hat without the row")
        axes.set_title("Influential rows")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def latent_function(fit: Any, points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    r"""Mean and deviation of the latent function at `points`; None where the fit is no process, or too large.

    $\mu + k'a$ and $k(x, x) - |L^{-1}S^{1/2}k|^2$, $LL' = I + S^{1/2}KS^{1/2}$, for sites (a, S); without sites, with
    the mean m and covariance V at the data, $\mu + k'K^{-1}(m - \mu)$ and $k(x, x) - k'K^{-1}k + k'K^{-1}VK^{-1}k$;
    with inducing points $\phi'm$ and $\phi'V\phi + \kappa$.
    """
    target, posterior = fit.target, fit.posterior
    if getattr(target, "kernel", None) is None or posterior.family.dim > _LARGEST_PROCESS:
        return None
    inputs = np.asarray(target.inputs, np.float64)
    if getattr(target, "inducing", None) is not None:
        cross = np.asarray(target.kernel.matrix(np.asarray(target.inducing, np.float64), points), np.float64)
        own = np.asarray(target.kernel.diagonal(points), np.float64)
        features = linalg.solve_triangular(np.asarray(target.factor, np.float64), cross, lower=True).T
        mean = features @ posterior.mean
        variance = np.einsum("ij,ij->i", features @ posterior.covariance, features) + own - (features**2).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, 0.0))
    cross = np.asarray(target.kernel.matrix(inputs, points), np.float64)
    own, gram = np.asarray(target.kernel.diagonal(points), np.float64), np.asarray(in_full(target.gram), np.float64)
    sites = getattr(posterior.point, "site_precision", None)
    if sites is not None and (np.asarray(sites) >= 0).all():
        root = np.sqrt(np.asarray(sites, np.float64))
        lower = linalg.cholesky(np.eye(len(gram)) + root[:, None] * gram * root, lower=True)
        solved = linalg.solve_triangular(lower, root[:, None] * cross, lower=True)
        mean = float(target.mean) + cross.T @ np.asarray(posterior.point.dual_mean, np.float64)
        return mean, np.sqrt(np.maximum(own - (solved**2).sum(axis=0), 0.0))
    weights = linalg.cho_solve(linalg.cho_factor(gram), cross)
    mean = float(target.mean) + weights.T @ (posterior.mean - float(target.mean))
    variance = own - (cross * weights).sum(axis=0) + np.einsum("ij,ij->j", weights, posterior.covariance @ weights)
    return mean, np.sqrt(np.maximum(variance, 0.0))


def response_scale(likelihood: Any) -> tuple[Any, str]:
    """From the latent function to what is observed: a monotone function, and what it is called."""
    match likelihood:
        case likelihoods.BernoulliLogit():
            return special.expit, "probability of a one"
        case likelihoods.BernoulliProbit():
            return special.ndtr, "probability of a one"
        case likelihoods.Poisson() | likelihoods.NegativeBinomial():
            return np.exp, "expected count"
        case likelihoods.GaussianNoise() | likelihoods.StudentT():
            return lambda f: f, "response, without noise"
        case _:
            return lambda f: f, "latent function"


@dataclasses.dataclass(frozen=True)
class _Units:
    """What people know: names, and centre + scale * the model's number, of each input and of the response."""

    names: tuple[str, ...]
    centres: np.ndarray
    scales: np.ndarray
    response: tuple[str, float, float]

    def inputs(self, k: int, x: Any) -> Any:
        return self.centres[k] + self.scales[k] * x

    def values(self, y: Any) -> Any:
        return self.response[1] + self.response[2] * y


def _units(description: Any, columns: int, words: str) -> _Units:
    plain = [(f"input {k + 1}", 0.0, 1.0) for k in range(columns)]
    known = plain if description is None or len(description.inputs) != columns else description.inputs
    names, centres, scales = zip(*known, strict=True)
    response = None if description is None else description.response
    # Probabilities and counts have no other unit.
    name, centre, scale = (words, 0.0, 1.0) if response is None else response
    return _Units(names, np.array(centres), np.array(scales), (name, centre, scale))


def plot_function(fit: Any, description: Any = None) -> Figure | None:
    """The function of a Gaussian process: a curve of one input, a surface of two, each one's effect of more.

    The others are then at their medians. None where the fit is no process. Names and units are those of the
    `description`, where it has some.
    """
    inputs = np.asarray(getattr(fit.target, "inputs", np.zeros((0, 0))), np.float64)
    if getattr(fit.target, "kernel", None) is None or inputs.ndim != 2:
        return None
    columns = inputs.shape[1]
    transform, words = response_scale(fit.target.likelihood)
    units = _units(description, columns, words)
    if columns == 2:
        return _surface(fit, inputs, units)
    middle, shown = np.median(inputs, axis=0), _most_varied(fit, inputs)
    points = []
    for k in shown:
        line = np.repeat(middle[None], _CURVE, axis=0)
        line[:, k] = np.linspace(inputs[:, k].min(), inputs[:, k].max(), _CURVE)
        points.append(line)
    found = latent_function(fit, np.concatenate(points))
    if found is None:
        return None
    reach = special.ndtri(0.5 + _BAND / 2)
    across, down = min(len(shown), 2), -(-len(shown) // 2)
    with figure_style():
        size = (_SIZE[0], _SIZE[1]) if columns == 1 else (_SIZE[0], 1.6 * down + 0.6)
        figure, panels = plt.subplots(
            down, across, figsize=size, squeeze=False, sharey=True, layout="constrained"
        )  # fmt: skip
        for axes in panels.flat[len(shown) :]:
            axes.set_visible(False)
        for place, (k, axes) in enumerate(zip(shown, panels.flat, strict=False)):
            mean, deviation = (part[place * _CURVE : (place + 1) * _CURVE] for part in found)
            x = units.inputs(k, points[place][:, k])
            low, middle, high = (units.values(transform(mean + c * deviation)) for c in (-reach, 0.0, reach))
            axes.fill_between(x, low, high, color=PALETTE[0], alpha=0.25, linewidth=0, label=f"{100 * _BAND:g}% band")
            axes.plot(x, middle, color=PALETTE[0], label=words)
            axes.set_xlabel(shortened(units.names[k], 22), parse_math=False)
            axes.xaxis.set_major_locator(MaxNLocator(4))
        if columns == 1:
            _data_points(panels[0, 0], fit, inputs[:, 0], units)
        panels[0, 0].set_ylabel(shortened(units.response[0], 22), parse_math=False)
        panels[0, 0].set_title("The fitted function" if columns == 1 else "Effect of each input, others at medians")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def _most_varied(fit: Any, inputs: np.ndarray) -> list[int]:
    """The inputs to show: all, or those along which the function at the data varies most."""
    columns = inputs.shape[1]
    if columns <= _PANELS or getattr(fit.target, "gram", None) is None:
        return list(range(min(columns, _PANELS)))
    mean = fit.posterior.mean
    with np.errstate(all="ignore"):
        strength = np.abs(np.nan_to_num([np.corrcoef(inputs[:, k], mean)[0, 1] for k in range(columns)]))
    return sorted(int(k) for k in np.argsort(-strength, kind="stable")[:_PANELS])


def _data_points(axes: Axes, fit: Any, inputs: np.ndarray, units: _Units) -> None:
    x, response = units.inputs(0, inputs), units.values(np.asarray(fit.target.response, np.float64))
    chosen = np.linspace(0, len(x) - 1, min(_POINTS, len(x))).astype(int)
    axes.plot(x[chosen], response[chosen], ".", color=INK, alpha=0.5, markersize=4, label="data")


def _surface(fit: Any, inputs: np.ndarray, units: _Units) -> Figure | None:
    """Shades by how far the function is above (blue) or below (orange) its middle, with contours."""
    first, second = (np.linspace(inputs[:, k].min(), inputs[:, k].max(), _CELLS) for k in (0, 1))
    points = np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(-1, 2)
    found = latent_function(fit, points)
    if found is None:
        return None
    transform, words = response_scale(fit.target.likelihood)
    value = units.values(transform(found[0])).reshape(_CELLS, _CELLS)
    first, second = units.inputs(0, first), units.inputs(1, second)
    centre = 0.5 if "probability" in words else float(np.median(value))
    reach = max(float(np.abs(value - centre).max()), 1e-9)
    # The opacity is the distance from the middle, so that this is the page's own colour, dark or light.
    levels = centre + reach * np.linspace(-1, 1, 2 * _SHADES + 1) * (1 + 1e-9)
    strength = 0.65 * (np.arange(_SHADES) + 0.5) / _SHADES
    shades = [(*to_rgb(PALETTE[1]), a) for a in strength[::-1]] + [(*to_rgb(PALETTE[0]), a) for a in strength]
    with figure_style():
        figure, axes = plt.subplots(figsize=(_SIZE[0], 3.6), layout="constrained")
        axes.contourf(first, second, value.T, levels=levels, colors=shades)
        lines = axes.contour(first, second, value.T, levels=5, colors=INK, linewidths=0.7)
        axes.clabel(lines, fontsize=7, fmt="%.3g")
        _plane_points(axes, fit, np.stack([units.inputs(k, inputs[:, k]) for k in (0, 1)], axis=1))
        axes.set_xlabel(shortened(units.names[0], 30), parse_math=False)
        axes.set_ylabel(shortened(units.names[1], 30), parse_math=False)
        axes.set_title(shortened(f"{units.response[0]}: {words}", 50), parse_math=False)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def _plane_points(axes: Axes, fit: Any, inputs: np.ndarray) -> None:
    response = np.asarray(fit.target.response, np.float64)
    chosen = np.linspace(0, len(inputs) - 1, min(_POINTS, len(inputs))).astype(int)
    x, y = inputs[chosen], response[chosen]
    if np.isin(response, (0, 1)).all():
        axes.plot(*x[y == 1].T, "o", color=PALETTE[0], markersize=3, label="rows with a 1")
        axes.plot(*x[y == 0].T, "x", color=PALETTE[1], markersize=3.5, label="rows with a 0")
    else:
        axes.plot(*x.T, ".", color=INK, alpha=0.5, markersize=3, label="data")


def plot_brackets(comparison: Any) -> Figure:
    """The bracket of each model's log evidence, the best on top; an arrow where there is no upper end."""
    names, brackets = comparison.names, comparison.brackets
    ends = [bracket.lower for bracket in brackets] + [b.upper for b in brackets if np.isfinite(b.upper)]
    room = max(0.08 * (max(ends) - min(ends)), 0.5)
    with figure_style():
        figure, axes = plt.subplots(figsize=(_SIZE[0] * 1.25, 0.34 * len(names) + 1.1), layout="constrained")
        for place, bracket in enumerate(brackets):
            height, colour = len(names) - 1 - place, PALETTE[2] if place == 0 else PALETTE[0]
            known = bool(np.isfinite(bracket.upper))
            axes.plot([bracket.lower, bracket.upper if known else bracket.lower], [height] * 2, "|-", color=colour,
                      linewidth=4, markersize=11, solid_capstyle="butt")  # fmt: skip
            if not known:
                axes.annotate(
                    "", (max(ends) + 0.8 * room, height), (bracket.lower, height),
                    arrowprops={"arrowstyle": "->", "color": colour, "linestyle": ":"},
                )  # fmt: skip
        axes.axvline(brackets[0].lower, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
        axes.set_yticks(range(len(names))[::-1], [shortened(name, 34) for name in names], parse_math=False)
        axes.set(xlim=(min(ends) - room, max(ends) + room), ylim=(-0.7, len(names) - 0.3), xlabel="log evidence, nats")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_title("Brackets of the log evidence")
    return figure


def plot_estimates(names: Sequence[str], values: Any, intervals: Any, level: float) -> Figure:
    """Estimates with their intervals, the first on top; the intercept is left out where it is far from the rest."""
    with figure_style():
        figure, axes = plt.subplots(figsize=(_SIZE[0], max(1.6, 0.23 * len(names) + 0.9)), layout="constrained")
        position = np.arange(len(names))[::-1]
        axes.hlines(position, *np.asarray(intervals).T, color=PALETTE[0], linewidth=1.6)
        axes.plot(values, position, "o", color=INK, markersize=3.5)
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_yticks(position, [shortened(name, 28) for name in names], parse_math=False)
        axes.set(ylim=(-0.8, len(names) - 0.2), xlabel="coefficient")
        axes.set_title(f"Estimates with {100 * level:g}% confidence intervals")
    return figure


def plot_missing(names: Sequence[str], values: np.ndarray) -> Figure:
    """The share of missing entries of each column that has some, the most first."""
    shares = np.isnan(values).mean(axis=0)
    order = [k for k in np.argsort(-shares, kind="stable") if shares[k] > 0][:30]
    with figure_style():
        figure, axes = plt.subplots(figsize=(_SIZE[0], max(1.4, 0.23 * len(order) + 0.9)), layout="constrained")
        position = np.arange(len(order))[::-1]
        axes.barh(position, 100 * shares[order], color=PALETTE[0], alpha=0.7, height=0.6)
        axes.set_yticks(position, [shortened(names[k], 28) for k in order], parse_math=False)
        axes.set(xlabel="missing, % of the rows", ylim=(-0.8, len(order) - 0.2))
        axes.set_title("Missing entries by column")
    return figure
