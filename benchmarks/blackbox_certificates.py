"""Logistic regressions given to ProVI as plain log densities, strong convexity declared: what is proven, what is true.

python benchmarks/blackbox_certificates.py [file for the record, JSON]
"""

import json
import sys
import time
from datetime import date
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import provi
from provi.data import breast_cancer
from provi.diagnostics import exact_negative_elbo, linear_model_optimum

TOL = 0.05


def log_density(x, y, z):
    """Bernoulli likelihood and N(0, I) prior, up to a constant."""
    return jnp.sum(y * (x @ z) - jax.nn.softplus(x @ z)) - 0.5 * jnp.sum(z**2)


def problems():
    """Names and data, d = 31, 65, 100."""
    data = breast_cancer()
    yield "breast cancer", np.column_stack([np.ones(569), data.features]), data.response
    digits = load_digits()
    kept = (digits.target == 3) | (digits.target == 5)
    yield "digits 3 v 5", np.column_stack([np.ones(kept.sum()), digits.data[kept] / 16]), digits.target[kept] == 3
    for terms in (1000, 20_000):
        rng = np.random.default_rng(0)
        design = rng.normal(size=(terms, 100))
        yield f"normal columns, {terms} rows", design, rng.random(terms) < 1 / (1 + np.exp(-design.sum(axis=1) / 10))


def main() -> None:
    """Fit, certify, compare with the exact optimum."""
    rows = []
    for name, design, response in problems():
        model = provi.targets.LogisticRegression(design, response)
        family = provi.families.Gaussian(model.dim)
        density = jax.tree_util.Partial(log_density, design, np.asarray(response, float))
        target = provi.targets.LogDensity(density, model.dim, strong_convexity=1.0)
        began = time.process_time()
        fit = provi.fit(target, tol=TOL, progress=False)
        cpu = time.process_time() - began
        best = linear_model_optimum(model, family).negative_elbo
        with jax.enable_x64(True):
            gap = float(exact_negative_elbo(model, family, fit.posterior.point)) - best
        row = {"problem": name, "dim": model.dim, "tol": TOL, "status": fit.certificate.status}
        row |= {"certified": fit.certificate.gap, "true": gap, "gradients": fit.gradient_evaluations}
        row |= {"cpu_seconds_with_compilation": round(cpu, 1), "message": fit.message}
        print(json.dumps(row), flush=True)
        rows.append(row)
    if len(sys.argv) > 1:
        record = {"date": date.today().isoformat(), "command": "python benchmarks/blackbox_certificates.py"}
        record |= {"versions": {"jax": jax.__version__, "provi": provi.__version__}, "rows": rows}
        Path(sys.argv[1]).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
