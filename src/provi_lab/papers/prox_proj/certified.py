r"""Paper 003, Theorem 8 beyond its own distances: whitened coordinates, and distances that a certificate proves.

The theorem's bound has two distances to the unknown optimum, and all that strong convexity says of them beforehand is
$d/\mu$. Whitening makes $M$ small, and the $\mu$ that the prior proves with it, so the bound stays far away. But the
objective is $\mu$-strongly convex in any coordinates $z = \bar z + Fx$ with $\mu$ of x, so that a member q whose gap is
proven to be at most $\varepsilon$ has $|q-w^\star| \le \sqrt{2\varepsilon/\mu}$ there, and with the triangle inequality
$$|w_0-w^\star| \le |w_0-q|+\sqrt{2\varepsilon/\mu},\qquad
  |w^\star-\bar w| \le |q-\bar w|+\sqrt{2\varepsilon/\mu}+|\nabla\phi(\hat z)|/\mu,$$
the last term because the mode is known up to its gradient. The steps do not depend on the distances: it is the same
run, with another bound.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from provi.algorithms import ProxSGD
from provi.algorithms.natural.laplace import laplace_approximation
from provi.core.arguments import double_precision
from provi.data.loaders import load
from provi.diagnostics.optimum import linear_model_optimum
from provi.families.location_scale import Gaussian, Point
from provi.fit import fit
from provi.report.style import INK, PALETTE
from provi.targets.base import AbstractTarget
from provi.targets.regressions import LogisticRegression
from provi.targets.whitened import Whitened
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.replicates import replicate
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.prox_proj.rates import negative_elbos, spread_spectrum

NAME = "prox-whitened"
PLAIN, WHITENED = "given", "whitened"
HORIZONS, REPLICATES = (10**4, 10**5, 10**6), 4
TOLERANCE = 1e-10
"""Nats to which the member is fitted whose certificate is used."""


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """z = shift + factor @ x with the mode as shift, and the constants of the target in x."""

    target: AbstractTarget
    shift: np.ndarray
    factor: np.ndarray

    @staticmethod
    def of(target: AbstractTarget, whitened: bool) -> "Coordinates":
        """As `ProxSGD.from_theorem(whiten=True)` takes them; else z itself, about the mode."""
        found = laplace_approximation(target, target.default_location)
        factor = np.asarray(found.factor, np.float64)
        factor = factor if factor.ndim == 2 else np.diag(factor)
        shift = np.asarray(found.mode, np.float64)
        factor = factor if whitened else np.eye(target.dim)
        return Coordinates(Whitened(target, shift, factor), shift, factor)

    @property
    def strong_convexity(self) -> float:
        """mu of the potential in x."""
        return float(self.target.constants.strong_convexity.value)  # pyright: ignore[reportArgumentType]

    def moved(self, location: Any, scale: Any) -> np.ndarray:
        """(m, C) in x as one row: distances are Euclidean."""
        location = solve_triangular(self.factor, np.asarray(location) - self.shift, lower=True)
        return np.append(location, solve_triangular(self.factor, np.asarray(scale), lower=True))


@dataclasses.dataclass(frozen=True)
class Distances:
    """Upper bounds of |w_0 - w*|^2 and |w* - wbar|^2 in x, wbar = (mode, 0)."""

    initial: float
    reference: float

    @property
    def options(self) -> dict[str, float]:
        """As `from_theorem` takes them."""
        return {"initial_distance_squared": self.initial, "reference_distance_squared": self.reference}


def certified_distances(
    coordinates: Coordinates, mean: Any, covariance: Any, gap: float, start_mean: Any, start_scale: Any
) -> Distances:
    """The distances that a proven gap of the Gaussian (mean, covariance) gives, in these coordinates.

    **Arguments:** `gap`: nats, at least its true gap to the best Gaussian. - `start_mean`, `start_scale`: $w_0$ in z,
    with the triangular scale as a matrix.
    """
    mu, origin = coordinates.strong_convexity, np.zeros(len(coordinates.shift))
    member = coordinates.moved(mean, np.linalg.cholesky(np.asarray(covariance)))
    away = float(np.sqrt(2 * gap / mu))
    slope = np.linalg.norm(np.asarray(jax.grad(coordinates.target.potential)(jnp.asarray(origin))))
    to_start = np.linalg.norm(member - coordinates.moved(start_mean, start_scale))
    return Distances(float(to_start + away) ** 2, float(np.linalg.norm(member) + away + slope / mu) ** 2)


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes one small problem, horizons of 10^2 and 10^3 steps and two replicates."""
    began, output = time.monotonic(), Path(output)
    problems = {"spread spectrum": spread_spectrum(seed).target}
    horizons, replicates = ((100, 1000), 2) if quick else (HORIZONS, REPLICATES)
    if not quick:
        problems["Ionosphere"] = ionosphere()
    rows = [row for name, target in problems.items() for row in measure(name, target, horizons, replicates, seed)]
    return publish(
        output,
        began,
        name=NAME,
        title="Paper 003, Theorem 8: whitened coordinates, and distances from a certificate",
        setting=_setting(problems, replicates),
        picture=draw(rows),
        lines=rows,
        rows=summary(rows),
        claims=claims(rows),
    )


