"""Methods: each a short assembly of estimator, geometry, schedules and averaging."""

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.block_rule import BlockRule, adagrad, adam, bayes_by_backprop, momentum
from provi.algorithms.dual_natural_gradient import DualNaturalGradient
from provi.algorithms.elbo_surrogate import block_curvatures, elbo_surrogate
from provi.algorithms.miso import MISO
from provi.algorithms.misso import MISSO
from provi.algorithms.mpsgd import MPSGD
from provi.algorithms.natural_gradient import NaturalGradient
from provi.algorithms.network_surrogate import NetworkPoint, NetworkSurrogate, network_surrogate
from provi.algorithms.optax import Optax
from provi.algorithms.paced_misso import PacedMISSO
from provi.algorithms.pgsvi import PGSVI
from provi.algorithms.proj_sgd import ProjSGD
from provi.algorithms.prox_sgd import ProxSGD
from provi.algorithms.proximal_gradient import ProximalGradient
from provi.algorithms.proximal_split import KLToPrior, Penalty, Split
from provi.algorithms.quadratic_surrogate import QuadraticSurrogate
from provi.algorithms.sag import SAG
from provi.algorithms.site_table import SiteTable
from provi.algorithms.sparse_learning import LearntProcess, learn_sparse_hyperparameters
from provi.algorithms.stochastic_natural_gradient import StochasticNaturalGradient
from provi.algorithms.surrogates import AbstractSurrogate, Surrogate
from provi.certificates.guarantee import Guarantee

__all__ = [
    "MISO",
    "MISSO",
    "MPSGD",
    "PGSVI",
    "SAG",
    "AbstractAlgorithm",
    "AbstractSurrogate",
    "BlockRule",
    "DualNaturalGradient",
    "Guarantee",
    "KLToPrior",
    "LearntProcess",
    "NaturalGradient",
    "NetworkPoint",
    "NetworkSurrogate",
    "Optax",
    "PacedMISSO",
    "Penalty",
    "ProjSGD",
    "ProxSGD",
    "ProximalGradient",
    "QuadraticSurrogate",
    "SiteTable",
    "Split",
    "StochasticNaturalGradient",
    "Surrogate",
    "adagrad",
    "adam",
    "bayes_by_backprop",
    "block_curvatures",
    "elbo_surrogate",
    "learn_sparse_hyperparameters",
    "momentum",
    "network_surrogate",
]
