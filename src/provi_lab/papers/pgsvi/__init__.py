"""Papers 000 and 002, PG-SVI on Gaussian processes: Figures 1 and 2."""
