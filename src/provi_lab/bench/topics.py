"""`provi bench topics`: held-out words of half-known documents, and the time to topics that predict them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from provi.models.topics.completion import split_tokens, token_log_probabilities
from provi.models.topics.scoring import completion_score
from provi_lab.bench.methods import PEERS, Method, Trace, attempt, saved
from provi_lab.bench.problems import TopicsProblem
from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, finite, finite_text, grouped, median
from provi_lab.data.corpora import read_counts, unigram_loss

_TEXT = """\
Topic models by document completion: half of the documents to learn from; of the others one half of the words is shown
and the other half predicted, mean log probability of a word in nats (higher is better). The vocabulary is that of the
training documents. Medians over random splits, whose seeds are also those of the methods. *Score* takes the topics
p(word | topic) alone and is the same program for all: a logistic-normal prior of the shares is fitted to the training
documents with these topics held fixed, then the documents are completed under it. *Own score* has the method's own mean
shares of the halves that are shown: Dirichlet for LDA, logistic normal for the correlated models. Seconds of the fit
without (with) compilation, each method alone in its process. ProVI's correlated topic model has its defaults. All LDAs
have the priors 0.1 for shares (tomotopy goes on to optimise it) and 0.01 for words; scikit-learn has one job, tomotopy
two workers. Better means on every split; faster is the median of wall-clock seconds without compilation."""

NUM_SEEDS, NUM_TOPICS = 3, 10


def split_corpus(name: str, counts: Any, num_topics: int, seed: int) -> TopicsProblem:
    """Half of the documents, by a random permutation, to learn from; the words of the others in two random halves.

    The vocabulary is that of the first half of the documents: of a word that it does not have, nothing can be learnt.
    Documents with fewer than two words of this vocabulary cannot be completed and are left out.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(counts.shape[0])
    train, test = counts[order[: len(order) // 2]], counts[order[len(order) // 2 :]]
    seen = _sums(train, 0) > 0
    train, test = train[_sums(train, 1) > 0][:, seen], test[:, seen]
    observed, held_out = split_tokens(test[_sums(test, 1) > 1], generator)
    return TopicsProblem(name, num_topics, train, observed, held_out, seed)


def resampled(counts: Any, num_documents: int, num_topics: int, seed: int = 0) -> TopicsProblem:
    """Documents drawn with replacement, nothing held out: for timing alone."""
    rows = np.random.default_rng(seed).integers(counts.shape[0], size=num_documents)
    drawn = counts[rows]
    drawn = drawn[:, _sums(drawn, 0) > 0]
    return TopicsProblem(f"{num_documents} documents, {num_topics} topics", num_topics, drawn, drawn[:0], seed=seed)


def read_corpus(name: str) -> Any:
    """The counts of a stored corpus, (documents, words), without empty documents."""
    counts, _ = read_counts(name)
    return counts[_sums(counts, 1) > 0]


def _problems(title: str, name: str) -> Callable[[], list[TopicsProblem]]:
    def make() -> list[TopicsProblem]:
        counts = read_corpus(name)
        return [split_corpus(title, counts, NUM_TOPICS, seed) for seed in range(NUM_SEEDS)]

    return make


TOPICS_PROBLEMS: dict[str, Callable[[], list[TopicsProblem]]] = {
    "ap": _problems(f"Associated Press, {NUM_TOPICS} topics", "ap_corpus"),
    "nips": _problems(f"NIPS, {NUM_TOPICS} topics", "nips_corpus"),
}


def _sums(counts, axis):
    return np.asarray(counts.sum(axis=axis)).ravel()


OURS = ("full", "diagonal")
"""The methods that are judged."""


def _ours(name: str, program: str, setting: float, quantity: str) -> Method:
    return Method(name, PEERS + program, (), "", (setting,), quantity, True)


def _scikit(name: str, program: str, passes: float) -> Method:
    return Method(name, PEERS + program, ("sklearn",), "scikit-learn", (passes,), "passes")


def _tomotopy(name: str, program: str, iterations: float) -> Method:
    return Method(name, PEERS + program, ("tomotopy", "scipy"), "tomotopy scipy", (iterations,), "iterations")


TOPICS_METHODS: dict[str, Method] = {
    "full": _ours("ProVI CTM", "provi:ctm", 1.0, "full covariance"),
    "diagonal": _ours("ProVI CTM, diagonal", "provi:ctm", 0.0, "full covariance"),
    "provi-lda": _ours("ProVI LDA", "provi:lda", 30.0, "passes at most"),
    "sklearn-batch": _scikit("scikit-learn LDA, batch, 10", "sklearn:lda", 10.0),
    "sklearn-batch-long": _scikit("scikit-learn LDA, batch, 30", "sklearn:lda", 30.0),
    "sklearn-online": _scikit("scikit-learn LDA, online, 10", "sklearn:lda_online", 10.0),
    "sklearn-online-long": _scikit("scikit-learn LDA, online, 30", "sklearn:lda_online", 30.0),
    "tomotopy-lda": _tomotopy("tomotopy LDA, 500", "tomotopy:lda", 500.0),
    "tomotopy-ctm": _tomotopy("tomotopy CTModel, 500", "tomotopy:ctm", 500.0),
    "tomotopy-ctm-long": _tomotopy("tomotopy CTModel, 1500", "tomotopy:ctm", 1500.0),
}

RIVALS = tuple(key for key, method in TOPICS_METHODS.items() if method.requires)
"""The methods of other libraries."""


def our_score(problem: TopicsProblem, components: np.ndarray) -> float:
    """Nats a held-out word by one program for all methods, which takes the topics alone.

    N(mu, Sigma) for the shares is fitted to the training documents with the topics held fixed, then the documents are
    completed under it.
    """
    return float(completion_score(components, problem.train, problem.observed, problem.held_out, problem.seed))


def own_score(problem: TopicsProblem, components: np.ndarray, shares: np.ndarray) -> float | None:
    r"""Nats a held-out word with the method's own mean shares $\theta_d$ of the observed halves.

    $$\frac1{\sum_{dv}c_{dv}}\sum_{dv}c_{dv}\log\sum_k\theta_{dk}B_{kv}.$$

    None where the method gave no shares.
    """
    if not np.isfinite(shares).all():
        return None
    topics = components / components.sum(axis=1, keepdims=True)
    total, words = token_log_probabilities(shares / shares.sum(axis=1, keepdims=True), topics, problem.held_out)
    return total / words


def unigram_score(problem: TopicsProblem) -> float:
    """The same with the words' frequencies in the training documents: what topics must beat."""
    return -unigram_loss(problem.train, problem.held_out)


def measure_topics(
    problems: Sequence[TopicsProblem],
    methods: Sequence[Method],
    seconds: float,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Every method on every split of the documents, one process each; the topics are scored here, off the clock.

    **Arguments:**

    - `seconds`: sets the limit after which a process is given up, 300 + 4 `seconds`.
    - `report`: told what is being run.

    **Returns:** a row for each pair, also for the methods that are not installed or failed; and one of the unigram
    for each problem.
    """
    rows = []
    for problem in problems:
        with saved(problem) as path:
            for method in methods:
                report(f"{problem.name}, seed {problem.seed}: {method.name}")
                row = {"problem": problem.name, "seed": problem.seed, "method": method.name, "facts": {}}
                judge = partial(_facts, method, problem)
                rows.append({**row, **attempt(method, path, method.settings[0], seconds, judge)})
        row = {"problem": problem.name, "seed": problem.seed, "method": "unigram", "status": "ran", "note": ""}
        rows.append({**row, "score": unigram_score(problem), "own_score": None, "steps": None, "curve": []})
    return rows


def _facts(method: Method, problem: TopicsProblem, trace: Trace) -> Row:
    curve = _curve(problem, trace)
    return {
        "setting": f"{method.quantity} {trace.setting:g}",
        **trace.times(),
        "score": curve[-1]["score"],
        "own_score": own_score(problem, trace.mean[-1], trace.covariance[-1]),
        "steps": finite(trace.gradients[-1]),
        "curve": curve,
        "facts": trace.facts,
    }


def _curve(problem: TopicsProblem, trace: Trace) -> list[Row]:
    """Held-out score against the time of the run without compilation, at each snapshot."""
    snapshots = zip(trace.gradients, trace.cpu, trace.wall, trace.mean, strict=True)
    return [
        {"steps": finite(steps), "cpu": float(cpu), "wall": float(wall), "score": finite(our_score(problem, topics))}
        for steps, cpu, wall, topics in snapshots
    ]


def topics_cells(rows: Sequence[Row]) -> Cells:
    """One line a method: medians over the splits, with the range of the score; times without (with) compilation."""
    names = ["method", "splits", "score", "range", "own score", "wall s", "CPU s", "passes", ""]
    lines = []
    for method, own in grouped(rows, "method").items():
        ran = [row for row in own if row["status"] == "ran"]
        failed = "; ".join(f"{row['status']}: {row['note']}" for row in own if row["status"] != "ran")
        if not ran:
            lines.append([method, *[""] * 7, failed])
            continue
        scores = [-np.inf if row["score"] is None else row["score"] for row in ran]
        spread = f"{min(scores):.4f} to {max(scores):.4f}"
        cells = [f"{np.median(scores):.4f}", spread, finite_text(median(ran, "own_score"), ".4f")]
        for clock in ("wall", "cpu"):
            alone, compiling = median(ran, clock), median(ran, clock + "_compiling")
            cells.append(f"{alone:.3g} ({compiling:.3g})" if np.isfinite(alone) else "")
        lines.append([method, str(len(ran)), *cells, finite_text(median(ran, "steps"), ".4g"), failed])
    return names, lines


def topics_verdicts(rows: Sequence[Row]) -> list[str]:
    """ProVI's correlated topic models against each method of another library; of one problem's rows.

    Better means on every split, by the same scorer; faster in the median of wall-clock seconds without compilation.
    """
    lines = []
    for key in OURS:
        mine = _by_seed(rows, key)
        for rival in RIVALS:
            theirs = _by_seed(rows, rival)
            seeds = sorted(mine.keys() & theirs.keys())
            if seeds:
                verdict = _verdict([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])
                lines.append(f"{TOPICS_METHODS[key].name} beside {TOPICS_METHODS[rival].name}: {verdict}.")
    return lines


def _verdict(mine: list[Row], theirs: list[Row]) -> str:
    gains = [own["score"] - their["score"] for own, their in zip(mine, theirs, strict=True)]
    better = "yes" if min(gains) > 0 else "no"
    ratio = median(theirs, "wall") / median(mine, "wall")
    faster = "yes" if ratio > 1 else "no"
    passed = float(np.median([_time_to(own, their["score"]) for own, their in zip(mine, theirs, strict=True)]))
    reached = f"its score is passed after {passed:.3g} s" if np.isfinite(passed) else "its score is not passed"
    gain = f"{np.median(gains):+.4f} nats a word, {min(gains):+.4f} at least"
    return f"better: {better} ({gain}); faster: {faster} ({ratio:.3g} times); {reached}"


def _time_to(row: Row, score: float) -> float:
    """Wall-clock seconds without compilation to the first snapshot that is better than `score`."""
    times = (point["wall"] for point in row["curve"] if point["score"] is not None and point["score"] > score)
    return next(times, np.inf)


def _by_seed(rows: Sequence[Row], key: str) -> dict[int, Row]:
    """The runs of a method that came to an end with a score."""
    name = TOPICS_METHODS[key].name
    return {
        row["seed"]: row
        for row in rows
        if row["method"] == name and row["status"] == "ran" and row["score"] is not None
    }


SECTION = Section(
    "topics",
    "Topic models",
    _TEXT,
    "{problem}: nats a held-out word; seconds without (with) compilation",
    topics_cells,
    topics_verdicts,
)
