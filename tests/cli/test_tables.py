"""Tables from text files, and their encoding."""

import csv
import gzip
import json

import numpy as np
import pytest

from provi.data.encoding import TableEncoding, binary_response, encode_features
from provi.data.kinds import check_quantity, is_date, percent_numbers
from provi.data.tables import MISSING, is_missing, read_table


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_reading_inverts_writing(tmp_path, delimiter):
    """Against the csv module: numbers to the last digit, texts with delimiters, quotes, umlauts, breaks in them."""
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=20) * 10.0 ** rng.integers(-300, 300, 20)
    texts = [f'{"a,b;c"} "{i}" ä\n{i}' for i in range(20)]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8-sig") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(["x, 1", "text"])
        writer.writerows(zip(map(repr, numbers.tolist()), texts, strict=True))
    table = read_table(tmp_path / "t.csv")
    assert list(table) == ["x, 1", "text"]
    assert np.array_equal(table["x, 1"], numbers)
    assert table["text"].tolist() == [text.replace("\n", " ") for text in texts]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_compressed_files_and_line_endings(tmp_path, ending):
    """Whatever the file is called: gzip is known by its first two bytes."""
    for name, opened in (("t.csv", gzip.open), ("t.csv.gz", gzip.open), ("t.txt", open)):
        with opened(tmp_path / name, "wb") as stream:
            stream.write(ending.join(["a,c", "1.5,u", "", "2,v"]).encode())
        table = read_table(tmp_path / name)
        assert table["a"].tolist() == [1.5, 2.0] and table["c"].tolist() == ["u", "v"]
    (tmp_path / "t.csv.gz").write_bytes((tmp_path / "t.csv.gz").read_bytes()[:20])
    with pytest.raises(ValueError, match="damaged gzip"):
        read_table(tmp_path / "t.csv.gz")


def test_decimal_commas_are_read_when_said(tmp_path):
    (tmp_path / "t.csv").write_text("a;b;c\n1,5;2;x,y\n-0,25;3,0;1,2,3\n")
    table = read_table(tmp_path / "t.csv", decimal_comma=True)
    assert table["a"].tolist() == [1.5, -0.25] and table["b"].tolist() == [2.0, 3.0]
    assert table["c"].tolist() == ["x,y", "1,2,3"]
    assert read_table(tmp_path / "t.csv")["a"].tolist() == ["1,5", "-0,25"]


def test_what_does_not_print_is_removed(tmp_path):
    """Colour codes in a table must not reach the terminal."""
    (tmp_path / "t.csv").write_text('"age\n(years)","\x1b[31mc"\n1,\x1b]0;title\x07u\0\n2,v\n')
    table = read_table(tmp_path / "t.csv")
    assert list(table) == ["age (years)", "[31mc"]
    assert table["[31mc"].tolist() == ["]0;title u", "v"]


def test_missing_entries_and_spaces(tmp_path):
    cells = sorted(MISSING)
    lines = [f"{cell}, {cell} ,v" for cell in cells] + ["1.5, u ,w", "", "-2e3,v,1_0"]
    (tmp_path / "t.csv").write_text("x, c ,code\n" + "\n".join(lines))
    table = read_table(tmp_path / "t.csv")
    assert np.isnan(table["x"][: len(cells)]).all() and table["x"][len(cells) :].tolist() == [1.5, -2000.0]
    assert table["c"].tolist() == [None] * len(cells) + ["u", "v"]
    assert is_missing(table["c"]).sum() == len(cells)
    assert table["code"].tolist() == ["v"] * len(cells) + ["w", "1_0"]


