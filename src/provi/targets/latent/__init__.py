"""Blocks of latent Gaussian effects given a few hyperparameters, and the priors of those: for `LatentGaussian`."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
