"""Tables from Parquet files."""

import json
from decimal import Decimal

import numpy as np
import pytest

from provi.data.tables import read_table

pyarrow = pytest.importorskip("pyarrow")


def save(path, **columns):
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_kinds_of_columns(tmp_path):
    table = read_table(
        save(
            tmp_path / "t.parquet",
            whole=pyarrow.array([1, None, 3]),
            real=pyarrow.array([0.5, np.nan, None]),
            huge=pyarrow.array([2**60 + 1, 2, 3]),
            flag=[True, False, None],
            text=["u", None, "w"],
            category=pyarrow.array(["a", "b", "a"]).dictionary_encode(),
            day=pyarrow.array([1, 2, None], pyarrow.date32()),
            empty=pyarrow.nulls(3),
            exact=pyarrow.array([Decimal("0.25"), Decimal("-1.5"), Decimal("3")]),
            half=pyarrow.array(np.array([0.5, 1.5, 2.0], np.float16)),
        )
    )
    np.testing.assert_array_equal(table["whole"], [1, np.nan, 3])
    np.testing.assert_array_equal(table["real"], [0.5, np.nan, np.nan])
    assert table["huge"][0] == 2.0**60
    assert table["flag"].tolist() == ["True", "False", None]
    assert table["text"].tolist() == ["u", None, "w"]
    assert table["category"].tolist() == ["a", "b", "a"]
    assert table["day"].tolist() == ["1970-01-02", "1970-01-03", None]
    assert np.isnan(table["empty"]).all()
    assert table["exact"].tolist() == [0.25, -1.5, 3.0] and table["half"].tolist() == [0.5, 1.5, 2.0]


def test_parquet_and_csv_give_the_same_fit(provi, patients_csv, patients, tmp_path):
    save(tmp_path / "patients.parquet", **{name: pyarrow.array(column) for name, column in patients.items()})
    words = ("-t", "died", "-m", "logistic", "--drop", "visits,score", "--json")
    one, two = (json.loads(provi("fit", file, *words).stdout) for file in ("patients.parquet", patients_csv))
    assert one["parameters"] == two["parameters"] and one["data"] == two["data"]


def test_damaged_files(provi, write):
    result = provi("fit", write("t.parquet", "no parquet"), "-t", "y", "-m", "gp")
    assert result.exit_code == 2 and "t.parquet is not a Parquet file" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_columns_of_one_name_and_folders_with_equals_signs(tmp_path):
    from pyarrow import parquet

    table = pyarrow.Table.from_arrays([pyarrow.array([1.0]), pyarrow.array([2.0])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="more than one column called 'a'"):
        read_table(tmp_path / "t.parquet")
    (tmp_path / "b=1").mkdir()
    assert list(read_table(save(tmp_path / "b=1" / "t.parquet", a=[1.0]))) == ["a"]


def test_streamed_files_give_the_fit_of_the_whole_table(provi, patients, tmp_path):
    days, times = np.linspace(1, 3, len(patients["age"])), np.arange(len(patients["age"])) % 3
    columns = {name: pyarrow.array(column) for name, column in patients.items()}
    columns |= {"days": pyarrow.array(days), "times": pyarrow.array(times)}
    whole = pyarrow.table(columns)
    save(tmp_path / "whole.parquet", **columns)
    half = whole.num_rows // 2
    for part, rows in enumerate((whole.slice(0, half), whole.slice(half))):
        save(tmp_path / f"part-{part}.parquet", **{name: rows[name] for name in rows.column_names})
    for words in (
        ("-t", "died", "-m", "logistic", "--drop", "visits,score,days,times"),
        ("-t", "visits", "-m", "poisson", "--drop", "died", "--offset", "score", "--exposure", "days")
        + ("--weights", "times"),
    ):
        one, two = (
            json.loads(provi("fit", source, *words, "--json", *more).stdout)
            for source, more in (("whole.parquet", ()), ("part-*.parquet", ("--stream",)))
        )
        assert one["data"] == two["data"] and list(one["priors"]) == list(two["priors"])
        if "--weights" not in words:  # else their last digits are sums in another order
            assert one["priors"] == two["priors"]
        for plain, streamed in zip(one["parameters"], two["parameters"], strict=True):
            assert plain["name"] == streamed["name"]
            assert plain["mean"] == pytest.approx(streamed["mean"], rel=1e-8, abs=1e-10)
        assert two["status"] == "proven"
    refused = provi("fit", "whole.parquet", "-t", "visits", "-m", "linear", "--stream")
    assert refused.exit_code == 2 and "--stream is for --model logistic, poisson" in refused.stderr
