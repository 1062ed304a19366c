"""Large or unusual families: whiten by the Laplace approximation, then projected gradients with growing batches.

In whitened coordinates z = mode + F x the posterior is close to the unit Gaussian, so one step size serves all
directions; growing batches of sticking-the-landing gradients let the noise vanish at a constant step (paper 004,
third dynamic strategy). The step is 1/(2M) with M the largest curvature met at draws of the Laplace approximation,
which is many times smaller than the worst case over all of space that the theorem takes: nothing is guaranteed of
this method a priori, and a step that leaves the finite numbers is rejected and halved. What it ends with is certified.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.algorithms.natural.laplace import LaplaceApproximation, laplace_approximation
from provi.algorithms.natural.modes import not_searched
from provi.algorithms.proximal.mpsgd import MPSGD
from provi.certificates.bounds import at_most, spend
from provi.certificates.build import DEFAULT_GRADIENTS
from provi.certificates.certificate import at_confidence
from provi.core.interpreter import weighed_jit
from provi.core.krylov import extreme_eigenvalues
from provi.core.limits import Clock
from provi.estimators.gradients import Entropy, StickingTheLanding
from provi.families.base import AbstractFamily
from provi.families.location_scale import Gaussian, LocationScale, Point
from provi.families.scales import Diagonal, LowRank
from provi.runtime.run import Run, run
from provi.schedules.batch_sizes import PolynomialBatch
from provi.structures.base import (
    RUN_SHARE,
    AbstractStructure,
    Answer,
    Request,
    certificate_seed,
    check_finite,
    explained,
    limited,
    within,
)
from provi.structures.black_box import searched_modes, with_modes
from provi.structures.sampled import AbstractSampled
from provi.structures.stopping import calls_before
from provi.targets.base import AbstractFiniteSum, AbstractTarget
from provi.targets.whitened import Whitened, WhitenedFiniteSum
from provi.theory.mpsgd import largest_step_size
from provi.theory.solution_region import smallest_scale

NUM_STEPS, MOST_ROUNDS = 300, 4
_NUM_POINTS, _NUM_PRODUCTS, _FALLBACK_CURVATURE = 16, 20, 100.0
BATCH_EXPONENT = 1.1
"""N_k = (k+1)^1.1: just above 1, which Theorem 7 of paper 004 needs at a constant step."""


class WhitenedRounds(AbstractSampled):
    """Any density with any location-scale family: what is left when no other structure fits."""

    @classmethod
    def default_family(cls, target: AbstractTarget) -> AbstractFamily | None:
        """The Gaussian with diagonal covariance."""
        return Gaussian(target.dim, "diagonal")

    @classmethod
    def fits(cls, target: AbstractTarget, family: AbstractFamily) -> bool:
        """Every location-scale family."""
        del target
        return isinstance(family, LocationScale)

    def run(self, start: Point | None, request: Request) -> Answer:
        """From the Laplace approximation at the best of several modes, or around the location of `start`."""
        return run_whitened(self, start, request)


def run_whitened(structure: AbstractStructure, start: Point | None, request: Request) -> Answer:
    """Rounds of steps, twice as many each time, until the certificate of `structure` holds; at most `MOST_ROUNDS`.

    A run with a budget or a checkpoint is one round.
    """
    target, family = structure.target, structure.family
    modes, diagonal = not_searched("start= was given"), family.scale in ("diagonal", "low_rank")
    if start is None:
        modes = searched_modes(structure, request, diagonal)
    else:
        check_finite(target, np.asarray(start.loc))
    if modes.found:
        laplace = LaplaceApproximation(modes[0].location, modes[0].factor, modes[0].converged)
    else:
        origin = target.default_location if start is None else np.asarray(start.loc, np.float64)
        laplace = laplace_approximation(target, origin, diagonal=diagonal, clock=request.clock)
    whitening = _whiten(target, family, laplace, request.clock)
    budget = request.budget
    limited = (budget.steps, budget.gradients, budget.seconds) != (None, None, None)
    rounds = 1 if limited or request.options.get("checkpoint") is not None else MOST_ROUNDS
    inner = whitening.family.point(np.zeros(target.dim), 1.0, target.dtype)

    def run_round(index: int) -> Run:
        nonlocal inner
        found = run(
            whitening.algorithm(2**index),
            whitening.target,
            whitening.family,
            inner,
            seed=request.seed + index,
            num_steps=budget.steps or (2**31 if limited else NUM_STEPS * 2**index),
            budget=request.run_budget(gradients=RUN_SHARE),
            **request.options,
        )
        inner = found.point
        point, last = whitening.map_back(family, found.point), whitening.map_back(family, found.last)
        return dataclasses.replace(found, point=point, last=last)

    return with_modes(structure, run_rounds(structure, run_round, rounds, modes.evaluations, request), modes)


def run_rounds(
    structure: AbstractStructure, run_round: Callable[[int], Run], rounds: int, spent: int, request: Request
) -> Answer:
    """At most `rounds` runs until the certificate after one is good enough.

    `run_round(index)` makes one, from where the last one ended; its point is a member of the structure's family.
    `spent`: gradients that were spent before.
    """
    gradients, total = request.budget.gradients, error_level(request)
    found = None
    for index in range(rounds):
        found = run_round(index)
        level = spend(total, index) if rounds > 1 else total
        certificate = structure.certificate(
            found.point,
            confidence=1 - level,
            seed=certificate_seed(request.seed, index),
            wanted=request.tol,
            max_gradients=DEFAULT_GRADIENTS if gradients is None else gradients // 2,
            clock=request.clock,
        )
        certificate = at_confidence(certificate, request.confidence)
        spent += found.gradient_evaluations + certificate.num_gradients
        enough = within(certificate, request) or limited(certificate, request)
        if enough or not found.outcome.ok or certificate.status == "none":
            break
        if certificate.status == "conditional" and structure.improper_direction(found.point, seed=request.seed):
            break
    assert found is not None  # rounds >= 1
    otherwise = None
    if certificate.gap is not None and found.outcome.ok:
        shown = f"the bound on the gap is {at_most(certificate.gap)}, above tol = {request.tol:g}"
        otherwise = found.outcome, f"{found.message}; {shown}"
    spent -= found.gradient_evaluations  # which `explained` counts
    return Answer(explained(found, certificate, request, spent, otherwise), certificate)


def error_level(request: Request) -> float:
    """The error probability that this call may spend: half of it, a quarter, ... where a run can be, or was, resumed.

    Each call of a run in several of them issues certificates; all that were issued hold together.
    """
    error = 1 - request.confidence
    return error if request.options.get("checkpoint") is None else spend(error, calls_before(request))


@dataclasses.dataclass(frozen=True)
class Whitening:
    """The whitened target, the family that is fitted to it, and the way back."""

    target: AbstractTarget
    family: LocationScale
    mode: np.ndarray
    factor: np.ndarray
    step_size: float
    smallest_scale: float

    def algorithm(self, first_batch: int) -> MPSGD:
        """MPSGD with batches that grow from `first_batch` draws."""
        return MPSGD(
            step_size=self.step_size,
            num_draws=PolynomialBatch(first_batch, BATCH_EXPONENT),
            estimator=StickingTheLanding() if self.family.base.has_score else Entropy(),
            smallest_scale=self.smallest_scale,
        )

    def map_back(self, family: LocationScale, point: Point) -> Point:
        """q in the original coordinates; the ELBO is the same in both."""
        return _map_back(family, point, self.mode, self.factor)


def _whiten(target: AbstractTarget, family: LocationScale, laplace: LaplaceApproximation, clock: Clock) -> Whitening:
    kind = WhitenedFiniteSum if isinstance(target, AbstractFiniteSum) else Whitened
    whitened = kind(target, laplace.mode, laplace.factor)  # pyright: ignore[reportArgumentType]
    inner = LocationScale(family.dim, family.base, _inner_scale(family), rank=family.rank)
    # A product with the Hessian takes three gradients; a fifth of the time is enough for a step size.
    points = int(np.clip(clock.gradients(0.2) / (3 * _NUM_PRODUCTS), 1, _NUM_POINTS))
    curvature = _largest_curvature(whitened, points)
    known = whitened.constants.smoothness
    # A constant of 0 is that of a flat density, which has no scale.
    smoothness = float(known.value) if known.known and known.value else 4 * curvature
    step_size, scale = largest_step_size(curvature), smallest_scale(smoothness)
    return Whitening(whitened, inner, laplace.mode, laplace.factor, step_size, scale)


def _inner_scale(family: LocationScale) -> str:
    return "symmetric" if family.scale == "triangular" else family.scale


def _largest_curvature(target: AbstractTarget, num_points: int) -> float:
    """The largest curvature met at draws of the Laplace approximation, by Lanczos on Hessian-vector products."""
    found = np.asarray(_curvatures(target, num_points))
    finite = found[np.isfinite(found)]
    return max(1.0, float(finite.max())) if finite.size else _FALLBACK_CURVATURE


@weighed_jit
def _curvatures(target: AbstractTarget, num_points: int) -> Float[Array, " draws"]:
    points = jax.random.normal(jax.random.key(0), (_NUM_POINTS, target.dim), target.dtype)[:num_points]

    def largest(key, point):
        def product(direction):
            return jax.jvp(jax.grad(target.potential), (point,), (direction,))[1]

        low, high = extreme_eigenvalues(product, key, target.dim, _NUM_PRODUCTS, target.dtype)
        return jnp.maximum(jnp.abs(low), jnp.abs(high))

    return jax.vmap(largest)(jax.random.split(jax.random.key(1), _NUM_POINTS)[:num_points], points)


def _map_back(family: LocationScale, point: Point, mode: np.ndarray, factor: np.ndarray) -> Point:
    """q in the original coordinates: mean mode + F m, covariance F CC' F'."""
    dtype = point.loc.dtype
    times = np.matmul if factor.ndim == 2 else _scale_rows
    loc = mode + times(factor, np.asarray(point.loc, np.float64))
    diagonal = jnp.asarray(factor if factor.ndim == 1 else np.diagonal(factor), dtype)
    match point.scale:
        case Diagonal(diagonal=inner):
            return Point(jnp.asarray(loc, dtype), Diagonal(diagonal * inner))
        case LowRank(diagonal=inner, factor=columns):
            return Point(jnp.asarray(loc, dtype), LowRank(diagonal * inner, diagonal[:, None] * columns))
        case _:
            root = times(factor, np.asarray(point.scale.apply(jnp.eye(family.dim, dtype=dtype)), np.float64).T)
            covariance = root @ root.T
            return family.point_from_covariance(loc, (covariance + covariance.T) / 2, dtype)


def _scale_rows(diagonal: np.ndarray, array: np.ndarray) -> np.ndarray:
    return diagonal * array if array.ndim == 1 else diagonal[:, None] * array
