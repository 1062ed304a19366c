"""Long NUTS runs of the mixed models by NumPyro: the truth, with Monte-Carlo errors, that fits are compared with.

    python -m provi_lab.mixed.references [--problem NAME] [--times] [--write benchmarks/results/FILE.json]

Also what NUTS costs: a run as short as reaches a bulk effective sample size of 400 in every reported quantity, timed
with and without its compilation. Problems that are not named keep what the file has of them.
"""

import argparse
import dataclasses
import functools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.record import make_record
from provi_lab.mixed.problems import PROBLEMS, Problem

FILE = Path("benchmarks/results/mixed_references.json")
CHAINS, WARM_UP, TARGET_ACCEPT, BLOCK = 4, 500, 0.9, 125
ENOUGH, PLENTY = 400.0, 11_000.0
"""Effective draws of the short and of the long runs: the latter have means to 0.01 sd."""

LONGEST, OFTEN = 100.0, 16
"""Seconds after which a long run ends where it is, and blocks between its looks at the effective draws."""

PROBABILITIES = (0.05, 0.5, 0.95)


def entry_name(block: str, spot: tuple[int, ...]) -> str:
    """The name of one entry of a vector of effects."""
    return f"{block}[{', '.join(str(i) for i in spot)}]"


class Sampler:
    """NumPyro's NUTS with a diagonal metric, as two compiled programs: one that warms up, one that draws a block.

    NumPyro's own loop over chains compiles each of them anew, which would be most of the time of a short run.
    """

    def __init__(self, problem: Problem, chain_method: str = "sequential"):
        """`chain_method`: "sequential", or "vectorized", where all chains wait for the longest trajectory."""
        import jax
        from numpyro.infer import NUTS

        kernel = NUTS(problem.model, target_accept_prob=TARGET_ACCEPT)

        def begin(key: Any) -> Any:
            state = kernel.init(key, WARM_UP, None, (), {})
            return jax.lax.fori_loop(0, WARM_UP, lambda _, state: kernel.sample(state, (), {}), state)

        def draw(state: Any, _: Any) -> tuple[Any, Any]:
            state = kernel.sample(state, (), {})
            return state, (kernel.postprocess_fn((), {})(state.z), state.diverging)

        def advance(state: Any) -> Any:
            return jax.lax.scan(draw, state, length=BLOCK)

        every = jax.vmap if chain_method == "vectorized" else _mapped
        self._begin, self._advance = jax.jit(every(begin)), jax.jit(every(advance))

    def run(self, seed: int) -> "Iterator[Run]":
        """The run so far, after each block, for as long as it is asked for."""
        import jax

        began, so_far = _clocks(), Run()
        state = self._begin(jax.random.split(jax.random.key(seed), CHAINS))
        while True:
            state, (found, diverging) = self._advance(state)
            so_far.blocks.append({name: np.asarray(x) for name, x in found.items()})
            so_far.divergent += int(np.asarray(diverging).sum())
            now = _clocks()
            so_far.seconds, so_far.cpu = so_far.seconds + now[0] - began[0], so_far.cpu + now[1] - began[1]
            yield so_far
            began = _clocks()


@dataclasses.dataclass
class Run:
    """The draws block by block (chains first), divergent transitions, and seconds, of the clock and the processor."""

    blocks: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    divergent: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def draws(self) -> dict[str, np.ndarray]:
        """All of them, (chains, draws, ...)."""
        return {name: np.concatenate([x[name] for x in self.blocks], axis=1) for name in self.blocks[0]}


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _mapped(function: Any) -> Any:
    import jax

    return lambda chains: jax.lax.map(function, chains)


