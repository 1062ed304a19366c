"""Choose by structure: a Gaussian process, a linear model, any log density, or a large or unusual family."""

from typing import Any

from provi.certificates.build import LARGEST_LINEAR
from provi.defaults.answer import Answer, Request
from provi.defaults.black_box import fit_black_box
from provi.defaults.dual import fit_dual
from provi.defaults.linear import fit_linear
from provi.defaults.whitened_mpsgd import fit_whitened
from provi.families.base import AbstractFamily
from provi.families.bases import Normal
from provi.families.dual_gaussian import DualGaussian
from provi.families.location_scale import LocationScale
from provi.targets.base import AbstractTarget
from provi.targets.linear_model import AbstractLinearModel


def run_default(target: AbstractTarget, family: AbstractFamily, start: Any, request: Request) -> Answer:
    """Run the method for the target's structure, and certify its result.

    | target and family | method |
    | --- | --- |
    | Gaussian process; linear model with more columns than rows (dual family) | natural gradient in N-space |
    | linear model, d <= 2000, scale not low-rank | natural gradient with exact expectations |
    | any other, Gaussian with full covariance | Laplace start, stochastic natural gradient |
    | any other | Laplace whitening, projected gradients with growing batches (MPSGD) |
    """
    if isinstance(family, DualGaussian):
        return fit_dual(target, family, start, request)
    if not isinstance(family, LocationScale):
        raise TypeError(f"family must be e.g. provi.families.Gaussian({target.dim}), not {type(family).__name__}.")
    linear = target.linear_model()
    if isinstance(linear, AbstractLinearModel) and target.dim <= LARGEST_LINEAR and family.scale != "low_rank":
        return fit_linear(linear, family, start, request)
    if isinstance(family.base, Normal) and family.scale in ("triangular", "symmetric"):
        return fit_black_box(target, family, start, request)
    return fit_whitened(target, family, start, request)
