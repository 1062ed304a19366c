"""Pictures of a fit."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from provi.report.style import figure_style

_LARGEST_MARGINALS = 40


def plot_fit(fit: Any) -> Figure:
    """Left: the ELBO along the run, and the band that holds the best one. Right: the marginals of q."""
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
    exact = not error.any()
    label = "exact" if exact else "estimate, band two standard errors"
    axes.plot(evaluations, elbo, linewidth=1.2, marker="." if len(elbo) < 40 else None, label=label)
    axes.fill_between(evaluations, elbo - 2 * error, elbo + 2 * error, alpha=0.2, linewidth=0)
    axes.axhline(fit.elbo.value, color="0.3", linewidth=0.8, linestyle="--", label=f"final: {fit.elbo}")
    top = fit.elbo.value
    if fit.certificate.gap is not None:
        top += fit.certificate.gap
        words = f"{fit.certificate.status}: the best is within {fit.certificate.gap:.2g} nats"
        axes.axhspan(fit.elbo.value, top, color="tab:green", alpha=0.25, linewidth=0, label=words)
    axes.set_xscale("log")
    # The first records may be far below: show the range in which the run spends its second half, with some room.
    half = slice(len(elbo) // 2, None)
    low, high = np.min((elbo - 4 * error)[half]), max(np.max((elbo + 4 * error)[half]), top)
    if np.isfinite([low, high]).all() and high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    axes.set_xlabel("passes over the data" if exact else "gradient evaluations")
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
