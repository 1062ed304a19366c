"""What we approximate: one model a file, each with its constants."""

from provi.targets import likelihoods as likelihoods
from provi.targets.base import AbstractFiniteSum as AbstractFiniteSum
from provi.targets.base import AbstractTarget as AbstractTarget
from provi.targets.bayesian_network import BayesianNetwork as BayesianNetwork
from provi.targets.constants import Constant as Constant
from provi.targets.constants import Constants as Constants
from provi.targets.gaussian import Gaussian as Gaussian
from provi.targets.gaussian_process import GaussianProcess as GaussianProcess
from provi.targets.generalised_linear_model import GeneralisedLinearModel as GeneralisedLinearModel
from provi.targets.hierarchical_logistic_regression import (
    HierarchicalLogisticRegression as HierarchicalLogisticRegression,
)
from provi.targets.linear_models import AbstractLinearModel as AbstractLinearModel
from provi.targets.linear_regression import LinearRegression as LinearRegression
from provi.targets.log_density import LogDensity as LogDensity
from provi.targets.logistic_regression import LogisticRegression as LogisticRegression
from provi.targets.poisson_regression import PoissonRegression as PoissonRegression
from provi.targets.priors import GaussianPrior as GaussianPrior
from provi.targets.priors import gaussian_prior as gaussian_prior
from provi.targets.probit_regression import ProbitRegression as ProbitRegression
from provi.targets.sparse_gaussian_process import SparseGaussianProcess as SparseGaussianProcess
from provi.targets.transforms import interval as interval
from provi.targets.whitened import Whitened as Whitened
from provi.targets.whitened import WhitenedFiniteSum as WhitenedFiniteSum
