"""The same models through NumPyro, PyMC and Stan: one posterior, and how far the best Gaussian is from NUTS's."""

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.core.precision import double_precision
from provi.diagnostics.pareto import SMALL_ERROR
from provi.experiments.front_end_models import (
    FRONT_ENDS,
    NUMPYRO,
    PYMC,
    Problem,
    numpyro_model,
    problems,
    pymc_model,
    stan_program,
)
from provi.experiments.front_ends_claims import TAIL_DRAWS, Comparison, claims
from provi.experiments.front_ends_picture import draw
from provi.experiments.report import Report, Row, finish, write_rows
from provi.fit import fit
from provi.frontends import from_numpyro, from_pymc, from_stan
from provi.report.style import save_figure
from provi.targets.parameters import element_names

NAME = "front-ends"
_DRAWS = 100_000  # of q, for its moments in the model's space: their errors are far below those of NUTS


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
    files = (
        save_figure(draw(found), output / f"{NAME}.png"),
        write_rows(output / f"{NAME}.csv", [row for each in found for row in _parameters(each)]),
    )
    report = Report(
        NAME,
        "Three models through NumPyro, PyMC and Stan, beside NUTS",
        _setting(chains, length),
        tuple(_row(each) for each in found),
        claims(found),
        files,
        time.monotonic() - began,
    )
    return finish(report, output)


def target_of(problem: Problem, front_end: str) -> Any:
    """The problem's posterior as a target."""
    if front_end == NUMPYRO:
        return from_numpyro(numpyro_model(problem.name), **problem.data)
    if front_end == PYMC:
        return from_pymc(pymc_model(problem))
    return from_stan(*stan_program(problem), log_concave=problem.log_concave)


def sample(problem: Problem, chains: int, length: int, seed: int) -> dict[str, np.ndarray]:
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


def _compare(problem: Problem, front_ends: Any, nuts: dict[str, np.ndarray], seed: int) -> list[Comparison]:
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
        result = fit(target, tol=0.01, seed=seed)
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
        f"regression (300 rows), each written in three languages and fitted by `provi.fit(target, tol=0.01)` with a "
        f"full Gaussian in the unconstrained coordinates, which are the same in all three; compared in the models' own "
        f"parameters, deterministic ones included, by {_DRAWS} draws of q. NUTS: NumPyro's, {chains} "
        f"chains of {length} draws after 1000, target acceptance 0.95. Errors of means are in sds of NUTS, errors of "
        f"sds relative; k-hat and the largest error of a probability from {TAIL_DRAWS} draws of q; the user "
        f"is warned where the latter is above {SMALL_ERROR}. The Poisson regression is recognised as log-concave in "
        f"NumPyro and PyMC and declared so to Stan. The Gaussian approximation is not the posterior: errors within "
        f"Monte-Carlo error of NUTS mean that this NUTS run cannot tell them apart, not that there are none."
    )
