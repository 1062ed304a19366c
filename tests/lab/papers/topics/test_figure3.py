"""Figure 3 of paper 002: the split of a corpus, the scores, the clock, the verdicts' rules, and a small run."""

import csv
import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import scipy.special

from provi.models import CorrelatedTopicModel
from provi.models.topics.completion import split_tokens
from provi_lab.common.curves import Curve
from provi_lab.papers import reproduce
from provi_lab.papers.topics import measure as ctm_measure
from provi_lab.papers.topics.figure3 import LOOKS, claims, mean_loss, paired_difference
from provi_lab.papers.topics.measure import (
    COMMON,
    DELTA,
    DIAGONAL,
    EQUATION_20,
    FULL,
    LAPLACE,
    MEAN_FIELD,
    METHODS,
    NATS,
    Corpus,
    document_losses,
    follow,
    paper_losses,
    rows_of,
    split_corpus,
    synthetic_problem,
)


@pytest.fixture(scope="module")
def task():
    return synthetic_problem(0)  # as in the small run, so that programs are compiled once


def words_of(counts, document):
    """The words of a document one by one."""
    row = counts[[document]].tocoo()
    return np.repeat(row.col, row.data.astype(int))


def test_the_split_keeps_every_seen_word_once():
    rng = np.random.default_rng(3)
    counts = scipy.sparse.csr_matrix((rng.random((41, 60)) < 0.03) * rng.integers(1, 5, (41, 60)).astype(float))
    problem = split_corpus("c", counts, 3, 7, seed=5)
    order = np.random.default_rng(5).permutation(41)
    np.testing.assert_array_equal(problem.train.toarray(), counts[order[:21]].toarray())
    test, seen = counts[order[21:]].toarray(), np.asarray(problem.train.sum(axis=0)).ravel() > 0
    np.testing.assert_array_equal((problem.observed + problem.held_out).toarray(), test * seen)
    assert not seen.all() and problem.unseen == pytest.approx(test[:, ~seen].sum() / test.sum())
    assert problem.test_words.sum() == problem.held_out.data.sum() and problem.held_out.data.min() >= 1
    assert np.abs(problem.observed.sum(axis=1) - problem.held_out.sum(axis=1)).max() <= 1 + test[:, ~seen].sum()
    again, other = split_corpus("c", counts, 3, 7, seed=5), split_corpus("c", counts, 3, 7, seed=6)
    np.testing.assert_array_equal(again.held_out.toarray(), problem.held_out.toarray())
    assert (other.train.toarray() != problem.train.toarray()).any()
    frequencies = problem.train.toarray().sum(axis=0) / problem.train.sum()
    logs = [np.log(frequencies[word]) for document in range(20) for word in words_of(problem.held_out, document)]
    assert problem.unigram_loss == pytest.approx(-np.mean(logs))


def two_topics(mean, root):
    """A stand-in for a fitted model of two topics and three words, whose documents all have the same posterior."""
    components = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])

    def posteriors(observed):
        rows = np.arange(observed.shape[0])
        both = SimpleNamespace(mean=np.tile(mean, (len(rows), 1)), root=np.tile(root, (len(rows), *[1] * root.ndim)))
        # Two blocks out of order, the second filled up, as the estimator's may be.
        yield rows[2:], None, both
        yield rows[:2], None, both

    return SimpleNamespace(components_=components, _posteriors=posteriors)


