"""Gaussian processes, and linear models with more columns than rows: natural gradients on two numbers a datum."""

import dataclasses
import math
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from scipy.linalg import cho_solve

from provi.algorithms.natural.dual_natural_gradient import DualNaturalGradient
from provi.algorithms.natural.iterative_natural_gradient import IterativeNaturalGradient, estimated_elbo
from provi.certificates.bounds import GapBound
from provi.certificates.build import Evidence, Query
from provi.certificates.distance.bound import Deferred
from provi.certificates.distance.dual_form import dual_posterior_bound
from provi.certificates.dual.bounds import LARGEST_FACTORISED, dual_bounds, iterative_bounds, refuted_site
from provi.certificates.dual.dual_pass import dual_negative_elbo, inner_factor
from provi.core.arguments import available_bytes, device_array
from provi.core.devices import divided, divided_tables
from provi.core.interpreter import instant_jit
from provi.core.randomness import folded, key_of
from provi.families.base import AbstractFamily
from provi.families.dual_gaussian import DualGaussian, DualPoint, dual_gaussian
from provi.families.site_solver import SiteSolver, factors_fit, low_rank_suffices, site_solver, target_jitter
from provi.kernels.rows import is_streamed
from provi.runtime.loop import estimate_elbo
from provi.structures.base import AbstractStructure, Answer, Difference, Request
from provi.structures.stopping import run_proven
from provi.targets.base import AbstractTarget, Constants
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.linear_model import AbstractLinearModel

SMALLEST_ITERATIVE = 2000
"""Number of data from which on a low rank, where it suffices, is the faster way: benchmarks/gp_large.py."""


class Dual(AbstractStructure):
    """A Gaussian prior and a likelihood of N numbers: the best Gaussian is known by two numbers a datum."""

    reference_tol: ClassVar[float] = 1e-3

    @classmethod
    def default_family(cls, target: AbstractTarget) -> AbstractFamily | None:
        """The dual form of a Gaussian process, and of a linear model where it needs no d x d matrix."""
        dual = isinstance(target, GaussianProcess | AbstractLinearModel)  # of linear models, those that `Linear` left
        return dual_gaussian(target) if dual else None

    @classmethod
    def fits(cls, target: AbstractTarget, family: AbstractFamily) -> bool:
        """Every dual family."""
        del target
        return isinstance(family, DualGaussian)

    def on(self, mesh: Mesh) -> "Dual":
        """With the rows of the kernel matrix divided, where there is an equal number for each device."""
        # A kernel matrix is looked at as a whole: each process has its own; one not stored has no rows to divide.
        if jax.process_count() > 1 or is_streamed(self.family.gram):
            return self
        target, length = divided(self.target, mesh), self.family.num_sites
        return dataclasses.replace(self, target=target, family=divided_tables(self.family, target.division, length))

    def run(self, start: DualPoint | None, request: Request) -> Answer:
        """From the prior, or from `start`; one step is one factorisation, or one computation of all variances.

        A likelihood that is not log-concave has no certificate: the run ends when steps bring no more than rounding.
        """
        target: Any = self.target
        self.family.check_target(target)
        solver = solver_if_better(target, self.family)
        point = site_start(target, self.family, solver) if start is None else start
        error = float(target.likelihood.value_error_given(target.response))
        if solver is not None:
            return self._run_iteratively(point, solver, error, request)

        def prove(member: DualPoint) -> tuple[GapBound, ...]:
            return dual_bounds(target, self.family, member)

        return run_proven(self, DualNaturalGradient(), point, prove, error, request)

    def _run_iteratively(self, point: DualPoint, solver: SiteSolver, error: float, request: Request) -> Answer:
        target: Any = self.target

        def prove(member: DualPoint) -> tuple[GapBound, ...]:
            return iterative_bounds(target, self.family, member, solver)

        answer = run_proven(self, IterativeNaturalGradient(solver=solver), point, prove, error, request)
        key = folded(key_of(request.seed), 2**31 - 1)  # a stream that no step uses
        elbo = self._by_lanczos(key, answer.run.point, solver)
        return dataclasses.replace(answer, run=dataclasses.replace(answer.run, elbo=elbo))

    def elbo(self, key: Any, point: DualPoint, draws: int) -> tuple[Any, Any]:
        """From draws of q; by probes of log |B| where the kernel matrix is not stored, and there are no draws."""
        if not is_streamed(self.family.gram):
            return estimate_elbo(key, self.target, self.family, point, draws)
        return self._by_lanczos(key, point, site_solver(self.family.gram, target_jitter(self.target)))

    def _by_lanczos(self, key: Any, point: DualPoint, solver: SiteSolver) -> tuple[float, float]:
        target: Any = self.target
        value, noise = (float(x) for x in estimated_elbo(key, target, self.family, point, solver))
        error = float(target.likelihood.value_error_given(target.response))
        return value, noise + error * (target.num_terms + abs(value))

    def evidence(self, point: DualPoint, constants: Constants, query: Query) -> Evidence:
        """Deterministic bounds on the gap; the distance to the posterior from draws."""
        del constants
        bounds = dual_bounds(self.target, self.family, point) if query.known is None else query.known
        refuted = refuted_site(self.target, self.family, point)
        distance = None
        if refuted is None:
            distance = Deferred(
                partial(
                    dual_posterior_bound,
                    self.target,
                    self.family,
                    point,
                    confidence=query.confidence,
                    seed=query.seed,
                )
            )
        return Evidence(bounds, distance, refuted, len(bounds))

    def difference(self, point: DualPoint, other: DualPoint, *, delta: float, seed: int) -> Difference:
        """Without draws."""
        del delta, seed
        values = [dual_negative_elbo(self.target, self.family, member) for member in (point, other)]
        value = values[0][0] - values[1][0] + values[0][1] + values[1][1]
        return Difference(value, 2, deterministic=True)

    def first_point(self) -> DualPoint:
        """The prior."""
        return self.family.prior_point()

    def check_start(self, point: DualPoint) -> None:
        """Nothing to evaluate: the data were checked when the target was made."""
        del point

    def check_member(self, point: DualPoint) -> None:
        """The sites of `point` must be data of this target."""
        del point
        if self.family.num_sites != getattr(self.target, "num_terms", None):
            raise ValueError(
                f"q has {self.family.num_sites} sites, one a datum of another target; pass (mean, covariance)."
            )


