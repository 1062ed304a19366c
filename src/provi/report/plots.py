"""Pictures of a fit."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from provi.report.style import figure_style

_LARGEST_MARGINALS = 40


def plot_fit(fit: Any) -> Figure:
    """Left: the ELBO along the run with its certificate, or the gap where ELBOs are exact. Right: the marginals."""
    shown = min(len(fit.posterior.names), _LARGEST_MARGINALS)
    with figure_style():
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(10, max(3.6, 0.19 * shown + 1.1)), layout="constrained", width_ratios=(1, 1.15)
        )
        exact = len(fit.history) > 1 and not fit.history["elbo_standard_error"].any()
        if len(fit.history):
            (_gap if exact and fit.certificate.gap else _trace)(left, fit)
        _marginals(right, fit.posterior)
    return figure


def _gap(axes: Axes, fit: Any) -> None:
    """Where ELBOs are exact: ELBO_T - ELBO_k <= gap at step k <= ELBO_T - ELBO_k + certified gap at T."""
    steps, elbo = fit.history["step"], fit.history["elbo"]
    finite = np.isfinite(elbo)
    steps, below = steps[finite], fit.elbo.value - elbo[finite]
    certified = fit.certificate.gap
    upper = np.maximum(below, 0) + certified
    axes.plot(steps, upper, marker=".", linewidth=1.2, label="at most (proven)")
    lower = np.where(below > 0, below, np.nan)
    axes.fill_between(steps, np.where(below > 0, below, 0.3 * certified), upper, alpha=0.2, linewidth=0)
    axes.plot(steps, lower, linewidth=0.8, linestyle=":", color="0.4", label="at least")
    axes.annotate(f"{certified:.2g}", (steps[-1], certified), textcoords="offset points", xytext=(-4, -14), ha="right")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0.3 * certified)
    axes.set_xlabel("passes over the data")
    axes.set_ylabel("nats from the best approximation")
    axes.set_title(f"Optimality gap along the run; ELBO {fit.elbo.value:.6g}")
    axes.legend(loc="upper right")


def _trace(axes: Axes, fit: Any) -> None:
    history = fit.history
    evaluations, elbo, error = (history[name] for name in ("gradient_evaluations", "elbo", "elbo_standard_error"))
    axes.plot(evaluations, elbo, linewidth=1.2, label="estimate, band two standard errors")
    axes.fill_between(evaluations, elbo - 2 * error, elbo + 2 * error, alpha=0.2, linewidth=0)
    axes.axhline(fit.elbo.value, color="0.3", linewidth=0.8, linestyle="--", label=f"final: {fit.elbo}")
    top = fit.elbo.value
    if fit.certificate.gap is not None:
        top += fit.certificate.gap
        words = f"{fit.certificate.status}: the best is within {fit.certificate.gap:.2g}"
        axes.axhspan(fit.elbo.value, top, color="tab:green", alpha=0.25, linewidth=0, label=words)
    axes.set_xscale("log")
    # The first records may be far below: show the range in which the run spends its second half, with some room.
    half = slice(len(elbo) // 2, None)
    low, high = np.min((elbo - 4 * error)[half]), max(np.max((elbo + 4 * error)[half]), top)
    if np.isfinite([low, high]).all() and high > low:
        axes.set_ylim(low - 0.35 * (high - low), high + 0.05 * (high - low))  # the legend stands below the trace
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlabel("gradient evaluations")
    axes.set_ylabel("ELBO (nats)")
    axes.set_title("ELBO along the run")
    axes.legend(loc="lower right")


def _marginals(axes: Axes, posterior: Any) -> None:
    interval = posterior.interval(0.94)[:_LARGEST_MARGINALS]
    mean, names = posterior.mean[:_LARGEST_MARGINALS], posterior.names[:_LARGEST_MARGINALS]
    position = np.arange(len(mean))[::-1]
    axes.hlines(position, interval[:, 0], interval[:, 1], linewidth=1.6)
    axes.plot(mean, position, "o", markersize=3.5, color="black")
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_yticks(position, names, fontsize=7)
    axes.set_ylim(-1, len(mean))
    axes.set_xlabel("value")
    more = len(posterior.names) - len(mean)
    axes.set_title("Marginals: mean and 94% interval" + (f" (first {len(mean)}; {more} more)" if more else ""))
