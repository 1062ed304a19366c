"""How far q is from the posterior itself."""
