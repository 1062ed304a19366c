"""Unbiased gradient estimators of the negative ELBO and of its parts."""

from provi.estimators.base import AbstractEstimator, minibatch_gradient
from provi.estimators.energy import Energy
from provi.estimators.entropy import Entropy
from provi.estimators.score_function import ScoreFunction
from provi.estimators.sticking_the_landing import StickingTheLanding

__all__ = [
    "AbstractEstimator",
    "Energy",
    "Entropy",
    "ScoreFunction",
    "StickingTheLanding",
    "minibatch_gradient",
]
