"""Any log density with a family that is richer than Gaussians: path gradients in the frame of a Gaussian fit.

The Gaussian fit is the start and the yardstick: what the richer family gains is said in nats and in k-hat. Nothing
bounds the gap to the best member of such a family, whose objective is not convex; where the target is log-concave
with known strong convexity, the distance of q to the posterior itself is bounded as for any q.
"""

import dataclasses
import math
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.modes import Modes, not_searched
from provi.algorithms.proximal.path_gradient import PathGradient
from provi.certificates.build import Evidence, Query
from provi.certificates.distance.any_density import any_posterior_bound
from provi.certificates.distance.bound import Deferred
from provi.certificates.distance.problems import curvature_lower_bound
from provi.core.limits import Clock
from provi.diagnostics.importance import ImportanceDiagnostics, importance_diagnostics
from provi.diagnostics.integrability import refute_integrability
from provi.families.base import AbstractFamily, moment_of
from provi.families.location_scale import Gaussian, Point, square_root
from provi.families.mixture import GaussianMixture
from provi.families.richer import AbstractRicher, Frame
from provi.runtime.run import Run, run, uninterrupted
from provi.structures.base import AbstractStructure, Answer, Difference, Request, certificate_seed, measured_gradients
from provi.structures.black_box import BlackBox, run_black_box
from provi.targets.base import AbstractTarget, Constants

PLANS = {"student": (1500, 0.02), "skewed": (2000, 0.02), "flow": (3000, 0.005), "mixture": (1500, 0.02)}
"""Steps and learning rate, by the kind of family."""

DIAGNOSTIC_DRAWS = 4096
_WORTH = 1e-3  # the share of the evidence from which a mode has a component
_NO_GAP = "Nothing bounds the gap to the best member of this family; the ELBO is an estimate and a lower bound."