def scalars(problem: Problem, draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The reported quantities, each (chains, draws)."""
    found = {name: draws[name] for name in (*problem.fixed, *problem.hyperparameters)}
    for block, spots in problem.blocks.items():
        found |= {entry_name(block, spot): draws[block][(..., *spot)] for spot in spots}
    return found


def describe(x: np.ndarray) -> dict[str, float]:
    """Moments and quantiles of one quantity, with their Monte-Carlo errors (Vehtari et al. 2021)."""
    stats = _statistics()
    error, ess = (functools.partial(f, x, chain_axis=0, draw_axis=1) for f in (stats.mcse, stats.ess))
    row = {"mean": x.mean(), "sd": x.std(ddof=1), "mcse_mean": error(method="mean"), "mcse_sd": error(method="sd")}
    for p in PROBABILITIES:
        row[f"q{round(100 * p)}"] = np.quantile(x, p)
        row[f"mcse_q{round(100 * p)}"] = error(method="quantile", prob=p)
    row |= {"ess_bulk": ess(method="bulk"), "rhat": stats.rhat(x, chain_axis=0, draw_axis=1)}
    return {name: float(f"{float(value):.7g}") for name, value in row.items()}


def least_ess(problem: Problem, draws: dict[str, np.ndarray]) -> float:
    """The smallest bulk effective sample size of the reported quantities."""
    stats, quantities = _statistics(), scalars(problem, draws).values()
    return min(float(stats.ess(x, chain_axis=0, draw_axis=1, method="bulk")) for x in quantities)


def _statistics() -> Any:
    """ArviZ's estimators for arrays."""
    from arviz_stats import base

    return vars(base)["array_stats"]


def run_until(problem: Problem, chosen: Sampler, seed: int, enough: float, often: int = 1) -> tuple[Run, float]:
    """The run that has `enough` effective draws, looked at `often`, and how many they are."""
    for so_far in chosen.run(seed):
        if len(so_far.blocks) % often == 0:
            ess = least_ess(problem, so_far.draws())
            if ess >= enough or so_far.seconds > LONGEST:
                return so_far, ess
    raise AssertionError("the sampler ended by itself")


def time_nuts(problem: Problem, chosen: Sampler, seed: int) -> dict[str, float]:
    """Draws, effective draws and seconds of a short run."""
    found, ess = run_until(problem, chosen, seed, ENOUGH)
    row = {"draws": BLOCK * len(found.blocks), "least_ess": round(ess, 1), "seconds": round(found.seconds, 3)}
    return row | {"cpu_seconds": round(found.cpu, 3)}


def time_as_called(problem: Problem, draws: int) -> float:
    """Seconds of `MCMC(NUTS(model), ...).run(key)` with its defaults, as users call it, compilation included."""
    import jax
    from numpyro.infer import MCMC, NUTS

    began = time.perf_counter()
    kernel = NUTS(problem.model, target_accept_prob=TARGET_ACCEPT)
    method: Any = "sequential"  # that which the default falls back to on one device, without its warning
    mcmc = MCMC(
        kernel, num_warmup=WARM_UP, num_samples=draws, num_chains=CHAINS, chain_method=method, progress_bar=False
    )
    mcmc.run(jax.random.key(3))
    jax.block_until_ready(mcmc.get_samples())
    return round(time.perf_counter() - began, 3)


def times(problem: Problem) -> tuple[dict[str, Any], Sampler, str]:
    """Of short runs, first and compiled; the faster sampler, and its name."""
    samplers = {method: Sampler(problem, method) for method in ("vectorized", "sequential")}
    short: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 2)}
    for method, chosen in samplers.items():
        short[method] = {"first": time_nuts(problem, chosen, 1), "second": time_nuts(problem, chosen, 2)}
    fastest = min(samplers, key=lambda method: short[method]["second"]["seconds"])
    short["as_called_seconds"] = time_as_called(problem, short[fastest]["second"]["draws"])
    return short, samplers[fastest], fastest


def reference(problem: Problem) -> dict[str, Any]:
    """All that is kept of one problem."""
    short, chosen, fastest = times(problem)
    long, _ = run_until(problem, chosen, 0, PLENTY, OFTEN)
    found = long.draws()
    quantities = {name: describe(x) for name, x in scalars(problem, found).items()}
    effects = {}
    for block in problem.blocks:
        x = found[block].reshape(-1, *found[block].shape[2:])
        effects[block] = {"mean": np.round(x.mean(axis=0), 6).tolist(), "sd": np.round(x.std(axis=0), 6).tolist()}
    nuts = {"chains": CHAINS, "warm_up": WARM_UP, "target_accept": TARGET_ACCEPT, "draws": BLOCK * len(long.blocks)}
    nuts |= {"divergent": long.divergent, "seconds": round(long.seconds, 1), "method": fastest, "short": short}
    row = {"problem": problem.name, "source": problem.source, "rows": len(next(iter(problem.table.values())))}
    return {**row, "nuts": nuts, "quantities": quantities, "effects": effects}


def load(path: Path = FILE) -> dict[str, dict[str, Any]]:
    """The references by problem."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return {row["problem"]: row for row in record["rows"]}


def _line(row: dict[str, Any]) -> str:
    quantities, nuts = row["quantities"].values(), row["nuts"]
    worst, rhat = max(x["mcse_mean"] / x["sd"] for x in quantities), max(x["rhat"] for x in quantities)
    short = "; ".join(
        f"{method}: {x['first']['seconds']:.2f} s, compiled {x['second']['seconds']:.2f} s"
        for method, x in nuts["short"].items()
        if isinstance(x, dict)
    )
    return (
        f"{row['problem']}: {nuts['draws']} draws a chain in {nuts['seconds']:.1f} s, {nuts['divergent']} divergent, "
        f"largest rhat {rhat:.4f}, largest error of a mean {worst:.4f} sd; to {ENOUGH:.0f} effective draws {short}; "
        f"as called {nuts['short']['as_called_seconds']:.2f} s"
    )


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m provi_lab.mixed.references", description=__doc__)
    parser.add_argument("--problem", action="append", choices=list(PROBLEMS), help="repeat for more; all by default")
    parser.add_argument("--times", action="store_true", help="measure the short runs alone, and keep the references")
    parser.add_argument("--write", type=Path, default=FILE)
    chosen = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    kept = load(chosen.write) if chosen.write.exists() else {}
    for name in chosen.problem or PROBLEMS:
        if chosen.times:
            row = kept[name]
            row["nuts"]["short"] = times(PROBLEMS[name]())[0]
        else:
            row = kept[name] = reference(PROBLEMS[name]())
        print(_line(row), flush=True)
        rows = [kept[key] for key in PROBLEMS if key in kept]
        record = {**make_record("mixed-references", rows), "command": "python -m provi_lab.mixed.references"}
        chosen.write.parent.mkdir(parents=True, exist_ok=True)
        chosen.write.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
