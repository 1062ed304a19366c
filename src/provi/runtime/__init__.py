"""Running an algorithm: the compiled loop, budgets, progress, checkpoints."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
