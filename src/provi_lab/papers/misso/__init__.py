"""Paper 001, MISSO: missing covariates (Figure 1) and Bayesian networks (Figure 2)."""
