r"""The corpora of paper 002's Figure 3, and fits by one method, scored on held-out words after some of the passes.

Half of the documents are to train on. Of a test document's words a half gives its posterior q. The other half is scored
in nats a word, lower is better:

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
import scipy.sparse
import scipy.special

from provi.models import CorrelatedTopicModel
from provi.models.topics.completion import split_tokens
from provi_lab.common.curves import Curve
from provi_lab.common.tables import Row
from provi_lab.data.corpora import read_counts, unigram_loss

AP, NIPS = "AP", "NIPS"
PAPER_TOPICS, BATCH_SIZE = 10, 128

_FILES = {AP: "ap_corpus", NIPS: "nips_corpus"}


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus as all methods get it; sparse matrices of counts, one document a row, over the same vocabulary.

    - `train`: the training documents.
    - `observed`, `held_out`: of each test document a random half of the words to infer its topics from, and the words
      to predict; words that no training document has are left out of both, their share of the words is `unseen`.
    - `num_topics`, `batch_size`: of all fits. `vocabulary`: the words, None for their numbers.
    """

    title: str
    train: Any
    observed: Any
    held_out: Any
    unseen: float
    num_topics: int
    batch_size: int
    vocabulary: Any = None

    @property
    def test_words(self) -> np.ndarray:
        """The number of words to predict in each test document."""
        return np.asarray(self.held_out.sum(axis=1)).ravel()

    @property
    def unigram_loss(self) -> float:
        """Nats a word when each is predicted by its frequency in training: what a model without topics would have."""
        return unigram_loss(self.train, self.held_out)


def corpus_problem(title: str, seed: int) -> Corpus:
    """`AP` or `NIPS`, ten topics; the papers do not publish their split, so it is a random one."""
    counts, vocabulary = read_counts(_FILES[title])
    problem = split_corpus(title, counts, PAPER_TOPICS, BATCH_SIZE, seed)
    return dataclasses.replace(problem, vocabulary=vocabulary)


def synthetic_problem(
    seed: int, documents: int = 160, vocabulary: int = 16, topics: int = 3, words: int = 40
) -> Corpus:
    """Documents drawn from the model itself; topics 0 and 1 are correlated."""
    rng = np.random.default_rng([seed, documents, vocabulary])
    rows = rng.dirichlet(np.full(vocabulary, 0.1), topics)
    covariance = np.eye(topics)
    covariance[0, 1] = covariance[1, 0] = 0.7
    weights = np.exp(rng.multivariate_normal(np.zeros(topics), covariance, size=documents))
    chances = weights / weights.sum(axis=1, keepdims=True) @ rows
    counts = np.stack([rng.multinomial(words, chance / chance.sum()) for chance in chances])
    matrix = scipy.sparse.csr_matrix(counts.astype(np.float64))
    return split_corpus("synthetic", matrix, topics, documents // 8, seed)


def split_corpus(title: str, counts: Any, num_topics: int, batch_size: int, seed: int) -> Corpus:
    """A random half of the documents to train on, and the words of the others in two random halves."""
    rng = np.random.default_rng(seed)
    train, test = np.array_split(rng.permutation(counts.shape[0]), 2)
    train, test = counts[train], counts[test]
    seen = (np.asarray(train.sum(axis=0)).ravel() > 0).astype(counts.dtype)
    observed, held_out = (_only(half, seen) for half in split_tokens(test, rng))
    unseen = 1 - float((observed.sum() + held_out.sum()) / test.sum())
    return Corpus(title, train, observed, held_out, unseen, num_topics, batch_size)


def _only(counts: Any, words: np.ndarray) -> Any:
    kept = scipy.sparse.csr_matrix(counts @ scipy.sparse.diags_array(words))
    kept.eliminate_zeros()
    return kept


FULL, DIAGONAL, DELTA, LAPLACE, MEAN_FIELD = "PG-SVI", "PG-SVI-MF", "delta", "Laplace", "MF"

METHODS: dict[str, dict[str, str]] = {
    FULL: {"inference": "pgsvi", "covariance": "full"},
    DIAGONAL: {"inference": "pgsvi", "covariance": "diagonal"},
    DELTA: {"inference": "delta"},
    LAPLACE: {"inference": "laplace"},
    MEAN_FIELD: {"inference": "mean-field"},
}
"""The estimator's arguments for each of the paper's methods; all else is the same."""

NATS = "nats a word"
COMMON, EQUATION_20 = f"topics with {FULL}", "equation (20)"
"""Columns of the tables: the score with PG-SVI's posteriors, and the paper's."""

PAPER_DRAWS = 1024
"""Draws of z for equation (20)."""


def compile_method(problem: Corpus, method: str) -> None:
    """Two passes, since the second goes on from the first, and all scores: what follows with them compiles nothing."""
    follow(problem, method, 0, (2,))


def follow(problem: Corpus, method: str, seed: int, passes: tuple[int, ...], all_scores: bool = True) -> Curve:
    """Fit for as many passes as the last of `passes`, and score the model as it was after each of them.

    Scores are made after the fit, from copies: the clock does not see them. The seed fixes the start, and the rate
    of each step is fixed beforehand: both are the same for all methods, and so are the batches.

    **Returns:** passes made, wall-clock seconds of training until then, and nats a held-out word with the method's own
    posteriors. After the last pass, minus the log probability of all held-out words of each test document, as its
    `more`: with the method's own posteriors (`own`); with those of PG-SVI under the topics that this method found
    (`common`); and by equation (20) with the method's own (`paper`). Without `all_scores` the first alone.
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
    more = {"own": documents[-1]}
    if all_scores:
        judge = copy.copy(last).set_params(**METHODS[FULL])
        more["common"] = documents[-1] if method == FULL else document_losses(judge, problem)
        more["paper"] = paper_losses(last, problem)
    return Curve(
        {"data": problem.title, "method": method, "seed": seed},
        {
            "passes": np.array(passes),
            "seconds": np.array([seconds for _, seconds, _ in kept]),
            NATS: np.array([losses.sum() for losses in documents]) / words,
        },
        more,
    )


def rows_of(curve: Curve, words: float) -> list[Row]:
    """Its lines for the CSV file; the last has the other two scores, of so many held-out words."""
    lines = [{**row, COMMON: "", EQUATION_20: ""} for row in curve.rows()]
    for name, key in ((COMMON, "common"), (EQUATION_20, "paper")):
        lines[-1][name] = float(curve.more[key].sum()) / words
    return lines


def document_losses(model: Any, problem: Corpus) -> np.ndarray:
    """Minus the log probability of each test document's held-out words, each word by itself."""
    shares, held_out = model.transform(problem.observed), problem.held_out.tocoo()
    chances = np.einsum("ik,ki->i", shares[held_out.row], model.components_[:, held_out.col])
    return np.bincount(held_out.row, -held_out.data * np.log(chances), minlength=held_out.shape[0])


def paper_losses(model: Any, problem: Corpus) -> np.ndarray:
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
