"""Variational inference that says how good its answer is."""

__version__ = "0.1.0"
