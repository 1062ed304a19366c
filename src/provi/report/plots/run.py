"""Pictures of a fit: the ELBO and the certificate along its run, the theorem's bound, the noise of its gradients."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from provi.diagnostics.noise_audit import NoiseAudit, audit_gradient_noise
from provi.families.location_scale import LocationScale
from provi.report.plots.posterior import LARGEST_INTERVALS, draw_intervals, plot_marginals, read_marginals
from provi.report.style import PALETTE, figure_style, number, upper_bound

_SIZE = (4.1, 3.5)  # inches; small enough that the letters can be read on a telephone
_KINDS = ("overview", "trace", "bound", "marginals", "noise")


def plot(fit: Any, kind: str = "overview", reference: Any = None) -> Figure:
    """One of the pictures of a fit, by name: what `fit.plot` returns."""
    match kind:
        case "overview":
            return plot_fit(fit, reference)
        case "trace":
            return plot_trace(fit)
        case "bound":
            return plot_bound(fit, fit.guarantee)
        case "marginals":
            return plot_marginals(fit.posterior, reference)
        case "noise":
            family = fit.posterior.family
            if not isinstance(family, LocationScale):
                raise ValueError("kind='noise' needs a location-scale family; one in dual form draws no gradients.")
            if fit.target is None:
                raise ValueError("kind='noise' needs the target, which a file does not hold: provi.load(path, target).")
            return plot_noise(audit_gradient_noise(fit.target, family, fit.posterior.point))
        case _:
            raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}.")


def plot_fit(fit: Any, reference: Any = None) -> Figure:
    """Left: the ELBO along the run with its certificate, or the gap where ELBOs are exact. Right: the marginals.

    Only the latter for a nested fit, which integrates and has no run.
    """
    marginals, draws = read_marginals(fit.posterior, reference, LARGEST_INTERVALS)
    height = max(3.6, 0.19 * len(marginals.names) + 1.1)
    with figure_style():
        if fit.certificate.opening:  # a nested fit has no run to look at: its history is one row
            figure, right = plt.subplots(figsize=(6, height), layout="constrained")
        else:
            figure, (left, right) = plt.subplots(
                1, 2, figsize=(10, height), layout="constrained", width_ratios=(1, 1.15)
            )
            if len(fit.history) > 0 and bool(np.isfinite(fit.history["elbo"]).any()):
                (_gap if _exact(fit) and fit.certificate.gap else _trace)(left, fit)
            else:
                left.set_axis_off()
                left.set_title("The run recorded no finite ELBO")
        draw_intervals(right, marginals, draws, letters=8)
    return figure


def plot_trace(fit: Any) -> Figure:
    """The ELBO along the run, and the bands in which the certificate puts the family's best ELBO and the evidence."""
    _check_history(fit)
    with figure_style():
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        _trace(axes, fit)
        _legend_below(axes)
    return figure


def plot_bound(fit: Any, guarantee: Any = None) -> Figure:
    """How far the run was from the best member at each record, as the certificate bounds it, and the theorem's bound.

    With the ELBO $L_k$ of record k, the last one $L_T$ and its certified gap $g$: $0 \\le$ gap at k $\\le
    \\max(L_T - L_k, 0) + g$, to which two standard errors are added where ELBOs are estimates. With a bound on
    KL(q || posterior) at the end in the place of g: that of record k.

    **Arguments:**

    - `guarantee`: `algorithm.guarantee`, with the theorem's bound at every step; without it, that of the certificate,
      at the last step, is drawn. A theorem on another quantity than the gap is not.
    """
    _check_history(fit)
    if not np.isfinite(fit.elbo.value):
        raise ValueError("the ELBO of the fit is not finite, so no gap can be drawn: see fit.message, or kind='trace'.")
    with figure_style():
        figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
        _gap(axes, fit)
        steps, bound = fit.history["step"], theorem_on_gap(fit)
        if bound is not None:
            curve = np.full(len(steps), bound) if guarantee is None else np.asarray(guarantee.curve(steps))
            axes.plot(steps, curve, color=PALETTE[1], linestyle="--", label="theorem: expected gap at most")
            low, high = axes.get_ylim()
            axes.set_ylim(low, max(high, 2 * float(np.nanmax(curve[np.isfinite(curve)], initial=0.0))))
            _plain_logarithms(axes.yaxis)
        _legend_below(axes)
    return figure


