"""What a table may take: memory, time, and only files that end."""

import gzip
import os
import resource
import time

import numpy as np
import pytest

from provi.core.frames import repeated_names
from provi.data import convert, encoding, tables


def test_a_bomb_is_refused_after_one_line(tmp_path):
    """200 MB in 200 kB: what is unpacked of it is a line of 64 MiB."""
    file = tmp_path / "bomb.csv.gz"
    with gzip.open(file, "wb", compresslevel=9) as stream:
        for _ in range(20):
            stream.write(b"0" * 10_000_000)
    assert file.stat().st_size < 400_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="a line of more than 64 MiB"):
        tables.read_table(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 350 * 1024  # kB; of text as it is read


def test_rows_beyond_half_of_the_free_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    file = tmp_path / "rows.csv.gz"
    with gzip.open(file, "wb") as stream:
        stream.write(b"a,b\n" + b"1,2\n" * 15_000)
    monkeypatch.setattr(tables, "host_bytes", lambda: 2**20)
    with pytest.raises(ValueError, match=r"takes more memory than half of what is free .* (\d+) rows") as raised:
        tables.read_table(file)
    assert int(str(raised.value).split("of which ")[1].split()[0]) < 3000
    monkeypatch.undo()
    assert len(tables.read_table(file)["a"]) == 15_000


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_only_regular_files_are_read(tmp_path, kind):
    file = tmp_path / "endless.csv"
    if kind == "device":
        os.symlink("/dev/zero", file)
    else:
        os.mkfifo(file)
    with pytest.raises(ValueError, match="no regular file"):
        tables.read_table(file)


def test_damage_and_encoding_are_named_with_the_byte(tmp_path):
    file = tmp_path / "x.csv"
    for first in (b"", b"\xef\xbb\xbf"):
        text = first + b"a,b\n" + b"1,2\n" * 5000
        file.write_bytes(text + b"\xff,3\n")
        with pytest.raises(ValueError, match=rf"not UTF-8 text \(byte {len(text)}\)"):
            tables.read_table(file)
    packed = gzip.compress(b"a,b\n" + os.urandom(40).hex().encode() + b",2\n")
    file.write_bytes(packed[:-12])
    with pytest.raises(ValueError, match="damaged gzip"):
        tables.read_table(file)
    file.write_bytes(gzip.compress(b"\n\na,b\n1,2\n") + gzip.compress(b"3,4\n"))
    assert tables.read_table(file)["a"].tolist() == [1.0, 3.0]


def test_names_are_checked_in_time_that_grows_as_their_number(tmp_path):
    """With a count for each name, 40,000 of them took half a minute."""
    names = [f"c{k}" for k in range(40_000)]
    began = time.process_time()
    assert repeated_names([*names, "c3", "c7", "c3"]) == ["c3", "c7"]
    assert time.process_time() - began < 1
    file = tmp_path / "wide.csv"
    file.write_text(f"{','.join(names[:2000])},c7\n{','.join(['1'] * 2001)}\n")
    with pytest.raises(ValueError, match="more than one column called 'c7'"):
        tables.read_table(file)


def test_a_category_that_does_not_fit_is_refused(monkeypatch):
    column = np.array([f"level {k}" for k in range(4000)], object)
    monkeypatch.setattr("provi.core.limits.host_bytes", lambda: 2**27)
    with pytest.raises(ValueError, match="Column 'x' as a category of 4000 levels takes about 0.3 GiB"):
        encoding.encode_features({"x": column}, ["x"], categorical=["x"])


def test_a_parquet_file_of_few_bytes_and_many_rows_is_refused(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "many.parquet"
    parquet.write_table(pyarrow.table({"a": np.zeros(1_000_000, np.int8)}), file)
    assert file.stat().st_size < 10_000
    monkeypatch.setattr("provi.core.limits.host_bytes", lambda: 2**25)
    with pytest.raises(ValueError, match="of 1000000 rows, takes about 0.1 GiB, more than is free"):
        tables.read_table(file)


def test_public_files_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "LARGEST_FILE", 1000)
    file = tmp_path / "images.gz"
    file.write_bytes(gzip.compress(bytes(2000)))
    with pytest.raises(ValueError, match="cannot be unpacked: it has more than"):
        convert.read_idx(file)
