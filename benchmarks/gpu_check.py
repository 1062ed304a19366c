"""Runs the library on whatever accelerator JAX finds: versions, a fit in both precisions, iteration times by size.

PYTHONPATH=src python3 benchmarks/gpu_check.py
"""

import datetime
import json
import time

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax

import provi
from provi.algorithms.base import without_guarantee
from provi.runtime.loop import advance, initial_carry


def problem(dim, terms, dtype):
    rng = np.random.default_rng(0)
    design = (rng.normal(size=(terms, dim)) / np.sqrt(dim)).astype(dtype)
    response = (rng.random(terms) < 1 / (1 + np.exp(-design @ np.ones(dim)))).astype(int)
    return provi.targets.LogisticRegression(design, response)


def fit_both():
    """The same posterior in float64 and float32."""
    rows = {}
    for dtype in (np.float64, np.float32):
        target = problem(20, 2000, dtype)
        started = time.perf_counter()
        fit = provi.fit(target, progress=False)
        rows[np.dtype(dtype).name] = {
            "elbo": fit.elbo.value,
            "standard_error": fit.elbo.standard_error,
            "seconds": time.perf_counter() - started,
            "dtype": str(fit.posterior.mean.dtype),
            "mean": fit.posterior.mean[:3].tolist(),
        }
    return rows


def iteration_times():
    """Milliseconds per ProxSGD iteration, N = 100,000 terms, float32."""
    rows = {}
    for dim, terms, draws in ((200, 1000, 10), (200, 100_000, 10), (200, 100_000, 100), (1000, 100_000, 100)):
        with jax.enable_x64(True):
            target = problem(dim, terms, np.float32)
            family = provi.families.Gaussian(dim)
            algorithm = without_guarantee(provi.algorithms.ProxSGD(1e-6, draws))
            carry = initial_carry(algorithm, family.point(np.zeros(dim), 0.05, np.float32))
            key, limit = jax.random.key(0), jnp.asarray(2**40)
            times = []
            for steps in (10, 60, 110):
                started = time.perf_counter()
                carry = jax.block_until_ready(advance(key, algorithm, target, family, carry, jnp.asarray(steps), limit))
                times.append(time.perf_counter() - started)
            rows[f"d={dim} N={terms} draws={draws}"] = 1e3 * min(times[1:]) / 50
    return rows


def main():
    print(
        json.dumps(
            {
                "date": datetime.date.today().isoformat(),
                "device": jax.devices()[0].device_kind,
                "versions": {"jax": jax.__version__, "equinox": equinox.__version__, "optax": optax.__version__},
                "fits": fit_both(),
                "milliseconds_per_iteration_float32": iteration_times(),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
