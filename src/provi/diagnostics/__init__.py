"""How good is it: exact ELBOs and optima where there are any, importance sampling, k-hat, gradient noise."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
