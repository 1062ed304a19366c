"""Data sets, through loaders."""

from provi.data.bundled import Table, breast_cancer

__all__ = ["Table", "breast_cancer"]
