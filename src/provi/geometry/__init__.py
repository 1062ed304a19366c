"""The geometry of the step: proximal operators, projections, preconditioners, sets of parameters."""

from provi.geometry.constrained_quadratic import minimise_quadratic
from provi.geometry.constraints import AbstractConstraint, Ball, Box, stationarity
from provi.geometry.preconditioner import BlockPreconditioner
from provi.geometry.projection import project_nondegenerate
from provi.geometry.proximal import prox_negative_entropy

__all__ = [
    "AbstractConstraint",
    "Ball",
    "BlockPreconditioner",
    "Box",
    "minimise_quadratic",
    "project_nondegenerate",
    "prox_negative_entropy",
    "stationarity",
]
