"""ProVI: provable variational inference on JAX.

`provi.fit(target)` approximates a posterior; `provi.algorithms` holds the methods with convergence theorems,
`provi.theory` the theorems as functions, `provi.models` the estimators of scikit-learn's kind.
"""

import sys
import types
from typing import Any

from provi.core.lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)


class _Package(types.ModuleType):
    """`provi.fit` and `provi.certify` are functions although modules have these names.

    Python sets a package's attribute to each module of it that is imported, and so would hide the functions.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("fit", "certify") and isinstance(value, types.ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
