from provi.data.loaders import Dataset as Dataset
from provi.data.loaders import Table as Table
from provi.data.loaders import breast_cancer as breast_cancer
from provi.data.loaders import load as load
from provi.data.loaders import path as path
from provi.data.sources import SOURCES as SOURCES
from provi.data.sources import Source as Source