def test_the_papers_score_is_its_integral(monkeypatch):
    monkeypatch.setattr(ctm_measure, "PAPER_DRAWS", 200_000)
    held_out = scipy.sparse.csr_matrix(np.array([[5, 1, 0], [0, 0, 0], [1, 1, 9]], float))
    problem = Corpus("p", held_out, held_out, held_out, 0.0, 2, 2)
    mean, root = np.array([0.3, -0.5]), np.array([[0.8, 0.0], [-0.4, 0.6]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights /= weights.sum()
    for chosen, covariance in ((root, root @ root.T), (np.array([0.8, 0.6]), np.diag([0.64, 0.36]))):
        gap = np.array([1.0, -1.0])
        share = scipy.special.expit(gap @ mean + math.sqrt(gap @ covariance @ gap) * nodes)
        model = two_topics(mean, chosen)
        chances = share[:, None] * model.components_[0] + (1 - share)[:, None] * model.components_[1]
        expected = [-sum(np.log(weights @ chances[:, n] ** row[n]) for n in range(3)) for row in held_out.toarray()]
        # Relative errors of the means over the draws: at most about 2 for nine powers, over sqrt(200 000).
        np.testing.assert_allclose(paper_losses(model, problem), expected, atol=0.02)
    model.transform = lambda observed: np.tile([weights @ share, weights @ (1 - share)], (3, 1))
    token = [-sum(row[n] * np.log(weights @ chances[:, n]) for n in range(3)) for row in held_out.toarray()]
    np.testing.assert_allclose(document_losses(model, problem), token, rtol=1e-12)
    assert (np.array(expected) <= token).all()


class StandIn:
    """In place of the estimator: a pass takes a second of the clock."""

    clock, made = [0.0], []

    def __init__(self, num_topics, **arguments):
        self.arguments = {"num_topics": num_topics, **arguments}
        StandIn.made.append(self)

    def fit(self, counts):
        for passes in range(1, self.arguments["max_iter"] + 1):
            self.clock[0] += 1.0
            self.elbo_ = np.zeros(passes)
            self.arguments["callback"](self)
        return self

    def set_params(self, **arguments):
        self.arguments = {**self.arguments, **arguments}
        return self


def slow_losses(model, problem):
    StandIn.clock[0] += 100.0
    return np.full(len(problem.test_words), len(model.elbo_) + 0.5 * (model.arguments["inference"] == "pgsvi"))


def test_scores_are_off_the_clock_and_of_the_right_pass(monkeypatch, task):
    monkeypatch.setattr(ctm_measure, "time", SimpleNamespace(perf_counter=lambda: StandIn.clock[0]))
    monkeypatch.setattr(ctm_measure, "CorrelatedTopicModel", StandIn)
    for name in ("document_losses", "paper_losses"):
        monkeypatch.setattr(ctm_measure, name, slow_losses)
    curve = follow(task, LAPLACE, 3, (1, 2, 5))
    scale = len(task.test_words) / task.test_words.sum()
    np.testing.assert_allclose(curve[NATS], scale * np.array([1, 2, 5]))
    np.testing.assert_array_equal(curve["seconds"], [1, 2, 5])
    assert (curve.more["own"] == 5).all() and (curve.more["common"] == 5.5).all() and (curve.more["paper"] == 5).all()
    first, _, last = rows_of(curve, task.test_words.sum())
    assert (first["passes"], first["nats a word"], first[COMMON]) == (1, curve[NATS][0], "")
    assert (last[COMMON], last[EQUATION_20]) == (pytest.approx(5.5 * scale), pytest.approx(5 * scale))
    full = follow(task, FULL, 3, (1, 2, 8))
    np.testing.assert_allclose(full[NATS], scale * np.array([1.5, 2.5, 8.5]))
    assert full.more["common"] is full.more["own"]
    own = {"callback": None, "max_iter": None, "inference": None, "covariance": None}
    one, other = ({**model.arguments, **own} for model in StandIn.made)
    assert one == other and one["random_state"] == 3 and one["learning_rate"] == "decay" and one["tol"] is None


def made_up(method, losses, words, seed=0, seconds=None, **scores):
    """A run whose documents all have the loss of the last pass a word, unless `scores` says otherwise."""
    losses = np.array(losses, float)
    passes = np.arange(1, len(losses) + 1)
    seconds = passes.astype(float) if seconds is None else np.array(seconds, float)
    whole = {name: losses[-1] * words for name in ("own", "common", "paper")} | scores
    names = {"data": "synthetic", "method": method, "seed": seed}
    return Curve(names, {"passes": passes, "seconds": seconds, NATS: losses}, whole)


def test_standard_errors_are_of_seeds_and_of_documents(task):
    words, rng = task.test_words, np.random.default_rng(0)
    noise = rng.normal(size=len(words))
    shifts = (-0.3, -0.1, -0.2)
    theirs = [made_up(MEAN_FIELD, [2.0], words, seed) for seed in range(3)]
    ours = [made_up(FULL, [2.0 + shift], words, seed) for seed, shift in enumerate(shifts)]
    mean, error = paired_difference(task, ours + theirs, FULL, MEAN_FIELD)
    assert (mean, error) == (pytest.approx(-0.2), pytest.approx(0.1 / math.sqrt(3)))
    # Equal seeds: what is left is the error of the documents, which the delete-one jackknife gives as well.
    ours = [made_up(FULL, [1.9], words, seed, own=1.9 * words + noise) for seed in range(3)]
    mean, error = paired_difference(task, theirs[::-1] + ours, FULL, MEAN_FIELD)
    difference = noise - 0.1 * words
    left = (difference.sum() - difference) / (words.sum() - words)
    jackknife = math.sqrt((len(words) - 1) / len(words) * np.sum((left - left.mean()) ** 2))
    assert mean == pytest.approx(difference.sum() / words.sum()) and error == pytest.approx(jackknife, rel=0.03)
    assert mean_loss(task, ours, FULL) == pytest.approx(1.9 + noise.sum() / words.sum())
    assert paired_difference(task, ours + theirs, FULL, MEAN_FIELD, "common") == pytest.approx((-0.1, 0))


def test_verdicts_follow_their_rules(task):
    words = task.test_words

    def runs(full, diagonal, laplace, **arguments):
        both = ((FULL, full), (DIAGONAL, diagonal), (LAPLACE, laplace))
        return [made_up(name, [2.5, last], words, seed, **arguments) for name, last in both for seed in (0, 1)]

    better = runs(2.0, 2.1, 2.2)
    curve = made_up(FULL, [2.5, 2.2, 2.3], words, seconds=[3, 5, 7])
    assert tuple(curve.first(NATS, level, "seconds") for level in (2.2, 2.5, 2.1)) == (5, 3, np.inf)
    found = claims([task], better)
    assert [claim.verdict for claim in found] == ["holds"] * 7 + ["does not hold"]  # all are there after two seconds
    assert "than Laplace (rule" in found[0].statement and "delta" not in found[0].statement
    assert found[0].evidence == "2.0000 nats a word; against Laplace -0.2000 -+ 0.0000."
    assert found[-1].evidence == "To 2.2100 nats a word: PG-SVI 2 s; PG-SVI-MF 2 s; Laplace 2 s."
    worse = claims([task], runs(2.2, 2.1, 2.2))
    assert [claim.verdict for claim in worse[:2]] == ["does not hold", "holds"] and worse[6].verdict == "does not hold"
    rivals = [made_up(name, [2.5, 1.9], words, seed) for name in (DELTA, MEAN_FIELD) for seed in (0, 1)]
    found = claims([task], better + rivals)
    assert [claim.verdict for claim in found] == ["does not hold"] * 6 + ["holds", "does not hold"]
    assert "delta, Laplace and MF" in found[0].statement and "PG-SVI not within the run" in found[-1].evidence
    later = [made_up(LAPLACE, [2.5, 2.2], words, seed, seconds=[1, 2.5]) for seed in (0, 1)]
    assert claims([task], better[:4] + later)[-1].verdict == "holds"
    slow = [made_up(DIAGONAL, [2.5, 2.1], words, seed, seconds=[1, 3]) for seed in (0, 1)]
    assert claims([task], better[:2] + slow + later)[-1].verdict == "does not hold"
    noisy = [made_up(FULL, [2.5, last], words, seed) for seed, last in enumerate((2.0, 2.19))] + better[2:]
    assert claims([task], noisy)[0].verdict == "does not hold"
    # Each of the three scores has claims of its own.
    other = runs(2.0, 2.1, 2.2, paper=2.0 * words)
    assert [c.verdict for c in claims([task], other)[:6]] == ["holds"] * 4 + ["does not hold"] * 2


def test_every_method_has_a_look_of_its_own():
    assert set(LOOKS) == set(METHODS) == {FULL, DIAGONAL, DELTA, LAPLACE, MEAN_FIELD}
    assert len({colour for colour, _, _ in LOOKS.values()}) == len({mark for _, _, mark in LOOKS.values()}) == 5


def test_scores_are_the_estimators(task):
    """By its own document completion, on halves that still have a word that training has not seen."""
    counts = scipy.sparse.vstack([task.train, task.observed + task.held_out]).toarray()
    counts = np.pad(counts, ((0, 0), (0, 1)))
    rng = np.random.default_rng(1)
    test = np.array_split(rng.permutation(len(counts)), 2)[1]
    counts[test[:5], -1] = 3
    problem = split_corpus("c", scipy.sparse.csr_matrix(counts), 3, 20, seed=1)
    observed, held_out = split_tokens(counts[test], rng)
    assert problem.unseen > 0 and observed[:, -1].sum() > 0 and problem.observed[:, -1].sum() == 0
    model = CorrelatedTopicModel(3, inference="laplace", batch_size=20, max_iter=2, random_state=0).fit(problem.train)
    expected = -model.log_predictive(observed, held_out, seen_only=True)
    assert document_losses(model, problem).sum() / problem.test_words.sum() == pytest.approx(expected, rel=1e-9)
    # Without repeated words both scores are the same but for the draws, 1024 of chances that vary by less than 100%.
    once = Corpus("o", None, problem.observed, (problem.held_out > 0).astype(float), 0.0, 3, 20)
    np.testing.assert_allclose(paper_losses(model, once), document_losses(model, once), rtol=0.01)
    assert (paper_losses(model, problem) < document_losses(model, problem) + 0.1).all()


@pytest.mark.slow
def test_small_run(tmp_path):
    report = reproduce("ctm-figure3", tmp_path, quick=True)
    ends = (".png", ".csv", "-topics.png", "-correlations.png", ".md")
    assert [file.name for file in report.files] == [f"ctm-figure3{end}" for end in ends]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in report.files if file.suffix == ".png")
    with report.files[1].open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 2 * 3 and {row["method"] for row in rows} == {FULL, DIAGONAL, LAPLACE}
    problem, summary = synthetic_problem(0), {row["method"]: row for row in report.rows}
    for method, row in summary.items():
        last = [float(line["nats a word"]) for line in rows if (line["method"], line["passes"]) == (method, "4")]
        assert (row["after 4"], row["spread"]) == (f"{np.mean(last):.4f}", f"{np.std(last, ddof=1):.4f}")
        scores = [float(line[EQUATION_20]) for line in rows if line["method"] == method and line[EQUATION_20]]
        assert row[EQUATION_20] == f"{np.mean(scores):.4f}" < row["after 4"] < f"{problem.unigram_loss:.4f}"
        assert abs(float(row[COMMON]) - np.mean(last)) < 0.02
    assert summary[FULL][COMMON] == summary[FULL]["after 4"]
    assert len(report.claims) == 8 and all(claim.verdict != "not tested" for claim in report.claims)
    text = report.files[-1].read_text(encoding="utf-8")
    assert "80 documents to train on, 80 to test, vocabulary 16, 3 topics" in text and "Laplace" in text
