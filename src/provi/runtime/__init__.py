"""Running an algorithm: the compiled loop, budgets, progress, checkpoints."""

from provi.runtime.minimise import minimise_split, minimise_sum
from provi.runtime.run import Budget, Run, run

__all__ = ["Budget", "Run", "minimise_split", "minimise_sum", "run"]
