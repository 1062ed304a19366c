"""The pages of docs/results: what stands on them is what their tables and their commands' defaults give."""

import csv
import json
import re
import statistics
from pathlib import Path

import pytest

from provi_lab.common.page import About, Head, other_settings, parts_of, refreshed, seeds_of
from provi_lab.papers import EXPERIMENTS
from provi_lab.papers.catalogue import ABOUT, ITEMS, PAGES, RESULTS, entry, listing, refresh, show


def lines_of(name):
    with (RESULTS / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def numbers_of(name):
    """The table at the foot of a page."""
    rows = [line.strip("| ").split(" | ") for line in page_of(name).numbers.splitlines()]
    return [dict(zip(rows[0], row, strict=False)) for row in rows[2:]]


def page_of(name):
    return parts_of((RESULTS / f"{name}.md").read_text(encoding="utf-8"), name)


NOT_RUN = {"ctm-settings"} - {path.stem for path in RESULTS.glob("*.md")}
"""Experiments that may be without a page, and are: the list says so."""

WRITTEN = [about for about in PAGES if about.name not in NOT_RUN]


@pytest.mark.parametrize("about", WRITTEN, ids=lambda about: about.name)
def test_a_page_is_what_its_tables_and_its_commands_defaults_give(about):
    """Head, what is left out, other settings and foot; claims and numbers too, where the tables give them."""
    text = (RESULTS / f"{about.name}.md").read_text(encoding="utf-8")
    assert text == refreshed(RESULTS, about), "write it again: python -m provi_lab.papers.catalogue docs/results"
    for file in re.findall(r"\]\(([^)/]+\.(?:png|csv))\)", text):
        assert (RESULTS / file).is_file(), file
    assert text.split("\n\n")[1].startswith(("**The paper claims**", "**We claim**"))
    assert text.split("\n\n")[4].startswith("![")  # three lines, then a picture


def last_values(rows, when, column):
    """The column at the end of each seed's run."""
    ends = {}
    for row in rows:
        if row["seed"] not in ends or float(row[when]) >= float(ends[row["seed"]][when]):
            ends[row["seed"]] = row
    return [float(row[column]) for row in ends.values()]


@pytest.mark.parametrize("name", [name for name in ("ctm-figure3", "ctm-settings") if name not in NOT_RUN])
def test_numbers_of_topic_models_are_means_of_their_table(name):
    lines = lines_of(f"{name}.csv")
    for row in numbers_of(name):
        own = [line for line in lines if (line["data"], line["method"]) == (row["data"], row["method"])]
        for column in (column for column in row if column.startswith("after ")):
            passes = [float(line["nats a word"]) for line in own if line["passes"] == column.removeprefix("after ")]
            assert row[column] == f"{statistics.fmean(passes):.4f}"
        ends = last_values(own, "passes", "nats a word")
        assert row["spread"] == f"{statistics.stdev(ends):.4f}"
        assert float(row["seconds"]) == pytest.approx(statistics.fmean(last_values(own, "passes", "seconds")), rel=1e-3)


def test_last_gaps_of_missing_data_are_those_of_the_table():
    lines = lines_of("misso-figure1.csv")
    checked = 0
    for row in numbers_of("misso-figure1"):
        own = [line for line in lines if (line["data"], line["method"]) == (row["data"], row["method"])]
        if own and "last gap" in row:
            ends = last_values(own, "passes", "gap")
            assert float(row["last gap"]) in [
                pytest.approx(centre(ends), rel=2e-3) for centre in (statistics.fmean, statistics.median)
            ]
            checked += 1
    assert checked


def test_numbers_of_the_rates_are_those_of_their_table():
    """All but the slopes, whose intervals are of the replicates; and what the claims about bounds say."""
    lines, page, ratios = lines_of("prox-proj-rates.csv"), page_of("prox-proj-rates"), {}
    for row in numbers_of("prox-proj-rates"):
        names = ("problem", "theorem", "part")
        own = [line for line in lines if all(line[name] == row[name] for name in names)]
        end = max(own, key=lambda line: int(line["steps"]))
        found = [float(line["bound"]) / float(line["mean"]) for line in own]
        ratios[f"Theorem {row['theorem']} ({row['part']}), {row['problem']}: the bound holds."] = found
        for name, value in (("mean at T", end["mean"]), ("bound at T", end["bound"]), ("least ratio", min(found))):
            assert float(row[name]) == pytest.approx(float(value), rel=1e-3)
    claims = [line.strip("| ").split(" | ") for line in page.claims.splitlines()]
    checked = {statement: evidence for statement, _, evidence in claims if statement in ratios}
    assert checked.keys() == ratios.keys()
    for statement, evidence in checked.items():
        least, most, count = re.findall(r"between (\S+) and (\S+) over (\d+) values", evidence)[0]
        found = ratios[statement]
        assert float(least) == pytest.approx(min(found), rel=1e-2) and int(count) == len(found)
        assert float(most) == pytest.approx(max(found), rel=1e-2)


def test_numbers_of_sticking_the_landing_are_those_of_their_table():
    lines = lines_of("stl-gaussian.csv")
    rows = numbers_of("stl-gaussian")
    assert len(rows) == len({(line["estimator"], line["multiple"]) for line in lines})
    for row in rows:
        names = row["estimator"], row["step / largest"]
        own = [line for line in lines if (line["estimator"], line["multiple"]) == names]
        own.sort(key=lambda line: int(line["step"]))
        assert int(row["steps"]) == int(own[-1]["step"])
        for name, value in (("start", own[0]["mean"]), ("end", own[-1]["mean"]), ("step size", own[0]["step_size"])):
            assert float(row[name]) == pytest.approx(float(value), rel=1e-3)


PROVEN_TABLES = ("mpsgd-figure1", "mpsgd-figure2", "mpsgd-figure3", "pgsvi-figure1", "pgsvi-figure2")


@pytest.mark.parametrize("name", PROVEN_TABLES)
def test_other_values_in_a_table_make_other_numbers_on_its_page(name, tmp_path):
    for end in ("md", "csv"):
        (tmp_path / f"{name}.{end}").write_bytes((RESULTS / f"{name}.{end}").read_bytes())
    rows = lines_of(f"{name}.csv")
    with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "gap": str(7.7 * float(row["gap"]))} for row in rows)
    assert ABOUT[name].tables(RESULTS)["numbers"] == page_of(name).numbers
    assert ABOUT[name].tables(tmp_path)["numbers"] != page_of(name).numbers