def ionosphere() -> LogisticRegression:
    """Logistic regression on the standardised columns of the training set that vary; prior N(0, I)."""
    arrays = load("ionosphere").arrays
    columns, response = arrays["X_train"].astype(np.float64), arrays["y_train"]
    columns = columns[:, columns.std(axis=0) > 0]
    return LogisticRegression((columns - columns.mean(axis=0)) / columns.std(axis=0), (response > 0).astype(int))


def measure(name: str, target: LogisticRegression, horizons: Sequence[int], replicates: int, seed: int) -> list[Row]:
    """A line for each coordinates and horizon: two bounds of one plan, and the gaps of its runs.

    The optimum with which gaps are measured is that of the exact solver, which has no part in the bounds.
    """
    family = Gaussian(target.dim, "triangular")
    best = linear_model_optimum(target, family).negative_elbo
    found = fit(target, seed=seed, tol=TOLERANCE, progress=False)
    proven = found.certificate.gap
    if proven is None:
        raise ValueError(f"The fit of {name} has no proven gap: {found.certificate.headline}")
    member = found.posterior.mean, found.posterior.covariance, proven
    rows = []
    for coordinates in (PLAIN, WHITENED):
        whiten = coordinates == WHITENED
        own = Coordinates.of(target, whiten)
        for place, steps in enumerate(horizons):
            method: Any = ProxSGD.from_theorem(target, family, budget=steps, whiten=whiten)
            start: Point = method.guarantee.start
            distances = certified_distances(own, *member, start.loc, start.scale.apply(jnp.eye(target.dim)).T)
            sharp: Any = ProxSGD.from_theorem(
                target, family, budget=steps, whiten=whiten, start=start, **distances.options
            )
            recorded = replicate(
                method, target, family, start, seed=seed + place, num_replicates=replicates, record_steps=[steps]
            )
            gaps = np.asarray(negative_elbos(target, family, recorded.outputs))[:, 0] - best
            rows.append(
                {
                    "problem": name,
                    "coordinates": coordinates,
                    "steps": steps,
                    "gap": float(gaps.mean()),
                    "largest_gap": float(gaps.max()),
                    "bound": float(method.guarantee.bound),
                    "certified_bound": float(sharp.guarantee.bound),
                    "condition": _condition(own),
                    "certificate": float(proven),
                    "initial": distances.initial,
                    "reference": distances.reference,
                    "prior_reference": target.dim / own.strong_convexity,
                }
            )
    return rows


def read_rows_of(lines: Sequence[Row]) -> list[Row]:
    """The lines as `measure` made them, from a CSV file's text."""
    words = ("problem", "coordinates")
    return [
        {
            name: value if name in words else int(value) if name == "steps" else float(value)
            for name, value in row.items()
        }
        for row in lines
    ]


