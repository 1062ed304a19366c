"""Deterministic bounds in N-space: Gaussian processes, linear models with more columns than rows."""
