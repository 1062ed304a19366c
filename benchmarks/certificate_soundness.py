"""Are certificates above the truth, and how far? On linear models whose best Gaussian is known to 1e-10 nats.

Three parts, over the 28 problems of tests/soundness/certificate_problems.py (dimension 1 to 200):

- deterministic: every bound at every member near and far; none may be below the true gap;
- coverage: the same models as black boxes with few gradients, at confidence 0.99; the failures among finite proven
  gaps are held against a one-sided binomial test at level 1e-3;
- looseness: reported gap over true gap, where the true gap is between 1e-6 and 1.

    python benchmarks/certificate_soundness.py [--seeds 20] [--large-seeds 8] [--parts PARTS] [--out FILE.json]
"""

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from pathlib import Path

import jax
import numpy as np
import scipy
from scipy import stats

import provi
from provi.certificates.linear.bounds import linear_model_bounds
from provi.certificates.monte_carlo.bounds import fewest_gradients
from provi.fit import choose

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from soundness.certificate_problems import LARGE, OTHER_BASES, SMALL, black_box, problem  # noqa: E402

CONFIDENCE, LEVEL = 0.99, 1e-3
CLAIMS = ("strongly convex", "log-concave")
RANGE = (1e-6, 1.0)
MIDDLE, HIGH = list(LARGE)[:3], list(LARGE)[3:]
"""Dimension 20 and 30, and from 50 to 200."""


def deterministic():
    """Counts over all problems; `least_margin` is the smallest bound minus truth, over the oracle's accuracy."""
    members = bounds = finite = 0
    below, margin = [], math.inf
    for name in [*SMALL, *LARGE, *OTHER_BASES]:
        chosen = problem(name)
        for label, point in chosen.members():
            truth, members = chosen.gap(point), members + 1
            for bound in linear_model_bounds(chosen.target, chosen.family, point):
                excess = (bound.value - truth) / chosen.accuracy
                bounds, finite = bounds + 1, finite + math.isfinite(excess)
                margin = min(margin, excess)
                if not excess >= -1:
                    below.append([name, label, bound.name, bound.value, truth])
    return {"members": members, "bounds": bounds, "finite": finite, "below": below, "least_margin": margin}


def coverage(names, sizes, seeds):
    """Trials, finite proven gaps, and those below the truth with their seeds, by problem."""
    rows = []
    for name in names:
        chosen, started = problem(name), time.perf_counter()
        row = {"problem": name, "dim": chosen.family.dim, "trials": 0, "finite": 0, "below": []}
        limit = max(4000, 4 * fewest_gradients(chosen.family.dim))
        for claim in CLAIMS:
            for size in sizes:
                point = chosen.near(size, row["trials"])
                truth = chosen.gap(point)
                for _ in range(seeds):
                    row["trials"] += 1
                    found = choose(black_box(name, claim), chosen.family).certificate(
                        point,
                        confidence=CONFIDENCE,
                        seed=row["trials"],
                        max_gradients=limit,
                    )
                    row["finite"] += found.gap is not None
                    if found.gap is not None and found.gap < truth - chosen.accuracy:
                        row["below"].append([claim, size, row["trials"], found.gap, truth])
        rows.append({**row, "max_gradients": limit, "seconds": round(time.perf_counter() - started, 1)})
        say("coverage", rows[-1])
    return rows


def binomial(rows):
    """The test over all finite proven gaps together."""
    finite, below = sum(row["finite"] for row in rows), sum(len(row["below"]) for row in rows)
    most = int(stats.binom.ppf(1 - LEVEL, finite, 1 - CONFIDENCE))
    trials = sum(row["trials"] for row in rows)
    return {"trials": trials, "finite": finite, "below": below, "most_allowed": most, "passed": below <= most}


def is_weak(target):
    """Whether the prior's standard deviation is at least 10 in every direction."""
    factor = target.prior.covariance_factor()
    return bool(np.linalg.eigvalsh(factor @ factor.T)[0] > 99)


def as_pair(chosen, point):
    """(mean, covariance), or variances for a diagonal family: what a user hands to `provi.certify`."""
    covariance = np.asarray(point.scale.covariance())
    return np.asarray(point.loc), np.diag(covariance) if chosen.family.scale == "diagonal" else covariance


def reported(way, name, size, seed):
    """The certificate and the member that it is about."""
    chosen = problem(name)
    model, box = chosen.target, black_box(name, "strongly convex")
    if way.startswith("fit"):
        target, tol = (box, 0.05) if "black box" in way else (model, float(way.split()[-1]))
        result = provi.fit(target, chosen.family, tol=tol, seed=seed, progress=False)
        return result.certificate, result.posterior.point
    point = chosen.near(size, 1000 + seed)
    if way == "issue":
        return choose(model, chosen.family).certificate(point, seed=seed), point
    target = box if "black box" in way else model
    return provi.certify(target, as_pair(chosen, point), seed=seed), point


