"""The picture of Corollary 14: distance against steps, counted in units of the theorem's time."""

from typing import Any

from provi.report.style import INK, PALETTE, figure_style


def draw(results: list[Any], strong_convexity: float) -> Any:
    """Two panels, one an estimator; steps times gamma mu/2 is the theorem's exponent, the same for all steps."""
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(8.4, 3.6))
        axes = figure.subplots(1, 2, sharey=True)
        names = list(dict.fromkeys(result.estimator for result in results))
        for axis, name in zip(axes, names, strict=True):
            chosen = [result for result in results if result.estimator == name]
            for colour, result in zip(PALETTE, chosen, strict=False):
                times = result.steps * result.step_size * strong_convexity / 2
                label = f"{result.multiple} x the theorem's step" if result.multiple > 1 else "the theorem's step"
                axis.plot(times, result.mean, color=colour, label=label)
                if result.bound is not None:
                    axis.plot(times, result.bound, "--", color=INK, linewidth=1.1, label="Corollary 14's bound")
            axis.set_title(f"{name[0].upper()}{name[1:]}")
            axis.set_yscale("log")
            axis.set_xlabel("steps x gamma mu / 2")
        axes[0].set_ylabel("mean |w - w*|^2")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
