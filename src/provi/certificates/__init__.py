"""What a fit can say about itself: bounds with their grounds, assumptions with their status."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
