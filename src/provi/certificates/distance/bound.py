r"""How far q is from the posterior: KL, and what follows from it for probabilities and means.

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


@dataclasses.dataclass(frozen=True)
class EvidenceBracket:
    """`lower` <= log Z <= `upper`, in nats; every constant of prior and likelihood is in it.

    - `upper`: infinite where nothing bounds the distance of q to the posterior. - `confidence`: of both together.
    - `status`: 'proven' or 'statistical', of the weaker end; 'none' without an upper end.
    - `proven_upper`: a proven upper end, which may be larger than a statistical one, or infinite.
    """

    lower: float
    upper: float
    confidence: float
    status: str
    proven_upper: float = math.inf

    @property
    def width(self) -> float:
        """How much is not known."""
        return self.upper - self.lower

    def __str__(self) -> str:
        if not math.isfinite(self.upper):
            return f"log evidence at least {rounded_down_text(self.lower)} nats; no upper bound"
        ends = f"[{rounded_down_text(self.lower)}, {rounded_up_text(self.upper)}]"
        return f"log evidence in {ends} nats ({self.status}, confidence {self.confidence:g})"


class Deferred:
    """A bound that is computed when it is first asked for: its draws take longer than many a fit."""

    def __init__(self, function: Callable[[], "PosteriorBound | None"]) -> None:
        self._function: Callable[[], PosteriorBound | None] | None = double_precision(function)
        self._found: PosteriorBound | None = None

    def __call__(self) -> "PosteriorBound | None":
        """The bound, computed once."""
        if self._function is not None:
            self._found, self._function = self._function(), None
        return self._found


@dataclasses.dataclass(frozen=True)
class PosteriorBound:
    """Upper bounds on the distance between q and the posterior, each in words of the user's own parameters.

    - `kl`: nats, at the level `confidence`; `status`: 'proven' (finite-sample valid) or 'statistical' (what lies beyond
      the draws is not bounded, or only loosely).
    - `coordinate_error`: for each parameter a bound on both |mean_q - mean_p| and |sd_q - sd_p|.
    - `num_samples`: draws. - `estimate`: of the quantity that bounds the KL; `statistical`, `proven`: its two bounds.
    - `evidence`: the bracket of the log evidence, where the same draws gave it.
    """

    kl: float
    coordinate_error: tuple[float, ...]
    confidence: float
    num_samples: int
    status: str = "statistical"
    estimate: float = math.nan
    statistical: float = math.inf
    proven: float = math.inf
    evidence: EvidenceBracket | None = None

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
            ends = {name: math.inf if bracket[name] is None else bracket[name] for name in ("upper", "proven_upper")}
            fields["evidence"] = EvidenceBracket(**{**bracket, **ends})
        return cls(**{**fields, "coordinate_error": tuple(data["coordinate_error"])})

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


def rounded_down_text(value: float) -> str:
    """With three decimals, never above the value."""
    return "-inf" if value == -math.inf else f"{math.floor(value * 1000) / 1000:.3f}"


def rounded_up_text(value: float) -> str:
    """With three decimals, never below the value."""
    return "inf" if value == math.inf else f"{math.ceil(value * 1000) / 1000:.3f}"