def plot_noise(audit: NoiseAudit) -> Figure:
    """The variance of each gradient estimator at q with two standard errors, and the theory's bound on E|g|^2."""
    with figure_style():
        figure, axes = plt.subplots(figsize=(_SIZE[0], 0.5 * len(audit.rows) + 1.2), layout="constrained")
        position = np.arange(len(audit.rows))[::-1]
        variance = np.array([row.variance for row in audit.rows])
        errors = 2 * np.array([row.variance_standard_error for row in audit.rows])
        axes.errorbar(variance, position, xerr=errors, fmt="o", color=PALETTE[0], label="variance, measured")
        known = [(row.bound, k) for row, k in zip(audit.rows, position, strict=True) if row.bound is not None]
        if known:
            axes.plot(*np.array(known).T, "|", markersize=14, color=PALETTE[1], label="second moment, theory's bound")
        if (variance > 0).all():
            axes.set_xscale("log")
        axes.set_yticks(position, [row.estimator for row in audit.rows])
        axes.set_ylim(-0.6, len(audit.rows) - 0.4)
        axes.set_xlabel("squared norm, one draw")
        axes.set_title(f"Gradient noise at q, {audit.num_draws} draws")
        if (variance > 0).all():
            _plain_logarithms(axes.xaxis)
        _legend_below(axes)
    return figure


def theorem_on_gap(fit: Any) -> float | None:
    """The theorem's a-priori bound, where it is one on the gap in nats."""
    certificate = fit.certificate
    return certificate.a_priori_bound if certificate.a_priori_metric == "gap" else None


def _exact(fit: Any) -> bool:
    """Whether the ELBOs of the run are in closed form."""
    return len(fit.history) > 1 and not fit.history["elbo_standard_error"].any()


def _elbo(fit: Any) -> str:
    if not np.isfinite(fit.elbo.value):
        return "not finite"
    return f"{number(fit.elbo.value, 6)} ± {number(fit.elbo.standard_error, 2)}"


def _check_history(fit: Any) -> None:
    if not len(fit.history):
        raise ValueError("the run recorded no step, so there is nothing to draw: give it a larger budget.")


