"""Paper 003, Corollary 14: sticking the landing converges linearly on a Gaussian target; entropy stalls."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from provi.algorithms import ProjSGD
from provi.core.arguments import double_precision
from provi.core.tree import squared_norm, subtract
from provi.diagnostics.optimum import linear_model_optimum
from provi.estimators import Entropy, StickingTheLanding
from provi.families.location_scale import Gaussian as GaussianFamily
from provi.report.style import INK, PALETTE
from provi.targets.gaussian import Gaussian
from provi.theory import noise, proj_sgd
from provi_lab.common.pictures import legend_below, picture
from provi_lab.common.replicates import MeanErrors, Slope, log_slope, replicate
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.prox_proj.rates import squared_distances

NAME = "stl-gaussian"


CONDITION = 3.0
ROUNDING = 1e-20
"""Where, relative to the start, fits of the linear rate end: float64 leaves about 1e-29."""


@dataclasses.dataclass(frozen=True)
class Runs(MeanErrors):
    """Runs of one estimator at `multiple` times the corollary's largest step.

    At that step itself there is a bound: Corollary 14's for sticking the landing, Theorem 10's for entropy.
    """

    estimator: str
    multiple: int
    step_size: float

    def rows(self) -> list[Row]:
        """A line a record, for the CSV file."""
        return [
            {
                "estimator": self.estimator,
                "multiple": self.multiple,
                "step_size": self.step_size,
                "step": int(self.steps[i]),
                "mean": float(self.mean[i]),
                "bound": float("nan") if self.bound is None else float(self.bound[i]),
            }
            for i in range(len(self.steps))
        ]

    def exponent(self, seed: int) -> Slope:
        """The change of the log mean error per step: of the fall above rounding; for entropy, at the end."""
        mean, start = self.mean, len(self.steps) // (2 if self.estimator == "entropy" else 8)
        fitted = (mean > ROUNDING * mean[0]) & (np.arange(len(mean)) >= start)
        return log_slope(self.steps[fitted], self.errors[:, fitted], seed)


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes d = 3, 20 replicates and a shorter run instead of d = 10 and 32."""
    began, output = time.monotonic(), Path(output)
    dim, replicates, folds = (3, 20, 25.0) if quick else (10, 32, 64.0)
    target = gaussian_target(dim, seed)
    mu = curvatures(target)[0]
    results = [
        measure(target, estimator, multiple, replicates, folds, seed)
        for estimator in (StickingTheLanding(), Entropy())
        for multiple in (1, 10, 100)
    ]
    exponents = [result.exponent(seed) for result in results]
    return publish(
        output,
        began,
        name=NAME,
        title="Paper 003, Corollary 14: sticking the landing on a Gaussian target",
        setting=_setting(target, replicates),
        picture=draw(results, mu),
        lines=[row for result in results for row in result.rows()],
        rows=[_row(result, exponent, mu) for result, exponent in zip(results, exponents, strict=True)],
        claims=_claims(results, exponents, mu),
    )


def _setting(target: Gaussian, replicates: int) -> str:
    mu, smoothness = curvatures(target)
    return (
        f"A Gaussian target with d = {target.dim}, mu = {mu:.3g}, M = {smoothness:.3g}; Proj-SGD on the Gaussian "
        f"family with a symmetric scale, one draw a step, constant steps of 1, 10 and 100 times the largest that "
        f"Corollary 14 allows, gamma = mu/(2a) with a = 8(d+3)M^2; {replicates} replicates; start m* + 1, I/sqrt(M). "
        f"Exponents are falls of the log mean squared distance per step, in units of the theorem's gamma mu/2, with "
        f"95 % bootstrap intervals over replicates: fitted down to {ROUNDING:g} of the start for sticking the "
        f"landing, over the second half of the run for the entropy estimator."
    )


def _relative(exponent: Slope, result: Runs, mu: float) -> Slope:
    """The exponent of the fall, in units of gamma mu/2."""
    unit = result.step_size * mu / 2
    return Slope(*(-value / unit for value in (exponent.value, exponent.high, exponent.low)))


def _row(result: Runs, exponent: Slope, mu: float) -> Row:
    return {
        "estimator": result.estimator,
        "step / largest": result.multiple,
        "step size": result.step_size,
        "steps": int(result.steps[-1]),
        "start": float(result.mean[0]),
        "end": float(result.mean[-1]),
        "exponent": str(_relative(exponent, result, mu)),
    }


