"""What a default method hands back."""

import dataclasses
from typing import Any

import numpy as np

from provi.certificates.certificate import Certificate
from provi.runtime.run import Budget, Run


@dataclasses.dataclass(frozen=True)
class Answer:
    """The run and its certificate."""

    run: Run
    certificate: Certificate


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asked for: `options` go to `runtime.run` (progress, checkpoint, resume)."""

    tol: float
    confidence: float
    budget: Budget
    seed: int
    options: dict[str, Any]


def certificate_seed(seed: int, attempt: int) -> int:
    """A seed for the draws of the `attempt`-th certificate: none of them was used by the fit or by another attempt."""
    return int(np.random.SeedSequence((seed, 1, attempt)).generate_state(1)[0])
