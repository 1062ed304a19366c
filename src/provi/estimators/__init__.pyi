from provi.estimators.base import AbstractEstimator as AbstractEstimator
from provi.estimators.base import minibatch_gradient as minibatch_gradient
