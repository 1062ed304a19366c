"""What Figures 1 to 3 of paper 004 claim, tested on the runs."""

import dataclasses

import numpy as np

from provi.core.tree import squared_norm, subtract
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import Optimum
from provi.experiments.mpsgd_measure import Curve
from provi.experiments.mpsgd_problem import METHODS, READINGS, Problem
from provi.experiments.report import Claim, Row
from provi.families.location_scale import LocationScale, Point
from provi.geometry.projection import project_nondegenerate
from provi.targets.regressions import LogisticRegression
from provi.theory import mpsgd
from provi.theory.noise import NoiseBound


@dataclasses.dataclass(frozen=True)
class Results:
    """Everything the verdicts are computed from."""

    problem: Problem
    target: LogisticRegression
    family: LocationScale
    optimum: Optimum
    curves: tuple[Curve, ...]

    def of(self, method: str, reading: str) -> list[Curve]:
        return [c for c in self.curves if c.setting.method == method and c.setting.reading == reading]

    def final(self, method: str, reading: str) -> float:
        return float(np.mean([curve.final_gap for curve in self.of(method, reading)]))

    def late(self, method: str, reading: str) -> float:
        return float(np.mean([curve.late_gap for curve in self.of(method, reading)]))

    def spread(self, method: str, reading: str) -> float:
        """The standard deviation of the final gap over the seeds."""
        finals = [curve.final_gap for curve in self.of(method, reading)]
        return float(np.std(finals, ddof=1)) if len(finals) > 1 else float("nan")

    def cpu(self, method: str, reading: str) -> float:
        return float(np.mean([curve.cpu_seconds for curve in self.of(method, reading)]))

    def start(self, reading: str) -> float:
        return float(self.of(METHODS[0], reading)[0].rows[0]["gap"])


def summary(results: Results) -> tuple[Row, ...]:
    """One row a method and reading: the settings, and the mean and spread over the seeds; gaps in nats."""
    rows = []
    for reading in READINGS:
        for method in METHODS:
            setting = results.of(method, reading)[0].setting
            rows.append(
                {
                    "constants": reading,
                    "method": method,
                    "draws": setting.num_draws,
                    "steps": setting.num_steps,
                    "start gap": results.start(reading),
                    "final gap": results.final(method, reading),
                    "sd": results.spread(method, reading),
                    "CPU [s]": results.cpu(method, reading),
                }
            )
    return tuple(rows)


def claims(results: Results) -> tuple[Claim, ...]:
    """The verdicts, the paper's claims first."""
    scaling = [_scaling(results, method, reading) for reading in READINGS for method in ("PSGD", "MPSGD")]
    batching = [_batching(results, reading) for reading in READINGS]
    return (
        _smoothness(results),
        *scaling,
        *batching,
        _region(results),
        _theorem_prefers(results),
        _theorem_holds(results),
    )


def _smoothness(results: Results) -> Claim:
    printed, corrected = (results.problem.smoothness(results.target, r) for r in ("as printed", "corrected"))
    design = np.asarray(results.target.design)
    hessian = design.T @ design / 4 + results.problem.precision * np.eye(results.problem.dim)
    largest = float(np.linalg.eigvalsh(hessian)[-1])
    return Claim.of(
        "Appendix C: f is L-smooth with L = alpha + sigma_max(U)/4.",
        printed >= largest * (1 - 1e-9),
        f"Printed L = {printed:.4g}; the Hessian at 0 has eigenvalue {largest:.6g}, which is "
        f"alpha + sigma_max(U)^2/4 = {corrected:.6g}.",
    )


def _scaling(results: Results, method: str, reading: str) -> Claim:
    start, names = results.start(reading), (method, f"scaled {method}")
    plain, scaled = (results.late(name, reading) for name in names)
    diverged = [name for name, gap in zip(names, (plain, scaled), strict=True) if gap > start]
    note = f" Above the start: {', '.join(diverged)}." if diverged else ""
    rejected = sum(curve.rejected_steps for name in names for curve in results.of(name, reading))
    note += f" {rejected} non-finite steps were rejected." if rejected else ""
    ends = [f"{results.final(name, reading):.4g} (sd {results.spread(name, reading):.2g})" for name in names]
    return Claim.of(
        f"Preconditioning improves {method} (constants {reading}).",
        scaled < min(plain, start),
        f"Mean gap over the last quarter {plain:.4g} without, {scaled:.4g} with; {start:.4g} at the start; last "
        f"iterates {ends[0]} and {ends[1]}.{note}",
    )


