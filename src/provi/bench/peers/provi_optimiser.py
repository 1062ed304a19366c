"""ProVI's black-box method by itself, without a certificate: Laplace start and stochastic natural gradient.

It is timed as the peers are, by snapshots and an oracle's stop; `setting` is the largest step.
"""

from typing import Any

import jax

import provi
from provi.bench.peers.jax_model import as_data, log_density
from provi.bench.protocol import Problem, Recorder, serve
from provi.core.precision import double_precision
from provi.runtime.run import run
from provi.structures.black_box import laplace_start

_MOST_STEPS = 3000


@double_precision
def solve(problem: Problem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the arrays to the time limit, a snapshot a step."""
    density = jax.tree_util.Partial(log_density, *as_data(problem))
    target = provi.targets.LogDensity(density, problem.dim)
    family = provi.families.Gaussian(problem.dim)

    def watch(state: Any) -> bool:
        record(state.point.loc, state.point.scale.matrix @ state.point.scale.matrix.T)
        return record.done

    algorithm = provi.algorithms.StochasticNaturalGradient(largest_step=setting)
    start = laplace_start(target, family)
    found = run(algorithm, target, family, start, seed=0, num_steps=_MOST_STEPS, progress=False, stop=watch)
    return {"num_steps": found.num_steps, "gradient_evaluations": found.gradient_evaluations}


if __name__ == "__main__":
    serve(solve)
