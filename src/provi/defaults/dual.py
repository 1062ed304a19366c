"""Gaussian processes, and linear models with more columns than rows: natural gradients on two numbers a datum."""

import dataclasses
from typing import Any

import jax
import numpy as np

from provi.algorithms.natural.dual_natural_gradient import DualNaturalGradient
from provi.algorithms.natural.iterative_natural_gradient import IterativeNaturalGradient, estimated_elbo
from provi.certificates.bounds import GapBound
from provi.certificates.dual.bounds import dual_bounds, iterative_bounds
from provi.core.memory import available_bytes
from provi.defaults.answer import Answer, Request
from provi.defaults.certified_stop import CertifiedStop, run_certified
from provi.defaults.dual_start import first_point
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.site_solver import SiteSolver, factors_fit, low_rank_suffices, site_solver, target_jitter

SMALLEST_ITERATIVE = 2000
"""Number of data from which on a low rank, where it suffices, is the faster way: benchmarks/gp_large.py."""


def fit_dual(target: Any, family: DualGaussian, start: DualPoint | None, request: Request) -> Answer:
    """Start from the prior, or from `start`; one step is one factorisation, or one computation of all variances.

    A likelihood that is not log-concave has no certificate: the run ends when steps bring no more than rounding.
    """
    family.check_target(target)
    point = first_point(target, family) if start is None else start
    error = float(target.likelihood.value_error)
    solver = solver_if_better(target, family)
    if solver is not None:
        return _fit_iteratively(target, family, point, solver, error, request)

    def prove(member: DualPoint) -> tuple[GapBound, ...]:
        return dual_bounds(target, family, member)

    algorithm = DualNaturalGradient()
    stop = CertifiedStop(prove, request.tol, request.budget.gradients, algorithm)
    return run_certified(algorithm, target, family, point, stop, error, request)


def iterate(num_sites: int, itemsize: int, available: int, low_rank: bool) -> bool:
    """Whether to compute variances without factors: `low_rank` says that conjugate gradients will not be needed.

    With conjugate gradients a step costs several times the operations of a Cholesky factor at every N (2N^3 a product
    against 4N^3/3 in all), so that memory alone calls for them; a low rank costs O(N r^2).
    """
    return not factors_fit(num_sites, itemsize, available) or (low_rank and num_sites >= SMALLEST_ITERATIVE)


def solver_if_better(target: Any, family: DualGaussian) -> SiteSolver | None:
    """The solver where it is the better way, else None."""
    size, itemsize = family.num_sites, np.dtype(family.gram.dtype).itemsize
    fits = factors_fit(size, itemsize, available_bytes())
    if family.root is not None or (fits and size < SMALLEST_ITERATIVE):
        return None
    solver = site_solver(family.gram, target_jitter(target))
    largest = float(target.likelihood.curvature[1])
    # Sites are at most the largest curvature; a Poisson's are about its counts.
    precision = largest if np.isfinite(largest) else 1 + float(np.max(np.asarray(target.response)))
    low_rank = bool(low_rank_suffices(solver, np.asarray(precision, family.gram.dtype)))
    return solver if iterate(size, itemsize, available_bytes(), low_rank) else None


def _fit_iteratively(
    target: Any, family: DualGaussian, point: DualPoint, solver: SiteSolver, error: float, request: Request
) -> Answer:
    def prove(member: DualPoint) -> tuple[GapBound, ...]:
        return iterative_bounds(target, family, member, solver)

    algorithm = IterativeNaturalGradient(solver=solver)
    stop = CertifiedStop(prove, request.tol, request.budget.gradients, algorithm)
    answer = run_certified(algorithm, target, family, point, stop, error, request)
    key = jax.random.fold_in(jax.random.key(request.seed), 2**31 - 1)  # a stream that no step uses
    value, noise = (float(x) for x in estimated_elbo(key, target, family, answer.run.point, solver))
    return dataclasses.replace(
        answer, run=dataclasses.replace(answer.run, elbo=(value, noise + error * (target.num_terms + abs(value))))
    )
