from provi.frontends.numpyro.front_end import from_numpyro as from_numpyro
from provi.frontends.pymc.front_end import from_pymc as from_pymc
from provi.frontends.stan.front_end import from_stan as from_stan
