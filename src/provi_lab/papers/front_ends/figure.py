"""The same models through NumPyro, PyMC and Stan: one posterior, and how far the best Gaussian is from NUTS's."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.core.arguments import double_precision
from provi.diagnostics.importance import ImportanceDiagnostics
from provi.diagnostics.pareto import SMALL_ERROR
from provi.families import Gaussian
from provi.fit import fit
from provi.frontends import from_numpyro, from_pymc, from_stan
from provi.report.style import INK, PALETTE
from provi.result import Fit
from provi.targets.parameters import element_names
from provi_lab.common.pictures import picture
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row
from provi_lab.papers.front_ends.models import (
    FRONT_ENDS,
    NUMPYRO,
    PYMC,
    Model,
    numpyro_model,
    problems,
    pymc_model,
    stan_program,
)

NAME = "front-ends"
_DRAWS = 100_000  # of q, for its moments in the model's space: their errors are far below those of NUTS


TAIL_DRAWS = 10_000
_NOTICEABLE = 0.1  # an error of a mean or of an sd, in posterior sds, that the user should be warned of


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A fit beside NUTS, in the model's own parameters (tau, not its logarithm)."""

    problem: Model
    front_end: str
    fit: Fit
    names: tuple[str, ...]
    mean_error: np.ndarray
    """(mean of q - mean of NUTS) / sd of NUTS."""
    deviation_error: np.ndarray
    """sd of q / sd of NUTS - 1."""
    mean_noise: np.ndarray
    """The standard error of NUTS's mean, in sds."""
    deviation_noise: np.ndarray
    offset_spread: float
    """How far the difference to NumPyro's log density is from its median, at most, over 50 draws of q."""

    @property
    def diagnosis(self) -> ImportanceDiagnostics:
        """What a user is told of the distance to the posterior."""
        return self.fit.diagnose(TAIL_DRAWS)

    @property
    def tail(self) -> float:
        """k-hat."""
        return float(self.diagnosis.pareto_k or np.nan)

    @property
    def worst(self) -> float:
        """The largest error of a mean or of an sd, in posterior sds."""
        return float(max(np.abs(self.mean_error).max(), np.abs(self.deviation_error).max()))


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes shorter chains and leaves out Stan, whose programs take 20 s each to build."""
    began, output = time.monotonic(), Path(output)
    chains, length = (2, 500) if quick else (4, 2500)
    front_ends = FRONT_ENDS[:2] if quick else FRONT_ENDS
    found = [
        comparison
        for problem in problems(seed)
        for comparison in _compare(problem, front_ends, sample(problem, chains, length, seed), seed)
    ]
    return publish(
        output,
        began,
        name=NAME,
        title="Three models through NumPyro, PyMC and Stan, beside NUTS",
        setting=_setting(chains, length),
        picture=draw(found),
        lines=[row for each in found for row in _parameters(each)],
        rows=[_row(each) for each in found],
        claims=claims(found),
    )


def target_of(problem: Model, front_end: str) -> Any:
    """The problem's posterior as a target."""
    if front_end == NUMPYRO:
        return from_numpyro(numpyro_model(problem.name), **problem.data)
    if front_end == PYMC:
        return from_pymc(pymc_model(problem))
    return from_stan(*stan_program(problem), log_concave=problem.log_concave)


def sample(problem: Model, chains: int, length: int, seed: int) -> dict[str, np.ndarray]:
    """Draws of NumPyro's NUTS by site, (chains, length, ...)."""
    from numpyro.infer import MCMC, NUTS

    chain = MCMC(
        NUTS(numpyro_model(problem.name), target_accept_prob=0.95),
        num_warmup=1000,
        num_samples=length,
        num_chains=chains,
        chain_method="sequential",
        progress_bar=False,
    )
    chain.run(jax.random.key(seed), **problem.data)
    return {name: np.asarray(value) for name, value in chain.get_samples(group_by_chain=True).items()}


