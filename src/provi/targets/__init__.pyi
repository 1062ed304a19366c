from provi.targets import latent as latent
from provi.targets import likelihoods as likelihoods
from provi.targets.base import AbstractFiniteSum as AbstractFiniteSum
from provi.targets.base import AbstractTarget as AbstractTarget
from provi.targets.base import Constant as Constant
from provi.targets.base import Constants as Constants
from provi.targets.bayesian_network import BayesianNetwork as BayesianNetwork
from provi.targets.gaussian import Gaussian as Gaussian
from provi.targets.gaussian_process import GaussianProcess as GaussianProcess
from provi.targets.hierarchical_logistic_regression import (
    HierarchicalLogisticRegression as HierarchicalLogisticRegression,
)
from provi.targets.latent_gaussian import LatentGaussian as LatentGaussian
from provi.targets.linear_model import AbstractLinearModel as AbstractLinearModel
from provi.targets.log_density import LogDensity as LogDensity
from provi.targets.multinomial import MultinomialLogistic as MultinomialLogistic
from provi.targets.priors import GaussianPrior as GaussianPrior
from provi.targets.priors import gaussian_prior as gaussian_prior
from provi.targets.regressions import GeneralisedLinearModel as GeneralisedLinearModel
from provi.targets.regressions import LinearRegression as LinearRegression
from provi.targets.regressions import LogisticRegression as LogisticRegression
from provi.targets.regressions import PoissonRegression as PoissonRegression
from provi.targets.regressions import ProbitRegression as ProbitRegression
from provi.targets.sparse_gaussian_process import SparseGaussianProcess as SparseGaussianProcess
from provi.targets.student_t_regression import StudentTRegression as StudentTRegression
from provi.targets.transforms.scalar import interval as interval
from provi.targets.whitened import Whitened as Whitened
from provi.targets.whitened import WhitenedFiniteSum as WhitenedFiniteSum