def test_categories_and_numbers():
    table = {
        "c": np.array(["v", None, "u", "w"], object),
        "region": np.array([10.0, 2.0, 2.0, 30.0]),
        "x": np.array([1.0, np.nan, 3.0, 8.0]),
        "same": np.full(4, 7.0),
    }
    features = encode_features(table, ["x", "c", "region", "same"], categorical=["region"])
    assert features.names == ("x", "c=v", "c=w", "region=10", "region=30")
    assert features.constant == ("same",)
    sd = np.std([1.0, 3.0, 8.0])
    expected = [
        [(1 - 4) / sd, 1, 0, 1, 0],
        [np.nan, np.nan, np.nan, 0, 0],
        [(3 - 4) / sd, 0, 0, 0, 0],
        [(8 - 4) / sd, 0, 1, 0, 1],
    ]
    np.testing.assert_allclose(features.values, expected, rtol=1e-15)
    assert features.columns[1].words == "0/1 for 'v', 'w'; reference 'u'"
    plain = encode_features(table, ["x"], standardise=False)
    np.testing.assert_array_equal(plain.values[:, 0], table["x"])


def test_a_mixed_column_may_be_declared_a_category():
    table = {"ward": np.array(["12", "14A", "12", "9"], object)}
    with pytest.raises(ValueError, match="mixes numbers"):
        encode_features(table, ["ward"])
    assert encode_features(table, ["ward"], categorical=["ward"]).names == ("ward=14A", "ward=9")


@pytest.mark.parametrize(
    ("labels", "positive", "ones"),
    [
        ([0.0, 1.0, 1.0], None, [0, 1, 1]),
        ([2.0, 1.0, 2.0], "1", [0, 1, 0]),
        ([2.0, 1.0, 2.0], "1.0", [0, 1, 0]),
        (["b", "m", "b"], None, [0, 1, 0]),
        (["b", "m", "b"], "b", [1, 0, 1]),
        (["u", "v", "w"], "v", [0, 1, 0]),
    ],
)
def test_labels(labels, positive, ones):
    column = np.array(labels, float if isinstance(labels[0], float) else object)
    assert binary_response("y", column, positive).values.tolist() == ones


def texts(*entries):
    return np.array(entries, object)


@pytest.mark.parametrize(
    ("column", "is_one"),
    [
        (texts("2020-01-02", "2021-3-4"), True),
        (texts("1/2/20", None, "13/12/2021"), True),
        (texts("13.12.2021", "1.2.2022"), True),
        (texts("2020-01-01T12:00:00Z", "2020-01-01 12:00:00.5+01:00"), True),
        (texts("12:30", "1:15 pm"), True),
        (texts("3 March 2021", "Nov 16, 2026"), True),
        (np.array([20200131.0, 20200201.0, 20211231.0]), True),
        (texts("a", "2020-01-01"), False),
        (texts("10-12", "13-15"), False),
        (texts("1.5", "2.5"), False),
        (np.array([20200131.0, 20209999.0, 5.0]), False),
        (np.array([1990.0, 1991.0, 1992.0]), False),
    ],
)
def test_dates_are_recognised(column, is_one):
    """All that were 49 indicators, and what only looks alike."""
    assert is_date(column) == is_one
    if is_one:
        with pytest.raises(ValueError, match="'day' holds dates or times .*days since.*--drop.*--categorical"):
            check_quantity("day", column)


def test_seconds_since_1970_are_dates_where_the_name_says_so():
    column = np.array([1.6e9, 1.61e9, 1.62e9])
    assert is_date(column, "created_at") and is_date(1000 * column, "timestamp") and not is_date(column, "salary")


@pytest.mark.parametrize(
    ("name", "column", "is_one"),
    [
        ("id", 7.0 * np.arange(5), True),
        ("patient_id", np.array([1.0, 1.0, 2.0, 3.0]), True),
        ("patientID", np.arange(5.0), True),
        ("Unnamed: 0", np.arange(5.0), True),
        ("row", np.arange(1.0, 31.0)[::-1], True),
        ("time", np.arange(1.0, 31.0), False),  # a trend
        ("year", 1990 + np.arange(30.0), False),
        ("income", 1000.0 + np.arange(30.0) ** 2, False),
        ("paid", np.arange(5.0), False),
        ("has_id", np.array([0.0, 1.0, 1.0, 0.0]), False),
        ("bid", np.array([1.5, 2.5, 7.0]), False),
    ],
)
def test_identifiers_are_recognised(name, column, is_one):
    if is_one:
        with pytest.raises(ValueError, match=f"'{name}' .*an identifier.*--drop.*--categorical.*--columns"):
            check_quantity(name, column)
    else:
        check_quantity(name, column)


