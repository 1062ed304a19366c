r"""Latent Gaussian models: hyperparameters on a rule of nodes, the best Gaussian of the effects at each.

With the ELBO $L_k$ at node $\theta_k$, its prior density times its volume $\pi_k$, and q the mixture with weights
proportional to $\pi_ke^{L_k}$, the ELBO of the whole is $\log\sum_k\pi_ke^{L_k}$; and where $\log Z(\theta_k) \le U_k$,

$$\log\sum_k\pi_ke^{L_k} \le \log Z \le \log\sum_k\pi_ke^{U_k}, \qquad KL(q\|p) \le \text{the difference},$$

for the posterior on the rule: what is proven. How far the rule is from the integral is estimated, and said apart. The
weights of the mixture are those of a better estimate of the evidence (`algorithms.natural.corrected`), inside the
brackets.
"""

import dataclasses
import math
import time
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh

from provi.algorithms.natural.conditional import MOST_STEPS, Fitted, Point, batch_of, check_memory, fit_conditional
from provi.algorithms.natural.corrected import (
    LARGEST_RESPONSE,
    NODES,
    Corrected,
    border_rule,
    correct,
    grouped,
    log_evidence,
)
from provi.certificates.build import Evidence, Query
from provi.certificates.certificate import Assumption, Certificate
from provi.certificates.distance.bound import Deferred
from provi.certificates.distance.nested import ON_NODES, nested_bound, provable
from provi.core.devices import divided, on_host, over_draws
from provi.core.interpreter import weighed_jit
from provi.families.base import AbstractFamily
from provi.families.nested import NestedGaussian, NestedPoint, joined
from provi.result.nested import NestedPosterior
from provi.runtime.checkpoint import Journal
from provi.runtime.record import History, Outcome, ProgressBar
from provi.runtime.run import Run, journal
from provi.structures.base import AbstractStructure, Answer, Difference, Request
from provi.structures.integration import (
    IntegrationError,
    Rule,
    curvature_at,
    error_of,
    find_mode,
    grid_rule,
    lattice_rule,
    refined,
)
from provi.targets.base import AbstractTarget, Constants
from provi.targets.latent.model import AbstractLatentGaussian

_LARGEST_GRID, _SEARCH_TOL = 4, 1e-3
_CORRECTION_WORK, _MOST_DRAWS, _PROBE, _STREAM = 4e7, 1024, 0.02, 19
_QUICK = 3e5
"""Nodes times data times effects up to which printing a fit may compute its brackets: about a second."""

_NEGLIGIBLE = 14.0
"""Nats below the best from which a node is left out of the mixture: a share of 1e-6."""


