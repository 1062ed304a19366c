"""ProVI: provable variational inference on JAX.

`provi.fit(target)` approximates a posterior; `provi.algorithms` holds the methods with convergence theorems,
`provi.theory` the theorems as functions.
"""

from provi import algorithms, data, estimators, families, kernels, schedules, targets, theory
from provi.certificates.ledger import Certificate
from provi.certify import certify
from provi.core.compilation import enable_compilation_cache
from provi.core.outcomes import Outcome
from provi.fit import fit
from provi.frontends import from_numpyro, from_pymc, from_stan
from provi.result import Fit, load
from provi.runtime.budget import Budget

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Certificate",
    "Fit",
    "Outcome",
    "__version__",
    "algorithms",
    "certify",
    "data",
    "enable_compilation_cache",
    "estimators",
    "families",
    "fit",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "kernels",
    "load",
    "schedules",
    "targets",
    "theory",
]
