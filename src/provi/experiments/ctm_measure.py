r"""Fits of the correlated topic model by one method, scored on held-out words after some of the passes.

Of a test document's words a half gives its posterior q. The other half is scored in nats a word, lower is better:

- by words: $-\sum_nc_n\log E_q[p_n(z)]/\sum_nc_n$, with $p_n(z) = \sum_kB_{nk}softmax(z)_k$ and $c_n$ the number of
  times that word n occurs; this is what is drawn and what the claims are about;
- as in the paper's equation (20), where the power is inside: $-\sum_n\log E_q[p_n(z)^{c_n}]/\sum_nc_n$, which by
  Jensen's inequality is never more. The paper does not say by what it divides; here by the number of words.
"""

import copy
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.special

from provi.experiments.ctm_problem import Problem
from provi.experiments.report import Row
from provi.models import CorrelatedTopicModel

FULL, DIAGONAL, DELTA, LAPLACE, MEAN_FIELD = "PG-SVI", "PG-SVI-MF", "delta", "Laplace", "MF"

METHODS: dict[str, dict[str, str]] = {
    FULL: {"inference": "pgsvi", "covariance": "full"},
    DIAGONAL: {"inference": "pgsvi", "covariance": "diagonal"},
    DELTA: {"inference": "delta"},
    LAPLACE: {"inference": "laplace"},
    MEAN_FIELD: {"inference": "mean-field"},
}
"""The estimator's arguments for each of the paper's methods; all else is the same."""

COMMON, EQUATION_20 = f"topics with {FULL}", "equation (20)"
"""Columns of the tables: the score with PG-SVI's posteriors, and the paper's."""

PAPER_DRAWS = 1024
"""Draws of z for equation (20)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One fit.

    - `passes`, `seconds`, `losses`: passes made, wall-clock seconds of training until then, and nats a held-out word
      with the method's own posteriors.
    - `own`, `common`, `paper`: after the last pass, minus the log probability of all held-out words of each test
      document, with the method's own posteriors; with those of PG-SVI under the topics that this method found; and
      by equation (20) with the method's own.
    """

    data: str
    method: str
    seed: int
    passes: np.ndarray
    seconds: np.ndarray
    losses: np.ndarray
    own: np.ndarray
    common: np.ndarray
    paper: np.ndarray

    def rows(self, words: float) -> list[Row]:
        """A line a recorded pass for the CSV file; the last has the other two scores, of so many held-out words."""
        fixed = {"data": self.data, "method": self.method, "seed": self.seed}
        lines: list[Row] = [
            {**fixed, "passes": int(p), "seconds": float(s), "nats a word": float(loss), COMMON: "", EQUATION_20: ""}
            for p, s, loss in zip(self.passes, self.seconds, self.losses, strict=True)
        ]
        lines[-1].update({COMMON: float(self.common.sum()) / words, EQUATION_20: float(self.paper.sum()) / words})
        return lines

    def reaches(self, level: float) -> float:
        """Seconds of training when the loss is first seen at or below `level`; infinite if it never is."""
        below = np.flatnonzero(self.losses <= level)
        return float(self.seconds[below[0]]) if len(below) else np.inf


def compile_method(problem: Problem, method: str) -> None:
    """Two passes, since the second goes on from the first, and all scores: what follows compiles nothing."""
    follow(problem, method, 0, (2,))


def follow(problem: Problem, method: str, seed: int, passes: tuple[int, ...]) -> Curve:
    """Fit for as many passes as the last of `passes`, and score the model as it was after each of them.

    Scores are made after the fit, from copies: the clock does not see them. The seed fixes the start, and the rate
    of each step is fixed beforehand: both are the same for all methods, and so are the batches.
    """
    kept: list[tuple[int, float, Any]] = []

    def keep(model: Any) -> None:
        kept.append((len(model.elbo_), time.perf_counter() - began, copy.copy(model)))

    model: Any = CorrelatedTopicModel(
        problem.num_topics,
        max_iter=passes[-1],
        batch_size=problem.batch_size,
        tol=None,
        learning_rate="decay",
        callback=keep,
        random_state=seed,
        **METHODS[method],
    )
    began = time.perf_counter()
    model.fit(problem.train)
    kept = [entry for entry in kept if entry[0] in passes]
    words, last = problem.test_words.sum(), kept[-1][2]
    documents = [document_losses(each, problem) for _, _, each in kept]
    judge = copy.copy(last).set_params(**METHODS[FULL])
    return Curve(
        problem.title,
        method,
        seed,
        np.array(passes),
        np.array([seconds for _, seconds, _ in kept]),
        np.array([losses.sum() for losses in documents]) / words,
        documents[-1],
        documents[-1] if method == FULL else document_losses(judge, problem),
        paper_losses(last, problem),
    )


def document_losses(model: Any, problem: Problem) -> np.ndarray:
    """Minus the log probability of each test document's held-out words, each word by itself."""
    shares, held_out = model.transform(problem.observed), problem.held_out.tocoo()
    chances = np.einsum("ik,ki->i", shares[held_out.row], model.components_[:, held_out.col])
    return np.bincount(held_out.row, -held_out.data * np.log(chances), minlength=held_out.shape[0])


def paper_losses(model: Any, problem: Problem) -> np.ndarray:
    """The same by equation (20): all occurrences of a word under one draw of z."""
    held_out = problem.held_out.tocsr()
    losses = np.zeros(held_out.shape[0])
    for document, shares in _share_draws(model, problem.observed):
        part = slice(held_out.indptr[document], held_out.indptr[document + 1])
        chances, counts = shares @ model.components_[:, held_out.indices[part]], held_out.data[part]
        often = counts > 1  # of a word that occurs once the mean is simple; powers need logarithms, or they underflow
        powers = scipy.special.logsumexp(counts[often] * np.log(chances[:, often]), axis=0) - np.log(len(shares))
        losses[document] = -np.sum(np.log(np.mean(chances[:, ~often], axis=0))) - np.sum(powers)
    return losses


def _share_draws(model: Any, observed: Any) -> Iterator[tuple[int, np.ndarray]]:
    """(row, softmax of draws from its posterior) of each document, by antithetic pairs of normal draws."""
    half = np.random.default_rng(0).normal(size=(PAPER_DRAWS // 2, len(model.components_)))
    points = np.concatenate([half, -half])
    for rows, _, posterior in model._posteriors(observed):
        for row, mean, root in zip(rows, np.asarray(posterior.mean), np.asarray(posterior.root), strict=False):
            yield int(row), scipy.special.softmax(mean + (points * root if root.ndim == 1 else points @ root.T), axis=1)
