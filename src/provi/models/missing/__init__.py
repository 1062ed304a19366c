"""Logistic regression whose covariates are Gaussian and partly missing: the parts of `MissingLogisticRegression`."""
