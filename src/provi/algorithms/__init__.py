"""Methods: each a short assembly of estimator, geometry, schedules and averaging."""

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.mpsgd import MPSGD
from provi.algorithms.natural_gradient import NaturalGradient
from provi.algorithms.optax import Optax
from provi.algorithms.proj_sgd import ProjSGD
from provi.algorithms.prox_sgd import ProxSGD
from provi.algorithms.site_table import SiteTable
from provi.algorithms.stochastic_natural_gradient import StochasticNaturalGradient
from provi.certificates.guarantee import Guarantee

__all__ = [
    "MPSGD",
    "AbstractAlgorithm",
    "Guarantee",
    "NaturalGradient",
    "Optax",
    "ProjSGD",
    "ProxSGD",
    "SiteTable",
    "StochasticNaturalGradient",
]
