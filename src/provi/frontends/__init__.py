"""Models written in other packages, as targets."""

from provi.frontends.numpyro import from_numpyro as from_numpyro
