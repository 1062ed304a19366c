"""The geometry of the step: proximal operators, projections, preconditioners."""

from provi.geometry.preconditioner import BlockPreconditioner
from provi.geometry.projection import project_nondegenerate
from provi.geometry.proximal import prox_negative_entropy

__all__ = ["BlockPreconditioner", "project_nondegenerate", "prox_negative_entropy"]
