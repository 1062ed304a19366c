"""`provi bench distance`: bounds on KL(q || posterior) and brackets of the evidence against the truth.

    python -m provi_lab.bench.distance [--quick] [--processes 2] [--coverage 1000] [--hard 10000] [--record FOLDER]

A bound that is called proven and lies below the truth is the worst error that this package can make.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.record import Section, make_record
from provi_lab.common.tables import Cells, Row, finite

CONFIDENCE = 0.99
BARS = 3.0
"""Error bars of the truth below which a bound must be, to be counted as a violation."""

_WORK, _FEWEST, _MOST = 1e10, 100_000, 400_000
_FAR = 1e-7
"""Nats: both numbers below this are rounding, and have no ratio."""

_TEXT = """\
The distance of q to the posterior: the bound on KL(q || p) that a certificate reports, and the true KL, by programs of
their own (quadrature up to three dimensions, closed forms for Gaussian noise, importance sampling with its standard
error elsewhere; "unreliable" where Pareto k-hat exceeds 0.7). Old bound: the log-Sobolev bound of earlier versions, the
mean of its 256 draws. Seconds: of the bound, compiled. Medians are over problems with a KL in [0.001, 2]: weak is a
prior sd of 10 or more; near-separable, a weak prior with at most four rows a column and strong effects."""


def measure(
    names: Sequence[str] | None = None,
    *,
    quick: bool = False,
    processes: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """A row for each problem; with `quick`, of the small ones alone.

    **Arguments:**

    - `names`: parts of names of problems; all if not given. - `processes`: at a time. - `report`: told of each.
    """
    from provi_lab.bench.distance_problems import cases

    chosen = [(i, case) for i, case in enumerate(cases()) if not names or any(name in case.name for name in names)]
    chosen = [pair for pair in chosen if not quick or pair[1].size < 5000]
    order = sorted(chosen, key=lambda pair: -pair[1].size)
    found = {}
    for index, row in _spread(_measured, [index for index, _ in order], processes):
        report(f"{row['problem']}: {row['status']}")
        found[index] = row
    return [found[index] for index, _ in chosen]


def _spread(function: Callable[[Any], Any], work: Sequence[Any], processes: int) -> Iterable[Any]:
    """In processes of their own, the next piece to whoever is free."""
    if processes <= 1:
        yield from map(function, work)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(function, work)


def _measured(index: int) -> tuple[int, Row]:
    from provi_lab.bench.distance_problems import cases

    case = list(cases())[index]
    row: Row = {"problem": case.name, "group": case.group, "d": None, "N": None}
    try:
        return index, {**row, **_facts(case)}
    except (FileNotFoundError, ImportError) as error:
        return index, {**row, "status": "left out", "note": str(error)}
    except Exception as error:  # a problem that fails must not end the others
        return index, {**row, "status": "failed", "note": f"{type(error).__name__}: {error}", "where": _where(error)}


def _where(error: Exception) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-3:])


def _facts(case: Any) -> Row:
    """The bound of one problem, and its truth."""
    import provi
    from provi.result.evidence import EvidenceBracket
    from provi_lab.bench.distance_oracle import log_sobolev, truth

    target, posterior = case.make()
    fit = provi.fit(target, progress=False, seed=1, budget=provi.Budget(seconds=60))
    bracket: EvidenceBracket | None = fit.evidence
    best = mean, covariance = _moments(fit.posterior, posterior)
    bound = fit.certificate.posterior
    if case.member != "fit":
        mean, covariance = changed(case.member, mean, covariance, posterior)
        given = np.diagonal(covariance) if case.member == "mean field" else covariance
        bound, bracket = provi.certify(target, (mean, given), CONFIDENCE, seed=1, compare=False).posterior, None
    again, seconds = _again(fit) if case.member == "fit" else (None, None)
    draws = int(np.clip(_WORK / posterior.design.size, _FEWEST, _MOST))
    exact = truth(posterior, mean, covariance, draws, proposal=None if case.member == "fit" else best)
    row = {"d": target.dim, "N": len(posterior.response), "kl": exact.kl, "error": exact.error, "how": exact.how}
    row |= {
        "reliable": exact.reliable,
        "log_evidence": exact.log_evidence,
        "seconds": None if again is None else seconds,
    }
    row |= {"old": finite(log_sobolev(posterior, mean, covariance)), "bound": None}
    if bracket is not None:
        row |= {"lower": finite(bracket.lower), "upper": finite(bracket.upper), "bracket_status": bracket.status}
    if bound is None:
        return {**row, "status": "none"}
    row |= {"bound": bound.kl, "estimate": bound.estimate}
    if again is not None:
        row |= {"second": again.kl, "second_status": again.status}
    return {**row, "status": bound.status, "draws": bound.num_samples, "total_variation": bound.total_variation}


def _again(fit: Any) -> tuple[Any, float]:
    """The bound with fresh draws, and its seconds: nothing is compiled any more."""
    again = fit.certificate.verify(2)
    began = time.perf_counter()
    return again.posterior, time.perf_counter() - began


def _moments(approximation: Any, posterior: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of q, or of the linear predictors under it where the oracle works with these."""
    mean, covariance = (np.asarray(x, np.float64) for x in (approximation.mean, approximation.covariance))
    if len(mean) == posterior.design.shape[1]:
        return mean, covariance
    design = np.asarray(approximation.target.design, np.float64)
    return design @ mean, design @ covariance @ design.T


