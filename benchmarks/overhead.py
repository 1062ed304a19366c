"""What one iteration of ProxSGD costs beyond the gradients it needs.

Ratio, in one run, of the time per iteration of `runtime.loop.advance` to the time of the bare gradients of the same
number of draws (jax.vmap(jax.grad(potential))) in a compiled loop. Also the other algorithms, for information.

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


@eqx.filter_jit
def bare_gradients(target, draws, num_iterations):
    """The gradients of all draws, `num_iterations` times; each depends on the last so that none is optimised away."""
    gradients = jax.vmap(jax.grad(target.potential))

    def body(_, carry):
        return carry + 1e-12 * gradients(carry)

    return jax.lax.fori_loop(0, num_iterations, body, draws)


def best_time(function, repeats):
    """The shortest of several timings in seconds: the noise of a shared machine only adds."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - started)
    return min(times)


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
    average = {"averaging": algorithms_average()}
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
    # Bare and full timings alternate, so that a slow phase of the machine meets both.
    rows = {}
    for name, (algorithm, scale) in cases.items():
        family = families.Gaussian(arguments.dim, scale)
        algorithm = without_guarantee(algorithm.resolve(target, family))
        carry = initial_carry(algorithm, family.point(np.zeros(arguments.dim), 2 / np.sqrt(smoothness)))
        key, limit = jax.random.key(1), jnp.asarray(2**40)

        def run(algorithm=algorithm, family=family, carry=carry, key=key, limit=limit):
            return advance(key, algorithm, target, family, carry, iterations, limit).state.point.loc

        bare = best_time(lambda: bare_gradients(target, draws, iterations), arguments.repeats)
        full = best_time(run, arguments.repeats)
        bare = min(bare, best_time(lambda: bare_gradients(target, draws, iterations), arguments.repeats))
        rows[name] = {
            "bare_ms": 1e3 * bare / arguments.iterations,
            "iteration_ms": 1e3 * full / arguments.iterations,
            "ratio": full / bare,
        }
    print(f"dim {arguments.dim}, {arguments.terms} data terms, {arguments.draws} draws, float64")
    for name, row in rows.items():
        print(f"{name:32s} bare {row['bare_ms']:.3f} ms  iteration {row['iteration_ms']:.3f} ms  ratio {row['ratio']:.2f}")
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


def algorithms_average():
    from provi.schedules import GeometricAverage

    return GeometricAverage(0.999)


if __name__ == "__main__":
    main()
