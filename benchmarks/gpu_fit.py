"""`provi.fit` with its certificate on whatever device JAX finds: first call, second call, bound. Prints JSON.

python benchmarks/gpu_fit.py [folder for the record]
"""

import json
import platform
import sys
import time
from datetime import date
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import provi


def problem(terms: int, dim: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """A logistic regression with standard normal columns."""
    rng = np.random.default_rng(0)
    design = rng.normal(size=(terms, dim))
    response = rng.random(terms) < 1 / (1 + np.exp(-design @ rng.normal(size=dim) / dim**0.5))
    return design.astype(dtype), response


def log_density(x, y, z):
    """The same as a function."""
    return jnp.sum(y * (x @ z) - jax.nn.softplus(x @ z)) - 0.5 * jnp.sum(z**2)


def measure(name: str, target: provi.targets.LogDensity, tol: float) -> dict:
    """Two fits."""
    seconds = []
    for _ in range(2):
        began = time.monotonic()
        fit = provi.fit(target, tol=tol, progress=False)
        seconds.append(round(time.monotonic() - began, 3))
    row = {"problem": name, "tol": tol, "seconds_first": seconds[0], "seconds_second": seconds[1]}
    row |= {"status": fit.certificate.status, "gap": fit.certificate.gap, "elbo": fit.elbo.value}
    row |= {"steps": fit.num_steps, "gradient_evaluations": fit.gradient_evaluations, "message": fit.message}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Linear models in both precisions, and a black box."""
    rows = []
    for dtype in (np.float64, np.float32):
        design, response = problem(50_000, 300, dtype)
        target = provi.targets.LogisticRegression(design, response)
        rows.append(measure(f"linear model, 50,000 x 300, {dtype.__name__}", target, 0.01))
    for terms, dim in ((20_000, 100), (2_000, 200)):
        design, response = problem(terms, dim, np.float64)
        density = jax.tree_util.Partial(log_density, design, response.astype(float))
        target = provi.targets.LogDensity(density, dim, strong_convexity=1.0, dtype=np.float64)
        rows.append(measure(f"black box, {terms:,} x {dim}, float64", target, 0.05))
    device = jax.devices()[0]
    record = {
        "date": date.today().isoformat(),
        "device": device.device_kind,
        "command": "python benchmarks/gpu_fit.py",
        "versions": {"jax": jax.__version__, "python": platform.python_version(), "provi": provi.__version__},
        "rows": rows,
    }
    if len(sys.argv) > 1:
        name = f"{record['date']}-{device.platform}-fit.json"
        (Path(sys.argv[1]) / name).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
