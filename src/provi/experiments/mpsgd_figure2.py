"""Paper 004, Figure 2: MPSGD on logistic regression with a Gaussian base, 1000 rows, prior precision 0.1."""

from pathlib import Path

from provi.experiments.mpsgd_figures import reproduce
from provi.experiments.mpsgd_problem import Problem
from provi.experiments.report import Report
from provi.families.bases import Normal


def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes a tenth of the dimension, the data and the budget."""
    problem = Problem("mpsgd-figure2", Normal(), num_data=1000, precision=0.1)
    return reproduce(problem, 2, Path(output), quick, seed)
