"""Covariance functions of Gaussian processes, their sums and products, and their hyperparameters as one vector."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
