"""Figure 2(b) in parts: each training is a line of one file, written as soon as it is done; a second call goes on.

    python -m provi_lab.papers.misso.measuring smoke              # seconds of a step of each method
    python -m provi_lab.papers.misso.measuring run FOLDER [LIMIT_S] [EPOCHS] [SEEDS]
    python -m provi_lab.papers.misso.measuring page FOLDER [OUTPUT] [TEMPERED]

`provi reproduce misso-figure2b` is `run` without a limit, and `page`. Where a call may take ten minutes, make `run`
calls till one says that all parts are done, and then `page`, which takes `tempered.json` of FOLDER or of the folder
TEMPERED along. On a machine that takes few bytes at once the data go as `provi_lab.data.cifar_parts` says.

A method's rate is searched on the grid 10^(k/2) by short runs, from a first guess to whichever side is better, until
both neighbours of the best one are worse: no best rate is at an edge.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.incremental.network_surrogate import NetworkPoint, NetworkSurrogate, network_surrogate
from provi.core.arguments import double_precision
from provi_lab.papers.misso import stepwise
from provi_lab.papers.misso.network_page import Tables, facts_of
from provi_lab.papers.misso.networks import (
    ADAGRAD,
    ADAM,
    BBB,
    METHODS,
    MISSO,
    MOMENTUM,
    PACED,
    SAG,
    NetworkProblem,
    cifar_problem,
)
from provi_lab.papers.misso.training import read_rows_of, score, trainings_of

FIRST = {MISSO: -5, ADAM: -2, ADAGRAD: -1, SAG: -10, BBB: -5, MOMENTUM: -6, PACED: -2}
"""k of the first rate 10^(k/2) that is tried.

With one sigma and d weights on N images the KL part alone has the second derivative 2 d sigma^2 / N in log sigma, which
is 2200 nats per image for ResNet-18 on 10,000 images at sigma = 1: methods that do not scale their steps need rates
below 2 / 2200, and MISSO and SAG, whose gradients are half a pass old, smaller ones still.
"""

AT_PAPER_RATE = (MISSO, ADAM, ADAGRAD)
PAPER_RATE, BLOCK, EPOCHS, PILOT_EPOCHS, MOST_TRIED = 1e-4, 128, 4, 1, 14
SEEDS = 5
"""The paper's runs of each method. All methods run with the first seed, then with the second and so on, so that a
budget that ends before the fifth leaves whole seeds; the page says how many there are."""

NAME, PARTS = "misso-figure2b", "parts.jsonl"
PRIOR = "q = prior"


def rate_of(place: int) -> float:
    """The rate number `place` of the grid."""
    return float(f"{10 ** (place / 2):.3g}")


def next_place(found: dict[int, float], first: int) -> int | None:
    """The next place of the grid to try; None when both neighbours of the best were. Of equals the smallest is best."""
    if not found:
        return first
    best = min(found, key=lambda place: (_number(found[place]), place))
    return next((place for place in (best + 1, best - 1) if place not in found), None)


def _number(value: float) -> float:
    return value if math.isfinite(value) else math.inf


class Parts:
    """The lines of the file, and how to add one; `used` are those that this call asked for."""

    def __init__(self, file: Path, limit: float, problem: str):
        self.file, self.limit, self.began, self.problem = file, limit, time.monotonic(), problem
        self.lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.is_file() else []
        self.used: list[dict[str, Any]] = []
        if any(line["problem"] != problem for line in self.lines):
            raise ValueError(
                f"folder: {file} has parts of another problem than {problem!r}. Remove it, or use another."
            )

    def do(self, name: Sequence[Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part of this name: as the file has it, else done now, or `TimeoutError` where it would take too long."""
        there = [line for line in self.lines if line["part"] == list(name)]
        if there:
            self.used.append(there[0])
            return there[0]
        alike = [line["seconds"] for line in self.lines if line["part"][0] == name[0]]
        if time.monotonic() - self.began + 1.2 * max(alike, default=0) > self.limit:
            raise TimeoutError
        began = time.monotonic()
        line = {"problem": self.problem, "part": list(name), **work()}
        line["seconds"] = time.monotonic() - began
        self.lines.append(line)
        self.used.append(line)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        print(f"{name}: {line['seconds']:.1f} s, -ELBO {line['last']:.5g}", flush=True)
        return line


@double_precision
def measure(
    folder: Path,
    limit: float = 540.0,
    epochs: int = EPOCHS,
    seeds: int = SEEDS,
    methods: Sequence[str] = tuple(FIRST),
    problem: NetworkProblem | None = None,
    first_seed: int = 0,
) -> bool:
    """Do what fits into `limit` seconds, write the tables of what is done; whether all of it is."""
    problem = cifar_problem(jnp.bfloat16) if problem is None else problem
    surrogate = network_surrogate(problem.target, posterior="global", noise="flipout", block_size=BLOCK)
    folder.mkdir(parents=True, exist_ok=True)
    parts, done = Parts(folder / PARTS, limit, problem.title), 0
    try:
        for number in _all(parts, problem, surrogate, epochs, range(first_seed, first_seed + seeds), methods):
            done = number
        whole = True
    except TimeoutError:
        whole = False
    more = {"epochs": epochs, "seeds": seeds, "pilot_epochs": PILOT_EPOCHS, "noise": "flipout", "whole": whole}
    more |= {"seeds_done": done, "test_images": len(problem.test_images)}
    more["prior"] = [line["values"][-1] for line in parts.used if line["part"][0] == PRIOR]
    tables = Tables(folder, NAME, facts_of(problem, BLOCK, **more))
    tables.curves = read_rows_of([row for line in parts.used for row in line["rows"]])
    tables.scores = [row for line in parts.used for row in line["scores"]]
    tables.began -= sum(line["seconds"] for line in parts.used)
    tables.write()
    print("all parts are done" if whole else "not all parts are done: call again", flush=True)
    return whole