def looseness(way, names, sizes, seeds):
    """One row a certificate; `ratio` is None where there is no proven gap or the true one is outside RANGE."""
    rows = []
    for name in names:
        chosen, started, ratios = problem(name), time.perf_counter(), []
        for size in sizes:
            for seed in range(seeds):
                certificate, point = reported(way, name, size, seed)
                truth, gap = chosen.gap(point), certificate.gap if certificate.status == "proven" else None
                inside = RANGE[0] <= truth <= RANGE[1]
                rows.append(
                    {
                        "way": way,
                        "problem": name,
                        "weak": is_weak(chosen.target),
                        "size": size,
                        "seed": seed,
                        "truth": truth,
                        "gap": gap,
                        "below": gap is not None and bool(gap < truth - chosen.accuracy),
                        "inside": inside,
                        "ratio": gap / truth if inside and gap is not None else None,
                    }
                )
                ratios.append(rows[-1]["ratio"])
        shown = " ".join("-" if ratio is None else f"{ratio:.3g}" for ratio in ratios)
        say(way, f"{name}: {shown} ({time.perf_counter() - started:.1f} s)")
    return rows


def summary(rows):
    """By way and prior: medians over the proven gaps, and with the missing ones counted as infinite."""
    table = []
    for way in dict.fromkeys(row["way"] for row in rows):
        for group in ("all", "weak prior", "other prior"):
            chosen = [r for r in rows if r["way"] == way and (group == "all" or r["weak"] == (group == "weak prior"))]
            inside = [row["ratio"] for row in chosen if row["inside"]]
            ratios = [ratio for ratio in inside if ratio is not None]
            full = float(np.median([math.inf if ratio is None else ratio for ratio in inside])) if inside else math.inf
            table.append(
                {
                    "way": way,
                    "group": group,
                    "certificates": len(chosen),
                    "true_gap_in_range": len(inside),
                    "proven": len(ratios),
                    "below": sum(row["below"] for row in chosen),
                    "median": float(np.median(ratios)) if ratios else None,
                    "median_missing_as_infinite": full if math.isfinite(full) else None,
                    "upper_quartile": float(np.quantile(ratios, 0.75)) if ratios else None,
                }
            )
    return table


def all_coverage(arguments):
    """Part two."""
    rows = coverage([*SMALL, *MIDDLE], (0.3, 0.1, 0.03, 0.01), arguments.seeds)
    rows += coverage(HIGH, (0.3, 0.1, 0.03), arguments.large_seeds)
    yield {"summary": binomial(rows), "rows": rows}


def all_looseness(arguments):
    """Part three, kept after each way of certifying."""
    del arguments
    rows, models = [], [*SMALL, *MIDDLE, *HIGH]
    boxes = [*SMALL, "Poisson, d = 20", "Gaussian process, d = 50"]
    for way, names, sizes, seeds in (
        ("issue", models, (0.3, 0.1, 0.01, 0.001), 2),
        ("certify", models, (0.3, 0.1, 0.01), 1),
        ("fit, tol 0.01", models, (None,), 1),
        ("fit, tol 0.0001", models, (None,), 1),
        ("fit, black box, tol 0.05", boxes, (None,), 2),
        ("certify, black box", boxes, (0.3, 0.7), 1),
    ):
        rows += looseness(way, names, sizes, seeds)
        yield {"summary": summary(rows), "rows": rows}


PARTS = {"deterministic": lambda _: [deterministic()], "coverage": all_coverage, "looseness": all_looseness}


def description():
    """When, where and with what."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores shared with other jobs",
        "versions": {"python": platform.python_version()}
        | {package.__name__: package.__version__ for package in (provi, jax, np, scipy)},
        "confidence": CONFIDENCE,
        "level_of_the_binomial_test": LEVEL,
    }


def say(*parts):
    print(f"[{time.process_time():6.0f} s]", *parts, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="of the coverage trials, up to dimension 30")
    parser.add_argument("--large-seeds", type=int, default=8, help="from dimension 50 on")
    parser.add_argument("--parts", default="deterministic,coverage,looseness", help="the others stay as in the file")
    parser.add_argument("--out", default="certificate-soundness.json")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    out, command = Path(arguments.out), " ".join(["python", *sys.argv])
    record = json.loads(out.read_text()) if out.exists() else {}
    record |= description()
    for part in arguments.parts.split(","):
        started = time.perf_counter()
        for found in PARTS[part](arguments):
            record[part] = {"command": command, "seconds": round(time.perf_counter() - started), **found}
            out.write_text(json.dumps(record, indent=1) + "\n")
        say(part, record[part].get("summary", record[part]))


if __name__ == "__main__":
    main()
