"""Choose by structure: a linear model, any log density with a full covariance, or a large or unusual family."""

from provi.certificates.issue import LARGEST_LINEAR
from provi.defaults.answer import Answer, Request
from provi.defaults.black_box import fit_black_box
from provi.defaults.linear import fit_linear
from provi.defaults.whitened_mpsgd import fit_whitened
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget
from provi.targets.linear_models import AbstractLinearModel


def run_default(target: AbstractTarget, family: LocationScale, start: Point | None, request: Request) -> Answer:
    """Run the method for the target's structure, and certify its result.

    | target and family | method |
    | --- | --- |
    | linear model, d <= 2000, scale not low-rank | natural gradient with exact expectations |
    | any other, Gaussian with full covariance | Laplace start, stochastic natural gradient |
    | any other | Laplace whitening, projected gradients with growing batches (MPSGD) |
    """
    linear = target.linear_model()
    if isinstance(linear, AbstractLinearModel) and target.dim <= LARGEST_LINEAR and family.scale != "low_rank":
        return fit_linear(linear, family, start, request)
    if isinstance(family.base, Normal) and family.scale in ("triangular", "symmetric"):
        return fit_black_box(target, family, start, request)
    return fit_whitened(target, family, start, request)