def changed(member: str, mean: np.ndarray, covariance: np.ndarray, posterior: Any) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian that is not the best one."""
    if member == "prior":
        return posterior.prior_mean, posterior.prior_covariance
    if member == "shifted":
        return mean + 0.5 * np.linalg.cholesky(covariance)[:, 0], covariance
    if member == "mean field":
        return mean, np.diag(1 / np.diagonal(np.linalg.inv(covariance)))
    return mean, covariance * (0.6 if member == "narrow" else 1.5)


def below(row: Row, name: str) -> bool:
    """Whether this bound is below the truth by more than its error bars."""
    value = row.get(name)
    return row.get("reliable", False) and value is not None and value < row["kl"] - BARS * row["error"]


def missed(row: Row) -> bool:
    """Whether the evidence lies outside its bracket by more than its error bars."""
    if not row.get("reliable") or row.get("lower") is None:
        return False
    margin, upper = BARS * row["error"], row["upper"]
    return row["lower"] > row["log_evidence"] + margin or (upper is not None and upper < row["log_evidence"] - margin)


def ratios(rows: Sequence[Row], group: str, name: str = "bound") -> list[float]:
    """Bound over truth, where the KL is in [0.001, 2] and known."""
    kept = [row for row in rows if row["group"] == group and row.get("reliable") and row.get(name) is not None]
    return [row[name] / row["kl"] for row in kept if 1e-3 <= row["kl"] <= 2]


def distance_cells(rows: Sequence[Row]) -> Cells:
    """One line a problem."""
    names = ["problem", "d", "N", "true KL", "bound", "status", "ratio", "old bound", "seconds"]
    lines = []
    for row in rows:
        if "kl" not in row:
            lines.append([row["problem"], "", "", "", "", row["status"], "", "", row.get("note", "")[:60]])
            continue
        exact = row["error"] < 1e-6
        kl = f"{row['kl']:.3g}" if exact else f"{row['kl']:.3g} ± {row['error']:.1g}"
        kl = kl if row["reliable"] else f"({kl}) unreliable"
        tiny = abs(row["kl"]) < _FAR
        ratio = "" if row["bound"] is None or tiny else f"{row['bound'] / row['kl']:.3g}"
        kl = "0" if tiny else kl
        cells = [row["problem"], str(row["d"]), str(row["N"]), kl, _text(row["bound"]), row["status"], ratio]
        lines.append([*cells, _text(row["old"]), _text(row["seconds"])])
    return names, lines


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def distance_verdicts(rows: Sequence[Row]) -> list[str]:
    """Violations, medians, and brackets that miss."""
    known = [row for row in rows if row.get("reliable")]
    said = [row for row in known if row.get("bound") is not None]
    lines = [f"{len(rows)} problems; the truth is known for {len(known)}, with a bound for {len(said)}."]
    for name, word, words in (("bound", "status", ""), ("second", "second_status", ", with fresh draws")):
        own = [row for row in said if row.get(name) is not None]
        parts = []
        for status in ("proven", "statistical"):
            of_status = [row for row in own if row[word] == status]
            parts.append(f"{sum(below(row, name) for row in of_status)} of {len(of_status)} {status}")
        lines.append(f"Below the truth by more than {BARS:g} error bars{words}: {', '.join(parts)}.")
    brackets = [row for row in known if row.get("upper") is not None]
    outside = [f"{row['problem']}, {row['N']} x {row['d']}" for row in brackets if missed(row)]
    names = f": {'; '.join(outside)}" if outside else ""
    lines.append(f"Evidence outside its bracket: {len(outside)} of {len(brackets)}{names}.")
    bad = [f"{row['problem']}, {row['N']} x {row['d']}" for row in known if below(row, "bound")]
    lines += [f"BELOW THE TRUTH: {'; '.join(bad)}."] if bad else []
    for group in ("ordinary", "weak", "near-separable"):
        values, olds = ratios(rows, group), ratios(rows, group, "old")
        if values:
            spread = f"{np.median(values):.3g} ({min(values):.3g} to {max(values):.3g}, {len(values)} problems)"
            lines.append(f"{group}: median bound / KL {spread}; the old bound {np.median(olds):.3g}.")
    refused = [row["problem"] for row in rows if row["status"] in ("none", "failed", "left out")]
    return [*lines, f"Without a bound: {', '.join(sorted(set(refused)))}."] if refused else lines


SECTION = Section(
    "distance",
    "Distance to the posterior",
    _TEXT,
    "KL(q || posterior), nats, at confidence 0.99",
    distance_cells,
    distance_verdicts,
)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Bounds on KL(q || posterior) against the truth.")
    parser.add_argument("problems", nargs="*", help="parts of names of problems; all by default")
    parser.add_argument("--quick", action="store_true", help="the small problems alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--coverage", type=int, metavar="R", help="R repetitions of the confidence statement, at 0.9")
    parser.add_argument("--hard", type=int, metavar="N", help="N hostile problems of one and two dimensions")
    parser.add_argument("--record", type=Path, help="a folder to write rows to, as JSON")
    chosen = parser.parse_args()
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    kinds: dict[str, tuple[list[Row], list[str]]] = {}
    if chosen.coverage:
        from provi_lab.bench.distance_trials import coverage, coverage_lines

        rows = coverage(chosen.coverage, lambda f, w: _spread(f, w, chosen.processes))
        kinds["distance-coverage"] = rows, coverage_lines(rows)
    if chosen.hard:
        from provi_lab.bench.distance_trials import hard, hard_lines

        rows = hard(chosen.hard, lambda f, w: _spread(f, w, chosen.processes))
        kinds["distance-hard"] = rows, hard_lines(rows)
    if not kinds:
        rows = measure(chosen.problems, quick=chosen.quick, processes=chosen.processes, report=print)
        SECTION.show(rows, print)
        kinds["distance"] = rows, distance_verdicts(rows)
    else:
        print("\n".join(line for _, lines in kinds.values() for line in lines))
    for kind, (rows, lines) in kinds.items():
        if chosen.record is not None:
            chosen.record.mkdir(parents=True, exist_ok=True)
            record = {**make_record(kind, rows), "summary": lines}
            path = chosen.record / f"{record['date']}-{kind}.json"
            path.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")
            print(f"wrote {path}")


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else dataclasses.asdict(value)


if __name__ == "__main__":
    main()
