"""Models of NumPyro."""
