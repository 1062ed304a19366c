"""Runs of one method on one data set, measured at the ends of passes: gap in nats, test log-loss in bits."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import AbstractAlgorithm, without_guarantee
from provi.algorithms.natural.pgsvi import PGSVI
from provi.runtime.loop import advance, initial_carry
from provi_lab.common.curves import Curve
from provi_lab.papers.pgsvi.baselines import decaying_sgd, descend, judge_factored, sgd_state, start_at_prior
from provi_lab.papers.pgsvi.problem import Factors, Judgement, Problem, judge_dual

_NO_LIMIT = 2**62

STABLE_SGD = "SGD, stable"
"""SGD with its first step halved until it does not diverge."""


def follow(
    problem: Problem,
    names: tuple[str, int, float],
    state: Any,
    go_on: Callable[[Any, int, int], Any],
    judge: Callable[[Any], Judgement],
    passes: Iterable[int],
    enough: float = -math.inf,
) -> Curve:
    """Record at each of `passes`; `go_on(state, p, q)` runs from pass p to pass q. Ends early at a gap of `enough`.

    **Arguments:** `names`: method, seed and step size. The gap of a run that diverged is infinite.
    """
    done, kept = 0, []
    for wanted in passes:
        state, done = go_on(state, done, wanted) if wanted > done else state, wanted
        seen = judge(state)
        gap, bits = float(seen.negative_elbo) - problem.optimum, float(seen.test_bits)
        kept.append((done, gap if math.isfinite(gap) else math.inf, bits))
        if gap <= enough or not math.isfinite(gap):
            break
    method, seed, step_size = names
    called = {"data": problem.setting.data, "method": method, "seed": seed, "step_size": step_size}
    columns = (np.array(column) for column in zip(*kept, strict=True))
    return Curve(called, dict(zip(("passes", "gap", "test_bits"), columns, strict=True)))


def follow_dual(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    steps_a_pass: int,
    names: tuple[str, int, float],
    passes: Iterable[int],
    enough: float = -math.inf,
) -> Curve:
    """A method in dual form, from the prior."""
    target, family = problem.target, problem.family
    algorithm = without_guarantee(algorithm.resolve(target, family))
    key = jax.random.key(names[1])

    def go_on(carry: Any, first: int, last: int) -> Any:
        limits = jnp.asarray(last * steps_a_pass), jnp.asarray(_NO_LIMIT)
        return advance(key, algorithm, target, family, carry, *limits)

    start = initial_carry(algorithm, family.prior_point())
    return follow(problem, names, start, go_on, lambda carry: judge_dual(problem, carry.state.point), passes, enough)


def follow_pgsvi(
    problem: Problem, name: str, seed: int, step: float, passes: Iterable[int], enough: float = -math.inf, **more: Any
) -> Curve:
    """PG-SVI with beta N = `step` and the papers' batch and number of draws, unless `more` says otherwise."""
    setting, terms = problem.setting, problem.target.num_terms
    options = {"batch_size": setting.batch, "num_samples": setting.samples, **more}
    algorithm = PGSVI(step_size=step / terms, **options)
    whole = terms // options["batch_size"]
    return follow_dual(problem, algorithm, whole, (name, seed, step), passes, enough)


def follow_rule(
    problem: Problem,
    parts: Factors,
    rule: Any,
    names: tuple[str, int, float],
    passes: Iterable[int],
    *,
    state: Any = None,
    whitened: bool = False,
    batch: int | None = None,
    stride: int = 1,
    enough: float = -math.inf,
) -> Curve:
    """A baseline on (m, C), from the prior, with the papers' batch size unless told; `passes` in strides."""
    point, batch = start_at_prior(parts, whitened), problem.setting.batch if batch is None else batch
    key, whole = jax.random.key(names[1]), problem.target.num_terms // batch

    def go_on(carry: Any, first: int, last: int) -> Any:
        for done in range(first, last, stride):  # one compiled function, whatever the distance
            begin = jnp.asarray(done * whole)
            carry = descend(rule, problem, parts, carry, key, begin, stride * whole, batch, whitened)
        return carry

    def judge(carry: Any) -> Judgement:
        return judge_factored(problem, parts, carry[0], whitened)

    start = (point, rule.init(point) if state is None else state)
    return follow(problem, names, start, go_on, judge, passes, enough)


def follow_stable_sgd(
    problem: Problem, parts: Factors, kappa: float, first: float, seed: int, passes: Iterable[int]
) -> list[Curve]:
    """SGD with the papers' first step, and, where that diverges, the first of its halves that does not."""
    passes, rule, found = tuple(passes), decaying_sgd(kappa), []
    for halvings in range(40):
        size = first / 2**halvings
        name = "SGD" if halvings == 0 else STABLE_SGD
        curve = follow_rule(problem, parts, rule, (name, seed, size), passes, state=sgd_state(size))
        # Above twice the start it is on its way to infinity, even if it has not got there.
        stable = np.isfinite(curve["gap"]).all() and curve["gap"][-1] < 2 * curve["gap"][0]
        if halvings == 0 or stable:
            found.append(curve)
        if stable:
            break
    return found
