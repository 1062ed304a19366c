"""What one iteration costs beyond the gradient it needs.

Two baselines in the same run, both compiled loops of plain JAX:

- *gradient*: draw u, then jax.grad of mean potential(m + C u) in (m, C): the bare gradient that an iteration needs;
- *target*: jax.vmap(jax.grad(potential)) at draws given beforehand: the part of it that the target's data cost.

`ratio` is the time per iteration of `runtime.loop.advance` over that of *gradient*, `ratio_target` over *target*.

    python benchmarks/overhead.py [--dim 200] [--terms 1000] [--draws 10]
"""

import argparse
import datetime
import json
import platform
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi import algorithms, estimators, families, targets
from provi.algorithms.base import without_guarantee
from provi.runtime.loop import advance, initial_carry
from provi.schedules import GeometricAverage


@eqx.filter_jit
def plain_gradient(key, target, loc, matrix, num_draws, num_iterations):
    """What a user would write: reparameterise, average, differentiate; a tiny step keeps the iterations dependent."""

    def energy(parameters, u):
        loc, matrix = parameters
        return jnp.mean(jax.vmap(target.potential)(loc + u @ jnp.tril(matrix).T))

    def body(index, parameters):
        u = jax.random.normal(jax.random.fold_in(key, index), (num_draws, loc.shape[0]), loc.dtype)
        gradient = jax.grad(energy)(parameters, u)
        return jax.tree.map(lambda x, g: x - 1e-12 * g, parameters, gradient)

    return jax.lax.fori_loop(0, num_iterations, body, (loc, matrix))


@eqx.filter_jit
def bare_gradients(target, draws, num_iterations):
    """The gradients of all draws, `num_iterations` times; each depends on the last so that none is optimised away."""
    gradients = jax.vmap(jax.grad(target.potential))

    def body(_, carry):
        return carry + 1e-12 * gradients(carry)

    return jax.lax.fori_loop(0, num_iterations, body, draws)


def best_times(functions, repeats):
    """The shortest of several timings of each function, taken in turn: a slow phase of the machine meets all."""
    for function in functions.values():
        jax.block_until_ready(function())
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            started = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(time.perf_counter() - started)
    return {name: min(values) for name, values in times.items()}


def problem(dim, terms, seed=0):
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(terms, dim)) / np.sqrt(dim)
    return targets.LogisticRegression(design, rng.integers(0, 2, terms))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=200)
    parser.add_argument("--terms", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    target = problem(arguments.dim, arguments.terms)
    draws = jax.random.normal(jax.random.key(0), (arguments.draws, arguments.dim))
    iterations = jnp.asarray(arguments.iterations)
    smoothness = target.constants.smoothness.value
    step = 1 / (10 * smoothness * arguments.dim)
    average = {"averaging": GeometricAverage(0.999)}
    cases = {
        "ProxSGD, triangular": (algorithms.ProxSGD(step, arguments.draws), "triangular"),
        "ProxSGD, triangular, averaged": (algorithms.ProxSGD(step, arguments.draws, **average), "triangular"),
        "ProjSGD, symmetric, entropy": (algorithms.ProjSGD(step, arguments.draws), "symmetric"),
        "ProjSGD, symmetric, STL": (
            algorithms.ProjSGD(step, arguments.draws, estimator=estimators.StickingTheLanding()),
            "symmetric",
        ),
        "ProxSGD, diagonal": (algorithms.ProxSGD(step, arguments.draws), "diagonal"),
    }
    rows = {}
    for name, (algorithm, scale) in cases.items():
        family = families.Gaussian(arguments.dim, scale)
        algorithm = without_guarantee(algorithm.resolve(target, family))
        carry = initial_carry(algorithm, family.point(np.zeros(arguments.dim), 2 / np.sqrt(smoothness)))
        key, limit = jax.random.key(1), jnp.asarray(2**40)

        def run(algorithm=algorithm, family=family, carry=carry, key=key, limit=limit):
            return advance(key, algorithm, target, family, carry, iterations, limit).state.point.loc

        start = carry.state.point
        matrix = jnp.diag(jnp.ones(arguments.dim)) * 2 / np.sqrt(smoothness)
        functions = {
            "target": lambda: bare_gradients(target, draws, iterations),
            "gradient": lambda key=key, start=start, matrix=matrix: plain_gradient(
                key, target, start.loc, matrix, arguments.draws, iterations
            ),
            "iteration": run,
        }
        times = best_times(functions, arguments.repeats)
        rows[name] = {f"{case}_ms": 1e3 * seconds / arguments.iterations for case, seconds in times.items()}
        rows[name]["ratio"] = times["iteration"] / times["gradient"]
        rows[name]["ratio_target"] = times["iteration"] / times["target"]
    print(f"dim {arguments.dim}, {arguments.terms} data terms, {arguments.draws} draws, float64")
    for name, row in rows.items():
        cells = "  ".join(f"{key} {value:.3f}" for key, value in row.items())
        print(f"{name:32s} {cells}")
    print(
        json.dumps(
            {
                "date": datetime.date.today().isoformat(),
                "device": f"{jax.devices()[0].device_kind} ({platform.machine()})",
                "jax": jax.__version__,
                "arguments": vars(arguments),
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
