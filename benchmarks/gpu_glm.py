"""A logistic regression that lives on an accelerator: kernels, passes, the proof and the whole fit beside the floor.

python benchmarks/gpu_glm.py [--rows 8000000] [--columns 256] [--record folder] [--profile]

The floor is the time of reading the table once at the bandwidth of a copy, measured in the same run. Data are made on
the device and never leave it. Prints a row a measurement; times are the least of several, in milliseconds.
"""

import argparse
import cProfile
import json
import logging
import pstats
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import provi
from provi.algorithms.natural.natural_gradient import evaluate
from provi.certificates.linear.bounds import whitened_pass
from provi.core import row_kernels


def least(function: Any, *args: Any, repeats: int = 5, calls: int = 4) -> float:
    """Milliseconds a call: the quickest of several runs of `calls` in a row, after one that compiles.

    Calls in a row: what the host needs to ask for one is hidden by the one before, as in a compiled loop.
    """
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready([function(*args) for _ in range(calls)])
        times.append((time.perf_counter() - began) / calls)
    return 1e3 * min(times)


@partial(jax.jit, static_argnums=2, donate_argnums=0)
def _filled(found: Any, place: Any, size: int) -> Any:
    part = jax.random.normal(jax.random.fold_in(jax.random.key(0), place), (size, found.shape[1]), found.dtype)
    return jax.lax.dynamic_update_slice(found, part, (place * size, 0))


def table(rows: int, columns: int) -> Any:
    """Standard normal numbers, put in place part by part: the peak of memory that is measured shall be the fit's."""
    parts = 64 if rows % 64 == 0 else 1
    found = jnp.zeros((rows, columns), jnp.float32)
    for k in range(parts):
        found = _filled(found, k, rows // parts)
    return jax.block_until_ready(found)


def peak_bytes(device: Any) -> int:
    """The most memory of the device that was in use at a time; zero where it does not say."""
    return (device.memory_stats() or {}).get("peak_bytes_in_use", 0)


def fitted(target: Any, tol: float = 0.01) -> tuple[Any, float]:
    """A fit, and its seconds of wall."""
    began = time.perf_counter()
    fit = provi.fit(target, tol=tol, progress=False)
    jax.block_until_ready(jax.tree.leaves(fit.posterior.point))
    return fit, time.perf_counter() - began


class Programs(logging.Handler):
    """What JAX says of its compilations."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        jax.config.update("jax_log_compiles", True)
        for name in ("jax._src.dispatch", "jax._src.interpreters.pxla", "jax._src.compiler"):
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        for kind in ("tracing", "jaxpr to MLIR", "XLA compilation"):
            if kind in words and " in " in words:
                self.seconds[kind] = self.seconds.get(kind, 0.0) + float(words.split(" in ")[-1].split()[0])
                if kind == "XLA compilation" and float(words.split(" in ")[-1].split()[0]) > 0.15:
                    print("   ", words[:140])


def main() -> None:
    """All measurements, in order."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    rows, columns, device = args.rows, args.columns, jax.devices()[0]
    found: dict[str, Any] = {"rows": rows, "columns": columns}

    def say(name: str, value: float, unit: str = "ms") -> None:
        found[name] = value
        print(f"{name:48s} {value:10.3f} {unit}", flush=True)

    key = jax.random.key(0)
    copied = jnp.ones(min(rows * columns // 8, 2**28), jnp.float32)
    bandwidth = 2 * copied.nbytes / least(jax.jit(jnp.negative), copied) / 1e6
    del copied
    say("copy bandwidth", bandwidth, "GB/s")
    design = table(rows, columns)
    truth = jax.random.normal(key, (columns,), jnp.float32) / columns**0.5
    label = jax.jit(lambda part, z, u: (u < jax.nn.sigmoid(part @ z)).astype(jnp.float32))
    uniform, size = jax.random.uniform(key, (rows,)), -(-rows // 64)
    say("peak memory of making the table over its own", peak_bytes(device) / design.nbytes, "times")
    # Part by part, too: the products of all rows would be another table.
    parts = [slice(k, k + size) for k in range(0, rows, size)]
    response = jnp.concatenate([label(design[part], truth, uniform[part]) for part in parts])
    floor = design.nbytes / bandwidth / 1e6
    say("reading the table once", floor)
    say("peak memory of making the data over the table's", peak_bytes(device) / design.nbytes, "times")
    programs = Programs()
    began = time.perf_counter()
    target = provi.targets.LogisticRegression(design, response)
    say("making the target", 1e3 * (time.perf_counter() - began))
    fit, seconds = fitted(target)
    say("first fit", 1e3 * seconds)
    print("    seconds of", {name: round(value, 2) for name, value in programs.seconds.items()})
    fit, seconds = fitted(target)
    fit, seconds = min((fitted(target) for _ in range(3)), key=lambda pair: pair[1])
    say("fit, second call", 1e3 * seconds)
    say("peak memory over the table's", peak_bytes(device) / design.nbytes, "times")
    print("   ", fit.message, fit.num_steps, fit.gradient_evaluations, fit.elbo)
    found |= {"message": fit.message, "steps": fit.num_steps, "gap": fit.certificate.gap}
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(fitted, target)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    family, point = provi.families.Gaussian(columns), fit.posterior.point
    with jax.enable_x64(True):
        spread = jnp.asarray(True)
        root = point.scale.matrix
        slopes, weights = response - 0.5, jnp.full(rows, 0.25, jnp.float32)
        if row_kernels.supported(design):
            say("kernel: projections", least(jax.jit(row_kernels.projections), design, point.loc, root))
            say("kernel: weighted sums", least(jax.jit(row_kernels.weighted_sums), design, slopes, weights))
        gradient = eqx.filter_jit(lambda t, z: t.value_and_gradient(z))
        say("gradient pass", least(gradient, target, point.loc))
        say("gradient pass over the copy's bandwidth", floor / found["gradient pass"], "times")
        for exact in (False, True):
            pass_ = eqx.filter_jit(
                lambda t, p, exact=exact: evaluate(t, family, p, None, t.prior.whitener(), spread, exact)
            )
            name = "natural-gradient pass" + (", exact products" if exact else "")
            say(name, least(pass_, target, point))
        proof = least(lambda: whitened_pass(target, family, point).gradient, calls=1)
        say("the proof's pass in float64, with host algebra", proof)
    one = found["natural-gradient pass"]
    say("fit over one pass", found["fit, second call"] / one, "times")
    say("pass over the floor", one / floor, "times")
    if args.record is not None:
        record = {
            "date": date.today().isoformat(),
            "device": device.device_kind,
            "command": f"python benchmarks/gpu_glm.py --rows {rows} --columns {columns}",
            "versions": {"jax": jax.__version__, "provi": provi.__version__},
            "figures": found,
        }
        name = f"{record['date']}-{device.device_kind.replace('NVIDIA ', '').lower()}-linear-pass.json"
        (args.record / name).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
