"""-ELBO by epochs of one method at one rate, over seeds: its table, its scores on test images, and the claims' rule.

A method's number is its mean -ELBO per image over the seeds after the last epoch. Two are *level* if they differ by at
most two standard errors of the difference, $2\\sqrt{s_1^2/n_1+s_2^2/n_2}$; one is *better* if it is lower by more.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from provi.algorithms.incremental.network_surrogate import NetworkPoint, NetworkSurrogate
from provi.models.network.plots import rotate
from provi.models.network.predictive import (
    accuracy,
    entropy,
    expected_calibration_error,
    negative_log_likelihood,
    predict_draws,
)
from provi_lab.common.report import Claim
from provi_lab.common.tables import Row, read_rows
from provi_lab.papers.misso.lanes import Trace
from provi_lab.papers.misso.networks import NetworkProblem

PARTS = ("negative_elbo", "nll", "kl")


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
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


def trainings_of(
    trace: Trace, posterior: str, method: str, rates: Sequence[float], seeds: Sequence[int], stage: str = ""
) -> list[Training]:
    """The lanes of a trace, ordered by rate and then by seed, as one curve a rate."""
    table = trace.values.reshape(len(trace.epochs), len(rates), len(seeds), len(PARTS))
    epochs = tuple(int(epoch) for epoch in trace.epochs)
    return [
        Training(
            posterior, method, rate, tuple(seeds), epochs, np.swapaxes(table[:, k], 0, 1).astype(np.float64), stage
        )
        for k, rate in enumerate(rates)
    ]


def best(curves: Iterable[Training], posterior: str, method: str) -> Training | None:
    """The curve of the rate with the lowest mean -ELBO at the end; None where the method did not run."""
    own = [c for c in curves if (c.posterior, c.method, c.stage) == (posterior, method, "")]
    return min(own, key=lambda c: c.mean, default=None)


def at_rate(curves: Iterable[Training], posterior: str, method: str, rate: float) -> Training | None:
    """The curve of this rate; None where it did not run."""
    own = [c for c in curves if (c.posterior, c.method, c.rate, c.stage) == (posterior, method, rate, "")]
    return own[0] if own else None


def read_trainings(paths: Iterable[Path]) -> list[Training]:
    """What `rows` wrote, into several files perhaps: seeds are put together, up to the epochs that all have."""
    return read_rows_of(read_rows(paths))


def read_rows_of(rows: Iterable[dict[str, Any]]) -> list[Training]:
    """The curves of such rows."""
    groups: dict[tuple[str, str, float, str], dict[int, dict[int, list[float]]]] = {}
    for row in rows:
        name = (row["posterior"], row["method"], float(row["rate"]), row["stage"])
        own = groups.setdefault(name, {}).setdefault(int(row["seed"]), {})
        own[int(row["epoch"])] = [float(row[part]) for part in PARTS]
    curves = []
    for (posterior, method, rate, stage), runs in groups.items():
        seeds = tuple(sorted(runs))
        epochs = tuple(sorted(set.intersection(*(set(run) for run in runs.values()))))
        values = np.array([[runs[seed][epoch] for epoch in epochs] for seed in seeds])
        curves.append(Training(posterior, method, rate, seeds, epochs, values, stage))
    return curves


NUM_DRAWS = 16
"""Draws of the weights behind a predictive distribution."""

ANGLES = tuple(range(0, 91, 15))
NUM_TURNED = 2000
"""Test images that are turned, the first ones."""


def score(problem: NetworkProblem, surrogate: NetworkSurrogate, curve: Training, points: NetworkPoint) -> list[Row]:
    """Accuracy, negative log-likelihood and calibration error of each seed; `points` has a leading axis of seeds."""
    rows = []
    for seed, point in zip(curve.seeds, _separate(points), strict=True):
        found = predictive(problem, surrogate, point, problem.test_images)
        rows.append(
            {
                "posterior": curve.posterior,
                "method": curve.method,
                "rate": curve.rate,
                "seed": seed,
                "accuracy": accuracy(found, problem.test_labels),
                "test_nll": negative_log_likelihood(found, problem.test_labels),
                "calibration_error": expected_calibration_error(found, problem.test_labels),
                "median_sd": float(np.median(np.asarray(surrogate.sd(point)))),
            }
        )
    return rows


def turn(problem: NetworkProblem, surrogate: NetworkSurrogate, curve: Training, points: NetworkPoint) -> list[Row]:
    """Quantiles of the predictive entropy and the accuracy on turned test images, for the first seed, by angle."""
    point, rows = _separate(points)[0], []
    for angle in ANGLES:
        images = rotate(problem.test_images[:NUM_TURNED], angle)
        found = predictive(problem, surrogate, point, images)
        low, middle, high = np.quantile(entropy(found), (0.1, 0.5, 0.9))
        rows.append(
            {
                "posterior": curve.posterior,
                "method": curve.method,
                "degrees": angle,
                "entropy_10": float(low),
                "entropy_50": float(middle),
                "entropy_90": float(high),
                "mean_entropy": float(entropy(found).mean()),
                "accuracy": accuracy(found, problem.test_labels[: len(images)]),
            }
        )
    return rows


def predictive(
    problem: NetworkProblem, surrogate: NetworkSurrogate, point: NetworkPoint, images: np.ndarray
) -> np.ndarray:
    """The mean of the class probabilities over draws of the weights, (n, classes)."""
    draws = predict_draws(problem.target, point.mean, surrogate.sd(point), images, jax.random.key(0), NUM_DRAWS)
    return draws.mean(axis=0, dtype=np.float64)


def _separate(points: Any) -> list[Any]:
    count = len(points.mean)
    return [jax.tree.map(lambda x, k=k: np.asarray(x)[k], points) for k in range(count)]


ERRORS = 2
"""Standard errors of the difference within which two means are level."""

Relation = Literal["better than", "level with"]


def relation_holds(first: Training, second: Training, relation: Relation) -> bool | None:
    """Whether it does; None where no standard error can tell. A method that diverged is worse than all others."""
    if math.isinf(first.mean) or math.isinf(second.mean):
        return first.mean < second.mean if relation == "better than" else False
    error = math.hypot(first.standard_error, second.standard_error)
    if math.isnan(error):
        return None
    gap = first.mean - second.mean
    return gap < -ERRORS * error if relation == "better than" else abs(gap) <= ERRORS * error


def compare(words: str, first: Training | str, relation: Relation, others: Sequence[Training | str]) -> list[Claim]:
    """One claim: `first` stands in the relation to all `others`; "not tested" where one is a name alone.

    A name alone is a method that did not run: a claim of the paper must not vanish from the page because of that.
    """
    all_names = [curve if isinstance(curve, str) else curve.method for curve in (first, *others)]
    names = " and ".join(named(name) for name in all_names[1:])
    rule = f"rule: {'lower by more than' if relation == 'better than' else 'within'} {ERRORS} standard errors"
    statement = f"{words}: {named(all_names[0])} is {relation} {names} ({rule})."
    absent = [name for name, curve in zip(all_names, (first, *others), strict=True) if isinstance(curve, str)]
    if isinstance(first, str) or absent:
        return [Claim(statement, "not tested", f"Did not run: {', '.join(named(name) for name in absent)}.")]
    present = [other for other in others if not isinstance(other, str)]
    evidence = "-ELBO per image: " + "; ".join(_described(curve) for curve in (first, *present)) + "."
    found = [relation_holds(first, other, relation) for other in present]
    if False not in found and None in found:
        return [Claim(statement, "not tested", evidence)]
    return [Claim.of(statement, all(found), evidence)]


def named(method: str) -> str:
    """In quotes where the name has a comma."""
    return f"'{method}'" if "," in method else method


def _described(curve: Training) -> str:
    value = "diverged" if math.isinf(curve.mean) else f"{curve.mean:.5g} -+ {curve.standard_error:.2g}"
    return f"{named(curve.method)} {value} (rate {curve.rate:g})"
