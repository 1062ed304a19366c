"""Linear models: natural gradient with exact expectations, stopped by a deterministic certificate."""

import numpy as np

from provi.algorithms.natural.natural_gradient import NaturalGradient
from provi.certificates.bounds import GapBound
from provi.certificates.linear.bounds import linear_model_bounds
from provi.defaults.answer import Answer, Request
from provi.defaults.certified_stop import CertifiedStop, run_certified
from provi.defaults.warm_start import warm_start, what_is_left, with_warm_start
from provi.families.location_scale import LocationScale, Point
from provi.targets.linear_model import AbstractLinearModel


def fit_linear(target: AbstractLinearModel, family: LocationScale, start: Point | None, request: Request) -> Answer:
    """Start from the curvature at the prior mean, or from `start`; one step is one pass over the data.

    Where passes are long, one of the site table comes first (`defaults.warm_start`).
    """
    mean = np.asarray(target.prior.mean, np.float64)
    point = family.point(mean, 1.0, target.dtype) if start is None else start

    def prove(member: Point) -> tuple[GapBound, ...]:
        return linear_model_bounds(target, family, member)

    warm = warm_start(target, family, point, request) if start is None else None
    if warm is not None:
        point, request = warm.point, what_is_left(request, warm)
    algorithm = NaturalGradient(from_curvature=start is None and warm is None)
    stop = CertifiedStop(prove, request.tol, request.budget.gradients, algorithm)
    answer = run_certified(algorithm, target, family, point, stop, target.value_error, request)
    return answer if warm is None else with_warm_start(answer, warm)
