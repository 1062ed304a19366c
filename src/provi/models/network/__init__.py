"""Behind `provi.models.BayesianNetwork`: training, the predictive distribution, what is measured of it, pictures."""