def _all(
    parts: Parts,
    problem: NetworkProblem,
    surrogate: NetworkSurrogate,
    epochs: int,
    seeds: Sequence[int],
    methods: Sequence[str],
) -> Iterator[int]:
    """Yields how many seeds are done."""
    parts.do([PRIOR], lambda: _prior(surrogate))

    def one(name: str, rate: float, seed: int, length: int, stage: str) -> dict[str, Any]:
        return parts.do(
            [stage or "run", name, rate, seed, length],
            lambda: _train(problem, surrogate, name, rate, seed, length, stage),
        )

    chosen = {}
    for name in methods:
        found: dict[int, float] = {}
        while (place := next_place(found, FIRST[name])) is not None and len(found) < MOST_TRIED:
            found[place] = one(name, rate_of(place), seeds[0], PILOT_EPOCHS, "pilot")["last"]
        chosen[name] = rate_of(min(found, key=lambda place: (_number(found[place]), place)))
    for number, seed in enumerate(seeds):
        for name in methods:
            one(name, chosen[name], seed, epochs, "")
        for name in (name for name in AT_PAPER_RATE if name in methods):
            one(name, PAPER_RATE, seed, epochs, "")
        yield number + 1


def _train(
    problem: NetworkProblem, surrogate: NetworkSurrogate, name: str, rate: float, seed: int, epochs: int, stage: str
) -> dict[str, Any]:
    trace = stepwise.train(METHODS[name], surrogate, problem.means([seed])[0], rate, seed, epochs, quiet=True)
    (curve,) = trainings_of(trace, surrogate.posterior, name, [rate], [seed], stage)
    wanted = not stage and np.isfinite(curve.mean)
    found = score(problem, surrogate, curve, trace.points) if wanted else []
    return {"last": curve.mean, "rows": curve.rows(), "scores": found}


def _prior(surrogate: NetworkSurrogate) -> dict[str, Any]:
    """-ELBO of q = N(0, I), the prior: KL 0."""
    scale = float(surrogate.target.prior_sd)
    start = surrogate.start(scale)
    point = NetworkPoint(jnp.zeros_like(start.mean), start.log_sd)
    values = [float(part) for part in stepwise.evaluate(surrogate, jax.random.key(0), point)]
    return {"last": values[0], "values": [values], "rows": [], "scores": []}


@double_precision
def smoke(problem: NetworkProblem | None = None, steps: int = 20) -> None:
    """Seconds of the gradient's compilation, of a step with 1 and 4 draws, of the methods' own parts, of a look."""
    problem = cifar_problem(jnp.bfloat16) if problem is None else problem
    surrogate = network_surrogate(problem.target, posterior="global", noise="flipout", block_size=BLOCK)
    key, point = jax.random.key(0), surrogate.start()
    for draws in (1, 1, 4):
        began = time.monotonic()
        for step in range(steps):
            summary = stepwise._gradient(surrogate, key, point, jnp.asarray(step), jnp.asarray(draws))
        jax.block_until_ready(summary)
        print(f"{steps} gradients of {draws} draws: {time.monotonic() - began:.2f} s", flush=True)
    for name in ("first look", "second look"):
        began = time.monotonic()
        values = [float(part) for part in stepwise.evaluate(surrogate, key, point)]
        print(f"{name}: {time.monotonic() - began:.2f} s, -ELBO {values[0]:.4g}", flush=True)
    print(f"q = prior: {_prior(surrogate)['last']:.5g} nats an image", flush=True)
    for name in FIRST:
        began = time.monotonic()
        method, rate = METHODS[name], jnp.asarray(1e-4)
        zero = jax.tree.map(jnp.zeros_like, summary)
        state = stepwise._algorithm(method.make, surrogate, zero, rate).init(point)
        for step in range(steps):
            state = stepwise._moved((method.make, surrogate, summary, key, rate, jnp.asarray(step)), state)
            if step == 0:
                jax.block_until_ready(state)
                first, began = time.monotonic() - began, time.monotonic()
        jax.block_until_ready(state)
        print(f"{name}: first {first:.2f} s, then {(time.monotonic() - began) / (steps - 1):.4f} s", flush=True)
        del state


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["smoke"]:
            smoke()
        case ["run", folder, *numbers]:
            given = [int(number) for number in numbers]
            limit, epochs, seeds = (given + [540, EPOCHS, SEEDS][len(given) :])[:3]
            measure(Path(folder), float(limit), epochs, seeds)
        case ["page", folder, *others]:
            from provi_lab.papers.misso import figure2b  # which imports this

            figure2b.page(Path((others or [folder])[0]), [Path(folder), *map(Path, others[1:])])
        case _:
            raise SystemExit(__doc__)