def _claims(results: list[Runs], exponents: list[Slope], mu: float) -> tuple[Claim, ...]:
    landing, entropy = results[:3], results[3:]
    first, relative = landing[0], _relative(exponents[0], landing[0], mu)
    ratios = first.ratios[1:]
    above = first.mean[1:] > ROUNDING * first.mean[0]
    middle = float(first.mean[len(first.mean) // 2])
    falls = [float(result.mean[-1] / result.mean[0]) for result in landing]
    stalls = [float(result.mean[-1] / result.mean[0]) for result in entropy]
    floor = entropy[0].ratios[1:]
    still = [_relative(e, r, mu) for e, r in zip(exponents[3:], entropy, strict=True)]
    return (
        Claim.of(
            "Corollary 14: E|w_T - w*|^2 <= (1 - gamma mu/2)^T |w_0 - w*|^2.",
            min(ratios[above]) >= 1,
            f"Bound / measured mean between {min(ratios[above]):.3g} and {max(ratios[above]):.3g} down to {ROUNDING:g} "
            f"of the start.",
        ),
        Claim.of(
            "The convergence is linear, at the corollary's exponent or faster.",
            relative.low >= 1,
            f"Measured exponent {relative} times gamma mu/2 at the corollary's step; the slowest direction "
            f"contracts by 2 gamma mu to first order, 4 times.",
        ),
        Claim.of(
            "The noise vanishes at the optimum: no floor but rounding.",
            first.mean[-1] < max(1e-3 * middle, 1e-24),
            f"|w_T - w*|^2 fell from {first.mean[0]:.3g} to {middle:.2g} half way and {first.mean[-1]:.2g} at the end.",
        ),
        Claim.of(
            "The entropy estimator does not have this: with constant steps it stalls.",
            all(end > 1e3 * fall for end, fall in zip(stalls, falls, strict=True))
            and all(abs(exponent.value) < 0.2 for exponent in still),
            f"Means end at {', '.join(f'{r.mean[-1]:.2g}' for r in entropy)} for 1, 10 and 100 times the step, with "
            f"exponents {', '.join(f'{exponent.value:.2g}' for exponent in still)} over the second half.",
        ),
        Claim.of(
            "Theorem 10 (constant step) bounds the entropy estimator's error, its floor included.",
            min(floor) >= 1,
            f"Bound / measured mean between {min(floor):.3g} and {max(floor):.3g} at the corollary's step.",
        ),
        Claim(
            "Steps above the corollary's converge as well (the paper makes no statement).",
            "holds" if max(falls[1:]) < 1e-6 else "does not hold",
            f"At 10 and 100 times the step the means fell to {falls[1]:.2g} and {falls[2]:.2g} of the start in a "
            f"tenth and a hundredth of the steps.",
        ),
    )


def gaussian_target(dim: int, seed: int) -> Gaussian:
    """A Gaussian with precision eigenvalues from 1 to 3 in a random basis."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    precision = (basis * np.geomspace(1, CONDITION, dim)[None, :]) @ basis.T
    return Gaussian(generator.normal(size=dim), precision=(precision + precision.T) / 2)


def curvatures(target: Gaussian) -> tuple[float, float]:
    """mu and M."""
    constants = target.constants
    return float(constants.strong_convexity.value), float(constants.smoothness.value)  # pyright: ignore


def measure(target: Gaussian, estimator: Any, multiple: int, replicates: int, folds: float, seed: int) -> Runs:
    """Runs until the sharp rate 2 gamma mu of the mean has gone through `folds` factors of e."""
    mu, smoothness = curvatures(target)
    family = GaussianFamily(target.dim, "symmetric")
    optimum = linear_model_optimum(target, family)
    start = family.point(np.asarray(optimum.point.loc) + 1.0, smoothness**-0.5)
    initial = float(squared_norm(subtract(start, optimum.point)))
    own = noise.stl_noise(dim=target.dim, smoothness=smoothness, residual_smoothness=0.0)
    largest = proj_sgd.largest_constant_step_size(mu, own.slope)
    step_size = multiple * largest
    steps = np.unique(np.round(np.linspace(0, folds / (2 * step_size * mu), 41)).astype(int))
    recorded = replicate(
        ProjSGD(step_size=step_size, estimator=estimator),
        target,
        family,
        start,
        seed=seed,
        num_replicates=replicates,
        record_steps=steps,
    )
    errors = np.asarray(squared_distances(recorded.iterates, optimum.point))
    bound = _bound(target, estimator, steps, step_size, initial) if multiple == 1 else None
    return Runs(steps, errors, bound, estimator.name, multiple, step_size)


def _bound(target: Gaussian, estimator: Any, steps: np.ndarray, step_size: float, initial: float) -> np.ndarray:
    mu, smoothness = curvatures(target)
    if isinstance(estimator, StickingTheLanding):
        return np.asarray(proj_sgd.gaussian_target_bound(steps, step_size, initial, mu, smoothness, target.dim))
    # The mode is m*, so the distance from (mode, 0) to w* is |C*|.
    reference = float(np.trace(target.exact_posterior()[1]))
    entropy = noise.entropy_noise(dim=target.dim, smoothness=smoothness, reference_distance_squared=reference)
    return np.asarray(proj_sgd.constant_step_bound(steps, step_size, initial, mu, entropy))


def draw(results: list[Any], strong_convexity: float) -> Any:
    """Two panels, one an estimator; steps times gamma mu/2 is the theorem's exponent, the same for all steps."""
    with picture(8.4, 3.6) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        names = list(dict.fromkeys(result.estimator for result in results))
        for axis, name in zip(axes, names, strict=True):
            chosen = [result for result in results if result.estimator == name]
            for colour, result in zip(PALETTE, chosen, strict=False):
                times = result.steps * result.step_size * strong_convexity / 2
                label = f"{result.multiple} times the theorem's step" if result.multiple > 1 else "the theorem's step"
                # The curves of small steps coincide in this unit of time: the wide one shows beneath the other.
                axis.plot(times, result.mean, color=colour, label=label, linewidth=3.2 if result.multiple == 1 else 1.6)
            times = chosen[0].steps * chosen[0].step_size * strong_convexity / 2
            axis.plot(times, chosen[0].bound, "--", color=INK, linewidth=1.1, label="bound at the theorem's step")
            axis.set_title(f"{name[0].upper()}{name[1:]}")
            axis.set_yscale("log")
            axis.set_xlabel(r"number of steps $\times\ \gamma\mu/2$")
        axes[0].set_ylabel(r"mean $|w - w^*|^2$")
        legend_below(figure, axes[0], 4)
    return figure
