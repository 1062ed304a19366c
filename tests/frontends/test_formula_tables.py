"""Tables of several kinds give the same arrays; rows with missing entries are left out, and counted."""

import numpy as np
import pandas as pd
import pyarrow
import pytest

from provi.frontends.formula.design import read_design
from provi.frontends.formula.tables import column_names, read_rows

TABLE = {"y": [1.0, 2.0, 3.0, 4.0], "n": [1, 2, 3, 4], "f": ["b", "a", "b", "c"], "k": [True, False, True, False]}


def _kinds():
    polars = pytest.importorskip("polars")
    return {"pandas": pd.DataFrame(TABLE), "polars": polars.DataFrame(TABLE), "arrow": pyarrow.table(TABLE)}


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_all_kinds_of_tables_agree(kind):
    table = pd.DataFrame(TABLE) if kind == "pandas" else pyarrow.table(TABLE) if kind == "arrow" else _kinds()[kind]
    expected = read_design("y ~ n + f + k", {name: np.asarray(column) for name, column in TABLE.items()})
    found = read_design("y ~ n + f + k", table)
    assert found.encoding.names == expected.encoding.names
    np.testing.assert_array_equal(found.fixed, expected.fixed)
    np.testing.assert_array_equal(found.fixed[:, -1], [1, 0, 1, 0])
    assert column_names(table) == list(TABLE)


def test_missing_entries_of_polars():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"y": [1.0, None, 3.0, 4.0], "n": [1, 2, None, 4], "f": ["a", "b", "b", None]})
    rows = read_rows(table, ["y", "n", "f"])
    np.testing.assert_array_equal(rows.kept, [True, False, False, False])
    assert rows.missing == {"y": 1, "n": 1, "f": 1}


def test_the_order_of_a_polars_enum_is_kept():
    polars = pytest.importorskip("polars")
    column = polars.Series("f", ["b", "a", "b", "c"], dtype=polars.Enum(["c", "a", "b"]))
    found = read_design("y ~ f", polars.DataFrame({"y": TABLE["y"], "f": column}))
    assert found.encoding.references == {"f": "c"}


def test_rows_with_missing_entries_are_counted():
    frame = pd.DataFrame({"y": [1.0, 2, np.nan, 4, 5], "x": [1.0, np.nan, np.nan, 3, 4], "unused": [np.nan] * 5})
    rows = read_design("y ~ x", frame).rows
    assert rows.num_dropped == 2 and rows.missing == {"y": 1, "x": 2}
    assert rows.words == "3 rows; 2 rows with missing entries were left out ('y' 1, 'x' 2)"
    np.testing.assert_array_equal(rows.kept, [True, False, False, True, True])


def test_nullable_columns_of_pandas():
    frame = pd.DataFrame(
        {"y": [1.0, 2, 3], "n": pd.array([1, None, 3], "Int64"), "f": pd.array(["a", "b", None], "string")}
    )
    rows = read_rows(frame, ["y", "n", "f"])
    assert rows.kept.tolist() == [True, False, False] and rows.frame["n"].dtype == float


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"y": [], "x": []}, "no rows"),
        ({"y": [np.nan, np.nan], "x": [1.0, 2.0]}, "No row is complete: column 'y' has no entries"),
        ({"y": [1.0, np.nan], "x": [np.nan, 2.0]}, "No row is complete: each has a missing entry"),
        ({"y": [1.0, 2.0], "x": [1.0]}, "different lengths: 'y' 2, 'x' 1"),
        ({"y": [1.0, 2.0], "x": np.ones((2, 2))}, r"'x' must have one number a row; its shape is \(2, 2\)"),
        ({"y": [1.0, 2.0], "x": [1j, 2.0]}, "real numbers"),
        ({"y": [1.0, 2.0], "x": [[1], [2]]}, "one number a row"),
    ],
)
def test_tables_with_something_amiss(data, message):
    with pytest.raises(ValueError, match=message):
        read_design("y ~ x", data)


def test_what_is_no_table():
    with pytest.raises(TypeError, match="a formula needs names"):
        read_design("y ~ x", np.ones((3, 2)))
    with pytest.raises(ValueError, match="There are no data"):
        read_design("y ~ x", None)
    twice = pd.DataFrame(np.ones((2, 2)), columns=["x", "x"]).assign(y=1.0)
    with pytest.raises(ValueError, match="More than one column is called 'x'"):
        read_design("y ~ x", twice)
    with pytest.raises(ValueError, match=r"weights has shape \(3,\), but the data have 4 rows"):
        read_design("y ~ n", TABLE, weights=[1.0, 2, 3])
