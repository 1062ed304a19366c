from provi.targets.likelihoods.base import AbstractLikelihood as AbstractLikelihood
from provi.targets.likelihoods.bernoulli import BernoulliLogit as BernoulliLogit
from provi.targets.likelihoods.bernoulli import BernoulliProbit as BernoulliProbit
from provi.targets.likelihoods.gaussian import GaussianNoise as GaussianNoise
from provi.targets.likelihoods.negative_binomial import NegativeBinomial as NegativeBinomial
from provi.targets.likelihoods.poisson import Poisson as Poisson
from provi.targets.likelihoods.student_t import StudentT as StudentT
from provi.targets.likelihoods.user import UserLikelihood as UserLikelihood
