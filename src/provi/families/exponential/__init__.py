"""Exponential families: natural and mean parameters, log-partition, divergences between members."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
