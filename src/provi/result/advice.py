"""What to do where q is not close to the posterior: only what exists, was not done yet, and is known to help here.

A correction by importance is tried before it is advised. What helps on which model, and how much, is a table in
`tests/result/test_advice.py`.
"""

import dataclasses
import warnings
from typing import TYPE_CHECKING

from provi.diagnostics.importance import ImportanceDiagnostics
from provi.diagnostics.pareto import SMALL_ERROR, tail_advice, usable_k
from provi.families.location_scale import LocationScale
from provi.result.summary import parameter_values

if TYPE_CHECKING:
    from provi.result.corrected import CorrectedPosterior
    from provi.result.posterior import Posterior

LARGEST_DENSE = 500
"""Dimensions up to which the full covariance is fitted like any other."""

_FEWEST, _MANY, _SEED, _NAMED = 10_000, 40_000, 11, 3


@dataclasses.dataclass(frozen=True)
class Hint:
    """One thing to do: its `name`, and the `text` with the call."""

    name: str
    text: str


def with_advice(posterior: "Posterior", found: ImportanceDiagnostics) -> ImportanceDiagnostics:
    """The diagnosis with advice for this q: what was searched, what other modes hold, and what to do next."""
    modes, constants = posterior.modes, posterior.target.constants
    missed = 0.0 if modes is None else modes.missed
    found = _with_moments(posterior, dataclasses.replace(found, missed=missed))
    error, wrong = found.moment_error, found.wrong
    advised = () if found.adequate else tuple(hint.text for hint in hints(posterior, found))
    words = tail_advice(
        found.pareto_k,
        found.num_draws,
        found.total_variation,
        searched=constants.log_concave.known or (modes is not None and modes.searched),
        missed=missed,
        hints=advised,
    )
    if wrong and max(found.total_variation, missed) <= SMALL_ERROR:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        words = (
            f"means or standard deviations of {', '.join(wrong[:_NAMED])}{more} are off by up to {error:.2g} of a "
            f"standard deviation, as weighted draws or other modes say, though no probability is by much. {words}"
        )
    elif found.unknown and max(found.total_variation, missed) <= SMALL_ERROR:
        words = (
            f"the standard deviations cannot be told from draws around q: rare ones count for much (k-hat "
            f"{found.pareto_k:.2f}, and no less with heavier tails). {words}"
        )
    return dataclasses.replace(found, advice=words)


def _with_moments(posterior: "Posterior", found: ImportanceDiagnostics) -> ImportanceDiagnostics:
    """With the largest error of a parameter's mean or deviation under q, and the parameters where it is above 0.1.

    By weighted draws, in the model's own space; and in the free coordinates by the modes that q does not reach: a
    mode of one per cent of the evidence, twenty deviations away, doubles a deviation. A log-concave density has
    neither, up to what its probabilities say already.
    """
    constants, modes = posterior.target.constants, posterior.modes
    if constants.log_concave.known or not posterior.family.has_density:
        return found
    names, errors = [], []
    if modes is not None and modes.missed > 0:
        names += list(posterior.names)
        errors += list(modes.moment_errors(posterior.mean, posterior.covariance))
    heavy = not found.pareto_k < usable_k(found.num_draws)
    tried = _tried(posterior, _MANY if heavy else max(found.num_draws, _FEWEST))
    if tried is not None and tried.moments is not None:
        own = parameter_values(posterior.target, posterior.sample(tried.num_draws, _SEED))[1]
        names += list(tried.parameters)
        errors += list(tried.moments.discrepancy(own.mean(axis=0), own.std(axis=0)))
    wrong = [name for name, error in zip(names, errors, strict=True) if error > SMALL_ERROR]
    heavy = heavy and (tried is None or not tried.reliable)
    return dataclasses.replace(
        found, moment_error=float(max(errors, default=0.0)), wrong=tuple(dict.fromkeys(wrong)), unknown=heavy
    )


def _tried(posterior: "Posterior", num_draws: int) -> "CorrectedPosterior | None":
    """The correction by this many draws, without its warnings; None where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return posterior.corrected(num_draws)
    except ValueError:
        return None


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
    if isinstance(family, LocationScale) and family.dim <= LARGEST_DENSE and not posterior.richer_tried:
        made.append(Hint("auto", 'take a richer family, provi.fit(target, family="auto")'))
    made.append(Hint("exact", "draw from the posterior itself, fit.sample_exact(), by NUTS that q starts"))
    return tuple(made)


def _effective_size(posterior: "Posterior", found: ImportanceDiagnostics) -> float | None:
    """The share of the draws that count after a correction; None where it does not work, or modes are missed."""
    if found.missed > 0.01 or not posterior.family.has_density:
        return None
    tried = _tried(posterior, max(found.num_draws, _FEWEST))
    if tried is None or not tried.reliable:
        return None
    return tried.effective_sample_size / tried.num_draws
