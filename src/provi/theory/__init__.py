"""Theorems as functions of plain numbers: constants in, bound out; one family of theorems a file.

Nothing here runs an algorithm. The proofs, and where they correct the papers, are in
`docs/theory/location-scale.md`, `docs/theory/pgsvi.md` and `docs/theory/misso.md`.
"""

from provi.core.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
