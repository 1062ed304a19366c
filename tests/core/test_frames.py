"""Data frames of pandas, polars and Arrow as numbers: what passes, and what is refused with which words."""

import datetime
import decimal

import numpy as np
import pytest

from provi.core.arguments import as_array
from provi.targets import GaussianProcess, LogisticRegression

VALUES = np.array([[1.5, 1.0, 0.0, 3.0], [2.5, 2.0, 1.0, 4.0], [-3.0, 3.0, 1.0, 5.0]])


def pandas_frames():
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    a, b, c, d = VALUES.T
    plain = pd.DataFrame({"a": a, "b": b.astype(int), "c": c.astype(bool), "d": d})
    dummies = pd.get_dummies(pd.DataFrame({"a": a, "b": b, "d": d, "c": ["u", "v", "v"]}), drop_first=True)
    return {
        "floats, integers and booleans": plain,
        "dummies": dummies[["a", "b", "c_v", "d"]].set_axis(list("abcd"), axis=1),
        "nullable": plain.astype({"a": "Float64", "b": "Int64", "c": "boolean"}),
        "arrow": plain.convert_dtypes(dtype_backend="pyarrow"),
        "objects": plain.astype(object),
        "decimals": plain.assign(b=[decimal.Decimal(int(x)) for x in b]),
        "sparse": plain.assign(c=pd.arrays.SparseArray(c.astype(bool))),
    }


def test_repeated_names_are_numbers_but_no_names_of_coefficients():
    frame = pandas_frames()["floats, integers and booleans"].set_axis(["a", "b", "b", "d"], axis=1)
    np.testing.assert_array_equal(as_array("X", frame, ndim=2), VALUES)
    with pytest.raises(ValueError, match="Two names are 'b'"):
        LogisticRegression(frame, [0, 1, 1])


@pytest.mark.parametrize("kind", list(pandas_frames()))
def test_numbers_of_pandas_frames(kind):
    frame = pandas_frames()[kind]
    np.testing.assert_array_equal(as_array("X", frame, ndim=2), VALUES)
    target = LogisticRegression(frame, [0, 1, 1])
    np.testing.assert_array_equal(np.asarray(target.design), VALUES)
    assert target.names == tuple(frame.columns)
    np.testing.assert_array_equal(np.asarray(GaussianProcess(frame, [0, 1, 1]).inputs), VALUES)


def test_numbers_of_polars_and_arrow():
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    a, b, c, d = VALUES.T
    frame = pl.DataFrame(
        {
            "a": a,
            "b": pl.Series(b.astype(int), dtype=pl.UInt8),
            "c": c.astype(bool),
            "d": pl.Series(d).cast(pl.Decimal(10, 2)),
        }
    )
    for table in (frame, frame.to_arrow(), pa.table({"a": a, "b": b.astype("i4"), "c": c.astype(bool), "d": d})):
        target = LogisticRegression(table, frame["c"])
        np.testing.assert_array_equal(np.asarray(target.design), VALUES)
        assert target.names == ("a", "b", "c", "d")
        np.testing.assert_array_equal(np.asarray(target.response), c)


def test_an_arrow_table_needs_no_other_package():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1.0, 2.0], "b": [True, False]})
    np.testing.assert_array_equal(as_array("X", table), [[1, 1], [2, 0]])
    with pytest.raises(ValueError, match=r"2 of them in column 'b' of X, the first in row 0 of column 'b'"):
        as_array("X", pa.table({"a": [1, 2], "b": pa.array([None, None], pa.float64())}))
    with pytest.raises(ValueError, match="column 'c' of X is a category"):
        as_array("X", pa.table({"c": pa.array(["u", "v"]).dictionary_encode()}))


def test_single_precision_stays():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.float32([1, 2]), "b": [True, False]})
    assert LogisticRegression(frame, [0, 1]).dtype == np.float32
    assert LogisticRegression(frame.assign(c=1.5), [0, 1]).dtype == np.float64


