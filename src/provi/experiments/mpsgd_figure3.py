"""Paper 004, Figure 3: MPSGD on logistic regression with a Uniform base, 2000 rows, prior precision 0.5."""

from pathlib import Path

from provi.experiments.mpsgd_figures import reproduce
from provi.experiments.mpsgd_problem import Problem
from provi.experiments.report import Report
from provi.families.bases import Uniform


def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes a tenth of the dimension, the data and the budget."""
    problem = Problem("mpsgd-figure3", Uniform(), num_data=2000, precision=0.5)
    return reproduce(problem, 3, Path(output), quick, seed)
