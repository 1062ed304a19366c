"""Runs of one method on one data set, measured at the ends of passes: gap in nats, test log-loss in bits."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import AbstractAlgorithm, without_guarantee
from provi.algorithms.natural.pgsvi import PGSVI
from provi.runtime.loop import advance, initial_carry
from provi_lab.common.curves import Curve
from provi_lab.papers.pgsvi.baselines import (
    PLAIN,
    Factored,
    Form,
    decaying_sgd,
    descend,
    judge_factored,
    sgd_state,
    start_at_prior,
)
from provi_lab.papers.pgsvi.problem import Factors, Judgement, Problem, judge_dual

_NO_LIMIT = 2**62

STABLE = ", stable"
"""What the name of SGD ends with where its first step was halved until it does not diverge."""


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
    return _curve(problem, names, kept)


def _curve(problem: Problem, names: tuple[str, int, float], kept: Sequence[tuple]) -> Curve:
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
    name: str,
    seeds: Sequence[int],
    passes: Iterable[int],
    *,
    steps: Sequence[float] | None = None,
    form: Form = PLAIN,
    batch: int | None = None,
    stride: int = 1,
    enough: float = -math.inf,
) -> list[Curve]:
    """A baseline on (m, C) from the prior, all seeds at once, with the papers' batch size unless told.

    **Arguments:** `steps`: for `decaying_sgd` the first step size of each seed; `passes`: in strides. A run ends where
    its gap is not finite or at most `enough`; all end together where none of them goes on.
    """
    batch = problem.setting.batch if batch is None else batch
    whole, point = problem.target.num_terms // batch, start_at_prior(parts, form.whitened)
    firsts = [math.nan] * len(seeds) if steps is None else list(steps)
    starts = [(point, rule.init(point) if steps is None else sgd_state(first)) for first in firsts]
    carries, keys = jax.tree.map(lambda *xs: jnp.stack(xs), *starts), jnp.stack([jax.random.key(s) for s in seeds])
    kept: list[list[tuple]] = [[] for _ in seeds]
    going, done = set(range(len(seeds))), 0
    for wanted in passes:
        for begun in range(done, wanted, stride):  # one compiled function, whatever the distance
            begin = jnp.asarray(begun * whole)
            carries = descend(rule, problem, parts, carries, keys, begin, stride * whole, batch, form)
        done = wanted
        seen = judge_stacked(problem, parts, carries[0], form.whitened)
        for place in sorted(going):
            gap, bits = float(seen.negative_elbo[place]) - problem.optimum, float(seen.test_bits[place])
            kept[place].append((done, gap if math.isfinite(gap) else math.inf, bits))
            if gap <= enough or not math.isfinite(gap):
                going.remove(place)
        if not going:
            break
    called = [(name, seed, first) for seed, first in zip(seeds, firsts, strict=True)]
    return [_curve(problem, names, lines) for names, lines in zip(called, kept, strict=True)]


@eqx.filter_jit
def judge_stacked(problem: Problem, parts: Factors, points: Factored, whitened: bool) -> Judgement:
    """Of each of the stacked points."""
    return jax.vmap(lambda point: judge_factored(problem, parts, point, whitened))(points)


def follow_stable_sgd(
    problem: Problem,
    parts: Factors,
    name: str,
    kappa: float,
    first: float,
    seeds: Sequence[int],
    passes: Iterable[int],
    form: Form = PLAIN,
) -> list[Curve]:
    """SGD with this first step, and, for the seeds for which that diverges, the first of its halves that does not."""
    passes, rule = tuple(passes), decaying_sgd(kappa)
    found: list[Curve] = []
    left, size = list(seeds), first
    for halvings in range(60):
        called = name if halvings == 0 else name + STABLE
        curves = follow_rule(problem, parts, rule, called, left, passes, steps=[size] * len(left), form=form)
        # Above twice the start it is on its way to infinity, even if it has not got there.
        stable = [np.isfinite(c["gap"]).all() and c["gap"][-1] < 2 * c["gap"][0] for c in curves]
        found += [c for c, good in zip(curves, stable, strict=True) if halvings == 0 or good]
        left = [seed for seed, good in zip(left, stable, strict=True) if not good]
        if not left:
            break
        size /= 2
    return found