@dataclasses.dataclass(frozen=True)
class Nested(AbstractStructure):
    """A latent Gaussian model and its nested mixtures."""

    reference_tol: ClassVar[float] = 0.01

    @classmethod
    def default_family(cls, target: AbstractTarget) -> AbstractFamily | None:
        """Mixtures over the nodes."""
        model = target.latent_gaussian()
        return None if model is None else NestedGaussian(model)

    @classmethod
    def fits(cls, target: AbstractTarget, family: AbstractFamily) -> bool:
        """With this family only: another one is fitted to the joint density."""
        return target.latent_gaussian() is not None and isinstance(family, NestedGaussian)

    @property
    def model(self) -> AbstractLatentGaussian:
        """The latent Gaussian model that the target is, or was recognised to be."""
        return self.family.target

    def on(self, mesh: Mesh) -> "Nested":
        """With the nodes of a batch divided; the rows where they are so many that nodes are fitted one by one."""
        model = divided(self.model, mesh, rows=batch_of(self.model) == 1)
        return dataclasses.replace(self, family=NestedGaussian(model))

    def run(self, start: Any, request: Request) -> Answer:
        """Explore, integrate, correct."""
        if start is not None:
            raise ValueError("start is not for latent Gaussian models: their search begins at typical hyperparameters.")
        began, target = time.perf_counter(), self.model
        check_memory(target)
        like, options = Fitted(Point(*range(7)), 0, 0), {k: v for k, v in request.options.items() if k != "progress"}
        with journal(like, target, np.asarray(request.tol), request.seed, **options) as kept:
            search = Search(target, request.tol, request.options.get("progress"), request.budget.seconds, kept)
            try:
                with search.bar:
                    found = search.result(request.seed)
            except TimeoutError:
                raise ValueError(
                    f"budget.seconds={request.budget.seconds} ended during the search over hyperparameters, and half "
                    f"an integral is none: allow more (with checkpoint= and resume=True it goes on from there)."
                ) from None
        certificate = self._certificate(found, request.confidence, request.seed)
        elbo = found.lower
        # Of the means of the terms; what is proven has the bound of each datum instead.
        size = float(target.num_rows if target.weights is None else np.sum(np.asarray(target.weights)))
        error = target.likelihood.value_error_given(np.asarray(target.response)) * (size + abs(elbo))
        history = History()
        spent = time.perf_counter() - began
        history.append(
            step=search.steps, elbo=elbo, elbo_standard_error=error, gradient_evaluations=search.steps, seconds=spent,
            step_size=1.0, num_draws=0, gradient_norm=0.0, rejected_steps=0,
        )  # fmt: skip
        outcome, message = found.verdict(target)
        run = Run(
            point=found.every,
            last=found.every,
            history=history,
            outcome=outcome,
            message=message,
            num_steps=search.steps,
            gradient_evaluations=search.steps,
            seconds=time.perf_counter() - began,
            elbo=(elbo, error),
        )
        return Answer(run, certificate)

    def _certificate(self, found: "Found", confidence: float, seed: int) -> Certificate:
        """What is proven on the rule, computed when it is asked for; what is estimated, in words."""
        target = self.model

        def recompute(other: int) -> Certificate:
            return self._certificate(found, confidence, other)

        error = found.error
        rows = (
            Assumption("the effects are log-concave given the hyperparameters", True, *target.likelihood.grounds),
            Assumption(
                f"integration over {target.num_hyperparameters} hyperparameters on {len(found.rule.nodes)} nodes",
                error.log_evidence,
                "estimated",
                f"error {error.log_evidence:.1g} nats, means {error.mean:.1g} sd, sds {error.sd:.1g}, by refining",
            ),
        )
        log_prior, size = found.rule.log_volume + found.log_prior, len(found.log_prior) * target.num_rows
        distance = Deferred(
            lambda: nested_bound(target, found.every, log_prior, confidence=confidence, seed=seed),
            quick=not provable(target) or size * target.num_effects <= _QUICK,
        )
        notes = () if error.small else ("The rule of integration is coarse: its estimated error is above 0.05.",)
        return Certificate(
            status="none",
            gap=None,
            assumptions=rows,
            distance=distance,
            notes=notes,
            names=self.target.parameter_names,
            recompute=recompute,
            obstacle="the effects are too many for a proof in reasonable time",
            proviso=ON_NODES if target.num_hyperparameters else "",
            opening=(
                f"Integrated over {target.num_hyperparameters} hyperparameters on {len(found.rule.nodes)} nodes: "
                f"estimated error {error.log_evidence:.1g} nats, {max(error.mean, error.sd):.1g} sd."
            ),
        )

    def posterior(self, point: Any) -> NestedPosterior:
        """With marginals by name."""
        return NestedPosterior(self.family, point, self.target.parameter_names, self.target)

    def evidence(self, point: Any, constants: Constants, query: Query) -> Evidence:
        """Brackets come with the fit."""
        raise ValueError("The certificate of a nested fit comes with it: fit.certificate.")

    def difference(self, point: Any, other: Any, *, delta: float, seed: int) -> Difference:
        """Not for mixtures on nodes."""
        raise ValueError("Two nested fits are compared by their evidence: provi.compare(fit1, fit2).")


