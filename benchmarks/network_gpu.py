"""Steps of a Bayesian ResNet-18 on an accelerator: MISSO beside Adam, and both beside a plain supervised step.

    PYTHONPATH=src python benchmarks/network_gpu.py [--blocks 79] [--cases misso adam ...] [--output FILE] [--small]

Batches of 128 images of 32 x 32 x 3, random by default (the speed is the same; `--cifar` takes the subset of CIFAR-10),
float32. *plain* is the same network trained on the cross-entropy by optax's Adam, one compiled step with donated
buffers called from a Python loop. The others are the compiled loop of `provi.runtime` with M = 1 and 2 draws of the
weights a step. A step time is the mean over a whole pass of the blocks, in which MISSO and PacedMISSO also sum their
table once, after compilation and after MISSO's first pass; beside it is the median over groups of steps.

The precision of matrix products is the same for all cases: JAX's "default", which is TF32 on an H200 for float32
products and convolutions, unless `--precision` says otherwise. Each case has a process of its own, so that the peak of
the device's memory is that of the case; the processes share XLA's choice of convolution algorithms through a cache. The
estimate is `table_bytes` for MISSO, which counts neither activations nor data; for PacedMISSO it is its table alone.
The JSON is written after each case, and none is begun after `--seconds`.
"""

import argparse
import functools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import provi
from provi.algorithms import MISSO, PacedMISSO, adam
from provi.algorithms.base import without_guarantee
from provi.algorithms.incremental import network_surrogate
from provi.algorithms.incremental.surrogate_table import num_bytes, table_bytes
from provi.families.base import AnyParameters
from provi.nets import LeNet5, ResNet18
from provi.runtime.loop import advance, initial_carry
from provi.targets import BayesianNetwork
from provi_lab.bench.record import make_record

WAYS = {
    "": ("weight", "weights"),
    ", global": ("global", "weights"),
    ", flipout": ("weight", "flipout"),
    ", global, flipout": ("global", "flipout"),
}
METHODS = ("adam", "misso", "misso-bf16", "paced")
CASES = {"plain": ("plain", "", "")} | {
    method + suffix: (method, *way) for suffix, way in WAYS.items() for method in (METHODS[:2] if suffix else METHODS)
}
"""Method, posterior and noise, the demanded ones first: a time limit leaves out the last."""

GIB, RATE, RULE = 2**30, 1e-3, optax.scale_by_adam()


def problem(options) -> tuple[Any, np.ndarray, np.ndarray]:
    """The network, the images and their classes."""
    network = (LeNet5 if options.small else ResNet18)(jax.random.key(0))
    count = options.batch * options.blocks
    if options.cifar:
        data = provi.data.load("cifar10_10k").arrays
        rows = np.arange(count) % len(data["X_train"])
        return network, data["X_train"][rows].astype(np.float32) / 255, data["y_train"][rows].astype(np.int32)
    rng = np.random.default_rng(0)
    shape = (28, 28) if options.small else (32, 32, 3)
    return network, rng.random((count, *shape), np.float32), rng.integers(0, 10, count).astype(np.int32)


def pass_times(go, options) -> dict[str, float]:
    """Times of a step over a whole pass, advanced by groups of steps: the mean, and the median of the groups.

    The first step, before them, compiles and builds MISSO's table: `first_seconds`. Two more wake the device up.
    """
    began = time.perf_counter()
    go(1)
    first, seconds, done = time.perf_counter() - began, [], 0
    go(2)
    while done < options.blocks:
        steps = min(options.group, options.blocks - done)
        began = time.perf_counter()
        go(steps)
        seconds.append((time.perf_counter() - began, steps))
        done += steps
    mean, median = sum(s for s, _ in seconds) / done, statistics.median(s / steps for s, steps in seconds)
    times = {"first_seconds": first, "step_ms": 1e3 * mean, "median_step_ms": 1e3 * median}
    return times | {"images_a_second": options.batch / mean}


