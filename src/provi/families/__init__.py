"""With what we approximate: location-scale families, their bases and their scales."""

from provi.families.bases import AbstractBase, Laplace, Normal, StudentT, Uniform
from provi.families.dual_gaussian import DualGaussian, DualPoint, dual_gaussian
from provi.families.location_scale import Gaussian, LocationScale, Point
from provi.families.scales import AbstractScale, Diagonal, LowRank, Symmetric, Triangular

__all__ = [
    "AbstractBase",
    "AbstractScale",
    "Diagonal",
    "DualGaussian",
    "DualPoint",
    "Gaussian",
    "Laplace",
    "LocationScale",
    "LowRank",
    "Normal",
    "Point",
    "StudentT",
    "Symmetric",
    "Triangular",
    "Uniform",
    "dual_gaussian",
]
