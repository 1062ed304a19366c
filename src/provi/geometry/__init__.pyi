from provi.geometry.constraints import AbstractConstraint as AbstractConstraint
from provi.geometry.constraints import Ball as Ball
from provi.geometry.constraints import Box as Box
from provi.geometry.constraints import minimise_quadratic as minimise_quadratic
from provi.geometry.constraints import stationarity as stationarity
from provi.geometry.operators import BlockPreconditioner as BlockPreconditioner
from provi.geometry.operators import project_nondegenerate as project_nondegenerate
from provi.geometry.operators import prox_negative_entropy as prox_negative_entropy