def test_every_experiment_has_a_page_and_is_listed(tmp_path, capsys):
    assert set(EXPERIMENTS) == set(ABOUT) == {item.name for item in ITEMS}
    index = (RESULTS / "index.md").read_text(encoding="utf-8")
    for about in WRITTEN:
        assert f"]({about.name}.md) | {about.source} | `provi reproduce {about.name}` |" in index
    rows = listing()
    for row in rows:
        name = row["command"].split()[-1]
        assert (RESULTS / f"{name}.md").is_file() == (name not in NOT_RUN)
        if name in NOT_RUN:
            assert row["complete"] is False and "not been run" in row["left_out"]
            continue
        assert row["complete"] is not None and row["date"] and row["where"] and row["seeds"]
        # Nothing is reduced without a word on its page.
        assert row["complete"] or row["left_out"] or row["other_settings"]
    (network,) = [row for row in rows if row["what"] == "Figure 2(b)"]
    if not network["complete"]:
        page = (RESULTS / "misso-figure2b.md").read_text(encoding="utf-8")
        assert network["left_out"] in page and network["other_settings"] in page
    show(as_json=True)
    assert json.loads(capsys.readouterr().out) == rows
    away = entry(ITEMS[0], tmp_path)  # where the pages are not
    assert away["complete"] is None and away["seeds"] is None


def about_of(defaults, made=lambda lines, text: {"seeds": 1, "methods": {"a"}}):
    return About("toy", "nowhere", "something", lambda lines: Head("x", "y"), made, lambda: defaults)


def test_other_settings_and_seeds():
    about = about_of({"seeds": 5, "methods": {"a", "b"}, "passes": 3})
    assert other_settings(about.made([], ""), about.defaults()) == ["seeds 1 instead of 5", "methods without b"]
    assert seeds_of([{"seed": "1"}, {"seed": "0"}], "") == "seeds 0, 1" and seeds_of([{}], "7 replicates") != "one seed"


def test_a_page_whose_table_changes_is_written_anew(tmp_path):
    for end in ("md", "csv"):
        (tmp_path / f"stl-gaussian.{end}").write_bytes((RESULTS / f"stl-gaussian.{end}").read_bytes())
    table = tmp_path / "stl-gaussian.csv"
    rows = lines_of("stl-gaussian.csv")
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "mean": str(7.7 * float(row["mean"]))} for row in rows)
    (written,) = refresh(tmp_path, "stl-gaussian")
    assert written.read_text(encoding="utf-8") != (RESULTS / "stl-gaussian.md").read_text(encoding="utf-8")


def test_no_page_says_that_q_is_all_but_the_prior():
    """The sentence was false: issue 24."""
    for path in Path(RESULTS).glob("*.md"):
        assert "all but reached" not in path.read_text(encoding="utf-8")
