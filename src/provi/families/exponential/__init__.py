"""Exponential families: natural and mean parameters, log-partition, divergences between members."""

from provi.families.exponential.base import AbstractExponentialFamily
from provi.families.exponential.bernoulli import BERNOULLI_ALPHA, PAPER_BERNOULLI_ALPHA, Bernoulli
from provi.families.exponential.categorical import PAPER_MULTINOMIAL_ALPHA, Categorical, categorical_alpha
from provi.families.exponential.coordinates import Coordinates, least_fisher_eigenvalue
from provi.families.exponential.dirichlet import Dirichlet
from provi.families.exponential.full_gaussian import FullGaussian
from provi.families.exponential.gamma import Gamma
from provi.families.exponential.gaussian import DiagonalGaussian, UnitGaussian, gaussian_moments_alpha
from provi.families.exponential.packing import pack, unpack

__all__ = [
    "BERNOULLI_ALPHA",
    "PAPER_BERNOULLI_ALPHA",
    "PAPER_MULTINOMIAL_ALPHA",
    "AbstractExponentialFamily",
    "Bernoulli",
    "Categorical",
    "Coordinates",
    "DiagonalGaussian",
    "Dirichlet",
    "FullGaussian",
    "Gamma",
    "UnitGaussian",
    "categorical_alpha",
    "gaussian_moments_alpha",
    "least_fisher_eigenvalue",
    "pack",
    "unpack",
]