def _compare(problem: Model, front_ends: Any, nuts: dict[str, np.ndarray], seed: int) -> list[Comparison]:
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    stats: Any = array_stats
    names = element_names({site: value[0, 0] for site, value in nuts.items()})
    columns = np.concatenate([nuts[site].reshape(*nuts[site].shape[:2], -1) for site in sorted(nuts)], axis=2)
    mean, deviation = columns.mean(axis=(0, 1)), columns.std(axis=(0, 1), ddof=1)
    means, deviations = (
        np.array([float(stats.ess(columns[:, :, i], 0, 1, method=method)) for i in range(len(mean))])
        for method in ("mean", "sd")
    )
    found, reference, points = [], None, None
    for front_end in front_ends:
        target = target_of(problem, front_end)
        # The family is named, for the hierarchical models would be integrated over their scales otherwise.
        result = fit(target, Gaussian(target.dim), tol=0.01, seed=seed)
        # The points of all front-ends are the first one's: coordinates and their order are the same.
        points = result.posterior.sample(50, seed) if points is None else points
        values = np.asarray(jax.jit(jax.vmap(target.potential))(points))
        reference = values if reference is None else reference
        own = target.constrain(result.posterior.sample(_DRAWS, seed))
        draws = np.concatenate([own[site].reshape(_DRAWS, -1) for site in sorted(nuts)], axis=1)
        found.append(
            Comparison(
                problem,
                front_end,
                result,
                names,
                (draws.mean(axis=0) - mean) / deviation,
                draws.std(axis=0, ddof=1) / deviation - 1,
                1 / np.sqrt(means),
                1 / np.sqrt(2 * deviations),
                float(np.abs(values - reference - np.median(values - reference)).max()),
            )
        )
    return found


def _row(each: Comparison) -> Row:
    certificate = each.fit.certificate
    return {
        "model": each.problem.name,
        "front-end": each.front_end,
        "parameters": len(each.mean_error),
        "certificate": certificate.status,
        "gap at most": "-" if certificate.gap is None else f"{certificate.gap:.2g}",
        "ELBO": each.fit.elbo.value,
        "k-hat": each.tail,
        "error of a probability": each.diagnosis.total_variation,
        "adequate": "yes" if each.diagnosis.adequate else "warned",
        "worst mean": float(np.abs(each.mean_error).max()),
        "worst sd": float(np.abs(each.deviation_error).max()),
        "log density differs by": each.offset_spread,
        "seconds": each.fit.seconds,
    }


def _parameters(each: Comparison) -> list[Row]:
    return [
        {
            "model": each.problem.name,
            "front_end": each.front_end,
            "parameter": name,
            "mean_error": each.mean_error[i],
            "mean_noise": each.mean_noise[i],
            "sd_error": each.deviation_error[i],
            "sd_noise": each.deviation_noise[i],
        }
        for i, name in enumerate(each.names)
    ]


def _setting(chains: int, length: int) -> str:
    return (
        f"Rubin's eight schools (non-centred), a logistic regression with 10 groups (600 rows) and a Poisson "
        f"regression (300 rows), each written in three languages and fitted by "
        f"`provi.fit(target, Gaussian(dim), tol=0.01)`, a full Gaussian in the unconstrained coordinates, which are "
        f"the same in all three; compared in the models' own "
        f"parameters, deterministic ones included, by {_DRAWS} draws of q. NUTS: NumPyro's, {chains} "
        f"chains of {length} draws after 1000, target acceptance 0.95. Errors of means are in sds of NUTS, errors of "
        f"sds relative; k-hat and the largest error of a probability from {TAIL_DRAWS} draws of q; the user "
        f"is warned where the latter is above {SMALL_ERROR}. The Poisson regression is recognised as log-concave in "
        f"NumPyro and PyMC and declared so to Stan. The Gaussian approximation is not the posterior: errors within "
        f"Monte-Carlo error of NUTS mean that this NUTS run cannot tell them apart, not that there are none."
    )


