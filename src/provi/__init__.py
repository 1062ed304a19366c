"""ProVI: provable variational inference on JAX.

`provi.fit(target)` approximates a posterior; `provi.algorithms` holds the methods with convergence theorems,
`provi.theory` the theorems as functions, `provi.models` the estimators of scikit-learn's kind.
"""

from provi.core.lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
