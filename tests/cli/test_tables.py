"""Tables from text files, and their encoding."""

import csv
import gzip

import numpy as np
import pytest

from provi.data.encoding import binary_response, encode_features
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
