"""Models written in other packages, as targets."""

from provi.frontends.numpyro import from_numpyro as from_numpyro
from provi.frontends.pymc import from_pymc as from_pymc
from provi.frontends.stan import from_stan as from_stan
