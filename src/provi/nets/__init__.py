"""Neural networks for one example, channels last, in float32: convolution, LeNet-5, ResNet-18, perceptron."""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
