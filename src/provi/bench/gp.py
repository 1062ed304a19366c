"""`provi bench gp`: Gaussian-process classification, the time to a true gap of 0.01 and 0.001 nats beside others."""

from collections.abc import Callable, Sequence

from provi.bench.blackbox import Row, compare
from provi.bench.gp_methods import GP_METHODS, GP_THRESHOLDS
from provi.bench.gp_oracle import GPOracle
from provi.bench.gp_problem import GPProblem
from provi.bench.methods import Method


def compare_gp(
    problems: Sequence[GPProblem],
    methods: Sequence[Method],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Every method on every problem, one process a setting, judged by `GPOracle`; arguments as in `compare`."""
    return compare(problems, methods, seconds, report, GPOracle.of, GP_THRESHOLDS)


def gp_verdicts(rows: Sequence[Row]) -> list[str]:
    """ProVI to its proven 0.001 nats against each peer to 0.01 nats; of one problem's rows.

    The peers are stopped by the oracle at the easier gap, and at the best of their steps: twenty Gauss-Hermite nodes
    keep them from the harder one.
    """
    easy, hard = (f"{threshold:g}" for threshold in GP_THRESHOLDS)
    name = GP_METHODS["provi"].name
    mine = next((row["times"].get(hard) for row in rows if row["method"] == name), None)
    if mine is None:
        return [f"{name}: {hard} nats not reached."]
    lines = []
    for row in rows:
        theirs = row["times"].get(easy)
        if row["method"] == name or row["status"] != "ran":
            continue
        if theirs is None:
            lines.append(f"{row['method']} did not reach {easy} nats.")
            continue
        warm, cold = (theirs[clock] / mine[clock] for clock in ("cpu", "cpu_compiling"))
        lines.append(
            f"{name}, {hard} nats: {warm:.3g} times as fast as {row['method']} to {easy} nats without compilation, "
            f"{cold:.3g} times with it."
        )
    return lines