REFUSED = {
    "text": (["u", "v"], r"column 'x' of X holds texts such as 'u'.*get_dummies\(X, columns=\['x'\].*MixedModel"),
    "number as text": (["1.5", "2"], r"holds texts such as '1.5': make them numbers, X\['x'\].astype\(float\)"),
    "dates": ([datetime.date(2020, 1, 1)] * 2, r"column 'x' of X holds dates or times.*dt\.days"),
    "missing object": ([1.0, None], r"1 of them in column 'x' of X, the first in row 1 of column 'x'"),
    "nothing that has a number": ([[1], [2]], "column 'x' of X holds texts such as"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_number_is_refused(case):
    pd = pytest.importorskip("pandas")
    values, message = REFUSED[case]
    frame = pd.DataFrame({"a": [1.0, 2.0], "x": pd.Series(values, dtype=object)})
    with pytest.raises(ValueError, match=message):
        LogisticRegression(frame, [0, 1])


def test_refused_types_of_pandas():
    pd = pytest.importorskip("pandas")
    cases = {
        "is a category": pd.Series([1, 2], dtype="category"),
        "holds dates or times": pd.to_datetime(pd.Series(["2020-01-01", "2021-01-01"])),
        "holds texts such as 'u'": pd.Series(["u", "v"], dtype="string"),
        r"first in row 1 of column 'x'": pd.Series([1, None], dtype="Int64"),
        r"missing, NaN or infinite.*row 0": pd.Series([None, True], dtype="boolean"),
        r"in row 1 of": pd.Series([1.0, None], dtype="double[pyarrow]"),
        r"infinite, 1 of them": pd.Series([1.0, np.inf]),
        "not dtype complex128": pd.Series([1j, 2.0]),
    }
    for message, column in cases.items():
        with pytest.raises(ValueError, match=message):
            LogisticRegression(pd.DataFrame({"x": column}), [0, 1])


def test_refused_types_of_polars():
    pl = pytest.importorskip("polars")
    cases = {
        "is a category": pl.Series(["u", "v"], dtype=pl.Categorical),
        "x' of X is a category": pl.Series(["u", "v"], dtype=pl.Enum(["u", "v"])),
        "holds texts such as 'u'": pl.Series(["u", "v"]),
        "holds dates or times": pl.Series([datetime.date(2020, 1, 1)] * 2),
        "in row 1 of": pl.Series([1, None]),
        "first in row 0 of column": pl.Series([None, True]),
    }
    for message, column in cases.items():
        with pytest.raises(ValueError, match=message):
            LogisticRegression(pl.DataFrame({"x": column}), [0, 1])


def test_objects_that_are_numbers_and_nullable_responses():
    np.testing.assert_array_equal(as_array("X", np.array([[1, True], [2.5, False]], object)), [[1, 1], [2.5, 0]])
    pd = pytest.importorskip("pandas")
    for y in (pd.Series([0, 1], dtype="Int64"), pd.Series([False, True], dtype="boolean"), pd.Categorical([0, 1])):
        np.testing.assert_array_equal(np.asarray(LogisticRegression(np.eye(2), y).response), [0, 1])
    with pytest.raises(ValueError, match="y has entries that are missing, NaN or infinite, 1 of them in y"):
        LogisticRegression(np.eye(2), pd.Series([0, None], dtype="Int64"))


def test_estimators_refuse_by_name():
    pd = pytest.importorskip("pandas")
    from provi.models import GPClassifier, LogisticRegression

    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "ward": ["u", "v", "u"]})
    for model in (LogisticRegression(), GPClassifier()):
        with pytest.raises(ValueError, match="column 'ward' of X holds texts such as 'u'.*get_dummies"):
            model.fit(frame, [0, 1, 1])
        with pytest.raises(ValueError, match="row 1 of column 'a'"):
            model.fit(pd.DataFrame({"a": pd.array([1, None, 2], dtype="Int64")}), [0, 1, 1])
