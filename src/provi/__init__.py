"""ProVI: provable variational inference on JAX.

`provi.fit(target)` approximates a posterior; `provi.algorithms` holds the methods with convergence theorems,
`provi.theory` the theorems as functions.
"""

from provi import algorithms, estimators, families, schedules, targets, theory
from provi.core.outcomes import Outcome
from provi.fit import fit
from provi.result import Fit, load
from provi.runtime.budget import Budget

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Fit",
    "Outcome",
    "__version__",
    "algorithms",
    "estimators",
    "families",
    "fit",
    "load",
    "schedules",
    "targets",
    "theory",
]
