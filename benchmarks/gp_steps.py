"""Factorisations to a given gap on the papers' Gaussian-process problems: the steps of the natural gradient compared.

    PROVI_DATA=... python benchmarks/gp_steps.py [--output FILE]

Every trial counts, rejected ones too, and so does the evaluation of the start. The optimum is what the accelerated
method proves to within 1e-6 nats.
"""

import argparse
import json
import math
from datetime import date
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import provi
from provi.algorithms import DualNaturalGradient

PROBLEMS = {"ionosphere": (1.0, 2.5, 1e-2), "sonar": (-1.0, 6.0, 1e-4), "usps_2v4_paper": (2.5, 5.0, 1e-4)}
PROBLEMS["usps_3v5"] = PROBLEMS["usps_2v4_paper"]
LEVELS = (1.0, 0.1, 0.01, 0.001)
METHODS = {
    "accelerated (default)": DualNaturalGradient(),
    "relative smoothness": DualNaturalGradient(accelerate=False),
    "constant beta 0.5": DualNaturalGradient(0.5, adapt=False),
    "constant beta 1": DualNaturalGradient(1.0, adapt=False),
    "constant beta 2": DualNaturalGradient(2.0, adapt=False),
    "B-form, automatic": DualNaturalGradient(form="proximal"),
}


def problem(name: str) -> provi.targets.GaussianProcess:
    """The training half, with the papers' kernel and the authors' jitter."""
    arrays = provi.data.load(name).arrays
    log_length, log_amplitude, jitter = PROBLEMS[name]
    kernel = provi.kernels.SquaredExponential(math.exp(log_length), math.exp(log_amplitude))
    return provi.targets.GaussianProcess(np.asarray(arrays["X_train"], float), arrays["y_train"], kernel, jitter=jitter)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    rows = []
    for name in PROBLEMS:
        target = problem(name)
        best = provi.fit(target, tol=1e-6, progress=False)
        optimum = -best.elbo.value
        table = Table("method", *(f"{level:g} nats" for level in LEVELS), f"left after {arguments.steps}", title=name)
        for method, algorithm in METHODS.items():
            budget = provi.Budget(steps=arguments.steps)
            fit = provi.fit(target, algorithm=algorithm, budget=budget, progress=False)
            gap = np.minimum.accumulate(-fit.history["elbo"]) - optimum
            steps = fit.history["step"]
            reached = [int(steps[np.argmax(gap <= level)]) if (gap <= level).any() else None for level in LEVELS]
            left = float(-fit.history["elbo"][-1] - optimum)
            rows.append(
                {"problem": name, "method": method, "to": dict(zip(LEVELS, reached, strict=True)), "left": left}
            )
            table.add_row(method, *("-" if k is None else str(k) for k in reached), f"{left:.2g}")
        Console().print(table)
        print(f"optimum of -ELBO {optimum:.7f}, proven to {best.certificate.gap:.1g} nats\n")
        rows.append({"problem": name, "optimum": optimum, "proven": best.certificate.gap})
    if arguments.output is not None:
        record = {
            "date": date.today().isoformat(),
            "command": "python benchmarks/gp_steps.py",
            "device": jax.devices()[0].platform,
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
