"""Exact Gaussian processes for many data: a step with Cholesky factors, with conjugate gradients, and with a low rank.

`python benchmarks/gp_large.py [--sizes 2000 5000] [--full] [--stream default|pgsvi] [--record]`

Synthetic classification, logit, float64. *smooth* (squared exponential, two columns) has a kernel matrix of low rank,
*rough* (Matern 1/2, five columns) has not. Each row is a process of its own: CPU seconds of all threads and wall
seconds of one step at site precisions of 0.2, compilation left out, and the high-water mark of the process's memory, K
included. `--full` fits N = 10,000 end to end with `provi.fit`, `--stream` without a stored K; `--record` writes
benchmarks/results.
"""

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or the rows' processes find a GPU that is full

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import provi
import provi.structures.dual
from provi.algorithms.natural.dual_natural_gradient import DualNaturalGradient
from provi.algorithms.natural.iterative_natural_gradient import IterativeNaturalGradient
from provi.algorithms.natural.pgsvi import PGSVI
from provi.families.dual_gaussian import DualPoint, dual_gaussian
from provi.kernels import Matern12, SquaredExponential
from provi.runtime.run import Budget
from provi.targets import GaussianProcess
from provi_lab.bench.record import RESULTS, make_record

KERNELS = {"smooth": (SquaredExponential(1.0, 3.0), 2), "rough": (Matern12(1.0, 3.0), 5)}
METHODS = {"cholesky": DualNaturalGradient, "iterative": IterativeNaturalGradient}
LARGE, TOLERANCE, PGSVI_BATCH = 10_000, 0.01, 200


def problem(kind: str, size: int, stream: bool = False) -> GaussianProcess:
    """Labels from a function of the first three columns."""
    kernel, columns = KERNELS[kind]
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((size, columns))
    function = 2 * np.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, min(2, columns - 1)]
    labels = (rng.uniform(size=size) < 1 / (1 + np.exp(-function))).astype(float)
    return GaussianProcess(inputs, labels, kernel, stream=stream)


def peak_gib() -> float:
    """The high-water mark of resident memory, or of an accelerator's."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(call) -> tuple:
    """The result, CPU and wall seconds."""
    cpu, wall = time.process_time(), time.monotonic()
    result = jax.block_until_ready(call())
    return result, time.process_time() - cpu, time.monotonic() - wall


def one_step(kind: str, size: int, method: str) -> dict:
    """Time a step from site precisions of 0.2; the first call compiles."""
    target = problem(kind, size)
    made, family = peak_gib(), dual_gaussian(target)
    algorithm, setup, _ = timed(lambda: eqx.filter(METHODS[method]().resolve(target, family), lambda _: True))
    point = DualPoint(jnp.zeros(size), jnp.full(size, 0.2))
    step = eqx.filter_jit(lambda *parts: parts[0].step(None, parts[1], *parts[2:], jnp.ones(()))[0])
    compiled = step.lower(algorithm, algorithm.init(point), target, family).compile()
    state, cpu, wall = timed(lambda: compiled(algorithm, algorithm.init(point), target, family))
    products = float(state.products) if method == "iterative" else None
    return {
        "problem": kind,
        "size": size,
        "path": method,
        "cpu_seconds_a_step": cpu,
        "wall_seconds_a_step": wall,
        "setup_cpu_seconds": setup,
        "products_a_datum": products,
        "peak_gib": peak_gib(),
        "peak_gib_making_k": made,
        "k_gib": 8 * size**2 / 2**30,
    }


def whole_fit(kind: str, size: int, method: str) -> dict:
    """`provi.fit` to a proven gap of 0.01 nats, and again without compilation; beside it one Cholesky factor of K + I.

    `method` "default" leaves the choice to it.
    """
    target = problem(kind, size)
    if method != "default":
        provi.structures.dual.iterate = lambda *_: method == "iterative"
    fit, cpu, wall = timed(lambda: provi.fit(target, tol=TOLERANCE, progress=False))
    peak = peak_gib()
    _, _, again = timed(lambda: provi.fit(target, tol=TOLERANCE, progress=False))
    inputs, kernel = jnp.asarray(target.inputs), target.kernel
    factor = jax.jit(lambda x: jnp.linalg.cholesky(kernel.matrix(x) + jnp.eye(size)))
    cholesky = min(timed(lambda: factor(inputs))[2] for _ in range(3))
    return {
        "problem": kind,
        "size": size,
        "path": f"fit, {method}",
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "wall_seconds_second_call": again,
        "wall_seconds_of_a_cholesky_factor": cholesky,
        "steps": fit.num_steps,
        "gap": fit.certificate.gap,
        "elbo": [fit.elbo.value, fit.elbo.standard_error],
        "message": fit.message,
        "peak_gib": peak,
    }


def streamed_fit(kind: str, size: int, method: str) -> dict:
    """`provi.fit` with stream=True: the default to a proven gap of 0.01 nats, or two passes of PG-SVI."""
    target, before = problem(kind, size, stream=True), peak_gib()
    chosen = {}
    if method == "pgsvi":
        chosen = {"algorithm": PGSVI(rho=0.5, batch_size=PGSVI_BATCH), "budget": Budget(steps=2 * size // PGSVI_BATCH)}
    fit, cpu, wall = timed(lambda: provi.fit(target, tol=TOLERANCE, progress=False, **chosen))
    return {
        "problem": kind,
        "size": size,
        "path": f"stream=True, {method}",
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "wall_seconds_of_the_steps": fit.seconds,
        "steps": fit.num_steps,
        "gap": fit.certificate.gap,
        "elbo": [fit.elbo.value, fit.elbo.standard_error],
        "message": fit.message,
        "peak_gib": peak_gib(),
        "peak_gib_before": before,
        "k_gib": 8 * size**2 / 2**30,
    }


def main() -> None:
    """Print a line a row; each in a process of its own, since the high-water mark never falls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[2000, 5000])
    parser.add_argument("--problems", nargs="*", default=list(KERNELS))
    parser.add_argument("--full", nargs="?", const="default", choices=["default", *METHODS])
    parser.add_argument("--full-size", type=int, default=LARGE)
    parser.add_argument("--stream", choices=["default", "pgsvi"], help="fit --full-size data without a stored K")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        jax.config.update("jax_enable_x64", True)
        what, kind, size, method = arguments.one
        called = {"step": one_step, "fit": whole_fit, "stream": streamed_fit}[what]
        print(json.dumps(called(kind, int(size), method)))
        return
    kinds, sizes = arguments.problems, arguments.sizes
    jobs = [("step", kind, size, method) for size in sizes for kind in kinds for method in METHODS]
    if arguments.full:
        jobs += [("fit", kind, arguments.full_size, arguments.full) for kind in kinds]
    if arguments.stream:
        jobs += [("stream", kind, arguments.full_size, arguments.stream) for kind in kinds]
    rows = []
    for job in jobs:
        command = [sys.executable, __file__, "--one", *map(str, job)]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    if arguments.record:
        path = RESULTS / f"{datetime.date.today().isoformat()}-gp-large.json"
        command = " ".join(["python benchmarks/gp_large.py", *sys.argv[1:]])
        record = make_record("gp-large", rows) | {"command": command, "device": jax.devices()[0].device_kind}
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
