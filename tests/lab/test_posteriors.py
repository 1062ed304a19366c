"""The suite of posteriors: its size and kinds, its references, and the page of its table."""

import json
import sys
from pathlib import Path

import numpy as np

from provi_lab.posteriors import table
from provi_lab.posteriors.page import page, tally
from provi_lab.posteriors.posterior import errors
from provi_lab.posteriors.suite import EVERY, SUITE
from provi_lab.posteriors.table import REFERENCES, usable

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


def test_cells_are_added_to_what_the_file_has_by_then(tmp_path):
    """Rows, and those of other libraries, made at the same time: neither overwrites the other, a failure goes."""
    path = tmp_path / "record.json"
    table._add(path, "b", {"failed": "no result within 1 CPU seconds"})
    table._add(path, "b", {"default": 1})
    table._add(path, "a", {"peers": 2})
    table._add(path, "b", {"peers": 3})
    assert json.loads(path.read_text()) == {"a": {"peers": 2}, "b": {"default": 1, "peers": 3}}


def test_a_process_is_ended_by_its_own_processor_time():
    endless = [sys.executable, "-S", "-c", "while True: pass"]
    assert table._child(endless, {}, 1.0) == {"failed": "no result within 1 CPU seconds"}
    failing = [sys.executable, "-S", "-c", "raise ValueError('this')"]
    assert table._child(failing, {}, 5.0) == {"failed": "ValueError: this"}


def test_counts_of_the_page_hold_each_kind_of_cell_once():
    right, wrong = {"right": True, "warned": False, "mean_error": 0.0, "sd_ratio": 1.0}, {"right": False}
    row = {"held_out": False, "kind": "k", "dim": 1}
    rows = {
        "a": {**row, "default": {**right, "warned": True}, "auto": right},
        "b": {**row, "default": {**wrong, "warned": False}, "auto": {**wrong, "warned": True}, "auto corrected": right},
        "c": {"failed": "no result", "peers": {"Pathfinder": right}},
    }
    found = tally(rows)
    assert [found["default"][word] for word in ("rows", "right", "silent", "alarms")] == [2, 1, 1, 1]
    assert found["auto"]["right"] == 1 and found["auto"]["silent"] == 0
    # Who follows the warning of auto takes the corrected draws.
    assert found["final"]["right"] == 2 and found["Pathfinder"]["rows"] == 1
