"""The suite of posteriors: its size and kinds, its references, and the page of its table."""

import json
from pathlib import Path

import numpy as np

from provi_lab.posteriors.page import page
from provi_lab.posteriors.suite import EVERY, SUITE
from provi_lab.posteriors.table import REFERENCES, errors, usable

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks/results/2026-11-18-posteriors.json"


def test_suite_and_references_cover_the_kinds():
    references = json.loads((ROOT / REFERENCES).read_text())
    assert len(SUITE) >= 40 and set(references) <= set(EVERY)
    kinds = {EVERY[name].kind for name, record in references.items() if usable(record)}
    assert kinds >= {"regression", "hierarchical", "funnel", "time series", "differential equation", "hidden Markov"}
    assert sum(map(usable, references.values())) >= 40


def test_page_is_that_of_the_record():
    assert (ROOT / "docs/posteriors.md").read_text() == page(json.loads(RECORD.read_text()))


def test_errors_are_the_worst_of_all_entries():
    site = {"mean": [0.0, 1.0, 2.0], "sd": [1.0, 2.0, 0.0]}
    draws = np.array([[-1.0, 1.0], [1.0, 2.0]]) * np.array([1.0, 1.0]) + np.array([0.0, 0.0])
    found = errors({"a": np.column_stack([draws[:, 0], [0.0, 8.0], [2.0, 2.0]])}, {"sites": {"a": site}})
    assert found == {"mean_error": 1.5, "sd_ratio": 2.0, "right": False}
