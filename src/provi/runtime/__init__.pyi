from provi.runtime import distributed as distributed
from provi.runtime.minimise import minimise_projected as minimise_projected
from provi.runtime.minimise import minimise_split as minimise_split
from provi.runtime.minimise import minimise_sum as minimise_sum
from provi.runtime.run import Budget as Budget
from provi.runtime.run import Run as Run
from provi.runtime.run import run as run
