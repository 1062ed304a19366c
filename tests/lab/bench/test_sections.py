"""Sections of the page made from records of scripts: the right record, its aims, its foot; and the bench of scaling."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from provi_lab.bench import scaling
from provi_lab.bench import sections_large as large
from provi_lab.bench import sections_mixed as mixed
from provi_lab.bench import sections_networks as networks
from provi_lab.bench import sections_waiting as waiting
from provi_lab.bench.command import app
from provi_lab.bench.record import PAGE, RESULTS, make_page, make_record
from provi_lab.bench.sections import sections
from provi_lab.common.tables import aim

ROOT = Path(__file__).parents[3]


def keep(root, name, record):
    (root / RESULTS).mkdir(parents=True, exist_ok=True)
    (root / RESULTS / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


def kept(kind):
    """The newest record, for its shape: figures that are judged are given by the tests."""
    newest = sorted((ROOT / RESULTS).glob(f"????-??-??-{kind}.json"))[-1]
    return json.loads(newest.read_text(encoding="utf-8"))


def test_every_kind_with_a_record_has_its_section_and_no_other():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    there = [s.heading for s in sections() if list((ROOT / RESULTS).glob(f"????-??-??-{s.kind}.json"))]
    assert titles == there and len(set(titles)) == len(titles) > 20


def test_a_page_without_records_has_no_sections(tmp_path):
    assert "## " not in make_page(tmp_path)


def test_the_newest_record_of_exactly_the_kind_that_has_rows(tmp_path):
    row = {"problem": "smooth", "size": 10, "path": "fit", "cpu_seconds": 1.0, "wall_seconds": 2.0, "peak_gib": 0.5}
    keep(tmp_path, "2026-01-01-gp-large", {"rows": [row | {"size": 1111}]})
    keep(tmp_path, "2026-01-02-gp-large", {"rows": [row | {"size": 2222}]})
    keep(tmp_path, "2026-01-03-h200-gp-large", {"rows": [row | {"size": 3333}]})
    keep(tmp_path, "2026-01-04-gp-large", {"rows": []})
    cpu, gpu = make_page(tmp_path).split("## ")[1:]
    assert "2,222" in cpu and "1,111" not in cpu and "3,333" not in cpu and "2026-01-02" in cpu
    assert "3,333" in gpu and "2,222" not in gpu


def test_one_kind_of_record_may_hold_two_tables(tmp_path):
    inside = {"what": "logistic", "cache": "empty", "programs": 0}
    inside |= {"target_wall": 0.7, "fit_wall": 0.6, "target_cpu": 0.2, "fit_cpu": 0.2}
    outside = {"what": "provi fi<TAB>", "empty_cache": 1.0, "warm_cache": 0.5}
    keep(tmp_path, "2026-01-01-first-fit", {"rows": [outside], "command": "first", "cores": 2})
    later = {"rows": [], "beyond_imports": [inside], "command": "second", "cores": 2, "load": 9.83}
    keep(tmp_path, "2026-01-02-first-fit", later)
    first, second = make_page(tmp_path).split("## ")[1:]
    assert "`provi fi<TAB>`" in first and "Made by `first` on 2026-01-01: 2 cores." in first and "busy" not in first
    assert "wall seconds (0.40 of processor): 1.3; aim at most 1: **not reached**." in second
    later["beyond_imports"][0] |= {"imports_wall": 0.4, "imports_cpu": 0.3}
    keep(tmp_path, "2026-01-02-first-fit", later)
    told = make_page(tmp_path).split("## ")[2]
    assert "wall seconds beyond imports (0.10 of processor): 0.9; aim at most 1: reached." in told
    assert "| 0.70 | 0.60 | 0.20 | 0.20 | 0.40 | 0.30 | 0 |" in told
    assert "Made by `second` on 2026-01-02: 2 cores. Load average 9.83: **busy**" in second


def test_a_record_that_says_nothing_of_itself_has_a_foot(tmp_path):
    record = kept("streaming")
    for name in ("cores", "processor", "date", "command", "machine", "python", "versions", "load"):
        record.pop(name, None)
    keep(tmp_path, "2026-01-01-streaming", record)
    foot = make_page(tmp_path).strip().splitlines()[-1]
    assert foot == "Made by `benchmarks/streaming.py`, whose arguments have not been recorded, on 2026-01-01."


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["/usr/bin/provi", "bench", "glm", "--output", "/home/me"], "provi bench glm --output ."),
        (["benchmarks/streaming.py", "--folder", "/tmp/x"], "python benchmarks/streaming.py --folder ."),
        (["/home/me/benchmarks/first_fit.py", "--beyond"], "python first_fit.py --beyond"),
    ],
)
def test_a_record_has_its_command_and_nobodys_folders(monkeypatch, words, command):
    monkeypatch.setattr("sys.argv", words)
    record = make_record("glm", [])
    assert record["command"] == command and record["load"] >= 0


@pytest.mark.parametrize(("load", "busy"), [(2.0, False), (2.4, False), (2.6, True)])
def test_busy_is_more_at_work_than_cores(tmp_path, load, busy):
    row = {"problem": "radon", "error": "none", "load_average": load}
    keep(tmp_path, "2026-01-01-mixed", {"rows": [row | {"load_average": 0.1}, row], "machine": "x86_64, 2 cores"})
    page = make_page(tmp_path)
    assert f"Load average {load:.2f}" in page and ("**busy**" in page) == busy


def test_aims_are_compared_before_they_are_rounded():
    assert aim("x", 0.79996, 0.8, least=True) == "x: 0.79996; aim at least 0.8: **not reached**."
    assert aim("x", 12.0, 12.0) == "x: 12; aim at most 12: reached."
    assert aim("x", 12.0001, 12.0).startswith("x: 12.0001; aim at most 12: **not")


def test_what_misses_its_aim_is_said():
    """Each figure made worse by itself."""
    (row,) = large.pass_rows(kept("h200-linear-pass"))
    peak, before = "peak memory over the table's", "peak memory of making the data over the table's"
    aims = {"natural-gradient pass": (11.9, 12.1), "gradient pass over the copy's bandwidth": (0.81, 0.79)}
    aims |= {"fit over one pass": (24.9, 25.1), peak: (1.29, 1.31)}
    good = row | {name: value for name, (value, _) in aims.items()} | {before: 1.0}
    assert not missed(large.pass_verdicts([good])) and len(large.pass_cells([good])[1]) == 8
    for name, (_, worse) in aims.items():
        assert len(missed(large.pass_verdicts([good | {name: worse}]))) == 1, name
    # The mark of the device never falls: the data themselves took as much.
    assert len(missed(large.pass_verdicts([good | {peak: 2.0, before: 2.0}]), "**not shown**")) == 1
    figures = {"peak_gib": (1.9, 2.1), "gap": (0.09, 0.11), "passes_after_warm_start": (4, 5), "ratio": (1.4, 1.6)}
    stream = kept("streaming") | {name: value for name, (value, _) in figures.items()}
    assert not missed(large.stream_verdicts([stream]))
    for name, (_, worse) in figures.items():
        assert len(missed(large.stream_verdicts([stream | {name: worse}]))) == 1, name
    sizes = {120: ("second_seconds_with_proof", 0.29, 0.31), 100_000: ("second_seconds", 2.9, 3.1)}
    for rows, (name, better, worse) in sizes.items():
        row = {"rows": rows, "peak_gib": 1.9, "second_seconds": 9.0, name: better}
        assert not missed(mixed.large_verdicts([row])) and len(mixed.large_verdicts([row])) == 2
        assert len(missed(mixed.large_verdicts([row | {name: worse, "peak_gib": 2.1}]))) == 2


def missed(lines, words="**not reached**"):
    return [line for line in lines if words in line]


def test_networks_are_judged_by_their_worst_method():
    rows = [row | {"cpu_ratio": 0.5} for row in kept("network-cpu")["rows"]]
    slow = [row | {"cpu_ratio": 1.1} if row["method"] == "ProVI, MISSO" else row for row in rows]
    assert not missed(networks.cpu_verdicts(rows)[:1]) and missed(networks.cpu_verdicts(slow)[:1])
    assert "ProVI, MISSO, the slowest" in networks.cpu_verdicts(slow)[0]
    plain, ours = ({"cpu_seconds_an_epoch": s, "cpu_ratio": 0.9} for s in (1.0, 1.2))
    pair = [plain | {"method": "plain JAX, our network"}, ours | {"method": "ProVI, Adam"}]
    assert [len(missed([line])) for line in networks.cpu_verdicts(pair)] == [0, 1]
    case = {"case": "misso", "peak_gib": 8.0, "rows": [{"draws": n, "throughput_share": 0.9} for n in (1, 2)]}
    table = networks.gpu_rows({"rows": [{"case": "plain", "peak_gib": 3.0, "rows": [{"draws": 1}]}, case]})
    table = [row | {"first_seconds": 1.0, "step_ms": 5.0, "over_adam": 1.1} for row in table]
    assert [row["case"] for row in table] == ["plain", "misso", "misso"] and not missed(networks.gpu_verdicts(table))
    assert "(misso)" in missed(networks.gpu_verdicts([*table, table[-1] | {"over_adam": 1.4}]))[0]
    assert len(missed(networks.gpu_verdicts([*table, table[-1] | {"throughput_share": 0.7}]))) == 1
    assert networks.gpu_cells(table)[1][1] == ["misso", "1", "1", "5", "90%", "1.10", "8.00", ""]


def test_mixed_models_are_judged_by_all_their_quantities():
    quantity = {"mean_error": 0.01, "ratio": 1.01}
    times = {"seconds_first": 2.0, "seconds_second": 0.1, "nuts_seconds_first": 8.0, "nuts_seconds_second": 1.0}
    row = times | {"problem": "radon", "quantities": [quantity, quantity], "faults": []}
    lines = mixed.nuts_verdicts([row, row | {"nuts_seconds_second": 3.0, "nuts_seconds_first": 5.0}])
    assert "10.0 to 30.0 times" in lines[2] and "1 of 2" in lines[2] and "1 of 2" in lines[3] and not missed(lines)
    for name, worse, line in (("mean_error", -0.06, 0), ("ratio", 0.94, 1), ("ratio", 1.06, 1)):
        far = mixed.nuts_verdicts([row, row | {"quantities": [quantity, quantity | {name: worse}]}])
        assert missed(far) == [far[line]] and "0.06" in far[line]
    failed = {"problem": "radon", "error": "ValueError: why"}
    assert mixed.nuts_cells([failed])[1][0][:2] == ["radon", "ValueError: why"] and mixed.nuts_verdicts([failed]) == []
    assert len(mixed.nuts_cells([failed])[0]) == len(mixed.nuts_cells([failed])[1][0])
    missing = {"problem": "radon", "rows": 919, "peer": "lme4", "status": "not installed"}
    assert mixed.peer_cells([missing])[1] == [["radon", "919", "lme4", "", "", "not installed"]]


def test_fits_one_after_another_stand_in_one_line_a_process():
    heads, lines = waiting.model_cells(kept("model-fits")["rows"])
    assert heads[2:] == ["first", "again", "other data", "another model"]
    assert [line[:2] for line in lines][:2] == [["numpyro", "empty"], ["numpyro", "filled"]] and len(lines) == 6


def scaling_rows():
    load = {"cores": 2, "load": 0.1}
    fits = {"rows": 100, "columns": 4, "gap": 0.001, "fit_compiling": 1.0, "step_compiling": 2.0, "step_draws": 80}
    devices = [
        load
        | fits
        | {"what": "devices", "devices": n, "fit_cpu": 0.1 * n, "fit_wall": 0.1, "step_cpu": 1e-3 * n, "elbo": -5.0}
        | {"step_wall": None if n == 4 else 1e-3}
        for n in (1, 2, 4)
    ]
    draws = [
        load | {"what": "draws", "draws": n, "step_cpu": 1e-6 * n**1.25, "step_wall": 1e-6 * n, "step_compiling": 1.0}
        for n in (10, 100, 1000)
    ]
    return [*devices, *draws]


def test_scaling_says_what_more_devices_than_cores_can_show(tmp_path):
    rows = scaling_rows()
    assert scaling.growth(rows) == pytest.approx(1.25) and scaling.growth(rows[:5]) is None
    lines = scaling.verdicts(rows)
    assert "2 cores and up to 4 simulated devices: beyond the cores this is overhead" in lines[0]
    assert "each has a core" in scaling.verdicts(rows[:2])[0]
    assert missed(lines) == [
        "Processor time of a step grows with its draws to the power: 1.25; aim at most 1: **not reached**."
    ]
    keep(tmp_path, "2026-01-01-scaling", {"rows": rows})
    page = make_page(tmp_path)
    assert "| 4 | 0.4 (0.1) | 4.00 (1.00) | 1 | 0.001 | 4 (-) | 4.00 (-) | 2 |" in page
    assert "| 1,000 | 5.62 (1) | 5.62 (1) | 1 |" in page


def test_scaling_is_measured_in_processes_of_their_own(monkeypatch):
    """One small process; a failing one is an error with its last words."""
    (row,) = scaling.measure_scaling((), (10,), quick=True)
    assert row["what"] == "draws" and row["draws"] == row["step_draws"] == 10 and row["steps"][1] == 3 * row["steps"][0]
    assert scaling._difference(2.0, 2.0, 10) is None and scaling._difference(1.0, 2.0, 10) == pytest.approx(0.1)
    monkeypatch.setattr(scaling, "_child", lambda what, count, devices, quick: {"what": what, "devices": devices})
    assert scaling.measure_scaling((1, 4), (10,))[1:] == [
        {"what": "devices", "devices": 4},
        {"what": "draws", "devices": 1},
    ]
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="-1 devices"):
        scaling._child("devices", -1, 1, True)


def test_scaling_is_listed():
    text = CliRunner().invoke(app, ["scaling", "--help"]).stdout
    assert "--quick" in text and "--output" in text