def peak_gib() -> float | None:
    """The peak of the device's memory so far, which never falls; None where it is not known (the CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats["peak_bytes_in_use"] / GIB if "peak_bytes_in_use" in stats else None


def plain(options) -> dict[str, Any]:
    """The supervised step in plain JAX."""
    network, *data = problem(options)
    (weights, fixed), (x, y) = eqx.partition(network, eqx.is_inexact_array), map(jnp.asarray, data)
    optimiser = optax.adam(RATE)

    def loss(weights, x, y):
        logits = jax.vmap(eqx.combine(weights, fixed))(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, state, rows, x, y):
        value, gradient = jax.value_and_grad(loss)(weights, x[rows], y[rows])
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    carry, rng, value = (weights, optimiser.init(weights)), np.random.default_rng(0), np.nan

    def go(steps):
        nonlocal carry, value
        for _ in range(steps):
            *carry, value = step(*carry, rng.integers(0, len(x), options.batch, np.int32), x, y)
        jax.block_until_ready((carry, value))

    row = {"draws": 1} | pass_times(go, options) | {"peak_gib": peak_gib()}
    return {"rows": [row], "finite": bool(np.isfinite(float(value)))}


def ours(method: str, posterior: str, noise: str, options) -> dict[str, Any]:
    """A method of ours with one draw and with two, for which the program is the same."""
    dtype = "bfloat16" if method == "misso-bf16" else None
    settings = {"block_size": options.batch, "rate": 0.01, "table_dtype": dtype}
    surrogate = network_surrogate(BayesianNetwork(*problem(options)), posterior=posterior, noise=noise, **settings)
    start, rows, rejected = surrogate.start(), [], 0
    make = {"adam": functools.partial(adam, RATE), "paced": functools.partial(PacedMISSO, RULE, RATE)}
    estimate = {"adam": 0, "paced": options.blocks * num_bytes(start)}.get(method)
    for draws in (1, 2):
        algorithm = make.get(method, functools.partial(MISSO, 1))(num_draws=draws)
        row, missed = run_pass(algorithm, surrogate, start, options)
        rejected += missed
        rows.append({"draws": draws} | row | {"peak_gib": peak_gib()})
    return {
        "rows": rows,
        "estimate_gib": (table_bytes(surrogate, start) if estimate is None else estimate) / GIB,
        "data_gib": num_bytes((surrogate.target.inputs, surrogate.target.outputs)) / GIB,
        "finite": rejected == 0,
    }


def run_pass(algorithm, surrogate, start, options) -> tuple[dict[str, float], int]:
    """Times of the compiled loop, and how many steps it rejected."""
    space = AnyParameters()
    algorithm = without_guarantee(algorithm.resolve(surrogate, space))
    carry, done, limit = initial_carry(algorithm, start), 0, jnp.asarray(2**62)

    def go(steps):
        nonlocal carry, done
        done += steps
        carry = advance(jax.random.key(0), algorithm, surrogate, space, carry, jnp.asarray(done), limit)
        jax.block_until_ready(carry)

    return pass_times(go, options), int(carry.health.rejected)


def measure(name: str, options) -> dict[str, Any]:
    """One case, in this process."""
    jax.config.update("jax_default_matmul_precision", options.precision)
    method, posterior, noise = CASES[name]
    if method == "plain":
        found = plain(options)
    else:
        with jax.enable_x64(True):  # as inside `provi.runtime.run`
            found = ours(method, posterior, noise, options)
    facts = {"case": name, "method": method, "posterior": posterior, "noise": noise}
    return facts | {"device": jax.local_devices()[0].device_kind} | found


def in_process(name: str, cache: str) -> dict[str, Any]:
    """The case in a process of its own, or the end of what it said when it failed."""
    settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_COMPILATION_CACHE_DIR": cache}
    command = [sys.executable, __file__, *sys.argv[1:], "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings})
    if done.returncode:
        return {"case": name, "failed": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def show(case: dict[str, Any], cases: list[dict[str, Any]]) -> None:
    """A line for each number of draws, with the two ratios, which are also written into the rows.

    `over_adam` is the step over Adam's with the same posterior, noise and draws; `throughput_share` is images x draws a
    second over the plain step's.
    """
    if "failed" in case:
        print(f"{case['case']}: failed\n{case['failed']}", flush=True)
        return
    good = [other for other in cases if "failed" not in other]
    same = [x for x in good if [x[k] for k in ("posterior", "noise")] == [case[k] for k in ("posterior", "noise")]]
    for place, row in enumerate(case["rows"]):
        for base in [x["rows"][0] for x in good if x["method"] == "plain" != case["method"]]:
            row["throughput_share"] = row["images_a_second"] * row["draws"] / base["images_a_second"]
        for base in [x["rows"][place] for x in same if x["method"] == "adam" != case["method"]]:
            row["over_adam"] = row["step_ms"] / base["step_ms"]
        facts = row | {k: case[k] for k in ("estimate_gib", "data_gib", "finite") if k in case}
        cells = (f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
        print(f"{case['case']:24}", *cells, sep="  ", flush=True)


def read_options() -> argparse.Namespace:
    """The command line; `--small` is a trial on any machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=79, help="391 for as many as all of CIFAR-10 has")
    parser.add_argument("--group", type=int, default=20, help="steps timed together")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--precision", default="default", help="of matrix products, for all cases")
    parser.add_argument("--seconds", type=float, default=360.0, help="no case is begun later than this")
    parser.add_argument("--output", type=Path, help="where the JSON is written")
    parser.add_argument("--cifar", action="store_true")
    parser.add_argument("--small", action="store_true", help="LeNet-5, 20 batches of 16")
    parser.add_argument("--one", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    small = {"batch": 16, "blocks": 20, "group": 5}
    vars(options).update(small if options.small else {"batch": 128})
    return options


def main() -> None:
    """The cases one after the other."""
    options = read_options()
    if options.one:
        print(json.dumps(measure(options.one, options)))
        return
    began, cases = time.monotonic(), []
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as cache:
        for name in options.cases:
            if time.monotonic() - began > options.seconds:
                print(f"{name}: not begun, {options.seconds:.0f} s are over", flush=True)
                continue
            cases.append(in_process(name, cache))
            show(cases[-1], cases)
            record = make_record("network-gpu", cases) | {"precision": options.precision, "blocks": options.blocks}
            record["command"] = "PYTHONPATH=src " + shlex.join(["python", "benchmarks/network_gpu.py", *words])
            if options.output:
                options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
