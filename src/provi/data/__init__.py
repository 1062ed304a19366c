"""Data sets, through loaders."""

from provi.data.bundled import Table, breast_cancer
from provi.data.loaders import Dataset, load, path
from provi.data.sources import SOURCES, Source

__all__ = ["SOURCES", "Dataset", "Source", "Table", "breast_cancer", "load", "path"]
