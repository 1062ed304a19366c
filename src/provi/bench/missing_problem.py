"""The problem that the methods of `provi bench missing` get: a table with NaN in one file. Needs nothing but NumPy."""

import dataclasses
from pathlib import Path

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class MissingProblem:
    """Logistic regression of `response`, 0 or 1, on Gaussian `features`, NaN where missing.

    An answer is handed back as `mean`, the coefficients (intercept first) and then the covariates' means, and
    `covariance`, that of the covariates. `name` is the same for data sets that differ in their `seed` alone.
    """

    name: str
    features: np.ndarray
    response: np.ndarray
    seed: int = 0

    def save(self, path: Path) -> None:
        """Write the fields to an npz file."""
        np.savez(path, **vars(self))

    @staticmethod
    def load(path: Path) -> "MissingProblem":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return MissingProblem(str(file["name"]), file["features"], file["response"], int(file["seed"]))
