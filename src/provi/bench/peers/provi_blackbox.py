"""ProVI given the log density as a function and its strong convexity, nothing else; the tolerance is `setting`."""

from typing import Any

import jax

import provi
from provi.bench.peers.jax_model import as_data, log_density
from provi.bench.peers.provi_fit import fit_and_record
from provi.bench.protocol import Problem, Recorder, serve


def solve(problem: Problem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the arrays to the certified answer."""
    density = jax.tree_util.Partial(log_density, *as_data(problem))
    target = provi.targets.LogDensity(density, problem.dim, strong_convexity=problem.prior_scale**-2.0)
    return fit_and_record(target, setting, record)


if __name__ == "__main__":
    serve(solve)
