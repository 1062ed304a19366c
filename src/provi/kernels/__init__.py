"""Covariance functions of Gaussian processes, their sums and products, and their hyperparameters as one vector."""

from provi.kernels.base import AbstractKernel, Constant, Product, Sum
from provi.kernels.linear import Linear
from provi.kernels.matern import Matern12, Matern32, Matern52
from provi.kernels.parameters import log_parameters, parameter_names, with_log_parameters
from provi.kernels.periodic import Periodic
from provi.kernels.stationary import AbstractStationary, SquaredExponential
from provi.kernels.white import White

__all__ = [
    "AbstractKernel",
    "AbstractStationary",
    "Constant",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "SquaredExponential",
    "Sum",
    "White",
    "log_parameters",
    "parameter_names",
    "with_log_parameters",
]
