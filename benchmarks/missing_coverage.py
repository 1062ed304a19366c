"""Logistic regression with missing covariates: do the 95% intervals cover, and do all solvers find the same maximum?

    python benchmarks/missing_coverage.py [--datasets 200] [--solver exact] [--record]

n = 5000, p = 10; 10% and 30% of the entries missing, completely at random and at random. Coverage over data sets that
differ in their seed alone, with its standard error (over data sets: the coefficients of one are not independent). Then
on a few data sets the estimates of the exact solver and of MISSO beside those of a long run of Monte-Carlo EM, in
standard deviations of the Monte-Carlo error that the runs state.
"""

import argparse
import json
import os
import time
from datetime import date
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from provi.core.compilation import enable_compilation_cache
from provi.models import MissingLogisticRegression
from provi_lab.data.missing_tables import synthetic_missing

TERMS, COLUMNS, LEVEL = 5000, 10, 0.95
SETTINGS = [(mechanism, share) for mechanism in ("mcar", "mar") for share in (0.1, 0.3)]
EXACT, LONG_RUN = {"tol": 1e-6}, {"solver": "mcem", "tol": 1e-3}
SEEDS_APART = 100_000
RESULTS = Path(__file__).parent / "results"


def estimates(model: MissingLogisticRegression) -> np.ndarray:
    return np.concatenate([model.intercept_, model.coef_[0]])


def coverage(mechanism: str, share: float, datasets: int, solver: str) -> dict:
    """The share of intervals with the truth in them, coefficient by coefficient and pooled; bias in standard errors."""
    inside, scaled, stated, seconds, converged = [], [], [], [], 0
    first = SEEDS_APART * SETTINGS.index((mechanism, share))  # no data set is in two settings
    for seed in range(first, first + datasets):
        table = synthetic_missing(seed, TERMS, COLUMNS, share, mechanism)
        began = time.perf_counter()
        model = MissingLogisticRegression(solver=solver, random_state=seed).fit(table.features, table.response)
        seconds.append(time.perf_counter() - began)
        low, high = model.confidence_intervals(LEVEL).T
        inside.append((low <= table.coefficients) & (table.coefficients <= high))
        scaled.append((estimates(model) - table.coefficients) / model.standard_errors_)
        stated.append(model.standard_errors_)
        converged += bool(model.converged_)
    inside, scaled = np.array(inside, float), np.array(scaled)
    each = inside.mean(axis=1)
    return {
        "mechanism": mechanism,
        "share": share,
        "solver": solver,
        "datasets": datasets,
        "converged": converged,
        "coverage": float(inside.mean()),
        "coverage_error": float(each.std(ddof=1) / np.sqrt(datasets)),
        "coverage_by_coefficient": inside.mean(axis=0).tolist(),
        "bias_in_standard_errors": scaled.mean(axis=0).tolist(),
        "spread_over_stated_error": scaled.std(axis=0, ddof=1).tolist(),
        "mean_standard_errors": np.mean(stated, axis=0).tolist(),
        "seconds_first": seconds[0],
        "seconds_median": float(np.median(seconds)),
        "seconds_total": float(np.sum(seconds)),
    }


def distances(mechanism: str, share: float, seed: int) -> dict:
    """Root mean square over the coefficients of differences, in standard deviations of their Monte-Carlo error."""
    table = synthetic_missing(seed, TERMS, COLUMNS, share, mechanism)
    fits = {
        name: MissingLogisticRegression(random_state=seed, **arguments).fit(table.features, table.response)
        for name, arguments in (("exact", EXACT), ("misso", {"solver": "misso"}), ("mcem", LONG_RUN))
    }
    errors = {name: np.broadcast_to(fit.monte_carlo_error_, COLUMNS + 1) for name, fit in fits.items()}

    def distance(one: str, other: str) -> float:
        deviation = np.sqrt(errors[one] ** 2 + errors[other] ** 2)
        return float(np.sqrt(np.mean(((estimates(fits[one]) - estimates(fits[other])) / deviation) ** 2)))

    return {
        "mechanism": mechanism,
        "share": share,
        "seed": seed,
        "exact_from_mcem": distance("exact", "mcem"),
        "misso_from_mcem": distance("misso", "mcem"),
        "misso_from_exact": distance("misso", "exact"),
        "largest_error_in_standard_errors": {
            name: float(np.max(errors[name] / fits["exact"].standard_errors_)) for name in ("misso", "mcem")
        },
        "gap": {name: float(fits["exact"].log_likelihood_ - fits[name].log_likelihood_) for name in ("misso", "mcem")},
        "passes": {name: float(fits[name].n_iter_) for name in fits},
        "converged": {name: bool(fits[name].converged_) for name in fits},
    }


def show_coverage(rows: list[dict]) -> None:
    names = ("missing", "data sets", "coverage", "lowest", "highest", "largest |bias|/se", "sd/se", "s a fit (first)")
    table = Table(*names, title=f"{LEVEL:.0%} intervals, n = {TERMS}, p = {COLUMNS}")
    for row in rows:
        each, spread = row["coverage_by_coefficient"], row["spread_over_stated_error"]
        table.add_row(
            f"{row['share']:.0%} {row['mechanism'].upper()}",
            f"{row['datasets']} ({row['converged']} converged)",
            f"{row['coverage']:.2%} -+ {row['coverage_error']:.2%}",
            f"{min(each):.1%}",
            f"{max(each):.1%}",
            f"{np.abs(row['bias_in_standard_errors']).max():.2f}",
            f"{min(spread):.2f} - {max(spread):.2f}",
            f"{row['seconds_median']:.3f} ({row['seconds_first']:.1f})",
        )
    Console(width=130).print(table)


def show_distances(rows: list[dict]) -> None:
    names = (
        "missing",
        "seed",
        "exact - MCEM",
        "MISSO - MCEM",
        "MISSO - exact",
        "gap of MISSO",
        "gap of MCEM",
        "passes",
    )
    table = Table(*names, title="Differences of estimates in standard deviations of their Monte-Carlo error (rms)")
    for row in rows:
        passes = row["passes"]
        table.add_row(
            f"{row['share']:.0%} {row['mechanism'].upper()}",
            str(row["seed"]),
            *(f"{row[name]:.2f}" for name in ("exact_from_mcem", "misso_from_mcem", "misso_from_exact")),
            *(f"{row['gap'][name]:.1e}" for name in ("misso", "mcem")),
            f"MISSO {passes['misso']:.3g}, MCEM {passes['mcem']:.3g}",
        )
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--compared", type=int, default=3, help="data sets a setting on which the solvers are compared")
    parser.add_argument("--solver", default="exact", help="of the coverage")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/DATE-missing-coverage.json")
    arguments = parser.parse_args()
    enable_compilation_cache()
    began = time.perf_counter()
    covered = [coverage(*setting, arguments.datasets, arguments.solver) for setting in SETTINGS]
    show_coverage(covered)
    compared = [distances(*setting, seed) for setting in SETTINGS for seed in range(arguments.compared)]
    if compared:
        show_distances(compared)
    seconds = time.perf_counter() - began
    print(f"{seconds:.0f} s")
    if arguments.record:
        today = date.today().isoformat()
        record = {
            "date": today,
            "command": f"python benchmarks/missing_coverage.py --datasets {arguments.datasets} --record",
            "device": f"{jax.devices()[0].platform}, {os.cpu_count()} cores",
            "seconds": seconds,
            "coverage": covered,
            "distances": compared,
        }
        path = RESULTS / f"{today}-missing-coverage.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
