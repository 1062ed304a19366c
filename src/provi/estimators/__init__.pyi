from provi.estimators.base import AbstractEstimator as AbstractEstimator
from provi.estimators.base import minibatch_gradient as minibatch_gradient
from provi.estimators.gradients import Energy as Energy
from provi.estimators.gradients import Entropy as Entropy
from provi.estimators.gradients import ScoreFunction as ScoreFunction
from provi.estimators.gradients import StickingTheLanding as StickingTheLanding
