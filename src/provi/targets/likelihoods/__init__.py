"""Likelihoods of one datum given one latent number: for linear models, Gaussian processes and GLMs."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
