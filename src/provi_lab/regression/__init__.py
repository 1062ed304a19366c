"""Regressions beside statsmodels, with priors that are all but flat, and beside NUTS, with real ones."""
