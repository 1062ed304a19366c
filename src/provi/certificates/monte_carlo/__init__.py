"""Bounds from draws, for any log-concave density."""
