"""The benchmark of topic models: its splits and scores by brute force, rows of real programs, tables and verdicts."""

import json

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

from provi_lab.bench import record as records
from provi_lab.bench import topics as bench
from provi_lab.bench.command import app
from provi_lab.bench.methods import Method
from provi_lab.bench.peers import provi as provi_peer
from provi_lab.bench.peers import sklearn as sklearn_peer
from provi_lab.bench.problems import load_problem, snapshot_steps
from provi_lab.bench.protocol import Recorder
from provi_lab.bench.throughput import sizes, throughput_cells, throughput_verdicts
from provi_lab.bench.topics import (
    OURS,
    RIVALS,
    TOPICS_METHODS,
    TOPICS_PROBLEMS,
    measure_topics,
    our_score,
    own_score,
    resampled,
    split_corpus,
    topics_cells,
    topics_verdicts,
    unigram_score,
)
from provi_lab.common.tables import markdown_cells

WORDS, TOPICS = 30, 3


def planted(documents=80, seed=0):
    """Counts of documents that are each nearly of one topic, and the topics: words 0-9, 10-19, 20-29."""
    rng = np.random.default_rng(seed)
    topics = 0.01 + np.kron(np.eye(TOPICS), np.ones((1, WORDS // TOPICS)))
    topics /= topics.sum(axis=1, keepdims=True)
    shares = rng.dirichlet(np.full(TOPICS, 0.1), size=documents)
    counts = [rng.multinomial(rng.integers(20, 40), row @ topics) for row in shares]
    return scipy.sparse.csr_matrix(np.array(counts, float)), topics


def tiny(seed=0):
    return split_corpus("tiny", planted()[0], TOPICS, seed)


def test_split_keeps_every_word_of_a_document_once():
    counts, _ = planted()
    counts = scipy.sparse.csr_matrix(scipy.sparse.hstack([counts, np.eye(80)[:, :3]]))  # words of one document each
    counts = scipy.sparse.vstack([counts, np.zeros((2, WORDS + 3)), np.eye(WORDS + 3)[:1]], format="csr")
    problem = split_corpus("tiny", counts, TOPICS, 0)
    order = np.random.default_rng(0).permutation(83)
    train, test = counts[order[:41]].toarray(), counts[order[41:]].toarray()
    seen = train.sum(axis=0) > 0
    np.testing.assert_array_equal(problem.train.toarray(), train[train.sum(axis=1) > 0][:, seen])
    whole = test[:, seen][test[:, seen].sum(axis=1) > 1]
    np.testing.assert_array_equal((problem.observed + problem.held_out).toarray(), whole)
    halves = [part.toarray().sum(axis=1) for part in (problem.observed, problem.held_out)]
    assert set(halves[0] - halves[1]) == {0.0, 1.0} and not seen.all()
    other = split_corpus("tiny", counts, TOPICS, 1)
    assert other.train.shape != problem.train.shape or (other.train != problem.train).nnz > 0


def test_file_has_no_held_out_words(tmp_path):
    problem = tiny(seed=2)
    problem.save(tmp_path / "p.npz")
    read = load_problem(tmp_path / "p.npz")
    assert (read.name, read.num_topics, read.seed, read.held_out) == ("tiny", TOPICS, 2, None)
    for name in ("train", "observed"):
        np.testing.assert_array_equal(getattr(read, name).toarray(), getattr(problem, name).toarray())
    assert read.num_tokens == problem.train.toarray().sum()
    with np.load(tmp_path / "p.npz") as file:
        assert not any("held" in name for name in file)


def test_own_score_and_unigram_are_sums_over_words():
    problem, (_, topics) = tiny(), planted()
    shares = np.random.default_rng(0).dirichlet(np.ones(TOPICS), size=problem.observed.shape[0])
    total, unigram, frequencies = 0.0, 0.0, problem.train.toarray().sum(axis=0) / problem.num_tokens
    held_out = problem.held_out.toarray()
    for document, word in zip(*np.nonzero(held_out), strict=True):
        total += held_out[document, word] * np.log(sum(shares[document, k] * topics[k, word] for k in range(TOPICS)))
        unigram += held_out[document, word] * np.log(frequencies[word])
    assert own_score(problem, 7 * topics, 2 * shares) == pytest.approx(total / held_out.sum(), abs=1e-12)
    assert unigram_score(problem) == pytest.approx(unigram / held_out.sum(), abs=1e-12)
    assert own_score(problem, topics, problem.no_shares()) is None


def test_our_score_prefers_the_true_topics():
    problem, (_, topics) = tiny(), planted()
    true, mixed, flat = (our_score(problem, x) for x in (topics, topics + topics.mean(axis=0), np.ones_like(topics)))
    assert true > mixed + 0.01 > unigram_score(problem) and flat == pytest.approx(-np.log(WORDS), abs=1e-9)
    assert our_score(problem, 5 * topics) == pytest.approx(true, abs=1e-9)


@pytest.mark.parametrize("total", [1, 3, 10, 500])
def test_last_step_has_a_snapshot(total):
    steps = snapshot_steps(total)
    assert steps[-1] == total and steps[0] >= 1 and len(set(steps)) == len(steps) <= 4


@pytest.mark.parametrize("program", [sklearn_peer.lda, sklearn_peer.lda_online, provi_peer.lda, provi_peer.ctm])
def test_programs_find_the_planted_topics(program):
    problem, record = tiny(), Recorder(60.0)
    facts = program(problem, 1.0 if program is provi_peer.ctm else 15.0, record)
    times = [snapshot[:2] for snapshot in record.snapshots]
    _, _, topics, shares, steps = record.snapshots[-1]
    np.testing.assert_allclose(topics.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-9)
    assert shares.shape == (problem.observed.shape[0], TOPICS) and steps == facts["passes"] > 0
    assert own_score(problem, topics, shares) > unigram_score(problem) + 0.3
    assert (np.diff(times, axis=0) >= 0).all() and json.dumps(facts)
    if program is provi_peer.ctm:
        assert [snapshot[4] for snapshot in record.snapshots][:2] == [1, 2] and len(record.snapshots) > 2
        cold = Recorder(60.0, largest=1)
        provi_peer.ctm(problem, 1.0, cold)
        assert len(cold.snapshots) == 1 and cold.snapshots[0][4] == 1


def test_programs_make_rows(monkeypatch):
    absent = Method("absent", "nothing", ("no_such_package",), "no-such-package", (1.0,), "x")
    broken = Method("broken", "no.such.module", (), "", (1.0,), "x")
    monkeypatch.setattr(bench, "our_score", lambda problem, topics: -float(topics.shape[1]))
    problem = tiny(seed=1)
    rows = measure_topics([problem], [TOPICS_METHODS["sklearn-batch"], absent, broken], 1.0)
    assert [row["status"] for row in rows] == ["ran", "not installed", "failed", "ran"]
    first = rows[0]
    assert first["score"] == first["curve"][-1]["score"] == -WORDS and first["wall"] == first["curve"][-1]["wall"] > 0
    assert first["steps"] == 10 and first["seed"] == 1 and first["own_score"] > rows[-1]["score"]
    assert rows[-1]["method"] == "unigram" and rows[-1]["score"] == unigram_score(problem)
    text = markdown_cells(topics_cells(rows))
    assert "pip install no-such-package" in text and "ModuleNotFoundError" in text and json.dumps(rows)


def row(key, seed, score, wall, curve=()):
    times = dict(cpu=2 * wall, cpu_compiling=2 * wall + 8, wall=wall, wall_compiling=wall + 5)
    names = dict(problem="p", seed=seed, method=TOPICS_METHODS[key].name, status="ran", note="", setting="s")
    points = [dict(steps=1, cpu=0.0, wall=time, score=value) for time, value in (*curve, (wall, score))]
    return {**names, **times, "score": score, "own_score": None, "steps": 10.0, "curve": points, "facts": {}}


def test_verdicts_and_page(tmp_path):
    rows = [row("full", seed, score, 4.0, [(1.0, -8.12)]) for seed, score in enumerate((-8.05, -8.06, -8.07))]
    rows += [row("sklearn-online", seed, -8.13, 6.0) for seed in range(3)]
    rows += [row("tomotopy-lda", seed, score, 3.0) for seed, score in enumerate((-8.055, -8.10, -8.10))]
    rows += [{"problem": "p", "seed": 0, "method": "unigram", "status": "ran", "note": "", "score": -8.4}]
    first, second = topics_verdicts(rows)
    assert first == (
        "ProVI CTM beside scikit-learn LDA, online, 10: better: yes (+0.0700 nats a word, +0.0600 at least); "
        "faster: yes (1.5 times); its score is passed after 1 s."
    )
    assert "better: yes (+0.0300 nats a word, +0.0050 at least); faster: no (0.75 times)" in second
    assert "its score is passed after 4 s" in second
    rows[0]["score"] = rows[0]["curve"][-1]["score"] = -8.06
    assert "better: no (+0.0300 nats a word, -0.0050 at least)" in topics_verdicts(rows)[1]
    rows[1]["curve"] = []
    assert "its score is not passed" in topics_verdicts(rows)[1]
    path, page = records.write_record(tmp_path, records.make_record("topics", rows))
    text = page.read_text(encoding="utf-8")
    assert "## Topic models" in text and "- ProVI CTM beside tomotopy LDA, 500: " in text
    assert "| ProVI CTM | 3 | -8.0600 | -8.0700 to -8.0600 |  | 4 (9) | 8 (16) | 10 |" in text
    assert "| unigram | 1 | -8.4000 | -8.4000 to -8.4000 |  |  |  |  |  |" in text
    assert json.loads(path.read_text())["kind"] == "topics"


def throughput_row(method, documents, topics, wall, peak=100.0):
    more = dict(words=2e5, words_a_second=2e5 / wall, passes=2.0, compiling=3.0) if method != "partial_fit" else {}
    sizes_of_row = dict(method=method, documents=documents, topics=topics)
    return {
        **sizes_of_row,
        "status": "ran",
        "note": "",
        "facts": {},
        "wall": wall,
        "cpu": wall,
        "peak_mib": peak,
        **more,
    }


def test_throughput_table_and_growth(tmp_path):
    rows = [throughput_row("fit, full", 1000, 5, 1.0), throughput_row("fit, full", 1000, 50, 30.0)]
    rows += [throughput_row("fit, full", 500, 10, 2.0), throughput_row("fit, full", 4000, 10, 2.0)]
    rows += [throughput_row("partial_fit", 640, 10, 1.0), throughput_row("partial_fit", 6400, 10, 9.0, 102.0)]
    rows += [{**rows[0], "method": "fit, diagonal", "status": "failed", "note": "why"}]
    assert throughput_verdicts(rows) == [
        "fit, full: 10 times the topics, 30 times as long for a word.",
        "fit, full: 8 times the documents, 1 times as long for a word.",
        "partial_fit: 10 times the documents, 1.020 times the peak memory.",
    ]
    _, page = records.write_record(tmp_path, records.make_record("topics-throughput", rows))
    text = page.read_text(encoding="utf-8")
    assert "## Throughput of the correlated topic model" in text and "failed: why" in text
    assert "| fit, full | 1,000 | 50 | 6,667 | 30 | 30 | 3 | 100 |  |" in text and "- partial_fit: 10 times" in text
    assert throughput_cells(rows)[1][4][3] == "" and len(set(sizes())) == len(sizes()) == 8


def test_throughput_programs_hand_back_sizes_and_memory():
    problem, record = resampled(planted()[0], 40, TOPICS), Recorder(60.0)
    assert problem.train.shape[0] == 40 and (problem.train.toarray().sum(axis=0) > 0).all()
    facts = provi_peer.ctm_passes(problem, 1.0, record)
    assert facts["tokens"] == problem.train.sum() and record.snapshots[0][4] == provi_peer.PASSES
    assert 50 < record.snapshots[0][2] < 50_000
    stream = Recorder(60.0)
    provi_peer.ctm_stream(problem, 20.0, stream)
    assert [float(snapshot[3]) for snapshot in stream.snapshots] == [128.0, 1280.0]
    assert stream.snapshots[1][2] >= stream.snapshots[0][2] > 50


def test_command_takes_one_split_and_names_what_is_not_installed(monkeypatch):
    monkeypatch.setitem(TOPICS_PROBLEMS, "ap", lambda: [tiny(), tiny(seed=1)])
    absent = Method("absent", "nothing", ("no_such_package",), "no-such-package", (1.0,), "x")
    monkeypatch.setitem(TOPICS_METHODS, "absent", absent)
    ended = CliRunner().invoke(app, ["topics", "--quick", "--methods", "absent"])
    assert ended.exit_code == 0 and "unigram" in ended.output and "seed 1" not in ended.output
    assert "not installed: pip install no-such-package" in ended.output
    wrong = CliRunner().invoke(app, ["topics", "--methods", "nothing"])
    assert wrong.exit_code == 2 and "there is no 'nothing'" in wrong.output


def test_every_method_of_another_library_is_a_rival():
    assert {*OURS, *RIVALS, "provi-lda"} == TOPICS_METHODS.keys() and len(RIVALS) == 7