def site_start(target: Any, family: DualGaussian, solver: SiteSolver | None = None) -> DualPoint:
    """The prior; but where the curvature is unbounded (Poisson) with the sites of the likelihood at the prior's mean,
    or the Gaussian posterior of its working responses.

    Under a wide prior the mean of exp(eta) is astronomical, and no step from there is of any use; and from the prior's
    mean a Newton step towards a count of 10^6 overflows.
    """
    point, likelihood = family.prior_point(), target.likelihood
    if not likelihood.log_concave or math.isfinite(likelihood.curvature_given(target.response)[1]):
        return point
    working = likelihood.working_response(jnp.asarray(target.response))
    if working is not None and solver is not None and is_streamed(family.gram):
        return streamed_working_point(family, solver, *working)
    if working is not None and family.num_sites <= LARGEST_FACTORISED and not is_streamed(family.gram):
        return working_point(family, *working)
    centre = device_array(np.asarray(family.site_mean))
    weight = np.asarray(likelihood.moments(centre, jnp.zeros_like(centre), target.response).weight)
    return DualPoint(point.dual_mean, device_array(np.where(np.isfinite(weight), np.maximum(weight, 0.0), 1.0)))


def working_point(family: DualGaussian, response: Any, weight: Any) -> DualPoint:
    """The posterior of `response` with noise of precision `weight`: a = (K + W^-1)^-1 (response - prior mean)."""
    mean = np.asarray(family.site_mean)
    response, weight = (np.asarray(x, np.float64) for x in (response, weight))
    root = np.sqrt(weight)
    factor = inner_factor(np.asarray(family.gram, np.float64), root)
    solved = cho_solve((factor, True), root * (response - mean))
    return DualPoint(*(jnp.asarray(x.astype(mean.dtype)) for x in (root * solved, weight)))


def streamed_working_point(family: DualGaussian, solver: SiteSolver, response: Any, weight: Any) -> DualPoint:
    """As `working_point`, a = (I + WK)^-1 W (response - prior mean), by conjugate gradients."""
    dtype = np.dtype(family.gram.dtype)
    response, weight = (np.asarray(x, np.float64) for x in (response, weight))
    wanted = device_array((weight * (response - np.asarray(family.site_mean))).astype(dtype))
    precision = device_array(weight.astype(dtype))
    return DualPoint(_solved(solver, precision, wanted), precision)


@instant_jit
def _solved(solver: SiteSolver, precision: Any, wanted: Any) -> Any:
    return solver.apply_inverse(precision, wanted, 1e-6)


def iterate(num_sites: int, itemsize: int, available: int, low_rank: bool) -> bool:
    """Whether to compute variances without factors: `low_rank` says that conjugate gradients will not be needed.

    With conjugate gradients a step costs several times the operations of a Cholesky factor at every N (2N^3 a product
    against 4N^3/3 in all), so that memory alone calls for them; a low rank costs O(N r^2).
    """
    return not factors_fit(num_sites, itemsize, available) or (low_rank and num_sites >= SMALLEST_ITERATIVE)


def solver_if_better(target: Any, family: DualGaussian) -> SiteSolver | None:
    """The solver where it is the better way, else None."""
    if is_streamed(family.gram):
        return site_solver(family.gram, target_jitter(target))
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
