"""Random-intercept logistic regressions by nested integration, small to large: seconds, peak memory, estimates.

PYTHONPATH=src python benchmarks/mixed_large.py [--groups 12 10000 100000] [--rows 10] [--output FILE]
"""

import argparse
import json
import resource
import time
from pathlib import Path

import jax
import numpy as np

import provi
from provi.targets import LatentGaussian, latent
from provi_lab.bench.record import make_record


def model(groups, rows):
    """eta = 0.3 + 0.8 x + u, u ~ N(0, 0.7^2)."""
    rng = np.random.default_rng(0)
    index = np.repeat(np.arange(groups), rows)
    x, u = rng.normal(size=len(index)), 0.7 * rng.normal(size=groups)
    y = (rng.random(len(index)) < 1 / (1 + np.exp(-(0.3 + 0.8 * x + u[index])))).astype(float)
    fixed = np.column_stack([np.ones(len(index)), x])
    return LatentGaussian(
        y, "bernoulli", fixed=fixed, fixed_names=("Intercept", "x"), blocks=[latent.Independent(index)]
    )


def measure(groups, rows):
    found = {"groups": groups, "rows": groups * rows}
    for call in ("first", "second"):
        started = time.perf_counter()
        fit = provi.fit(model(groups, rows), progress=False)
        found[f"{call}_seconds"] = round(time.perf_counter() - started, 3)
    if groups <= 100:
        for call in ("first", "second"):
            started = time.perf_counter()
            bound = provi.fit(model(groups, rows), progress=False).certificate
            found["kl"], found[f"{call}_seconds_with_proof"] = bound.kl, round(time.perf_counter() - started, 3)
    marginals = fit.posterior.fixed | fit.posterior.hyperparameters
    found |= {"message": fit.message, "marginals": {name: [m.mean, m.sd] for name, m in marginals.items()}}
    found["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[12, 10_000, 100_000])
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    record = make_record("mixed-large", [measure(groups, chosen.rows) for groups in chosen.groups])
    record["device"] = str(jax.devices()[0].device_kind)
    text = json.dumps(record, indent=1)
    print(text)
    if chosen.output is not None:
        chosen.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