@dataclasses.dataclass(frozen=True)
class Found:
    """The outcome of a search: the mixture over every node of the rule, and how good the rule is."""

    every: NestedPoint
    rule: Rule
    lower: float
    elbos: np.ndarray
    log_prior: np.ndarray
    corrected: np.ndarray
    error: IntegrationError
    unfinished: int

    def verdict(self, target: AbstractLatentGaussian) -> tuple[Outcome, str]:
        """Why it ended, in words."""
        nodes = f"{len(self.rule.nodes)} nodes over {target.num_hyperparameters} hyperparameters"
        if self.unfinished:
            return Outcome.COMPLETED, f"{self.unfinished} of {nodes} did not converge"
        if not self.error.small:
            return (
                Outcome.COMPLETED,
                f"{nodes}; the rule is coarse (estimated errors: {self.error})",
            )
        return Outcome.TOLERANCE, f"integrated over {nodes}; estimated error {self.error.log_evidence:.1g} nats"


class Search:
    """Conditional fits at any hyperparameters, in batches of one compiled program, each from its nearest neighbour."""

    def __init__(
        self,
        target: AbstractLatentGaussian,
        tol: float,
        show: bool | None,
        seconds: float | None,
        journal: Journal | None = None,
    ) -> None:
        self.journal = journal
        self.target, self.tol, self.seconds = target, min(tol * 1e-3, 1e-5), seconds
        self.chunk = batch_of(target)
        self.thetas: list[np.ndarray] = []
        self.warm: list[Any] = []
        self.kept: dict[bytes, Fitted] = {}
        self.steps, self.began = 0, time.perf_counter()
        self.bar = ProgressBar(_LATENT_TOTAL, show, "nodes", "log evidence")

    def fit(self, thetas: np.ndarray, tol: float, most_steps: int = MOST_STEPS, keep: bool = True) -> Fitted:
        """The fits at these hyperparameters (K, D), on the host."""
        parts = []
        for start in range(0, len(thetas), self.chunk):
            some = thetas[start : start + self.chunk]
            one = partial(self._fit, some, tol, most_steps, keep)
            found = one() if self.journal is None else self.journal.result(one)
            parts.append(found)
            self.steps += int(found.steps.sum())
            if keep:
                self._remember(some, found)
            if self.seconds is not None and time.perf_counter() - self.began > self.seconds:
                raise TimeoutError
            self.bar.update(min(len(self.thetas), _LATENT_TOTAL - 1), float(found.point.elbo[-1]))
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    def _fit(self, some: np.ndarray, tol: float, most_steps: int, keep: bool) -> Fitted:
        """Of one batch."""
        padded = np.concatenate([some, np.repeat(some[-1:], self.chunk - len(some), axis=0)])
        warm, cold = self._nearest(padded)
        found = _fit_batch(self.target, padded, warm, cold, np.asarray(tol), np.asarray(most_steps))
        found, none = _first(found, len(some)), np.zeros((len(some), 0))
        if not keep:
            return Fitted(Point(none, none, none, found.point.elbo, none, none, none), found.decrement, found.steps)
        if self.target.num_rows > LARGEST_RESPONSE:  # nobody asks for them again, and they are as long as the data
            found = eqx.tree_at(lambda x: (x.point.slope, x.point.weight, x.point.variance), found, (none,) * 3)
        return found

    def _remember(self, thetas: np.ndarray, found: Fitted) -> None:
        for k, theta in enumerate(thetas):
            if np.isfinite(found.point.elbo[k]):
                self.thetas.append(theta)
                self.warm.append((found.point.inner[k], found.point.outer[k], found.point.sites[k]))
        most = max(4, int(2**26 // (8 * self.target.num_rows)))
        self.thetas, self.warm = self.thetas[-most:], self.warm[-most:]

    def _nearest(self, thetas: np.ndarray) -> tuple[Any, np.ndarray]:
        layout, rows = self.target.layout, self.target.num_rows
        if not self.thetas:
            empty = (np.zeros((layout.count, layout.width)), np.zeros(layout.border), np.zeros(rows))
            chosen = [empty] * len(thetas)
        else:
            known = np.array(self.thetas)
            chosen = [self.warm[int(np.argmin(np.sum((known - theta) ** 2, axis=1)))] for theta in thetas]
        stacked = tuple(np.stack(part) for part in zip(*chosen, strict=True))
        return stacked, np.full(len(thetas), not self.thetas)

    def log_density(self, thetas: np.ndarray, tol: float = _SEARCH_TOL) -> np.ndarray:
        """ELBO and log prior; minus infinity where they are not finite."""
        value = self.fit(thetas, tol).point.elbo + self._log_prior(thetas)
        return np.where(np.isfinite(value), value, -np.inf)

    def node_density(self, thetas: np.ndarray) -> np.ndarray:
        """The same at nodes of a rule, whose fits are kept."""
        found = self.fit(thetas, self.tol)
        for k, theta in enumerate(thetas):
            self.kept[theta.tobytes()] = jax.tree.map(lambda x, j=k: x[j], found)
        value = found.point.elbo + self._log_prior(thetas)
        return np.where(np.isfinite(value), value, -np.inf)

    def _fits_at(self, nodes: np.ndarray) -> Fitted:
        """Those that were kept, and the others."""
        missing = np.array([theta.tobytes() not in self.kept for theta in nodes])
        if missing.any():
            self.node_density(nodes[missing])
        found = [self.kept[theta.tobytes()] for theta in nodes]
        self.kept.clear()
        return jax.tree.map(lambda *x: np.stack(x), *found)

    def _log_prior(self, thetas: np.ndarray) -> np.ndarray:
        size, parts = 64, []
        for start in range(0, len(thetas), size):
            some = thetas[start : start + size]
            parts.append(np.asarray(_log_hyperprior(self.target, _padded(some, size)))[: len(some)])
        return np.concatenate(parts)

    def value_and_slope(self, theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """By the envelope theorem: differences of the ELBO at fixed mean and sites, one pass each.

        A kernel turns the standardised effects, and at fixed ones the ELBO bends far more than where they follow: there
        the differences are those of fits, which a few steps from here bring.
        """
        value = float(self.log_density(theta[None])[0])
        dim = len(theta)
        probes = np.concatenate([theta + _PROBE * np.eye(dim), theta - _PROBE * np.eye(dim)])
        steps = MOST_STEPS if any(getattr(block, "turns", False) for block in self.target.blocks) else 1
        found = self.fit(probes, _SEARCH_TOL, most_steps=steps, keep=False).point.elbo + self._log_prior(probes)
        found = np.where(np.isfinite(found), found, value)  # no slope towards where there is no density
        up, down = found[:dim], found[dim:]
        return value, (up - down) / (2 * _PROBE), (2 * value - up - down) / _PROBE**2

    def result(self, seed: int) -> Found:
        """The rule, the fits at its nodes, and the mixture."""
        target, dim = self.target, self.target.num_hyperparameters
        if not dim:
            none = np.zeros((1, 0))
            rule = Rule(none, np.zeros(1), none[0], np.zeros((0, 0)), np.zeros((1, 0), int), 0.0)
        else:
            rule = self._rule(seed)
        fitted = self._fits_at(rule.nodes)
        elbos, prior = fitted.point.elbo, self._log_prior(rule.nodes)
        corrected, moments = self._corrected(rule.nodes, fitted, seed)
        sound = np.isfinite(elbos + prior) & np.isfinite(corrected)
        if not sound.any():
            raise ValueError("The evidence is not finite at any hyperparameters: scale the data, or narrow the priors.")
        # Where rounding has broken a factor, at extreme hyperparameters, there is no mass; one such node spoils sums.
        # Nodes without weight go, too: what is proven is proven of the mixture of those that stay.
        terms = np.where(sound, corrected + prior + rule.log_volume, -np.inf)
        sound &= terms > terms.max() - _NEGLIGIBLE
        rule = rule.only(sound)
        fitted, elbos, prior, corrected, moments = jax.tree.map(
            lambda x: x[sound], (fitted, elbos, prior, corrected, moments)
        )
        log_density = corrected + prior
        error = error_of(rule, log_density)
        shift = joined(target, moments.inner_shift, moments.outer_shift)
        scale = joined(target, moments.inner_scale, moments.outer_scale)
        scale = np.clip(np.where(np.isfinite(scale), scale, 1.0), 0.5, 2.0)
        every = NestedPoint(
            rule.nodes, log_density + rule.log_volume, fitted.point.inner, fitted.point.outer, moments.sites,
            shift, scale, *refined(rule, log_density),
        )  # fmt: skip
        lower = float(np.logaddexp.reduce(elbos + prior + rule.log_volume))
        unfinished = int(np.sum(~(fitted.decrement <= 1e-3)))
        return Found(every, rule, lower, elbos, prior, corrected, error, unfinished)

    def _rule(self, seed: int) -> Rule:
        target = self.target
        start = target.default_location[: target.num_hyperparameters]
        mode, curvature = find_mode(self.value_and_slope, start)
        if len(mode) > 1:
            curvature = curvature_at(self.log_density, mode, curvature)
        if len(mode) <= _LARGEST_GRID:
            return grid_rule(self.node_density, mode, curvature)
        return lattice_rule(self.log_density, mode, curvature, seed)

    def _corrected(self, nodes: np.ndarray, fitted: Fitted, seed: int) -> tuple[np.ndarray, Corrected]:
        """Estimates of the evidence at each node, and moments by the same draws."""
        target, layout = self.target, self.target.layout
        if target.likelihood.self_concordance == 0:
            # Gaussian given theta: the ELBO is the evidence.
            point = fitted.point
            same = point.elbo[:, None], 0 * point.inner, 0 * point.inner + 1, 0 * point.outer, 0 * point.outer + 1
            return point.elbo, Corrected(*same, point.sites)
        # Another stream than that of the certificate's draws.
        rng, by_groups = np.random.default_rng((seed, _STREAM)), grouped(target)
        each = target.num_rows * (NODES[layout.width] ** layout.width if by_groups else 1)
        most = int(np.clip(_CORRECTION_WORK / (each * len(nodes)), 2, _MOST_DRAWS if by_groups else _MOST_DRAWS // 2))
        if by_groups:
            outer, shares = border_rule(rng, layout.border, most)
            inner = np.zeros((len(outer), 0, 0))
        else:
            half = rng.standard_normal((max(most // 2, 4), layout.count * layout.width + layout.border))
            both = np.concatenate([half, -half])
            outer, inner = both[:, : layout.border], both[:, layout.border :]
            inner = inner.reshape(len(both), layout.count, layout.width)
            shares = np.full(len(both), -math.log(len(both)))
        parts = []
        for start in range(0, len(nodes), self.chunk):
            some = slice(start, start + self.chunk)
            thetas, points = jax.tree.map(lambda x, s=some: _padded(x[s], self.chunk), (nodes, fitted.point))
            found = _correct_batch(target, thetas, points, outer, shares, inner)
            parts.append(_first(found, len(nodes[some])))
        moments = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        return log_evidence(moments.log_weights, shares), moments


_LATENT_TOTAL = 200


def _first(tree: Any, count: int) -> Any:
    """The first entries of every array, on the host."""
    return jax.tree.map(lambda x: on_host(x, count), tree)


def _padded(array: Any, length: int) -> Any:
    short = length - len(array)
    return array if not short else np.concatenate([array, np.repeat(array[-1:], short, axis=0)])


@partial(weighed_jit, calls=10)
def _log_hyperprior(target: Any, thetas: Any) -> Any:
    return target.log_hyperprior(thetas)


@partial(weighed_jit, calls=10)
def _fit_batch(target: Any, thetas: Any, warm: Any, cold: Any, tol: Any, most_steps: Any) -> Fitted:
    def one(theta: Any, start: Any, new: Any) -> Fitted:
        return fit_conditional(target, theta, start, new, tol, most_steps)

    if len(thetas) == 1:
        return jax.lax.map(lambda each: one(*each), (thetas, warm, cold))
    return over_draws(target.division, one, thetas, warm, cold)


@partial(weighed_jit, calls=3)
def _correct_batch(target: Any, thetas: Any, points: Any, outer: Any, shares: Any, inner: Any) -> Corrected:
    return jax.lax.map(lambda pair: correct(target, pair[0], pair[1], outer, shares, inner), (thetas, points))
