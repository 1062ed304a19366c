"""What `provi.fit` returns: the approximation, its ELBO, the ledger, the history, and why it stopped."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
