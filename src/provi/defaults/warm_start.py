"""One pass of the incremental site table before the natural gradient, where passes are long."""

import dataclasses

from provi.algorithms.natural.site_table import SiteTable
from provi.defaults.answer import Answer, Request
from provi.defaults.certified_stop import CERTIFICATE_PASSES
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.runtime.run import Run, run
from provi.targets.linear_model import AbstractLinearModel

SMALLEST_WORK, FEWEST_ROWS = 1e10, 32
"""Work of a pass, N d^2, and rows a column, from which it pays. Measured on 2 cores: one pass of the table and two of
the natural gradient take the place of six or seven of the latter; the price is a second of compilation."""


def warm_start(target: AbstractLinearModel, family: LocationScale, point: Point, request: Request) -> Run | None:
    """The pass from `point`; None where it does not pay, does not fit the family or the budget, or overflowed."""
    budget = request.budget
    if target.num_terms * target.dim**2 < SMALLEST_WORK or target.num_terms < FEWEST_ROWS * target.dim:
        return None
    if family.scale not in ("triangular", "symmetric") or not isinstance(family.base, Normal):
        return None
    if budget.steps is not None or (budget.gradients or 4 * CERTIFICATE_PASSES) <= 2 * CERTIFICATE_PASSES:
        return None
    found = run(SiteTable(), target, family, point, seed=request.seed, num_steps=1, num_records=1, progress=False)
    return found if int(found.history["rejected_steps"][-1]) == 0 else None


def what_is_left(request: Request, spent: Run) -> Request:
    """The request with the passes and seconds of the warm start taken from its budget."""
    budget = request.budget
    if budget.gradients is not None:
        budget = dataclasses.replace(budget, gradients=max(budget.gradients - spent.gradient_evaluations, 1))
    if budget.seconds is not None:
        budget = dataclasses.replace(budget, seconds=max(budget.seconds - spent.seconds, 1e-3))
    return dataclasses.replace(request, budget=budget)


def with_warm_start(answer: Answer, spent: Run) -> Answer:
    """The answer with the passes and seconds of the warm start counted."""
    found = answer.run
    passes, seconds = found.gradient_evaluations + spent.gradient_evaluations, found.seconds + spent.seconds
    return dataclasses.replace(answer, run=dataclasses.replace(found, gradient_evaluations=passes, seconds=seconds))
