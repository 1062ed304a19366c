"""The papers' figures and theorems as experiments: each a function, by the name of its command."""

from collections.abc import Callable

from provi.experiments import (
    ctm_figure3,
    front_ends,
    misso_figure1,
    misso_figure2a,
    misso_figure2b,
    mpsgd_figure1,
    mpsgd_figure2,
    mpsgd_figure3,
    pgsvi_figure1,
    pgsvi_figure2,
    prox_proj_rates,
    stl_gaussian,
)
from provi.experiments.report import Claim, Report

EXPERIMENTS: dict[str, Callable[..., Report]] = {
    "ctm-figure3": ctm_figure3.run,
    "front-ends": front_ends.run,
    "misso-figure1": misso_figure1.run,
    "misso-figure2a": misso_figure2a.run,
    "misso-figure2b": misso_figure2b.run,
    "mpsgd-figure1": mpsgd_figure1.run,
    "mpsgd-figure2": mpsgd_figure2.run,
    "mpsgd-figure3": mpsgd_figure3.run,
    "pgsvi-figure1": pgsvi_figure1.run,
    "pgsvi-figure2": pgsvi_figure2.run,
    "prox-proj-rates": prox_proj_rates.run,
    "stl-gaussian": stl_gaussian.run,
}

__all__ = ["EXPERIMENTS", "Claim", "Report"]
