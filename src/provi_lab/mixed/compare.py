"""Nested fits of the mixed models beside their NUTS references.

    python -m provi_lab.mixed.compare [--problem NAME] [--references FILE] [--record FOLDER] [--rows]

For each quantity: how far our mean is from the reference's, in posterior standard deviations, the ratio of standard
deviations, and how far the 5%, 50% and 95% quantiles are, in standard deviations and in Monte-Carlo errors. Aims: means
within 0.05 sd, sds within 5%, quantiles of the scales within Monte-Carlo error, of which three are allowed.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.record import make_record
from provi_lab.common.tables import Cells, Row, finite, print_cells
from provi_lab.mixed.problems import PROBLEMS, Problem
from provi_lab.mixed.references import FILE, PROBABILITIES, entry_name, load

MEAN, SPREAD, ERRORS = 0.05, 0.05, 3.0
"""Largest error of a mean in sds, of an sd as a ratio, and of a quantile of a scale in Monte-Carlo errors."""

_QUANTILE = 0.05
"""Sds below which a quantile's error is not counted, however small its Monte-Carlo error is."""


def fit_twice(problem: Problem) -> tuple[Any, Row]:
    """The fit, and the seconds of a first and a second one, their targets made anew; of the clock and the processor."""
    import provi

    times, fit = {}, None
    for name in ("first", "second"):
        clock, processor = time.perf_counter(), time.process_time()
        fit = provi.fit(problem.target(), tol=0.01, seed=0, progress=False)
        times[f"seconds_{name}"] = time.perf_counter() - clock
        times[f"cpu_seconds_{name}"] = time.process_time() - processor
    return fit, times | {"load_average": round(os.getloadavg()[0], 2)}


def judge(problem: Problem, reference: Row, posterior: Any) -> list[Row]:
    """A row for each quantity that has a reference."""
    rows = []
    for kind, names, marginals in (
        ("fixed", problem.fixed, posterior.fixed),
        ("hyperparameter", problem.hyperparameters, posterior.hyperparameters),
    ):
        for name in names:
            if name not in marginals:
                raise KeyError(f"{problem.name}: the fit has no {name!r}; it has {', '.join(marginals)}.")
            own = marginals[name]
            quantiles = [float(own.quantile(p)) for p in PROBABILITIES]
            rows.append(_row(name, kind, reference["quantities"][name], float(own.mean), float(own.sd), quantiles))
    for block, spots in problem.blocks.items():
        effects = posterior.effects[block]
        for spot in spots:
            name = entry_name(block, spot)
            mean, sd = float(np.asarray(effects.mean)[spot]), float(np.asarray(effects.sd)[spot])
            rows.append(_row(name, "effect", reference["quantities"][name], mean, sd, None))
    return rows


def _row(name: str, kind: str, truth: Row, mean: float, sd: float, quantiles: list[float] | None) -> Row:
    row = {"quantity": name, "kind": kind, "mean": mean, "sd": sd, "reference_mean": truth["mean"]}
    row |= {"reference_sd": truth["sd"], "mean_error": (mean - truth["mean"]) / truth["sd"], "ratio": sd / truth["sd"]}
    row |= {"mean_mcse": truth["mcse_mean"] / truth["sd"], "ratio_mcse": truth["mcse_sd"] / truth["sd"]}
    for p, own in zip(PROBABILITIES, quantiles or (), strict=bool(quantiles)):
        key = f"q{round(100 * p)}"
        error = own - truth[key]
        row |= {f"{key}_error": error / truth["sd"], f"{key}_errors": error / truth[f"mcse_{key}"]}
    return row


def judge_effects(problem: Problem, reference: Row, posterior: Any) -> list[Row]:
    """A row for each block: the worst of all its effects."""
    rows = []
    for block in problem.blocks:
        mean, sd = (np.asarray(reference["effects"][block][key]) for key in ("mean", "sd"))
        effects = posterior.effects[block]
        error, ratio = (np.asarray(effects.mean) - mean) / sd, np.asarray(effects.sd) / sd
        rows.append(
            {
                "block": block,
                "effects": int(mean.size),
                "largest_mean_error": float(np.abs(error).max()),
                "least_ratio": float(ratio.min()),
                "largest_ratio": float(ratio.max()),
            }
        )
    return rows


def faults(rows: Sequence[Row]) -> list[str]:
    """What is not as it should be, beyond what the reference's own errors explain."""
    found = []
    for row in rows:
        name = row["quantity"]
        if abs(row["mean_error"]) > MEAN + ERRORS * row["mean_mcse"]:
            found.append(f"mean of {name} {row['mean_error']:+.3f} sd")
        if abs(row["ratio"] - 1) > SPREAD + ERRORS * row["ratio_mcse"]:
            found.append(f"sd of {name} x {row['ratio']:.3f}")
        for p in PROBABILITIES if row["kind"] == "hyperparameter" else ():
            key = f"q{round(100 * p)}"
            if abs(row[f"{key}_errors"]) > ERRORS and abs(row[f"{key}_error"]) > _QUANTILE:
                found.append(f"{key} of {name} {row[f'{key}_error']:+.3f} sd, {row[f'{key}_errors']:+.1f} errors")
    return found


