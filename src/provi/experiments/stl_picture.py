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
                label = f"{result.multiple} times the theorem's step" if result.multiple > 1 else "the theorem's step"
                # The curves of small steps coincide in this unit of time: the wide one shows beneath the other.
                axis.plot(times, result.mean, color=colour, label=label, linewidth=3.2 if result.multiple == 1 else 1.6)
            times = chosen[0].steps * chosen[0].step_size * strong_convexity / 2
            axis.plot(times, chosen[0].bound, "--", color=INK, linewidth=1.1, label="bound at the theorem's step")
            axis.set_title(f"{name[0].upper()}{name[1:]}")
            axis.set_yscale("log")
            axis.set_xlabel(r"number of steps $\times\ \gamma\mu/2$")
        axes[0].set_ylabel(r"mean $|w - w^*|^2$")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