def _gap(axes: Axes, fit: Any) -> None:
    """ELBO_T - ELBO_k <= gap at step k <= ELBO_T - ELBO_k + certified gap at T, with two standard errors."""
    steps, elbo = fit.history["step"], fit.history["elbo"]
    finite = np.isfinite(elbo)
    steps, below = steps[finite], fit.elbo.value - elbo[finite]
    error = (
        np.zeros(len(below))
        if _exact(fit)
        else 2 * np.hypot(fit.elbo.standard_error, fit.history["elbo_standard_error"][finite])
    )
    certified = fit.certificate.gap
    least, most = below - error, np.maximum(below + error, 0)
    lower = np.where(least > 0, least, np.nan)
    if certified is not None:
        upper, floor = most + certified, 0.3 * max(certified, 1e-12)
        axes.plot(
            steps,
            upper,
            marker=".",
            linewidth=1.2,
            label=f"at most ({_grounds(fit.certificate)}); the fit {number(certified, 2)}",
        )
        axes.fill_between(steps, np.where(least > 0, least, floor), upper, alpha=0.2, linewidth=0)
        axes.set_ylim(floor, 2 * float(np.max(upper)))
    distance = fit.certificate.posterior
    if distance is not None:
        words = f"KL to the posterior ({distance.status}); the fit {upper_bound(distance.kl, 2)}"
        axes.plot(steps, most + distance.kl, linewidth=1.2, linestyle="-.", color=PALETTE[3], label=words)
        axes.set_ylim(top=2 * float(np.max(most + distance.kl)))
    axes.plot(steps, lower, linewidth=0.8, linestyle=":", color="0.4", label="at least")
    axes.set_yscale("log")
    _plain_logarithms(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(steps) == 1:
        axes.set_xlim(steps[0] - 1, steps[0] + 1)
    axes.set_xlabel("passes over the data" if _exact(fit) else "steps")
    axes.set_ylabel("nats from the best approximation" if distance is None else "nats, at most")
    axes.set_title(f"Optimality gap along the run; ELBO {number(fit.elbo.value, 6)}")
    axes.legend(loc="upper right")


def _plain_logarithms(axis: Axis) -> None:
    """Plain numbers at powers of ten, with some between where there are few powers: exponents are too small to read."""
    low, high = np.log10(axis.get_view_interval())
    between = (1.0,) if high - low > 2.5 else (1.0, 2.0, 5.0) if high - low > 0.6 else tuple(np.arange(1.0, 10.0))
    axis.set_major_locator(LogLocator(subs=between, numticks=7 if len(between) == 1 else 12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    axis.set_minor_formatter(NullFormatter())


def _power(value: float) -> str:
    return f"{value:,.0f}" if 1 <= value < 1e6 else number(value) if 1e-4 <= value < 1 else f"{value:.0e}"


def _legend_below(axes: Axes) -> None:
    """A legend under the picture, where it hides no line."""
    if axes.get_legend() is not None:
        axes.get_legend().remove()  # pyright: ignore[reportOptionalMemberAccess]
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left")  # pyright: ignore


def _grounds(certificate: Any) -> str:
    level = "" if certificate.confidence is None else f", {100 * certificate.confidence:g}%"
    return f"{certificate.status}{level}"


def _trace(axes: Axes, fit: Any) -> None:
    history = fit.history
    evaluations, elbo, error = (history[name] for name in ("gradient_evaluations", "elbo", "elbo_standard_error"))
    words = "in closed form" if _exact(fit) else "estimate, band two standard errors"
    axes.plot(evaluations, elbo, linewidth=1.2, marker="." if len(elbo) <= 20 else "", label=words)
    axes.fill_between(evaluations, elbo - 2 * error, elbo + 2 * error, alpha=0.2, linewidth=0)
    axes.axhline(fit.elbo.value, color="0.4", linewidth=0.8, linestyle="--", label=f"final: {_elbo(fit)}")
    # The first records may be far below: show the range in which the run spends its second half, with some room.
    half = slice(len(elbo) // 2, None)
    low, high = np.nanmin((elbo - 4 * error)[half]), np.nanmax((elbo + 4 * error)[half])
    if np.isfinite(fit.elbo.value):
        high = max(high, fit.elbo.value)
    tallest = 3 * max(high - low, 1e-300)  # beyond it a bound would press the run into a line
    if fit.certificate.gap is not None:
        gap, far = fit.certificate.gap, fit.certificate.gap > tallest
        words = f"{fit.certificate.status}: the best is within {upper_bound(gap, 2)}"
        words += " (off the picture)" if far else ""
        axes.axhspan(fit.elbo.value, fit.elbo.value + gap, color=PALETTE[2], alpha=0.25, linewidth=0, label=words)
        high = max(high, fit.elbo.value + (tallest / 6 if far else gap))
    bracket = fit.certificate.evidence
    if bracket is not None and np.isfinite(bracket.upper):
        far = bracket.width > tallest
        words = f"{bracket.status}: {bracket.ends}".replace("-", "\N{MINUS SIGN}") + (
            " (off the picture)" if far else ""
        )
        top = fit.elbo.value + tallest / 3 if far else bracket.upper
        axes.axhspan(bracket.lower, top, color=PALETTE[3], alpha=0.2, linewidth=0, label=words)
        high = max(high, top)
    bound = theorem_on_gap(fit)
    if bound is not None:
        height, far = fit.elbo.value + bound, bound > tallest
        words = f"theorem: expected within {upper_bound(bound, 2)}" + (" (off the picture)" if far else "")
        axes.plot([], [], color=PALETTE[1], linestyle="-.", linewidth=1.2, label=words)
        if not far:
            axes.axhline(height, color=PALETTE[1], linestyle="-.", linewidth=1.2)
            high = max(high, height)
    if np.isfinite([low, high]).all() and high > low:
        axes.set_ylim(low - 0.35 * (high - low), high + 0.05 * (high - low))  # the legend stands below the trace
    if _exact(fit):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xscale("log")
        _plain_logarithms(axes.xaxis)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlabel("passes over the data" if _exact(fit) else "gradient evaluations")
    axes.set_ylabel("ELBO (nats)")
    axes.set_title("ELBO along the run")
    axes.legend(loc="best")