def test_percentages_are_numbers_and_it_is_said():
    column = texts("12%", "3.5 %", None, "-4,5%")
    np.testing.assert_array_equal(percent_numbers(column), [12, 3.5, np.nan, -4.5])
    assert percent_numbers(texts("12%", "3")) is None and percent_numbers(np.arange(3.0)) is None
    features = encode_features({"rate": column[:2]}, ["rate"], standardise=False)
    assert features.names == ("rate",) and features.values[:, 0].tolist() == [12, 3.5]
    assert features.columns[0].words == "as it is; x in percent, 12% is 12"
    assert encode_features({"rate": column[:2]}, ["rate"], categorical=["rate"]).names == ("rate=3.5 %",)


def test_an_encoding_says_the_same_of_new_tables():
    """The rows of the fit, shuffled, have the features that they had; through JSON, and with columns to spare."""
    rng = np.random.default_rng(0)
    table = {
        "x": np.array([1.0, np.nan, 3.0, 8.0, 9.0]),
        "code": np.array([10.0, 2.0, 2.0, 30.0, np.nan]),
        "c": texts("v", None, "u", "007", "u"),
        "rate": texts("1%", "2%", "4%", None, "9%"),
    }
    found = encode_features(table, list(table), categorical=["code", "c"])
    encoding = TableEncoding(found.columns, "y", ("no", "yes"), 1.5, 2.0, ("id",), True)
    again = TableEncoding.from_dict(json.loads(json.dumps(encoding.to_dict())))
    assert again == encoding and again.feature_names == found.names
    order = rng.permutation(5)
    new = {name: column[order] for name, column in reversed(table.items())} | {"other": np.zeros(5)}
    np.testing.assert_array_equal(again.encode(new), found.values[order])
    np.testing.assert_array_equal(again.encode(new | {"code": texts("2", "2.0", "10", "30", None)})[:2, 1:3], 0)
    for message, change in {
        "no column 'x', 'c', which the fit needs: its columns are": None,
        "'c' has the level 'w' in row 2, which the fit has not seen: its levels are '007', 'u', 'v'": {
            "c": texts("u", "w", "u", "u", "u")
        },
        "'x' must hold numbers, as in the fit, not 'much'": {"x": texts("1", "much", "2", "3", "4")},
        "'x' must hold numbers, as in the fit, not '1%'": {"x": texts("1%", "2%", "2%", "3%", "4%")},
        "'x' has infinite entries": {"x": np.array([1.0, np.inf, 1.0, 1.0, 1.0])},
    }.items():
        broken = {"code": new["code"], "rate": new["rate"]} if change is None else new | change
        with pytest.raises(ValueError, match=message):
            again.encode(broken)


def test_dates_ids_and_percentages_on_the_command_line(provi, write):
    """Before, the dates were indicators, the percentages too, and the number of the row a covariate."""
    rng = np.random.default_rng(0)
    lines = ["id,day,rate,x,y"] + [
        f"{i + 1},2026-0{1 + i % 9}-{10 + i % 3},{i % 7}%,{rng.normal():.3f},{i % 2}" for i in range(30)
    ]
    source = write("data.csv", "\n".join(lines))
    words = ("fit", source, "--target", "y", "--model", "logistic")
    for drop, message in (((), "'id' is called an id"), (("--drop", "id"), "'day' holds dates or times")):
        result = provi(*words, *drop)
        assert result.exit_code == 2 and message in result.stderr
    result = provi(*words, "--drop", "id,day", "--json")
    assert result.exit_code == 0, result.stderr
    encoding = json.loads(result.stdout)["data"]["encoding"]
    assert [(row["column"], row["percent"]) for row in encoding] == [("rate", True), ("x", False)]
    named = json.loads(provi(*words, "--columns", "id,x", "--json").stdout)
    assert [row["column"] for row in named["data"]["encoding"]] == ["id", "x"]
    assert "x in percent, 12% is 12" in provi(*words, "--drop", "id,day").stdout
