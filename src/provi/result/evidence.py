"""Brackets of the log evidence, and what they prove when models are compared."""

import dataclasses
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from provi.certificates.certificate import Certificate, evidence_bracket
from provi.certificates.distance.bound import EvidenceBracket, rounded_down_text, rounded_up_text
from provi.core.notebook import as_html


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models in the order of their evidence, and the bounds on their differences; it prints as a table.

    - `names`, `brackets`: the best first. - `weights`: (models, 2), bounds on the posterior probability of each under
      equal prior probabilities. - `confidence`: of everything together. - `status`: of the weakest bracket.
    """

    names: tuple[str, ...]
    brackets: tuple[EvidenceBracket, ...]
    weights: np.ndarray
    confidence: float
    status: str

    def log_bayes_factor(self, first: str, second: str) -> tuple[float, float]:
        """Bounds on log p(data | first) - log p(data | second)."""
        one, two = (self.brackets[self._index(name)] for name in (first, second))
        return one.lower - two.upper, one.upper - two.lower

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"no model is called {name!r}; there are {', '.join(self.names)}.")
        return self.names.index(name)

    @property
    def verdict(self) -> str:
        """What is decided, in one sentence."""
        best, level = self.names[0], f"{self.status}, confidence {self.confidence:g}"
        given = sorted({bracket.given for bracket in self.brackets if bracket.given})
        if given:  # what a rule over hyperparameters leaves out is estimated, and said with the fit
            level = f"{' and '.join(given)}, {level}"
        beaten = [name for name in self.names[1:] if self.log_bayes_factor(best, name)[0] > 0]
        if self.decided:
            least = min(self.log_bayes_factor(best, name)[0] for name in self.names[1:])
            return f"{best} has the largest evidence: by at least {rounded_down_text(least)} nats ({level})."
        open_ = [name for name in self.names if name != best and name not in beaten]
        return f"Not decided between {best} and {', '.join(open_)}: their brackets overlap ({level})."

    @property
    def decided(self) -> bool:
        """Whether one model has the largest evidence, by the brackets."""
        return all(self.log_bayes_factor(self.names[0], name)[0] > 0 for name in self.names[1:])

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page: the verdict, the brackets as a picture, the table."""
        from provi.report.html.page import write_comparison

        return write_comparison(self, path)

    def table(self) -> Table:
        """Rank, bracket of the log evidence, bounds on the log Bayes factor against the best, probability."""
        table = Table(title="Models by evidence", title_justify="left", title_style="bold", show_edge=False)
        for column in ("", "rank", "log evidence", "log Bayes factor to the first", "probability", "status"):
            table.add_column(column, justify="left" if column in ("", "status") else "right")
        for rank, (name, bracket) in enumerate(zip(self.names, self.brackets, strict=True)):
            low, high = self.log_bayes_factor(name, self.names[0]) if rank else (0.0, 0.0)
            factor = f"{rounded_down_text(low)} to {rounded_up_text(high)}" if rank else "0"
            share = f"{_shown(self.weights[rank, 0])} to {_shown(self.weights[rank, 1])}"
            ends = f"{rounded_down_text(bracket.lower)} to {rounded_up_text(bracket.upper)}"
            table.add_row(Text(name), str(rank), ends, factor, share, bracket.status)
        return table

    def to_dict(self) -> dict[str, dict[str, float | int | str]]:
        """Numbers by model name: `pandas.DataFrame.from_dict(comparison.to_dict(), orient="index")` is a table."""
        found = {}
        for rank, (name, bracket) in enumerate(zip(self.names, self.brackets, strict=True)):
            low, high = self.log_bayes_factor(name, self.names[0]) if rank else (0.0, 0.0)
            found[name] = {
                "rank": rank,
                "log_evidence_lower": bracket.lower,
                "log_evidence_upper": bracket.upper,
                "log_bayes_factor_lower": low,
                "log_bayes_factor_upper": high,
                "probability_lower": float(self.weights[rank, 0]),
                "probability_upper": float(self.weights[rank, 1]),
                "status": bracket.status,
            }
        return found

    def _repr_html_(self) -> str:
        return as_html(self.verdict, self.table())

    def __str__(self) -> str:
        console = Console(width=118, file=io.StringIO())
        console.print(self.table())
        console.print(self.verdict, markup=False, highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def compare(*fits: Any, names: Sequence[str] | None = None) -> Comparison:
    """Which model has the larger evidence, and by how much at least.

    The difference of two brackets of the log evidence bounds the log Bayes factor:
    `provi.compare(small, large)`, or `provi.compare({"small": small, "large": large})` as in ArviZ.

    **Arguments:**

    - `fits`: results of `provi.fit` for models of the same data; or one dictionary of them by name.
    - `names`: of the models; "model 1", "model 2", ... if not given.

    **Returns:** a `Comparison`. A model whose distance to the posterior is not bounded has no upper end.
    """
    if len(fits) == 1 and isinstance(fits[0], Mapping):
        if names is not None:
            raise ValueError("names are the keys of the dictionary: leave out names=.")
        names, fits = tuple(str(name) for name in fits[0]), tuple(fits[0].values())
    if len(fits) < 2:
        raise ValueError(f"compare needs two fits or more, got {len(fits)}.")
    titles = [f"model {i + 1}" for i in range(len(fits))] if names is None else [str(name) for name in names]
    if len(titles) != len(fits) or len(set(titles)) != len(titles):
        raise ValueError(f"names must hold {len(fits)} different names, got {titles}.")
    for title, fit in zip(titles, fits, strict=True):
        if not hasattr(fit, "evidence") or not hasattr(fit, "certificate"):
            raise TypeError(f"{title} must be a result of provi.fit, not {type(fit).__name__}.")
    return compare_evidence(titles, [fit.evidence for fit in fits], [response_fingerprint(fit.target) for fit in fits])


def compare_evidence(
    titles: Sequence[str], brackets: Sequence[EvidenceBracket], responses: Sequence[str | None]
) -> Comparison:
    """The comparison of brackets that are known already, as those of saved fits.

    **Arguments:**

    - `titles`: of the models. - `responses`: a `response_fingerprint` each, None where it is not known.
    """
    known = [(title, response) for title, response in zip(titles, responses, strict=True) if response is not None]
    for title, response in known[1:]:
        if response != known[0][1]:
            raise ValueError(
                f"{known[0][0]} and {title} were fitted to different responses: a Bayes factor compares models of the "
                f"same data."
            )
    order = sorted(range(len(brackets)), key=lambda i: -_middle(brackets[i]))
    ranked = tuple(brackets[i] for i in order)
    worst = next((word for word in ("none", "statistical") if any(b.status == word for b in ranked)), "proven")
    confidence = max(1 - sum(1 - bracket.confidence for bracket in ranked), 0.0)
    return Comparison(tuple(titles[i] for i in order), ranked, _weights(ranked), round(confidence, 12), worst)


def _middle(bracket: EvidenceBracket) -> float:
    return bracket.lower if not math.isfinite(bracket.upper) else (bracket.lower + bracket.upper) / 2


def _weights(brackets: Sequence[EvidenceBracket]) -> np.ndarray:
    """Bounds on each model's probability: its own end against the opposite ends of the others."""
    found = []
    for own, bracket in enumerate(brackets):
        others = [other for i, other in enumerate(brackets) if i != own]
        # Nothing, not next to nothing, where the evidence of another has no upper bound.
        ends = [other.upper - bracket.lower for other in others]
        low = 1 / (1 + sum(math.exp(end) if end < 700 else math.inf for end in ends))
        high = 1 / (1 + sum(math.exp(min(other.lower - bracket.upper, 700)) for other in others))
        found.append((low, high))
    return np.asarray(found)


def response_fingerprint(target: Any) -> str | None:
    """What says whether two targets have the same responses, in whatever order; None where there is not one response.

    In single precision, in which a target may hold what another has in double.
    """
    data = {} if target is None else target.observed_data
    if len(data) != 1:
        return None
    values = np.sort(np.asarray(next(iter(data.values())), np.float32).ravel())
    return hashlib.sha256((values + 0.0).astype("<f4").tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class SavedEvidence:
    """What a file of `Fit.save` says of the evidence; it is read without the target and without the draws."""

    evidence: EvidenceBracket
    response: str | None
    call: str | None


def saved_evidence(path: str | Path) -> SavedEvidence:
    """The bracket of the log evidence in a file of `Fit.save`, or a `ValueError` that names the file."""
    from provi.result.storage import opened_fit  # which imports this file

    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    with opened_fit(path) as (data, _):
        certificate = Certificate.from_dict(data["certificate"])
        bracket = evidence_bracket(certificate, data["elbo"]["value"], data["elbo"]["standard_error"])
        return SavedEvidence(bracket, data.get("response"), data.get("call"))


def _shown(share: float) -> str:
    return f"{share:.3g}"
