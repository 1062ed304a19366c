"""Linear models: natural gradient with exact expectations, stopped by a deterministic certificate."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh

from provi.algorithms.natural.natural_gradient import (
    NaturalGradient,
    exact_negative_elbo,
    first_location,
    precision_of,
)
from provi.certificates.bounds import GapBound
from provi.certificates.build import Evidence, Query
from provi.certificates.comparison import linear_difference_bound
from provi.certificates.distance.bound import Deferred
from provi.certificates.distance.posterior import linear_posterior_bound
from provi.certificates.linear.bounds import linear_model_bounds, refuted_link, whitened_pass
from provi.core.devices import divided
from provi.core.interpreter import one_blas_thread
from provi.core.lazy import is_instance
from provi.core.limits import Clock
from provi.families.base import AbstractFamily
from provi.families.bases import Normal
from provi.families.location_scale import Gaussian, LocationScale, Point
from provi.runtime.loop import estimate_elbo
from provi.runtime.record import Outcome
from provi.runtime.run import Run, run, uninterrupted
from provi.structures.base import AbstractStructure, Answer, Difference, Request, measured_gradients, within
from provi.structures.stopping import CERTIFICATE_PASSES, run_proven
from provi.targets.base import AbstractTarget, Constants
from provi.targets.linear_model import AbstractLinearModel, BatchFeed, fast_products

LARGEST_LINEAR = 2000
"""Dimensions above which the d x d matrices of the method and of its bounds are not formed."""

LARGEST_DENSE = 1000
"""Up to which the default covariance is full: each step forms a d x d matrix anyway, so it costs little more."""

LARGEST_SITES = 5000
"""Rows up to which a model with more columns than rows is fitted in dual form unless another is asked for."""

SMALLEST_WORK, FEWEST_ROWS, LARGEST_STRIDE = 1e10, 32, 16
"""Work of a pass, N d^2, and rows a column of a sample, from which a warm start on a sample pays; the part of the rows
that it takes, at the least. Half a pass for the sample and two or three passes over all rows take the place of six or
seven; the price is another compilation. On a GPU passes are short: from a thousand times the work."""

SAMPLE_GAP, MOST_SAMPLE_STEPS = 0.05, 12
"""Nats a dimension at which the sample is done with: the sample itself is off by half of `LARGEST_STRIDE`."""


STREAMED_DISTANCE = 1e7
"""Numbers in rows that are read in blocks up to which a fit bounds the distance to the posterior, in some seconds."""

_NO_DISTANCE = (
    "left out of a fit of so many rows, as it takes some passes over them with products at hundreds of points; "
    "provi.certify(target, fit).kl computes it"
)


class Linear(AbstractStructure):
    """A density that sees each datum through one inner product, as the target itself or as its recognised form.

    The method is for all scales but low-rank ones and up to `LARGEST_LINEAR` dimensions; beyond, the run is that of a
    black box. Differences of members are deterministic in any case.
    """

    reference_tol: ClassVar[float] = 1e-3

    @classmethod
    def default_family(cls, target: AbstractTarget) -> AbstractFamily | None:
        """The Gaussian with full covariance, diagonal above 1000 dimensions; none where the dual form is better."""
        linear = target if isinstance(target, AbstractLinearModel) else _recognised(target)
        if linear is None or (linear is target and needs_no_matrix(linear)):
            return None
        return Gaussian(target.dim, "triangular" if target.dim <= LARGEST_DENSE else "diagonal")

    @classmethod
    def fits(cls, target: AbstractTarget, family: AbstractFamily) -> bool:
        """Every linear model with a location-scale family."""
        return isinstance(family, LocationScale) and isinstance(target.linear_model(), AbstractLinearModel)

    @property
    def model(self) -> AbstractLinearModel:
        """The linear model that the target is, or was recognised to be."""
        return self.target.linear_model()

    def on(self, mesh: Mesh) -> "Linear":
        """With the rows of the linear model divided."""
        return dataclasses.replace(self, target=divided(self.model, mesh, padded=True))

    def run(self, start: Point | None, request: Request) -> Answer:
        """From the curvature at `first_location`, or from `start`; one step is one pass over the data.

        Where passes are long, a sample of the rows comes first (`warm_start`). On a GPU steps round their products;
        where the proof says that this was too much, others with exact products follow.
        """
        if self.target.dim > LARGEST_LINEAR or self.family.scale == "low_rank":
            return self._run_sampled(start, request)
        model, family = self.model, self.family
        point = family.point(first_location(model), 1.0, model.dtype) if start is None else start

        def prove(member: Point) -> tuple[GapBound, ...]:
            return linear_model_bounds(model, family, member)

        warm = warm_start(model, family, point, request) if start is None else None
        if warm is not None:
            point, request = warm.point, _what_is_left(request, warm)
        rounded = fast_products(model)
        if rounded and model.division is None:  # of several devices, one program at a time
            _compile_meanwhile(model, family, point)
        algorithm = NaturalGradient(from_curvature=start is None and warm is None, exact=not rounded)
        # The run is of the recognised model, and so is the certificate: its constants are proven.
        own = dataclasses.replace(self, target=model)
        answer = run_proven(own, algorithm, point, prove, model.value_error, request)
        if rounded and answer.run.outcome is Outcome.COMPLETED and not within(answer.certificate, request):
            spent, request = answer.run, _what_is_left(request, answer.run)
            answer = run_proven(own, NaturalGradient(), spent.point, prove, model.value_error, request)
            answer = _with_warm_start(answer, spent)
        return answer if warm is None else _with_warm_start(answer, warm)

    def _run_sampled(self, start: Point | None, request: Request) -> Answer:
        # Imported here: most linear models are small, and start without what large ones need.
        from provi.structures.black_box import has_full_covariance, run_black_box
        from provi.structures.whitened import run_whitened

        return (run_black_box if has_full_covariance(self.family) else run_whitened)(self, start, request)

    def measured(self, clock: Clock) -> Clock:
        """Where the run is that of a black box."""
        sampled = self.target.dim > LARGEST_LINEAR or self.family.scale == "low_rank"
        return measured_gradients(self.target, clock) if sampled else clock

    def threads(self) -> AbstractContextManager[Any]:
        """By the columns: what is left to NumPy itself are their matrices, however many rows there are.

        Rows that are read in blocks come one block after the other: their products have all threads of BLAS.
        """
        streamed = getattr(self.model, "stream", None) is not None
        return one_blas_thread(self.target.dim, self.model.num_terms if streamed else 1)

    def constants(self) -> Constants:
        """All of them where a pass over the data is short; else those that need none: no bound here asks for more."""
        model = self.model
        long = model.num_terms * model.dim**2 >= SMALLEST_WORK and self.target.dim <= LARGEST_LINEAR
        return model.constants_of_prior() if long else self.target.constants

    def evidence(self, point: Point, constants: Constants, query: Query) -> Evidence:
        """Deterministic bounds on the gap; only the distance to the posterior rests on draws."""
        if self.target.dim > LARGEST_LINEAR:
            from provi.structures.sampled import sampled_evidence  # as in `_run_sampled`

            return sampled_evidence(self.target, self.family, point, constants, query)
        model = self.model
        bounds = linear_model_bounds(model, self.family, point) if query.known is None else query.known
        refuted = refuted_link(model, point)
        distance, obstacle = None, None
        streamed = model.stream is not None
        long = streamed and model.num_terms * model.dim > STREAMED_DISTANCE
        if streamed and not isinstance(self.family.base, Normal):
            obstacle = "of rows that are read in blocks there is one for Gaussian families only"
        elif long and query.wanted is not None:
            obstacle = _NO_DISTANCE
        elif refuted is None:
            distance = Deferred(
                partial(
                    linear_posterior_bound,
                    self.target,
                    self.family,
                    point,
                    confidence=query.confidence,
                    seed=query.seed,
                ),
                quick=not long,
            )
        return Evidence(bounds, distance, refuted, len(bounds), obstacle=obstacle)

    def fed(self, algorithm: Any, seed: int) -> tuple[Any, dict[str, Any]]:
        """Of rows that are read in blocks, batches come from shuffled passes, and the ELBO is recorded twice only."""
        found = None if self.model.stream is None else streamed_batches(algorithm, self.model.num_terms)
        if found is None:
            return algorithm, {}
        algorithm, size, place = found
        return algorithm, {"feed": BatchFeed(self.model, size, seed, place), "num_records": 1}

    def elbo(self, key: Any, point: Point, draws: int) -> tuple[Any, Any]:
        """Exact where rows are read in blocks: each draw would be a pass."""
        if self.model.stream is None or self.family.scale == "low_rank":
            return estimate_elbo(key, self.target, self.family, point, draws)
        rule = NaturalGradient().resolve(self.model, self.family).rule
        return -np.asarray(exact_negative_elbo(self.model, self.family, point, rule)), np.zeros(())

    def difference(self, point: Point, other: Point, *, delta: float, seed: int) -> Difference:
        """Without draws."""
        del delta, seed
        return Difference(*linear_difference_bound(self.model, self.family, point, other), deterministic=True)


def streamed_batches(algorithm: Any, num_terms: int) -> tuple[Any, int, Callable[[int], int]] | None:
    """An algorithm whose steps take all rows that they are fed, how many, and where in the passes a step's begin.

    None where it draws no batches, or single rows in a way that a stream does not know.
    """
    # Imported here: a default fit has no batches.
    from provi.algorithms.natural.pgsvi import PGSVI, FixedBatch
    from provi.algorithms.proximal.stochastic_proximal import Fed
    from provi.schedules.sampling import ReshuffledSampling

    if isinstance(algorithm, PGSVI):
        rule = algorithm.batch_size
        for wrong, words in (
            (not isinstance(rule, FixedBatch), "batch_size must be a number"),
            (algorithm.sampling != "reshuffled", "sampling must be 'reshuffled'"),
            (algorithm.halve_on_stall, "halve_on_stall must be left out"),
        ):
            if wrong:
                raise ValueError(f"{words} where rows are read in blocks, which come in shuffled passes.")
        size, rho = check_batch("batch_size", rule.size, num_terms), algorithm.rho
        if rho is not None:  # beta = rho M/N, of which a batch by itself does not know
            algorithm = dataclasses.replace(algorithm, rho=None, step_size=float(rho) * size / num_terms)
        whole = num_terms // size  # as in memory, the rest of a pass is left out
        return algorithm, size, lambda step: step // whole * num_terms + step % whole * size
    sampling = getattr(algorithm, "data_sampling", None)
    if sampling is None:
        return None
    if not isinstance(sampling, ReshuffledSampling):
        raise ValueError(
            f"data_sampling={type(sampling).__name__} draws single rows, and these are read in blocks, in shuffled "
            f"passes: use data_sampling=provi.schedules.ReshuffledSampling(batch)."
        )
    size = check_batch("data_sampling.batch", sampling.batch, num_terms)
    make: Any = Fed
    return make(dataclasses.replace(algorithm, data_sampling=None), size), size, lambda step: step * size


def check_batch(name: str, size: int, num_terms: int) -> int:
    """A `ValueError` for more rows than there are."""
    if size > num_terms:
        raise ValueError(f"{name} is {size}, but there are {num_terms} data. Take at most {num_terms}.")
    return size


def _recognised(target: AbstractTarget) -> AbstractLinearModel | None:
    """The linear model that another target is; none of a Gaussian process, whose dual form is better."""
    is_process = is_instance(target, "provi.targets.gaussian_process", "GaussianProcess")
    return None if is_process else target.linear_model()


def needs_no_matrix(model: AbstractLinearModel) -> bool:
    """Whether there are more columns than rows, and not too many of those: two numbers a row then say it all."""
    return model.num_terms < min(model.dim, LARGEST_SITES)


def warm_start(target: AbstractLinearModel, family: LocationScale, point: Point, request: Request) -> Run | None:
    r"""The natural gradient on a sample of the rows, where passes are long; its answer for all of them.

    With a sample of N/s rows the location is off by some $\sqrt{sd}$ standard deviations of the posterior, which for
    many rows is little enough for one Newton step: what is left of the error is its square over $\sqrt N$. The
    precision is the prior's and s times what the sample adds to it. None where it does not pay, does not fit the family
    or the budget, or was not finite.
    """
    budget, dim = request.budget, target.dim
    stride, stream = min(LARGEST_STRIDE, target.num_terms // (FEWEST_ROWS * dim)), target.stream
    if stream is not None and stride < stream.rows.least_stride:  # a sample that fits into the memory
        stride = stream.rows.least_stride
        if target.num_terms // stride < FEWEST_ROWS * dim:
            return None
    work = target.num_terms * dim**2 / (1000 if fast_products(target) else 1)
    if work < SMALLEST_WORK or stride < 4:
        return None
    if family.scale not in ("triangular", "symmetric") or not isinstance(family.base, Normal):
        return None
    if budget.steps is not None or (budget.gradients or 4 * CERTIFICATE_PASSES) <= 2 * CERTIFICATE_PASSES:
        return None
    sample = target.thinned(stride, request.seed)
    if sample is None:
        return None
    algorithm = NaturalGradient(from_curvature=True, exact=False)

    def near(state: Any) -> bool:
        progress = algorithm.progress(state)
        return progress is not None and progress.gap < SAMPLE_GAP * dim

    options = {"seed": request.seed, "num_steps": MOST_SAMPLE_STEPS, "num_records": 1, "progress": False}
    found = uninterrupted(run(algorithm, sample, family, point, stop=near, **options))
    start = _for_all_rows(target, family, found.point, stride)
    passes = -(-found.gradient_evaluations // stride)
    return None if start is None else dataclasses.replace(found, point=start, gradient_evaluations=passes)


_compiled: set[Any] = set()


def _compile_meanwhile(model: AbstractLinearModel, family: LocationScale, point: Point) -> None:
    """Compile the proof's pass, by making one, while the first steps compile: a third of a first fit on a GPU."""
    kind = (type(model), model.likelihood.name, model.design.shape, model.design.dtype, family.scale)
    if kind in _compiled:
        return
    _compiled.add(kind)

    def make() -> None:
        # The context is that of a thread. Whatever goes wrong goes wrong again where the user sees it.
        with contextlib.suppress(Exception), jax.enable_x64(True):
            whitened_pass(model, family, point)

    threading.Thread(target=make, daemon=True).start()


