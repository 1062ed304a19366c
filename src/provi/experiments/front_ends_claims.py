"""What the front-ends' fits are compared by, and the claims about them."""

import dataclasses

import numpy as np

from provi.diagnostics.importance import ImportanceDiagnostics
from provi.experiments.front_end_models import NUMPYRO, Problem
from provi.experiments.report import Claim
from provi.result import Fit

TAIL_DRAWS = 10_000
_NOTICEABLE = 0.1  # an error of a mean or of an sd, in posterior sds, that the user should be warned of


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A fit beside NUTS, in the model's own parameters (tau, not its logarithm)."""

    problem: Problem
    front_end: str
    fit: Fit
    names: tuple[str, ...]
    mean_error: np.ndarray
    """(mean of q - mean of NUTS) / sd of NUTS."""
    deviation_error: np.ndarray
    """sd of q / sd of NUTS - 1."""
    mean_noise: np.ndarray
    """The standard error of NUTS's mean, in sds."""
    deviation_noise: np.ndarray
    offset_spread: float
    """How far the difference to NumPyro's log density is from its median, at most, over 50 draws of q."""

    @property
    def diagnosis(self) -> ImportanceDiagnostics:
        """What a user is told of the distance to the posterior."""
        return self.fit.diagnose(TAIL_DRAWS)

    @property
    def tail(self) -> float:
        """k-hat."""
        return float(self.diagnosis.pareto_k or np.nan)

    @property
    def worst(self) -> float:
        """The largest error of a mean or of an sd, in posterior sds."""
        return float(max(np.abs(self.mean_error).max(), np.abs(self.deviation_error).max()))


def claims(found: list[Comparison]) -> tuple[Claim, ...]:
    first = {each.problem.name: each for each in found if each.front_end == NUMPYRO}
    moved = [
        max(
            float(np.abs(each.mean_error - first[each.problem.name].mean_error).max()),
            float(np.abs(each.deviation_error - first[each.problem.name].deviation_error).max()),
        )
        for each in found
    ]
    good = [each for each in found if each.diagnosis.adequate]
    noticeable = [each for each in found if each.worst > _NOTICEABLE]
    warned = [not each.diagnosis.adequate for each in noticeable]
    answers = [
        Claim.of(
            "The three front-ends have the same log density, up to a constant.",
            max(each.offset_spread for each in found) < 1e-6,
            f"At 50 draws of q: largest deviation {max(each.offset_spread for each in found):.2g} nats.",
        ),
        Claim.of(
            "They give the same posterior.",
            max(moved) < 0.05,
            f"Means and sds differ by at most {max(moved):.2g} posterior sds between front-ends, where each fit is "
            f"within tol = 0.01 nats of the best or as near as its noise allows.",
        ),
        Claim.of(
            f"Where a mean or an sd is off by more than {_NOTICEABLE} posterior sds, `fit.diagnose()` warns.",
            all(warned),
            f"{sum(warned)} of {len(noticeable)} such fits; "
            + ", ".join(f"{each.problem.name} ({each.front_end}): {each.worst:.2g}" for each in noticeable),
        ),
    ]
    for each in good:
        errors = np.concatenate([each.mean_error / each.mean_noise, each.deviation_error / each.deviation_noise])
        answers.append(
            Claim.of(
                f"{each.problem.name}, {each.front_end} (no warning, k-hat {each.tail:.2f}): means and sds are within "
                f"Monte-Carlo error of NUTS.",
                np.abs(errors).max() < _largest_normal(len(errors)),
                f"Largest error {np.abs(errors).max():.2g} standard errors of NUTS, limit "
                f"{_largest_normal(len(errors)):.2g} (5% over all); {each.worst:.2g} posterior sds.",
            )
        )
    return tuple(answers)


def _largest_normal(count: int) -> float:
    """What the largest of `count` standard normal numbers exceeds with probability 5% at most."""
    from scipy.stats import norm

    return float(norm.isf(0.025 / count))