class Richer(AbstractStructure):
    """A density and a family with draws that are smooth in its parameters."""

    reference_tol: ClassVar[float] = math.inf

    @classmethod
    def default_family(cls, target: AbstractTarget) -> AbstractFamily | None:
        """None: it is asked for."""
        del target

    @classmethod
    def fits(cls, target: AbstractTarget, family: AbstractFamily) -> bool:
        """Every target."""
        del target
        return isinstance(family, AbstractRicher)

    def run(self, start: Any, request: Request) -> Answer:
        """A Gaussian fit, or the Gaussian `start`; then path gradients from there."""
        if start is not None and not isinstance(start, Point):
            self.family.check_point(start)
            gaussian, modes, point = None, not_searched("start= was given"), start
        else:
            gaussian, modes = self._gaussian(start, request)
            point = self._first_point(gaussian, modes)
        planned, rate = PLANS[self.family.scale]
        steps = planned if request.budget.steps is None else request.budget.steps
        steps = steps if self.memo.get("improper") is None else 1
        found = run(
            PathGradient(num_steps=steps, learning_rate=rate),
            self.target,
            self.family,
            point,
            seed=request.seed,
            num_steps=steps,
            budget=request.run_budget(),
            **request.options,
        )
        found = self._explained(found, gaussian, request)
        certificate = self.certificate(
            found.point, confidence=request.confidence, seed=certificate_seed(request.seed, 0), clock=request.clock
        )
        return Answer(found, certificate, modes_seen(self.family, found.point, modes))

    def _gaussian(self, start: Point | None, request: Request) -> tuple[Point, Modes]:
        """The Gaussian to begin with, and the modes that were seen on the way."""
        family = Gaussian(self.target.dim)
        if start is not None:
            return start, self.memo.get("modes") or not_searched("start= was given")
        budget = request.run_budget(gradients=0.5, seconds=0.3)
        options = {"progress": request.options.get("progress")}
        inner = dataclasses.replace(request, options=options, budget=budget)
        black_box = BlackBox(self.target, family)
        answer = run_black_box(black_box, None, inner)
        uninterrupted(answer.run)
        self.memo["improper"] = black_box.memo.get("improper")
        return answer.run.point, answer.modes or not_searched("the Gaussian fit made no search")

    def _first_point(self, gaussian: Point, modes: Modes) -> Any:
        """Near the Gaussian fit; of a mixture, also at the other modes."""
        frames, shares = [_frame(gaussian.loc, square_root(gaussian), self.target.dtype)], [1.0]
        if isinstance(self.family, GaussianMixture) and len(modes) > 1:
            shares = [modes[modes.chosen].share]
            for index, mode in enumerate(modes):
                if index != modes.chosen and mode.share > _WORTH:
                    factor = mode.factor if mode.factor.ndim == 2 else np.diag(mode.factor)
                    frames.append(_frame(mode.location, factor, self.target.dtype))
                    shares.append(mode.share)
        return self.family.first_point(tuple(frames), np.asarray(shares))

    def _explained(self, found: Run, gaussian: Point | None, request: Request) -> Run:
        """The run with a message of what the family gained."""
        if not found.outcome.ok:
            return found
        after = diagnosed(self.target, self.family, found.point, request.seed)
        if after is None:
            return found
        words = f"ELBO {after.elbo:.6g}, k-hat {after.pareto_k:.2f}"
        if gaussian is not None:
            before = diagnosed(self.target, Gaussian(self.target.dim), gaussian, request.seed)
            if before is not None:
                words += f"; of the Gaussian it began at: ELBO {before.elbo:.6g}, k-hat {before.pareto_k:.2f}"
        return dataclasses.replace(found, message=f"{found.message}; {self.family.scale}: {words}")

    def evidence(self, point: Any, constants: Constants, query: Query) -> Evidence:
        """No bound on the gap; the distance to the posterior where strong convexity is known."""
        del constants
        if curvature_lower_bound(self.target) is None:
            return Evidence((), None, None, 0, notes=(_NO_GAP,))

        def sample(key: Any, num: int) -> Any:
            return self.family.sample(key, point, num)

        def log_prob(z: Any) -> Any:
            return self.family.log_prob(point, z)

        level = {"confidence": query.confidence, "seed": query.seed}
        distance = Deferred(partial(any_posterior_bound, self.target, sample, log_prob, **level), quick=False)
        return Evidence((), distance, None, 0, notes=(_NO_GAP,))

    def difference(self, point: Any, other: Any, *, delta: float, seed: int) -> Difference:
        """Not bounded."""
        del point, other, delta, seed
        return Difference(math.inf, 0, deterministic=True)

    def first_point(self) -> Any:
        """For no algorithm of the user's choice."""
        raise ValueError(f"A family of the kind {self.family.scale!r} has a method of its own: leave algorithm= out.")

    def measured(self, clock: Clock) -> Clock:
        """By two evaluations at the default location."""
        return measured_gradients(self.target, clock)

    def improper_direction(self, point: Any, *, seed: int) -> str | None:
        """A ray on which the density does not fall, far beyond a Gaussian with q's moments."""
        convexity = self.target.constants.strong_convexity
        if convexity.status in ("proven", "declared") and convexity.value and convexity.value > 0:
            return None
        if self.memo.get("improper") is not None:
            return self.memo["improper"]
        mean, covariance = (np.asarray(moment_of(self.family, point, name)) for name in ("mean", "covariance"))
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            return None
        family = Gaussian(self.target.dim)
        try:
            gaussian = family.point_from_covariance(mean, covariance)
        except ValueError:  # nearly singular: the moments are from draws
            gaussian = family.point(mean, np.sqrt(np.maximum(np.diagonal(covariance), 1e-300)))
        return refute_integrability(self.target, family, gaussian, seed=seed)


def modes_seen(family: AbstractFamily, point: Any, modes: Modes) -> Modes:
    """The modes with what q does not reach of them; of a mixture, what none of its parts does."""
    if len(modes) < 2:
        return modes
    if not isinstance(family, GaussianMixture):
        mean, covariance = (np.asarray(moment_of(family, point, name)) for name in ("mean", "covariance"))
        return modes.seen_from(mean, covariance)
    means, roots = (np.asarray(part, np.float64) for part in family.moments(point))
    weights, unseen = np.asarray(family.weights(point)), np.ones(len(modes), bool)
    for mean, root, weight in zip(means, roots, weights, strict=True):
        for index, mode in enumerate(modes):
            alone = dataclasses.replace(modes, found=(mode, mode)).seen_from(mean, root @ root.T)
            # A part of next to no weight has no draws there.
            unseen[index] &= alone.missed > 0 or weight < 0.1 * mode.share
    return dataclasses.replace(modes, missed=float(modes.shares[unseen].sum()))


def diagnosed(target: AbstractTarget, family: AbstractFamily, point: Any, seed: int) -> ImportanceDiagnostics | None:
    """k-hat and ELBO by a few thousand draws; None where the density is not finite at one of them."""
    try:
        return importance_diagnostics(target, family, point, num_draws=DIAGNOSTIC_DRAWS, seed=seed)
    except ValueError:
        return None


def _frame(loc: Any, root: np.ndarray, dtype: Any) -> Frame:
    """With the lower triangular factor of the same covariance."""
    lower = root if not np.triu(root, 1).any() else np.linalg.cholesky(root @ root.T)
    signs = np.sign(np.diagonal(lower))
    return Frame(jnp.asarray(np.asarray(loc, np.float64), dtype), jnp.asarray(lower * signs, dtype))
