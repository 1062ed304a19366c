"""Gaussian-process estimators."""