def _condition(coordinates: Coordinates) -> float:
    return float(coordinates.target.constants.smoothness.value) / coordinates.strong_convexity  # pyright: ignore


def summary(rows: Sequence[Row]) -> list[Row]:
    """As the page has it, in nats."""
    return [
        {
            "problem": row["problem"],
            "coordinates": row["coordinates"],
            "M/mu": row["condition"],
            "gradients": f"{row['steps']:g}",
            "measured gap": row["gap"],
            "bound": row["bound"],
            "bound, certified distances": row["certified_bound"],
            "d/mu": row["prior_reference"],
            "|w* - wbar|^2, certified": row["reference"],
        }
        for row in rows
    ]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """That the bounds hold, and what each step is worth at the longest horizon."""
    bounds = [float(row[key]) / float(row["gap"]) for row in rows for key in ("bound", "certified_bound")]
    found = [
        Claim.of(
            "No bound is below the measured mean gap.",
            min(bounds) >= 1,
            f"Bound / measured mean gap between {min(bounds):.3g} and {max(bounds):.3g} over {len(bounds)} bounds.",
        )
    ]
    for name in dict.fromkeys(row["problem"] for row in rows):
        last = {row["coordinates"]: row for row in rows if row["problem"] == name}
        given, white = last[PLAIN], last[WHITENED]
        words = ", ".join(
            f"{row['coordinates']} {float(row['bound']):.4g}, with certified distances "
            f"{float(row['certified_bound']):.4g} (measured gap {float(row['gap']):.3g})"
            for row in (given, white)
        )
        found.append(
            Claim.of(
                f"{name}: with both, the bound after {int(white['steps']):,} gradients is below one nat.",
                float(white["certified_bound"]) < 1,
                f"Nats: {words}.",
            )
        )
    return found


def _setting(problems: dict[str, LogisticRegression], replicates: int) -> str:
    sizes = "; ".join(f"{name}: {target.num_terms} rows, d = {target.dim}" for name, target in problems.items())
    return (
        f"Logistic regression with the prior N(0, I) ({sizes}; Ionosphere: the training set, columns that vary, "
        f"standardised). `ProxSGD.from_theorem(budget=T, whiten=...)`, triangular scale, one run for each T, its "
        f"averaged point, {replicates} replicates. Gaps are exact up to quadrature, against the optimum of the exact "
        f"solver. 'Bound' has the distances that strong convexity gives beforehand, d/mu; 'certified' those of a fit "
        f"whose gap is proven to be at most {TOLERANCE:g} nats: |q - w*| <= sqrt(2 gap/mu) in the same coordinates. "
        f"Steps and runs are the same for both. A bound of this kind says how loose the theorem is and what of that is "
        f"due to the distances; it is no way to a better answer, since the fit that it rests on is that already."
    )


def draw(rows: Sequence[Row]) -> Any:
    """A panel a problem: measured gaps and the four bounds against gradients."""
    names = list(dict.fromkeys(row["problem"] for row in rows))
    with picture(4.2 * len(names) + 0.4, 3.6) as figure:
        axes = figure.subplots(1, len(names), squeeze=False)[0]
        for axis, name in zip(axes, names, strict=True):
            for colour, coordinates in zip((INK, PALETTE[0]), (PLAIN, WHITENED), strict=True):
                own = [row for row in rows if (row["problem"], row["coordinates"]) == (name, coordinates)]
                steps = [row["steps"] for row in own]
                for key, line, words in (
                    ("bound", ":", "bound"),
                    ("certified_bound", "--", "bound, certified distances"),
                    ("gap", "-", "measured"),
                ):
                    label = f"{coordinates} coordinates: {words}"
                    axis.plot(steps, [row[key] for row in own], line, color=colour, marker="o", label=label)
            axis.set(title=name, xlabel="gradients", xscale="log", yscale="log")
        axes[0].set_ylabel("gap [nats]")
        legend_below(figure, axes[0], 2)
    return figure
