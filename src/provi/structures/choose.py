"""Which structure a target and a family have: the only place that asks."""

from typing import Any

from provi.families.base import AbstractFamily
from provi.structures.base import AbstractStructure
from provi.structures.black_box import BlackBox
from provi.structures.dual import Dual
from provi.structures.linear import Linear
from provi.structures.whitened import WhitenedRounds
from provi.targets.base import AbstractTarget

STRUCTURES: tuple[type[AbstractStructure], ...] = (Dual, Linear, BlackBox, WhitenedRounds)
"""In the order in which they are asked; the last takes every location-scale family."""


def choose(target: AbstractTarget, family: AbstractFamily | None = None) -> AbstractStructure:
    """The structure of `target` with `family`, or with the family that it would choose itself.

    | target and family | structure | method |
    | --- | --- | --- |
    | Gaussian process; linear model with more columns than rows (dual family) | `Dual` | natural gradient in N-space |
    | linear model | `Linear` | natural gradient with exact expectations, up to 2000 dimensions |
    | any other, Gaussian with full covariance | `BlackBox` | Laplace start, stochastic natural gradient |
    | any other | `WhitenedRounds` | Laplace whitening, projected gradients with growing batches (MPSGD) |
    """
    member: Any = family
    if member is None:
        member = next(found for kind in STRUCTURES if (found := kind.default_family(target)) is not None)
    for kind in STRUCTURES:
        if kind.fits(target, member):
            return kind(target, member)
    raise TypeError(f"family must be e.g. provi.families.Gaussian({target.dim}), not {type(member).__name__}.")
