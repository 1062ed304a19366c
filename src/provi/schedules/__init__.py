"""Plans of a run: step sizes, batch growth, sampling of data terms, averaging."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