def compare(problem: Problem, reference: Row, brackets: bool = False) -> Row:
    """The fit of one problem and what is to be said of it; with its proof, which takes longer, if wanted."""
    fit, times = fit_twice(problem)
    rows = judge(problem, reference, fit.posterior)
    short = reference["nuts"]["short"]
    nuts = [x for x in short.values() if isinstance(x, dict)]
    compiled = min(x["second"]["seconds"] for x in nuts)
    result: Row = {"problem": problem.name, "outcome": str(getattr(fit, "outcome", "")), **times}
    result["nuts_seconds_first"] = min(x["first"]["seconds"] for x in nuts)
    result |= {"nuts_seconds_second": compiled, "nuts_as_called": short["as_called_seconds"]}
    if brackets:
        started = time.perf_counter()
        result |= {"evidence": _bracket(fit), "certificate": _certificate(fit)}
        result["seconds_of_the_proof"] = time.perf_counter() - started
    effects = judge_effects(problem, reference, fit.posterior)
    return result | {"quantities": rows, "effects": effects, "faults": faults(rows)}


def _bracket(fit: Any) -> Row | None:
    bracket = getattr(fit, "evidence", None)
    if bracket is None:
        return None
    return {"lower": finite(bracket.lower), "upper": finite(bracket.upper), "status": str(bracket.status)}


def _certificate(fit: Any) -> Row:
    """Numbers of the certificate, those that there are."""
    places = [fit.certificate, getattr(fit.certificate, "posterior", None)]
    found: Row = {}
    for name in ("kl", "integration_error", "status"):
        values = [getattr(place, name) for place in places if getattr(place, name, None) is not None]
        if values:
            found[name] = finite(values[0]) if isinstance(values[0], float) else str(values[0])
    return found


def cells(rows: Sequence[Row]) -> Cells:
    """One line a quantity."""
    keys = [f"q{round(100 * p)}" for p in PROBABILITIES]
    names = [
        "quantity",
        "reference",
        "ours",
        "mean, sds",
        "+-",
        "sd ratio",
        "+-",
        *(f"{key}, sds (errors)" for key in keys),
    ]
    lines = []
    for row in rows:
        line = [row["quantity"], _pair(row["reference_mean"], row["reference_sd"]), _pair(row["mean"], row["sd"])]
        line += [
            f"{row['mean_error']:+.3f}",
            f"{row['mean_mcse']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['ratio_mcse']:.3f}",
        ]
        for key in keys:
            known = f"{key}_error" in row
            line.append(f"{row[f'{key}_error']:+.3f} ({row[f'{key}_errors']:+.1f})" if known else "")
        lines.append(line)
    return names, lines


def _pair(mean: float, sd: float) -> str:
    return f"{mean:.4g} ({sd:.3g})"


def summary(results: Sequence[Row]) -> Cells:
    """One line a problem."""
    names = ["problem", "largest mean error, sds", "sd ratios", "all effects", "first, s", "second, s"]
    names += ["NUTS compiled, s", "times", "NUTS first, s", "times", "faults"]
    lines = []
    for result in results:
        if "quantities" not in result:
            lines.append([result["problem"], result["error"], *[""] * 9])
            continue
        rows = result["quantities"]
        ratios = [row["ratio"] for row in rows]
        worst = max(abs(row["mean_error"]) for row in rows)
        line = [result["problem"], f"{worst:.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"]
        line.append(f"{max(row['largest_mean_error'] for row in result['effects']):.3f}")
        first, second = result["seconds_first"], result["seconds_second"]
        line += [f"{first:.2f}", f"{second:.3f}", f"{result['nuts_seconds_second']:.2f}"]
        line += [f"{result['nuts_seconds_second'] / second:.1f}", f"{result['nuts_seconds_first']:.1f}"]
        line += [f"{result['nuts_seconds_first'] / first:.1f}", str(len(result["faults"]))]
        lines.append(line)
    return names, lines


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m provi_lab.mixed.compare", description=__doc__)
    parser.add_argument("--problem", action="append", choices=list(PROBLEMS), help="repeat for more; all by default")
    parser.add_argument("--references", type=Path, default=FILE)
    parser.add_argument("--rows", action="store_true", help="also a table of all quantities for each problem")
    parser.add_argument("--brackets", action="store_true", help="also the proof: seconds to minutes a problem")
    parser.add_argument("--record", type=Path, help="a folder to write all to, as JSON")
    chosen = parser.parse_args()
    kept, results = load(chosen.references), []
    for name in chosen.problem or PROBLEMS:
        try:
            result = compare(PROBLEMS[name](), kept[name], chosen.brackets)
        except Exception as error:  # a problem that fails must not end the others
            result = {"problem": name, "error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
        results.append(result)
        if "error" in result:
            print(f"{name}: {result['error']}", flush=True)
            continue
        if chosen.rows or chosen.problem:
            print_cells(name, cells(result["quantities"]))
        print(f"{name}: {'; '.join(result['faults']) or 'as it should be'}", flush=True)
    print_cells("Nested fits beside NUTS", summary(results))
    if chosen.record is not None:
        chosen.record.mkdir(parents=True, exist_ok=True)
        record = {**make_record("mixed", results), "command": "python -m provi_lab.mixed.compare"}
        path = chosen.record / f"{record['date']}-mixed.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
