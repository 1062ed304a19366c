r"""How far q is from the posterior: KL, and what follows from it for the evidence, for probabilities and for means.

Everything follows from a bound K on KL(q || p). Total variation: Pinsker and Bretagnolle-Huber, $TV \le
\min(\sqrt{K/2}, \sqrt{1 - e^{-K}})$. An interval that holds the share a of q: data processing, $a\log\frac ab + (1 -
a)\log\frac{1 - a}{1 - b} \le K$ for its posterior probability b. Means and deviations: Talagrand's inequality in the
metric of a lower bound H of the potential's Hessian, $W_H(q, p)^2 \le 2K$, so that for a coordinate
$(\Delta\text{mean}_j)^2 + (\Delta\text{sd}_j)^2 \le 2K(H^{-1})_{jj}$. Proofs: docs/theory/posterior.md.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from provi.core.arguments import double_precision

_LARGEST_ERROR, LEAST_CONTENT = 0.5, 0.5
"""Errors of a probability from which, and contents of an interval below which, a bound says nothing worth a word."""


@dataclasses.dataclass(frozen=True)
class EvidenceBracket:
    """`lower` <= log Z <= `upper`, in nats; every constant of prior and likelihood is in it.

    - `upper`: infinite where nothing bounds the distance of q to the posterior. - `confidence`: of both together.
    - `status`: 'proven' or 'statistical', of the weaker end; 'none' without an upper end.
    - `given`: what Z is that of, where it is not the whole integral: "on the nodes" of a rule over hyperparameters.
    """

    lower: float
    upper: float
    confidence: float
    status: str
    given: str = ""

    @property
    def width(self) -> float:
        """How much is not known."""
        return self.upper - self.lower

    @property
    def ends(self) -> str:
        """The two ends in words, rounded outwards."""
        given = f"{self.given} " if self.given else ""
        if not math.isfinite(self.upper):
            return f"log evidence {given}at least {rounded_down_text(self.lower)}"
        return f"log evidence {given}in [{rounded_down_text(self.lower)}, {rounded_up_text(self.upper)}]"

    def __str__(self) -> str:
        if not math.isfinite(self.upper):
            return f"{self.ends} nats; no upper bound"
        return f"{self.ends} nats ({self.status}, confidence {self.confidence:g})"


class Deferred:
    """A bound that is computed when it is first asked for: its draws take longer than many a fit.

    `quick`: whether printing may ask for it.
    """

    def __init__(self, function: Callable[[], "PosteriorBound | None"], quick: bool = True) -> None:
        self.quick = quick
        self._function: Callable[[], PosteriorBound | None] | None = double_precision(function)
        self._found: PosteriorBound | None = None

    @property
    def known(self) -> bool:
        """Whether it was asked for already."""
        return self._function is None

    @property
    def slow(self) -> bool:
        """Whether to ask for it now would keep people waiting."""
        return not (self.quick or self.known)

    def __getstate__(self) -> dict[str, Any]:
        """A pickle holds the bound and not what computes it."""
        return {"_function": None, "_found": self(), "quick": True}

    def __call__(self) -> "PosteriorBound | None":
        """The bound, computed once."""
        if self._function is not None:
            self._found, self._function = self._function(), None
        return self._found


@dataclasses.dataclass(frozen=True)
class PosteriorBound:
    """Upper bounds on the distance between q and the posterior, each in words of the user's own parameters.

    - `kl`: nats, at the level `confidence`; `status`: 'proven' (valid for any number of draws) or 'statistical' (the
      confidence is asymptotic).
    - `coordinate_error`: for each parameter a bound on both |mean_q - mean_p| and |sd_q - sd_p|.
    - `num_samples`: draws. - `estimate`: of the quantity that bounds the KL.
    - `evidence`: the bracket of the log evidence, where the same draws gave it.
    - `deviations`: standard deviations of q, in whose units `coordinate_error` can be read; empty where not known.
    """

    kl: float
    coordinate_error: tuple[float, ...]
    confidence: float
    num_samples: int
    status: str = "statistical"
    estimate: float = math.nan
    evidence: EvidenceBracket | None = None
    deviations: tuple[float, ...] = ()

    @property
    def total_variation(self) -> float:
        """The error of any posterior probability."""
        return total_variation(self.kl)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PosteriorBound":
        """From the plain data of `Certificate.to_dict`, also of files written before there were two kinds of bounds."""
        known = {field.name for field in dataclasses.fields(cls)}
        fields = {name: value for name, value in data.items() if name in known and value is not None}
        bracket = fields.get("evidence")
        if bracket is not None:
            ends = {name: math.inf if bracket[name] is None else bracket[name] for name in ("upper",)}
            fields["evidence"] = EvidenceBracket(**{**bracket, **ends})
        errors = tuple(math.inf if error is None else error for error in data["coordinate_error"])
        return cls(**{**fields, "coordinate_error": errors, "deviations": tuple(data.get("deviations", ()))})

    @property
    def relative_error(self) -> tuple[float, ...]:
        """`coordinate_error` in standard deviations of q; empty where these are not known."""
        pairs = zip(self.coordinate_error, self.deviations, strict=False)
        return tuple(error / deviation if deviation > 0 else math.inf for error, deviation in pairs)

    @property
    def informative(self) -> bool:
        """Whether it says something of probabilities: that none is off by a half. Intervals of 94% then hold a half."""
        return self.total_variation < _LARGEST_ERROR and self.content(0.94) >= LEAST_CONTENT

    def content_words(self, probability: float) -> str:
        """What an interval with the share `probability` of q holds, as a sentence without its end."""
        least = share_down(self.content(probability))
        return f"Every {100 * probability:g}% interval holds at least {least} of the posterior"

    def content(self, probability: float) -> float:
        """The least posterior probability of any set that holds the share `probability` of q."""
        return least_content(probability, self.kl)


def total_variation(kl: float) -> float:
    """The smaller of Pinsker's and of Bretagnolle and Huber's bound."""
    return min(math.sqrt(kl / 2), math.sqrt(-math.expm1(-kl)))


def least_content(probability: float, kl: float) -> float:
    """The smallest b with kl(probability || b) <= `kl`, rounded down: p(A) of a set A with q(A) = `probability`."""
    a = float(probability)

    def divergence(b: float) -> float:
        return a * math.log(a / b) + (1 - a) * (math.log1p(-a) - math.log1p(-b))

    if not math.isfinite(kl):
        return 0.0
    low, high = 0.0, a
    for _ in range(200):
        middle = (low + high) / 2
        if middle <= 0 or divergence(middle) > kl:
            low = middle
        else:
            high = middle
    return low


def share_down(share: float) -> str:
    """A share in percent, rounded down: to a whole number, from 90% on to a tenth."""
    return f"{math.floor(100 * share)}%" if share < 0.9 else f"{math.floor(1000 * share) / 10:g}%"


def rounded_down_text(value: float) -> str:
    """With three decimals, never above the value."""
    return "-inf" if value == -math.inf else f"{math.floor(value * 1000) / 1000:.3f}"


def rounded_up_text(value: float) -> str:
    """With three decimals, never below the value."""
    return "inf" if value == math.inf else f"{math.ceil(value * 1000) / 1000:.3f}"
