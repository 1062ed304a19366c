"""Theorems as functions of plain numbers: constants in, bound out; one theorem a file.

Nothing here runs an algorithm. The proofs, and where they correct the papers, are in
`docs/theory/location-scale.md`, `docs/theory/pgsvi.md` and `docs/theory/misso.md`.
"""

from provi.theory import (
    anytime,
    existence,
    misso,
    mpsgd,
    mpsgd_dynamic,
    mpsgd_nonconvex,
    noise,
    pgsvi,
    proj_sgd_convex,
    proj_sgd_strongly_convex,
    prox_sgd_convex,
    prox_sgd_strongly_convex,
    relative_smoothness,
    solution_region,
    strong_growth,
    two_phase,
    weighted_average,
)

__all__ = [
    "anytime",
    "existence",
    "misso",
    "mpsgd",
    "mpsgd_dynamic",
    "mpsgd_nonconvex",
    "noise",
    "pgsvi",
    "proj_sgd_convex",
    "proj_sgd_strongly_convex",
    "prox_sgd_convex",
    "prox_sgd_strongly_convex",
    "relative_smoothness",
    "solution_region",
    "strong_growth",
    "two_phase",
    "weighted_average",
]
