"""Generalised linear models with the scikit-learn interface; `provi.models` exports them."""
