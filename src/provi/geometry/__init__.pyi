from provi.geometry.constraints import AbstractConstraint as AbstractConstraint
from provi.geometry.constraints import Ball as Ball
from provi.geometry.constraints import Box as Box
from provi.geometry.constraints import minimise_quadratic as minimise_quadratic
from provi.geometry.constraints import stationarity as stationarity
