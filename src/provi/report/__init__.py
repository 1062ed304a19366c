"""Things people look at: pictures of a fit, in one style."""

from provi.report.plots import plot_fit
from provi.report.style import figure_style

__all__ = ["figure_style", "plot_fit"]
