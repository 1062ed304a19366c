"""-ELBO by epochs of one method at one rate, over seeds: to a table, back again, and the best rate of a method."""

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from provi.experiments.network_lanes import Trace
from provi.experiments.report import Row

PARTS = ("negative_elbo", "nll", "kl")


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """`values` (seeds, epochs, 3) are -ELBO, its likelihood part and its KL part in nats per datum.

    - `posterior`: how many standard deviations q has, see `network_surrogate`.
    - `stage`: "" or "pilot", a short run that only chose the rate.
    """

    posterior: str
    method: str
    rate: float
    seeds: tuple[int, ...]
    epochs: tuple[int, ...]
    values: np.ndarray
    stage: str = ""

    @property
    def last(self) -> np.ndarray:
        """-ELBO of each seed after the last epoch; infinite where it is no number."""
        ends = self.values[:, -1, 0]
        return np.where(np.isfinite(ends), ends, np.inf)

    @property
    def mean(self) -> float:
        """The mean of `last`."""
        return float(self.last.mean())

    @property
    def standard_error(self) -> float:
        """Of `mean`, over the seeds; NaN for a single one or where a run diverged."""
        few = len(self.seeds) < 2 or not np.isfinite(self.last).all()
        return float("nan") if few else float(self.last.std(ddof=1)) / len(self.seeds) ** 0.5

    def rows(self) -> list[Row]:
        """One a seed and epoch."""
        named = {"posterior": self.posterior, "method": self.method, "rate": self.rate, "stage": self.stage}
        return [
            {**named, "seed": seed, "epoch": epoch, **dict(zip(PARTS, map(float, point), strict=True))}
            for seed, line in zip(self.seeds, self.values, strict=True)
            for epoch, point in zip(self.epochs, line, strict=True)
        ]


def curves_of(
    trace: Trace, posterior: str, method: str, rates: Sequence[float], seeds: Sequence[int], stage: str = ""
) -> list[Curve]:
    """The lanes of a trace, ordered by rate and then by seed, as one curve a rate."""
    table = trace.values.reshape(len(trace.epochs), len(rates), len(seeds), len(PARTS))
    epochs = tuple(int(epoch) for epoch in trace.epochs)
    return [
        Curve(posterior, method, rate, tuple(seeds), epochs, np.swapaxes(table[:, k], 0, 1).astype(np.float64), stage)
        for k, rate in enumerate(rates)
    ]


def best(curves: Iterable[Curve], posterior: str, method: str) -> Curve | None:
    """The curve of the rate with the lowest mean -ELBO at the end; None where the method did not run."""
    own = [c for c in curves if (c.posterior, c.method, c.stage) == (posterior, method, "")]
    return min(own, key=lambda c: c.mean, default=None)


def at_rate(curves: Iterable[Curve], posterior: str, method: str, rate: float) -> Curve | None:
    """The curve of this rate; None where it did not run."""
    own = [c for c in curves if (c.posterior, c.method, c.rate, c.stage) == (posterior, method, rate, "")]
    return own[0] if own else None


def read_rows(paths: Iterable[Path]) -> list[dict[str, str]]:
    """The lines of several CSV files, one after the other; files that are not there have none."""
    found = []
    for path in paths:
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as stream:
                found += list(csv.DictReader(stream))
    return found


def read_curves(paths: Iterable[Path]) -> list[Curve]:
    """What `Curve.rows` wrote, into several files perhaps: seeds are put together, up to the epochs that all have."""
    groups: dict[tuple[str, str, float, str], dict[int, dict[int, list[float]]]] = {}
    for row in read_rows(paths):
        name = (row["posterior"], row["method"], float(row["rate"]), row["stage"])
        own = groups.setdefault(name, {}).setdefault(int(row["seed"]), {})
        own[int(row["epoch"])] = [float(row[part]) for part in PARTS]
    curves = []
    for (posterior, method, rate, stage), runs in groups.items():
        seeds = tuple(sorted(runs))
        epochs = tuple(sorted(set.intersection(*(set(run) for run in runs.values()))))
        values = np.array([[runs[seed][epoch] for epoch in epochs] for seed in seeds])
        curves.append(Curve(posterior, method, rate, seeds, epochs, values, stage))
    return curves
