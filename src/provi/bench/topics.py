"""`provi bench topics`: held-out words of half-known documents, and the time to topics that predict them."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from provi.bench.blackbox import Row, finite
from provi.bench.methods import Method, MethodFailed, Trace, run_method
from provi.bench.topics_problem import TopicsProblem
from provi.bench.topics_score import our_score, own_score, unigram_score


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
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.npz"
            problem.save(path)
            for method in methods:
                report(f"{problem.name}, seed {problem.seed}: {method.name}")
                row = {"problem": problem.name, "seed": problem.seed, "method": method.name}
                rows.append({**row, **_run(method, path, problem, seconds)})
        row = {"problem": problem.name, "seed": problem.seed, "method": "unigram", "status": "ran", "note": ""}
        rows.append({**row, "score": unigram_score(problem), "own_score": None, "steps": None, "curve": []})
    return rows


def _run(method: Method, path: Path, problem: TopicsProblem, seconds: float) -> Row:
    (setting,) = method.settings
    if method.missing:
        return {"status": "not installed", "note": f"pip install {method.install}", "facts": {}}
    try:
        trace = run_method(method, path, setting, seconds)
    except MethodFailed as error:
        return {"status": "failed", "note": str(error), "facts": {}}
    curve = _curve(problem, trace)
    return {
        "status": "ran",
        "note": trace.facts.get("error", ""),
        "setting": f"{method.quantity} {setting:g}",
        "cpu": float(trace.cpu[-1]),
        "cpu_compiling": float(trace.cpu[-1]) + trace.compile_cpu,
        "wall": float(trace.wall[-1]),
        "wall_compiling": float(trace.wall[-1]) + trace.compile_wall,
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
