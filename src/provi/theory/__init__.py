"""Theorems as functions of plain numbers: constants in, bound out; one theorem a file.

Nothing here runs an algorithm. The proofs, and where they correct the papers, are in
`docs/theory/location-scale.md`.
"""

from provi.theory import (
    anytime,
    existence,
    mpsgd,
    mpsgd_dynamic,
    mpsgd_nonconvex,
    noise,
    proj_sgd_convex,
    proj_sgd_strongly_convex,
    prox_sgd_convex,
    prox_sgd_strongly_convex,
    solution_region,
    weighted_average,
)

__all__ = [
    "anytime",
    "existence",
    "mpsgd",
    "mpsgd_dynamic",
    "mpsgd_nonconvex",
    "noise",
    "proj_sgd_convex",
    "proj_sgd_strongly_convex",
    "prox_sgd_convex",
    "prox_sgd_strongly_convex",
    "solution_region",
    "weighted_average",
]