def _for_all_rows(target: AbstractLinearModel, family: LocationScale, point: Point, stride: int) -> Point | None:
    """The location of a fit to every `stride`-th row, with the precision that all rows would have."""
    prior = target.prior.precision_matrix()
    precision = prior + stride * (np.asarray(precision_of(point), np.float64) - prior)
    try:
        covariance = np.linalg.inv(precision)
        return family.point_from_covariance(point.loc, (covariance + covariance.T) / 2, target.dtype)
    except (np.linalg.LinAlgError, ValueError):  # a sample that went astray
        return None


def _what_is_left(request: Request, spent: Run) -> Request:
    """The request with the passes of the warm start taken from its budget; its clock goes on by itself."""
    budget = request.budget
    if budget.gradients is not None:
        budget = dataclasses.replace(budget, gradients=max(budget.gradients - spent.gradient_evaluations, 1))
    return dataclasses.replace(request, budget=budget)


def _with_warm_start(answer: Answer, spent: Run) -> Answer:
    """The answer with the passes and seconds of the warm start counted."""
    found = answer.run
    passes, seconds = found.gradient_evaluations + spent.gradient_evaluations, found.seconds + spent.seconds
    return dataclasses.replace(answer, run=dataclasses.replace(found, gradient_evaluations=passes, seconds=seconds))