def claims(found: list[Comparison]) -> tuple[Claim, ...]:
    """One density, one posterior, a warning where it is due, and agreement with NUTS where there is none."""
    first = {each.problem.name: each for each in found if each.front_end == NUMPYRO}
    moved = [
        max(
            float(np.abs(each.mean_error - first[each.problem.name].mean_error).max()),
            float(np.abs(each.deviation_error - first[each.problem.name].deviation_error).max()),
        )
        for each in found
    ]
    good = [each for each in found if each.diagnosis.adequate]
    noticeable = [each for each in found if each.worst > _NOTICEABLE]
    warned = [not each.diagnosis.adequate for each in noticeable]
    answers = [
        Claim.of(
            "The three front-ends have the same log density, up to a constant.",
            max(each.offset_spread for each in found) < 1e-6,
            f"At 50 draws of q: largest deviation {max(each.offset_spread for each in found):.2g} nats.",
        ),
        Claim.of(
            "They give the same posterior.",
            max(moved) < 0.05,
            f"Means and sds differ by at most {max(moved):.2g} posterior sds between front-ends, where each fit is "
            f"within tol = 0.01 nats of the best or as near as its noise allows.",
        ),
        Claim.of(
            f"Where a mean or an sd is off by more than {_NOTICEABLE} posterior sds, `fit.diagnose()` warns.",
            all(warned),
            f"{sum(warned)} of {len(noticeable)} such fits; "
            + ", ".join(f"{each.problem.name} ({each.front_end}): {each.worst:.2g}" for each in noticeable),
        ),
    ]
    for each in good:
        errors = np.concatenate([each.mean_error / each.mean_noise, each.deviation_error / each.deviation_noise])
        answers.append(
            Claim.of(
                f"{each.problem.name}, {each.front_end} (no warning, k-hat {each.tail:.2f}): means and sds are within "
                f"Monte-Carlo error of NUTS.",
                np.abs(errors).max() < _largest_normal(len(errors)),
                f"Largest error {np.abs(errors).max():.2g} standard errors of NUTS, limit "
                f"{_largest_normal(len(errors)):.2g} (5% over all); {each.worst:.2g} posterior sds.",
            )
        )
    return tuple(answers)


def _largest_normal(count: int) -> float:
    """What the largest of `count` standard normal numbers exceeds with probability 5% at most."""
    from scipy.stats import norm

    return float(norm.isf(0.025 / count))


_MARKERS = ("o", "x", "+")


def draw(found: Sequence[Any]) -> Any:
    """Two rows (means, sds), a column for each model; the bands are two standard errors of NUTS."""
    names = list(dict.fromkeys(each.problem.name for each in found))
    with picture(3.6 * len(names), 5.6) as figure:
        _fill(figure.subplots(2, len(names), squeeze=False, sharex="col"), names, found)
    return figure


def _fill(axes: Any, names: Sequence[str], found: Sequence[Any]) -> None:
    for column, name in enumerate(names):
        own = [each for each in found if each.problem.name == name]
        _panel(axes[0, column], own, "mean_error", "mean_noise")
        _panel(axes[1, column], own, "deviation_error", "deviation_noise")
        axes[0, column].set_title(f"{name}: k-hat {own[0].tail:.2f}")
    axes[0, 0].set_ylabel("error of the mean, posterior sds")
    axes[1, 0].set_ylabel("relative error of the sd")
    axes[0, 1 % len(names)].legend(loc="lower left")


def _panel(axis: Any, own: Sequence[Any], error: str, noise: str) -> None:
    places = np.arange(len(own[0].mean_error))
    band = 2 * getattr(own[0], noise)
    axis.bar(places, 2 * band, 0.9, bottom=-band, color="0.88", label="NUTS, 2 standard errors")
    axis.axhline(0, color=INK, linewidth=0.8)
    for each in own:
        number = FRONT_ENDS.index(each.front_end)
        shift = 0.2 * (number - (len(own) - 1) / 2)
        axis.plot(
            places + shift, getattr(each, error), _MARKERS[number], color=PALETTE[number], label=each.front_end, ms=5
        )
    axis.set_xticks(places, own[0].names, rotation=90)
