"""How fast black-box methods reach a true gap of 1, 0.1 and 0.01 nats, from the same Laplace approximation.

The gap is exact: `diagnostics.linear_model_optimum` and `exact_negative_elbo`. Seconds are those of the process on
all its cores (the machine may be busy), after a first run that compiles; *compile* is what that first run took more.
The Laplace start is common to all and reported apart; only *default* has it inside. A gradient evaluation is one
gradient of the whole potential; a Hessian counts as 2 dim of them (dim Hessian-vector products).

    python benchmarks/blackbox_methods.py [--problems std50,std200] [--methods natural,lbfgs] [--seconds 20]
"""

import argparse
import datetime
import json
import platform
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from blackbox_rivals import batch_and_match, default_method, hessian_natural_gradient, staged_lbfgs

from provi import families, targets
from provi.algorithms.natural.laplace import laplace_approximation
from provi.algorithms.natural.stochastic_natural_gradient import StochasticNaturalGradient
from provi.data.loaders import breast_cancer
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import linear_model_optimum
from provi.runtime.loop import advance, initial_carry

LEVELS = (1.0, 0.1, 0.01)


def natural_gradient(target, family, start, seed):
    """The method of the package, one step at a time."""
    algorithm = StochasticNaturalGradient().resolve(target, family)
    carry, key, limit = initial_carry(algorithm, start), jax.random.key(seed), jnp.asarray(2**62)
    for step in range(1, 2000):
        carry = jax.block_until_ready(advance(key, algorithm, target, family, carry, jnp.asarray(step), limit))
        yield carry.state.point, int(carry.health.gradient_evaluations)


METHODS = {
    "natural": natural_gradient,
    "hessian": hessian_natural_gradient,
    "bam": batch_and_match,
    "lbfgs": staged_lbfgs,
    "default": default_method,
}


def logistic(terms, dim, signal=1.0, correlation=0.0):
    rng = np.random.default_rng(0)
    lags = np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))
    design = rng.normal(size=(terms, dim)) @ np.linalg.cholesky(correlation**lags).T
    predictor = design @ (signal * rng.normal(size=dim))
    return targets.LogisticRegression(design, rng.random(terms) < 1 / (1 + np.exp(-predictor)))


def breast():
    table = breast_cancer()
    return targets.LogisticRegression(table.features, table.response, intercept=True)


def poisson():
    rng = np.random.default_rng(4)
    design = rng.normal(size=(200, 20)) / np.sqrt(20)
    return targets.PoissonRegression(design, rng.poisson(np.exp(design @ rng.normal(size=20))))


PROBLEMS = {
    "d2": lambda: logistic(50, 2),
    "poisson20": poisson,
    "breast": breast,
    "std50": lambda: logistic(500, 50),
    "correlated100": lambda: logistic(20_000, 100, 0.1, 0.95),
    "std200": lambda: logistic(1000, 200),
    "d500": lambda: logistic(5000, 500, 0.1),
}


def measure(iterates, gap, seconds):
    """First crossings of the levels: {level: (gradient evaluations, seconds)}, the last gap, all seconds."""
    spent, hits, last = 0.0, {}, np.inf
    iterates = iter(iterates)
    while spent < seconds and LEVELS[-1] not in hits:
        began = time.process_time()
        found = next(iterates, None)
        elapsed = time.process_time() - began
        if found is None:
            break
        point, evaluations, *restarted = found
        # A method that can only be run afresh to a longer budget is charged for its last run alone.
        spent = elapsed if restarted else spent + elapsed
        last = gap(point)
        for level in LEVELS:
            if last <= level:
                hits.setdefault(level, (evaluations, round(spent, 4)))
    return hits, last, spent


def row(name, method, arguments):
    target = PROBLEMS[name]()
    family = families.Gaussian(target.dim)
    best = linear_model_optimum(target, family).negative_elbo
    times = []
    for _ in range(2):
        began = time.process_time()
        laplace = laplace_approximation(target, target.default_location)
        times.append(round(time.process_time() - began, 3))
    start = family.point(laplace.mode, laplace.factor)

    def gap(point):
        return float(exact_negative_elbo(target, family, point)) - best

    runs = []
    for seed in (arguments.seed, arguments.seed, arguments.seed + 1, arguments.seed + 2):
        runs.append(measure(METHODS[method](target, family, start, seed), gap, arguments.seconds))
    # Runs that the limit ended took the same time with and without compilation.
    compiled = round(runs[0][2] - runs[1][2], 2) if all(LEVELS[-1] in run[0] for run in runs[:2]) else None
    # The median of three seeds, counting a miss as infinite.
    cells = {}
    for level in LEVELS:
        reached = sorted(run[0].get(level, (np.inf, np.inf)) for run in runs[1:])
        cells[str(level)] = [None if np.isinf(x) else x for x in reached[1]]
    return {
        "problem": name,
        "method": method,
        "dim": target.dim,
        "laplace_gap": gap(start),
        "laplace_seconds_cold_warm": times,
        "compile_seconds": compiled,
        "evaluations_and_seconds_to_gap": cells,
        "last_gaps": [run[1] for run in runs[1:]],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seconds", type=float, default=20.0, help="limit for one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a JSON file to add the rows to")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = []
    for name in arguments.problems.split(","):
        for method in arguments.methods.split(","):
            if method == "hessian" and PROBLEMS[name]().dim > 60:
                continue  # dim Hessian-vector products a draw
            rows.append(row(name, method, arguments))
            cells = rows[-1]["evaluations_and_seconds_to_gap"].items()
            shown = "  ".join(f"{level}: {x[0]} / {x[1]}" for level, x in cells)
            worst = max(rows[-1]["last_gaps"])
            print(f"{name:14s} {method:8s} compile {rows[-1]['compile_seconds']}  {shown}  worst {worst:.3g}")
            sys.stdout.flush()
            if arguments.out:
                write(arguments.out, rows, arguments)


def write(path, rows, arguments):
    record = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(sys.argv),
        "machine": f"{platform.machine()}, 2 cores shared with other jobs",
        "versions": {"python": platform.python_version(), "jax": jax.__version__, "numpy": np.__version__},
        "arguments": vars(arguments),
        "rows": rows,
    }
    with open(path, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
