"""Paper 004, Figure 1: MPSGD on logistic regression with a Laplace base, 300 rows, prior precision 0.1."""

from pathlib import Path

from provi.experiments.mpsgd_figures import reproduce
from provi.experiments.mpsgd_problem import Problem
from provi.experiments.report import Report
from provi.families.bases import Laplace


def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes a tenth of the dimension, the data and the budget."""
    problem = Problem("mpsgd-figure1", Laplace(), num_data=300, precision=0.1)
    return reproduce(problem, 1, Path(output), quick, seed)
