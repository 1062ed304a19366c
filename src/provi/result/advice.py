"""What to do where q is not close to the posterior: only what exists, was not done yet, and is known to help here.

A correction by importance is tried before it is advised. What helps on which model, and how much, is a table in
`tests/result/test_advice.py`.
"""

import dataclasses
import warnings
from typing import TYPE_CHECKING

from provi.diagnostics.importance import ImportanceDiagnostics
from provi.diagnostics.pareto import tail_advice
from provi.families.location_scale import LocationScale

if TYPE_CHECKING:
    from provi.result.posterior import Posterior

LARGEST_DENSE = 500
"""Dimensions up to which the full covariance is fitted like any other."""


@dataclasses.dataclass(frozen=True)
class Hint:
    """One thing to do: its `name`, and the `text` with the call."""

    name: str
    text: str


def with_advice(posterior: "Posterior", found: ImportanceDiagnostics) -> ImportanceDiagnostics:
    """The diagnosis with advice for this q: what was searched, what other modes hold, and what to do next."""
    modes, constants = posterior.modes, posterior.target.constants
    missed = 0.0 if modes is None else modes.missed
    found = dataclasses.replace(found, missed=missed)
    advised = () if found.adequate else tuple(hint.text for hint in hints(posterior, found))
    words = tail_advice(
        found.pareto_k,
        found.num_draws,
        found.total_variation,
        searched=constants.log_concave.known or (modes is not None and modes.searched),
        missed=missed,
        hints=advised,
    )
    return dataclasses.replace(found, advice=words)


def hints(posterior: "Posterior", found: ImportanceDiagnostics) -> tuple[Hint, ...]:
    """What may help a q that is not adequate, the cheapest first."""
    family, made = posterior.family, []
    if isinstance(family, LocationScale) and family.scale in ("diagonal", "low_rank") and family.dim <= LARGEST_DENSE:
        made.append(
            Hint(
                "full covariance",
                f"take the full covariance, provi.fit(target, provi.families.Gaussian({family.dim}))",
            )
        )
    size = _effective_size(posterior, found)
    if size is not None:
        words = f"correct q by importance, fit.posterior.corrected() (about {size:.0%} of its draws count)"
        made.append(Hint("corrected", words))
    if isinstance(family, LocationScale) and family.dim <= LARGEST_DENSE:
        made.append(Hint("auto", 'take a richer family, provi.fit(target, family="auto")'))
    made.append(Hint("exact", "draw from the posterior itself, fit.sample_exact(), by NUTS that q starts"))
    return tuple(made)


def _effective_size(posterior: "Posterior", found: ImportanceDiagnostics) -> float | None:
    """The share of the draws that count after a correction; None where it does not work, or modes are missed."""
    if found.missed > 0.01 or not posterior.family.has_density:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tried = posterior.corrected(found.num_draws)
    except ValueError:
        return None
    return tried.effective_sample_size / tried.num_draws if tried.reliable else None
