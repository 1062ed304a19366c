"""Pictures of a fit."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from provi.report.style import figure_style

_LARGEST_MARGINALS = 40


def plot_fit(fit: Any) -> Figure:
    """Left: the ELBO estimates along the run with twice their standard error. Right: the marginals of q."""
    shown = min(len(fit.posterior.names), _LARGEST_MARGINALS)
    with figure_style():
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(10, max(3.6, 0.19 * shown + 1.1)), layout="constrained", width_ratios=(1, 1.15)
        )
        _trace(left, fit)
        _marginals(right, fit.posterior)
    return figure


def _trace(axes: Axes, fit: Any) -> None:
    history = fit.history
    evaluations, elbo, error = (history[name] for name in ("gradient_evaluations", "elbo", "elbo_standard_error"))
    axes.plot(evaluations, elbo, linewidth=1.2, label="estimate from 100 draws, band two s.e.")
    axes.fill_between(evaluations, elbo - 2 * error, elbo + 2 * error, alpha=0.2, linewidth=0)
    axes.axhline(fit.elbo.value, color="0.3", linewidth=0.8, linestyle="--", label=f"final: {fit.elbo}")
    axes.set_xscale("log")
    # The first records may be far below: show the range in which the run spends its second half, with some room.
    tail = elbo[len(elbo) // 4 :]
    low, high = np.min(tail - 4 * error[len(elbo) // 4 :]), np.max(tail + 4 * error[len(elbo) // 4 :])
    if np.isfinite([low, high]).all() and high > low:
        axes.set_ylim(low, high)
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
