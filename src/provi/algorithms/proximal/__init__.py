"""Stochastic proximal and projected gradients on location-scale families, with their theorems."""
