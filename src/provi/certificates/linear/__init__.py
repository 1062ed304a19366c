"""Deterministic bounds for linear models."""
