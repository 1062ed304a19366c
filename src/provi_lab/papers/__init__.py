"""The papers' figures and theorems as experiments: one folder a paper, each experiment by the name of its command."""

import importlib
from pathlib import Path

from provi_lab.common.report import Report

EXPERIMENTS = {
    "ctm-figure3": "topics.figure3:run",
    "ctm-settings": "topics.settings:run",
    "front-ends": "front_ends.figure:run",
    "misso-figure1": "misso.figure1:run",
    "misso-figure2a": "misso.figure2a:run",
    "misso-figure2b": "misso.figure2b:run",
    "mpsgd-figure1": "mpsgd.figures:figure1",
    "mpsgd-figure2": "mpsgd.figures:figure2",
    "mpsgd-figure3": "mpsgd.figures:figure3",
    "pgsvi-figure1": "pgsvi.figure1:run",
    "pgsvi-figure2": "pgsvi.figure2:run",
    "prox-proj-rates": "prox_proj.rates_figure:run",
    "prox-whitened": "prox_proj.certified:run",
    "stl-gaussian": "prox_proj.sticking:run",
}
"""The command's table of names: where each experiment is. It is imported when it is run, and not before."""


def reproduce(name: str, output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run an experiment of `EXPERIMENTS`, with its table, picture and page in the folder `output`.

    The page of a whole run begins with what the paper claims, what was measured, and a verdict.
    """
    module, _, function = EXPERIMENTS[name].partition(":")
    report = getattr(importlib.import_module(f"{__name__}.{module}"), function)(output, quick=quick, seed=seed)
    if not quick:
        from provi_lab.papers.catalogue import refresh

        refresh(Path(output), name)
    return report
