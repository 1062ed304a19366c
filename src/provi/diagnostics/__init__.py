"""How good is it: exact negative ELBOs and optima where they can be computed without Monte Carlo."""

from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import Optimum, linear_model_optimum

__all__ = ["Optimum", "exact_negative_elbo", "linear_model_optimum"]
