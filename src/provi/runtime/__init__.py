"""Running an algorithm: the compiled loop, budgets, progress, checkpoints."""

from provi.runtime.budget import Budget
from provi.runtime.run import Run, run

__all__ = ["Budget", "Run", "run"]
