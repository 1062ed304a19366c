from provi.estimators.base import AbstractEstimator as AbstractEstimator
from provi.estimators.base import minibatch_gradient as minibatch_gradient
from provi.estimators.reparameterised import Energy as Energy
from provi.estimators.reparameterised import Entropy as Entropy
from provi.estimators.reparameterised import StickingTheLanding as StickingTheLanding
from provi.estimators.score_function import ScoreFunction as ScoreFunction
