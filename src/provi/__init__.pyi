from provi import algorithms as algorithms
from provi import data as data
from provi import diagnostics as diagnostics
from provi import estimators as estimators
from provi import families as families
from provi import kernels as kernels
from provi import models as models
from provi import runtime as runtime
from provi import schedules as schedules
from provi import targets as targets
from provi import theory as theory
from provi.certificates.certificate import Certificate as Certificate
from provi.certify import certify as certify
from provi.core.cache import enable_compilation_cache as enable_compilation_cache
from provi.fit import fit as fit
from provi.frontends.numpyro.front_end import from_numpyro as from_numpyro
from provi.frontends.pymc.front_end import from_pymc as from_pymc
from provi.frontends.stan.front_end import from_stan as from_stan
from provi.result.evidence import compare as compare
from provi.result.fit import Fit as Fit
from provi.result.storage import load as load
from provi.runtime import distributed as distributed
from provi.runtime.record import Outcome as Outcome
from provi.runtime.run import Budget as Budget

__version__: str