def _batching(results: Results, reading: str) -> Claim:
    batch = results.final("MPSGD", reading)
    spent = results.of("MPSGD", reading)[0].rows[-1]["gradients"]
    curves = results.of("PSGD", reading)
    single = float(np.mean([np.interp(spent, c.column("gradients"), c.column("gap")) for c in curves]))
    ratio = results.cpu("PSGD", reading) / results.cpu("MPSGD", reading)
    return Claim.of(
        f"Mini-batches save CPU time at the same progress per gradient (constants {reading}).",
        ratio > 1 and batch <= 1.02 * single,
        f"CPU time of PSGD / MPSGD = {ratio:.3g}; gaps after {spent} gradients {single:.4g} and {batch:.4g}; "
        f"{results.start(reading):.4g} at the start.",
    )


def _region(results: Results) -> Claim:
    printed = results.problem.smoothness(results.target, "as printed")
    smallest, scale = printed**-0.5, results.optimum.point.scale
    values = np.linalg.eigvalsh(np.asarray(scale.matrix))  # pyright: ignore[reportAttributeAccessIssue]
    nearest = Point(results.optimum.point.loc, project_nondegenerate(scale, smallest))
    loss = float(exact_negative_elbo(results.target, results.family, nearest)) - results.optimum.negative_elbo
    return Claim.of(
        "The set on which the printed L projects contains the optimum.",
        values[0] >= smallest,
        f"{int(np.sum(values < smallest))} of {len(values)} eigenvalues of C* lie below 1/sqrt(L) = {smallest:.3g}, "
        f"the smallest at {values[0]:.3g}. C* projected on the set has a gap of {loss:.3g} nats.",
    )


def _distances(results: Results, reading: str) -> tuple[float, float, float]:
    """|m_0 - m*|^2, |C_0 - C*|^2 and |m* - mode|^2 + |C*|^2."""
    best = results.optimum.point
    smallest = results.problem.smoothness(results.target, reading) ** -0.5
    start = results.family.point(np.zeros(results.problem.dim), smallest)
    reference = float(np.sum((np.asarray(best.loc) - results.optimum.mode) ** 2)) + float(squared_norm(best.scale))
    away = subtract(start, best)
    return float(squared_norm(away.loc)), float(squared_norm(away.scale)), reference


def _theorem_prefers(results: Results) -> Claim:
    location, scale, reference = _distances(results, "corrected")
    smoothness = results.problem.smoothness(results.target, "corrected")
    kurtosis = float(results.problem.base.kurtosis(results.problem.dim))
    plain, scaled = (
        mpsgd.theorem4_bound(
            results.problem.budget, results.problem.dim, kurtosis, smoothness, location, scale, reference, flag
        )
        for flag in (False, True)
    )
    return Claim.of(
        "Theorem 4's own bound is smaller with the preconditioner (Remark 3: C_0 = I/sqrt(L) limits its price).",
        scaled < plain,
        f"Bounds {plain:.3g} without and {scaled:.3g} with; |m_0 - m*|^2 = {location:.3g}, "
        f"|C_0 - C*|^2 = {scale:.3g} (constants corrected, distances to the computed optimum).",
    )


def _theorem_holds(results: Results) -> Claim:
    location, scale, reference = _distances(results, "corrected")
    ratios = []
    for curve in results.curves:
        setting = curve.setting
        if setting.reading != "corrected":
            continue
        smoothness, dim = setting.smoothness, results.problem.dim
        extra = smoothness if "scaled" in setting.method else 2 * dim * smoothness
        noise = NoiseBound(setting.noise_slope, setting.noise_slope * reference + extra, setting.label)
        start = location + scale / setting.scale_factor
        bound = mpsgd.bound(setting.num_steps, setting.num_draws, setting.step_size, start, noise, smoothness)
        ratios.append(float(bound) / curve.averaged_gap)
    return Claim.of(
        "Theorem 6 bounds the gap of the averaged iterate (constants corrected).",
        min(ratios) >= 1,
        f"Bound / measured gap between {min(ratios):.3g} and {max(ratios):.3g} over {len(ratios)} runs.",
    )
