"""The suite of posteriors: its size and kinds, its references, and the page of its table."""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import provi
from provi_lab.posteriors import table, tails
from provi_lab.posteriors.page import COLUMNS, _cells, _counts, page, tally
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
    assert table.child(endless, {}, 1.0) == {"failed": "no result within 1 CPU seconds"}
    failing = [sys.executable, "-S", "-c", "raise ValueError('this')"]
    assert table.child(failing, {}, 5.0) == {"failed": "ValueError: this"}


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


def test_each_cell_has_its_time_and_false_alarms_their_share_of_the_right_and_of_all():
    cell = {"mean_error": 0.0, "sd_ratio": 1.0, "cpu_seconds": 12.4}
    alarm, wrong = {**cell, "right": True, "warned": True}, {**cell, "right": False, "warned": True}
    row = {"held_out": False, "kind": "k", "dim": 1, "auto": wrong, "default": wrong}
    rows = {f"row {index}": {**row, "default": {**cell, "right": True, "warned": False}} for index in range(6)}
    rows["alarm"] = {**row, "default": alarm, "corrected": {**alarm, "cpu_seconds": 0.04, "seed": 1}}
    lines = "\n".join(_counts({**rows, "wrong": row}))
    # One of seven is 14%, one of six 17%.
    assert "| default | 8 | 7 (88%) | 0 | 1 (14% of right, 12% of all) | 99 |" in lines
    better = "`corrected()` or auto, the better"
    alone = f"`corrected()` (1 of 1); {better} (1 of 1)"
    assert lines.endswith(f"of the right rows: {alone}.\nOf all rows: `corrected()` (1 of 1).")
    del rows["row 0"]
    lines = "\n".join(_counts({**rows, "wrong": row}))
    assert lines.endswith(f"of the right rows: default (1 of 6); {alone}.\nOf all rows: `corrected()` (1 of 1).")
    assert _cells(rows, COLUMNS)[-1].endswith(
        "| **0.00 / 1.00!**; 12 s | **0.00 / 1.00!**; 0.0 s | 0.00 / 1.00!; 12 s |  |"
    )


def test_a_correction_timed_with_draws_of_the_summary_has_no_time_on_the_page():
    rows = json.loads(RECORD.read_text())
    text = page(rows)
    assert "seconds of corrections are not their cost in 50 of 51 rows" in text and "| 8, not its cost |" in text
    for row in rows.values():
        for column in ("corrected", "auto corrected"):
            if column in row:
                row[column]["seed"] = 1
    assert "not their cost" not in page(rows) and "| 8 |" in page(rows)


def test_a_correction_has_draws_that_the_summary_has_not_made():
    """Of Student's law, on which q's weights are heavy: there the summary corrects with as many draws."""
    fit = provi.fit(provi.targets.LogDensity(lambda z: -4.5 * jnp.log1p(jnp.sum(z**2) / 5), 4), progress=False)
    table._fitted(fit)
    kept = list(fit.posterior._made.values())
    found, cells = table._corrected(fit)
    assert any(getattr(made, "num_draws", 0) == found.num_draws for made in kept)
    assert all(made is not found for made in kept) and cells["seed"] == table._SEED


def test_a_run_goes_on_where_it_was_stopped_and_again_measures_rows_of_other_code(tmp_path, monkeypatch):
    out, references, ran = tmp_path / "table.json", tmp_path / "references.json", []
    references.write_text(json.dumps({name: {"sites": {}} for name in ("banana", "beta", "cox")}))
    rows = {"banana": {"default": 0, "where": "here, sources of old", "auto corrected": 0, "peers": 2}}
    out.write_text(json.dumps({**rows, "beta": {"default": 0, "where": f"here, {table._commit()}"}}))

    def child(words, reference, seconds):
        ran.append(words[-1])
        return {"default": 1, "where": f"here, {table._commit()}"}

    monkeypatch.setattr(table, "child", child)
    words = ["--out", str(out), "--references", str(references), "--only", "banana", "beta", "cox"]
    table.main(words)
    assert ran == ["cox"] and json.loads(out.read_text())["banana"] == rows["banana"]
    table.main([*words, "--again"])
    found = json.loads(out.read_text())
    # No cell of the row before is left but those of other libraries.
    assert ran == ["cox", "banana"] and found["banana"] == {**found["cox"], "peers": 2}


def test_a_line_of_heavy_tails_has_its_share_each_family_and_what_failed():
    row = {"mean_error": 0.01, "sd_ratio": 0.9, "k_hat": 0.5, "elbo": -1.0, "cpu_seconds": 6.4, "family": "student"}
    rows = {"default": {**row, "share": 0.97}, "student": {"failed": "died"}, "auto": {**row, "share": None}}
    cell = "0.01 / 0.90 (0.50), -1.000; 6 s"
    assert tails.line("name", rows) == f"| name | 0.97 | {cell} | failed: died | {cell} | student |"
